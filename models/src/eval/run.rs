//! Evaluates a flattened function node by node.
//!
//! Weights are read only where a node needs them: a weight times a vector in blocks of rows, a gathered
//! weight (experts, embedding) only at the gathered rows.

use super::angles::Angles;
use super::error::EvalError;
use super::tensor::{Data, Tensor};
use super::weights::Weights;
use crate::hir::ops::{self, index, matmul};
use crate::hir::{Function, Node, Op, Param, ParamKind, Type};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Called with each node that has a tensor value, and the value, in order.
pub type Trace<'a> = &'a mut (dyn FnMut(&Node, &Tensor) + 'a);

/// How to evaluate.
#[derive(Default)]
pub struct Options<'a> {
    /// Indices that every top-k takes instead of choosing; its values are gathered there.
    pub forced_ids: Option<&'a [i64]>,
    /// Whether `Op::Round` rounds. By default values stay float64.
    pub round: bool,
    /// The angles of `Op::Rope`. By default exact ones.
    pub angles: Angles<'a>,
    /// Sees every value.
    pub trace: Option<Trace<'a>>,
}

enum Value {
    Tensor(Arc<Tensor>),
    Tuple(Vec<Arc<Tensor>>),
    /// The weight of this parameter, unread.
    Weight(usize),
    /// Rows of axis 0 of the weight of a parameter, unread.
    Gathered {
        param: usize,
        ids: Vec<usize>,
    },
    /// A value after its last use.
    Gone,
}

/// The results of `function` by name. `inputs` are its activations by name, all of them and no others.
///
/// # Errors
/// Inputs that do not fit, weights that are missing or of a wrong size, an index out of range, a cache window
/// that does not fit, a call that was not flattened.
pub fn evaluate(
    function: &Function,
    inputs: &BTreeMap<String, Tensor>,
    weights: &dyn Weights,
    mut options: Options<'_>,
) -> Result<BTreeMap<String, Tensor>, EvalError> {
    let dims = check_inputs(function, inputs)?;
    let mut run = Run {
        function,
        weights,
        dims,
        mode: ops::Mode { round: options.round, forced_ids: options.forced_ids, angles: options.angles },
        values: Vec::with_capacity(function.params.len() + function.nodes.len()),
    };
    for (i, p) in function.params.iter().enumerate() {
        run.values.push(match p.kind {
            ParamKind::Const => Value::Weight(i),
            ParamKind::Tensor => Value::Tensor(Arc::new(inputs[&p.name].clone())),
        });
    }
    let last_use = last_uses(function);
    for (i, node) in function.nodes.iter().enumerate() {
        let value = run.node(node)?;
        if let (Value::Tensor(t), Some(trace)) = (&value, &mut options.trace) {
            trace(node, t);
        }
        run.values.push(value);
        for v in &node.inputs {
            if last_use[v.0 as usize] == i && v.0 as usize >= function.params.len() {
                run.values[v.0 as usize] = Value::Gone;
            }
        }
    }
    function
        .results
        .iter()
        .map(|(name, v)| Ok((name.clone(), run.tensor(v.0 as usize)?.as_ref().clone())))
        .collect()
}

/// The last node that reads each value; a result is read after all of them.
fn last_uses(function: &Function) -> Vec<usize> {
    let mut last = vec![usize::MAX; function.params.len() + function.nodes.len()];
    for (i, node) in function.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|v| last[v.0 as usize] = i);
    }
    function.results.iter().for_each(|(_, v)| last[v.0 as usize] = usize::MAX);
    last
}

/// Checks inputs against the activations' types, as `evaluate` does, and gives the open dimensions' values.
/// A twin checks its inputs by the same rule.
///
/// # Errors
/// An input that is missing, unknown, or of a wrong shape or element kind.
pub fn check_inputs(
    function: &Function,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, usize>, EvalError> {
    let names: Vec<&str> = function.activations().map(|p| p.name.as_str()).collect();
    if let Some(name) = inputs.keys().find(|n| !names.contains(&n.as_str())) {
        return Err(EvalError::UnknownInput {
            function: function.name.clone(),
            name: name.clone(),
            expected: names.join(", "),
        });
    }
    let mut dims = BTreeMap::new();
    for p in function.activations() {
        let tensor = inputs.get(&p.name).ok_or_else(|| EvalError::MissingInput {
            function: function.name.clone(),
            name: p.name.clone(),
            expected: p.ty.to_string(),
        })?;
        fit(p, tensor, &mut dims).map_err(|expected| EvalError::WrongInput {
            function: function.name.clone(),
            name: p.name.clone(),
            found: describe(tensor),
            expected,
        })?;
    }
    Ok(dims)
}

/// Checks a tensor against a type without open dimensions; the error is what the tensor is.
pub(super) fn check_tensor(ty: &Type, t: &Tensor) -> Result<(), String> {
    let shape: Vec<u64> = t.shape.iter().map(|&n| n as u64).collect();
    let kind = ty.dtype.is_float() == matches!(t.data, Data::F64(_));
    match kind && ty.known_shape() == Some(shape) {
        true => Ok(()),
        false => Err(describe(t)),
    }
}

fn describe(t: &Tensor) -> String {
    let kind = match t.data {
        Data::F64(_) => "real",
        Data::I64(_) => "integer",
    };
    format!("{kind}{:?}", t.shape)
}

fn fit(p: &Param, t: &Tensor, dims: &mut BTreeMap<String, usize>) -> Result<(), String> {
    let plain = || p.ty.to_string();
    if p.ty.dtype.is_float() != matches!(t.data, Data::F64(_)) || p.ty.shape.len() != t.shape.len() {
        return Err(plain());
    }
    for (dim, &n) in p.ty.shape.iter().zip(&t.shape) {
        let Some(var) = &dim.var else {
            match dim.plus == n as u64 {
                true => continue,
                false => return Err(plain()),
            }
        };
        let value = (n as u64)
            .checked_sub(dim.plus)
            .filter(|v| (var.lo..var.hi).contains(v))
            .ok_or_else(|| format!("{} with {} in {}..{}", p.ty, var.name, var.lo, var.hi))?;
        let bound = *dims.entry(var.name.clone()).or_insert(value as usize);
        if bound != value as usize {
            return Err(format!("{} with {} = {bound} as in an input before it", p.ty, var.name));
        }
    }
    Ok(())
}

struct Run<'a> {
    function: &'a Function,
    weights: &'a dyn Weights,
    dims: BTreeMap<String, usize>,
    mode: ops::Mode<'a>,
    values: Vec<Value>,
}

impl Run<'_> {
    fn node(&self, node: &Node) -> Result<Value, EvalError> {
        match (&node.op, node.inputs.first().map(|v| &self.values[v.0 as usize])) {
            (Op::TupleGet { index }, Some(Value::Tuple(elements))) => {
                return Ok(Value::Tensor(elements[*index].clone()));
            }
            (Op::IndexSelect, Some(&Value::Weight(param))) => {
                let n = self.weight_shape(param)?.first().copied().unwrap_or(0);
                let ids = self.tensor(node.inputs[1].0 as usize)?;
                let ids = ids.integers().iter().map(|&i| index::in_range(i, n)).collect::<Result<_, _>>();
                let ids = ids.map_err(|e| self.fault(node, e))?;
                return Ok(Value::Gathered { param, ids });
            }
            (Op::MatMul, Some(Value::Weight(_) | Value::Gathered { .. })) => {
                if let Some(product) = self.weight_times_vector(node)? {
                    return Ok(Value::Tensor(Arc::new(product)));
                }
            }
            _ => {}
        }
        let operands: Vec<Arc<Tensor>> =
            node.inputs.iter().map(|v| self.tensor(v.0 as usize)).collect::<Result<_, _>>()?;
        let operands: Vec<&Tensor> = operands.iter().map(Arc::as_ref).collect();
        let shape = self.shape(&node.types[0]);
        let mut results =
            ops::evaluate(&node.op, &operands, &shape, &self.mode).map_err(|e| self.fault(node, e))?;
        Ok(match results.len() {
            1 => Value::Tensor(Arc::new(results.remove(0))),
            _ => Value::Tuple(results.into_iter().map(Arc::new).collect()),
        })
    }

    fn fault(&self, node: &Node, expected: String) -> EvalError {
        EvalError::Op {
            function: self.function.name.clone(),
            op: node.op.name(),
            label: node.label.clone(),
            expected,
        }
    }

    fn shape(&self, ty: &Type) -> Vec<usize> {
        let number = |d: &crate::hir::Dim| d.var.as_ref().map_or(0, |v| self.dims[&v.name]) + d.plus as usize;
        ty.shape.iter().map(number).collect()
    }

    fn weight_shape(&self, param: usize) -> Result<Vec<usize>, EvalError> {
        let p = &self.function.params[param];
        match p.ty.known_shape() {
            Some(shape) => Ok(shape.into_iter().map(|n| n as usize).collect()),
            None => Err(EvalError::WeightType {
                name: p.name.clone(),
                found: p.ty.to_string(),
                expected: "a weight without open dimensions".to_string(),
            }),
        }
    }

    /// A value as a tensor; a weight is read here.
    fn tensor(&self, value: usize) -> Result<Arc<Tensor>, EvalError> {
        match &self.values[value] {
            Value::Tensor(t) => Ok(t.clone()),
            Value::Tuple(elements) => Ok(elements[0].clone()),
            Value::Weight(param) => {
                let shape = self.weight_shape(*param)?;
                let name = &self.function.params[*param].name;
                let data = sized(name, self.weights.tensor(name)?, shape.iter().product())?;
                Ok(Arc::new(Tensor::f64(&shape, data.into_owned())))
            }
            Value::Gathered { param, ids } => {
                let row = self.weight_shape(*param)?[1..].iter().product();
                let data = self.rows(*param, ids, row)?.into_owned();
                let v = crate::hir::ValueId(value as u32);
                Ok(Arc::new(Tensor::f64(&self.shape(self.function.ty(v)), data)))
            }
            Value::Gone => unreachable!("a value is kept until its last use"),
        }
    }

    fn rows(&self, param: usize, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let name = &self.function.params[param].name;
        sized(name, self.weights.rows(name, rows, row_len)?, rows.len() * row_len)
    }

    /// A weight or gathered weight times a vector (or one column a gathered matrix) without holding the
    /// weight; `None` for other shapes.
    fn weight_times_vector(&self, node: &Node) -> Result<Option<Tensor>, EvalError> {
        let (param, ids) = match &self.values[node.inputs[0].0 as usize] {
            Value::Weight(param) => (*param, None),
            Value::Gathered { param, ids } => (*param, Some(ids)),
            _ => return Ok(None),
        };
        let shape = self.weight_shape(param)?;
        let x = self.tensor(node.inputs[1].0 as usize)?;
        let Some((&k, outer)) = shape.split_last() else {
            return Ok(None);
        };
        // Rows of one matrix, and how many matrices there are.
        let (rows, matrices) = match ids {
            None => (outer.iter().product::<usize>(), 1),
            Some(ids) => (outer[1..].iter().product(), ids.len()),
        };
        let shared = x.shape == [k];
        let column_each = ids.is_some() && shape.len() == 3 && x.shape == [matrices, k, 1];
        if !(shared || column_each) || (ids.is_none() && outer.is_empty()) {
            return Ok(None);
        }
        let fetch = |range: std::ops::Range<usize>| {
            let place = |r| ids.map_or(r, |ids| ids[r / rows] * rows + r % rows);
            self.rows(param, &range.map(place).collect::<Vec<_>>(), k)
        };
        let vector = |r: usize| match shared {
            true => 0..k,
            false => r / rows * k..(r / rows + 1) * k,
        };
        let product = matmul::matrix_vector(matrices * rows, k, fetch, vector, x.reals())?;
        Ok(Some(Tensor::f64(&self.shape(&node.types[0]), product)))
    }
}

fn sized<'a>(name: &str, data: Cow<'a, [f64]>, expected: usize) -> Result<Cow<'a, [f64]>, EvalError> {
    match data.len() == expected {
        true => Ok(data),
        false => Err(EvalError::WeightSize { name: name.to_string(), found: data.len(), expected }),
    }
}
