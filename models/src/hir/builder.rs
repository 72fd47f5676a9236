//! Makes a function one operation at a time, with shape and dtype inference at each.
//!
//! Values are numbered in the order in which they are made while building; `finish` renumbers them to the
//! function's order (activations, weights, nodes), so a weight may be declared where it is first used.

use super::error::HirError;
use super::function::{Function, Node, Param, ParamKind, ValueId};
use super::op::{Op, ReduceKind};
use super::ops;
use super::types::{Dim, Dtype, Type};
use std::collections::BTreeMap;

enum Def {
    Param(usize),
    Node(usize),
}

/// A function under construction.
pub struct Builder {
    name: String,
    params: Vec<Param>,
    nodes: Vec<Node>,
    defs: Vec<Def>,
    results: Vec<(String, ValueId)>,
    label: String,
    dims: BTreeMap<String, (u64, u64)>,
    /// The first error of a declaration; `finish` returns it, so that declarations read as plain values.
    deferred: Option<HirError>,
}

impl Builder {
    /// An empty function.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder {
            name: name.into(),
            params: Vec::new(),
            nodes: Vec::new(),
            defs: Vec::new(),
            results: Vec::new(),
            label: String::new(),
            dims: BTreeMap::new(),
            deferred: None,
        }
    }

    /// Declares an activation or a state. A name declared twice and an open dimension whose range
    /// conflicts with an earlier use are errors of `finish`.
    pub fn param(&mut self, name: impl Into<String>, ty: Type) -> ValueId {
        let name = name.into();
        if self.params.iter().any(|p| p.name == name) {
            self.defer(HirError::DuplicateName {
                function: self.name.clone(),
                name: name.clone(),
                what: "parameter",
            });
        }
        self.declare(name, ty, ParamKind::Tensor)
    }

    /// Declares a weight. The same name with the same type is the same value; with another type it is an
    /// error of `finish`.
    pub fn weight(&mut self, name: impl Into<String>, ty: Type) -> ValueId {
        let name = name.into();
        if let Some(i) = self.params.iter().position(|p| p.name == name) {
            let found = &self.params[i];
            if found.kind == ParamKind::Tensor {
                self.defer(HirError::DuplicateName { function: self.name.clone(), name, what: "parameter" });
            } else if found.ty != ty {
                self.defer(HirError::WeightType {
                    function: self.name.clone(),
                    name,
                    first: Box::new(found.ty.clone()),
                    second: Box::new(ty),
                });
            }
            let id = self.defs.iter().position(|d| matches!(d, Def::Param(p) if *p == i));
            return ValueId(id.unwrap_or(0) as u32);
        }
        self.declare(name, ty, ParamKind::Const)
    }

    fn declare(&mut self, name: String, ty: Type, kind: ParamKind) -> ValueId {
        for var in ty.shape.iter().filter_map(|d| d.var.as_ref()) {
            let range = *self.dims.entry(var.name.clone()).or_insert((var.lo, var.hi));
            let expected = if var.lo >= var.hi {
                "a range that is not empty".to_string()
            } else if range != (var.lo, var.hi) {
                format!("{}..{} as in its first use", range.0, range.1)
            } else {
                continue;
            };
            self.defer(HirError::Dim {
                function: self.name.clone(),
                name: var.name.clone(),
                lo: var.lo,
                hi: var.hi,
                expected,
            });
        }
        self.params.push(Param { name, ty, kind });
        self.value(Def::Param(self.params.len() - 1))
    }

    fn defer(&mut self, error: HirError) {
        self.deferred.get_or_insert(error);
    }

    fn value(&mut self, def: Def) -> ValueId {
        self.defs.push(def);
        ValueId(self.defs.len() as u32 - 1)
    }

    /// Runs `body` with `label` appended to the current label path.
    pub fn label<T>(&mut self, label: &str, body: impl FnOnce(&mut Builder) -> T) -> T {
        let outer = self.label.clone();
        self.label = join(&outer, label);
        let result = body(self);
        self.label = outer;
        result
    }

    /// The type of a value (of a tuple, its first element).
    ///
    /// # Panics
    /// If this builder did not make the value.
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.types(v).expect("value of this builder")[0]
    }

    fn types(&self, v: ValueId) -> Option<&[Type]> {
        Some(match self.defs.get(v.0 as usize)? {
            Def::Param(i) => std::slice::from_ref(&self.params[*i].ty),
            Def::Node(i) => &self.nodes[*i].types,
        })
    }

    fn operand_types(&self, op: &'static str, inputs: &[ValueId]) -> Result<Vec<Vec<Type>>, HirError> {
        let unknown = |v: &ValueId| HirError::UnknownValue {
            function: self.name.clone(),
            op,
            label: self.label.clone(),
            value: v.0,
            known: self.defs.len(),
        };
        inputs.iter().map(|v| self.types(*v).map(<[Type]>::to_vec).ok_or_else(|| unknown(v))).collect()
    }

    /// Adds an operation; its result's types follow from its operands'.
    ///
    /// # Errors
    /// `HirError::Op` with the operand types and what the operation expects.
    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, HirError> {
        let operands = self.operand_types(op.name(), inputs)?;
        let types = ops::infer(&op, &operands).map_err(|expected| HirError::Op {
            function: self.name.clone(),
            op: op.name(),
            label: self.label.clone(),
            operands: print_types(&operands),
            expected,
        })?;
        Ok(self.push(op, inputs, types))
    }

    fn push(&mut self, op: Op, inputs: &[ValueId], types: Vec<Type>) -> ValueId {
        self.nodes.push(Node { op, inputs: inputs.to_vec(), types, label: self.label.clone() });
        self.value(Def::Node(self.nodes.len() - 1))
    }

    /// Calls `callee`, a function of the child at `path` (of this module if empty), with its activations; its
    /// weights are bound by scope. Returns its results, one value each.
    ///
    /// # Errors
    /// A wrong number or type of operands.
    pub fn call(
        &mut self,
        path: &[&str],
        callee: &Function,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, HirError> {
        let expected: Vec<&Param> = callee.activations().collect();
        if expected.len() != inputs.len() {
            return Err(HirError::Arity {
                function: self.name.clone(),
                callee: callee.name.clone(),
                given: inputs.len(),
                expected: expected.len(),
                names: expected.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", "),
            });
        }
        let operands = self.operand_types("call", inputs)?;
        for (operand, param) in operands.iter().zip(&expected) {
            if operand.as_slice() != std::slice::from_ref(&param.ty) {
                return Err(HirError::Op {
                    function: self.name.clone(),
                    op: "call",
                    label: self.label.clone(),
                    operands: print_types(&operands),
                    expected: format!("`{}` of `{}` to be {}", param.name, callee.name, param.ty),
                });
            }
        }
        let types: Vec<Type> = callee.results.iter().map(|(_, v)| callee.ty(*v).clone()).collect();
        let op =
            Op::Call { path: path.iter().map(|s| s.to_string()).collect(), function: callee.name.clone() };
        let count = types.len();
        let tuple = self.push(op, inputs, types);
        if count == 1 {
            return Ok(vec![tuple]);
        }
        (0..count).map(|index| self.op(Op::TupleGet { index }, &[tuple])).collect()
    }

    /// Names a result.
    pub fn result(&mut self, name: impl Into<String>, v: ValueId) {
        let name = name.into();
        if self.results.iter().any(|(n, _)| *n == name) {
            self.defer(HirError::DuplicateName {
                function: self.name.clone(),
                name: name.clone(),
                what: "result",
            });
        }
        self.results.push((name, v));
    }

    /// The function, its values renumbered: activations, then weights in order of first use, then nodes.
    ///
    /// # Errors
    /// The first error of a declaration; a result that no operation made, or that is a tuple.
    pub fn finish(self) -> Result<Function, HirError> {
        if let Some(error) = self.deferred {
            return Err(error);
        }
        for (name, v) in &self.results {
            let operands = self.operand_types("result", &[*v])?;
            if operands[0].len() != 1 {
                return Err(HirError::Op {
                    function: self.name,
                    op: "result",
                    label: name.clone(),
                    operands: print_types(&operands),
                    expected: "one tensor, not a tuple".to_string(),
                });
            }
        }
        let mut first_use = vec![usize::MAX; self.params.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            for v in &node.inputs {
                if let Def::Param(p) = self.defs[v.0 as usize] {
                    first_use[p] = i;
                }
            }
        }
        let (tensors, mut weights): (Vec<usize>, Vec<usize>) =
            (0..self.params.len()).partition(|i| self.params[*i].kind == ParamKind::Tensor);
        weights.sort_by_key(|i| first_use[*i]);
        let sorted = [tensors, weights].concat();
        let mut place = vec![0usize; self.params.len()];
        for (new, &old) in sorted.iter().enumerate() {
            place[old] = new;
        }
        let mut params: Vec<Option<Param>> = self.params.into_iter().map(Some).collect();
        let count = params.len();
        let number = |v: &mut ValueId| {
            *v = ValueId(match self.defs[v.0 as usize] {
                Def::Param(i) => place[i] as u32,
                Def::Node(i) => (count + i) as u32,
            });
        };
        let mut nodes = self.nodes;
        nodes.iter_mut().flat_map(|node| &mut node.inputs).for_each(number);
        let mut results = self.results;
        results.iter_mut().map(|(_, v)| v).for_each(number);
        let params = sorted.iter().filter_map(|&i| params[i].take()).collect();
        Ok(Function { nodes, results, params, name: self.name })
    }
}

/// Short names for the operations that models use most; each is `op` with that operation.
impl Builder {
    /// a + b
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, HirError> {
        self.op(Op::Add, &[a, b])
    }
    /// a − b
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, HirError> {
        self.op(Op::Sub, &[a, b])
    }
    /// a · b, element by element
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, HirError> {
        self.op(Op::Mul, &[a, b])
    }
    /// a / b
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, HirError> {
        self.op(Op::Div, &[a, b])
    }
    /// Matrix product.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, HirError> {
        self.op(Op::MatMul, &[a, b])
    }
    /// An operation of one operand and no attributes (`Op::Exp`, `Op::Silu`, …).
    pub fn unary(&mut self, op: Op, a: ValueId) -> Result<ValueId, HirError> {
        self.op(op, &[a])
    }
    /// `a` in another dtype; `a` itself if it has that dtype already.
    pub fn cast(&mut self, a: ValueId, dtype: Dtype) -> Result<ValueId, HirError> {
        if self.types(a).is_some_and(|t| t.len() == 1 && t[0].dtype == dtype) {
            return Ok(a);
        }
        self.op(Op::Cast { dtype }, &[a])
    }
    /// A tensor like `a` filled with `value`.
    pub fn full_like(&mut self, a: ValueId, value: f64) -> Result<ValueId, HirError> {
        self.op(Op::FullLike { value }, &[a])
    }
    /// `a · value`, the constant as a tensor like `a`.
    pub fn scale(&mut self, a: ValueId, value: f64) -> Result<ValueId, HirError> {
        let c = self.full_like(a, value)?;
        self.mul(a, c)
    }
    /// Sum over an axis.
    pub fn sum(&mut self, a: ValueId, axis: usize, keep: bool) -> Result<ValueId, HirError> {
        let kind = ReduceKind::Sum;
        self.op(Op::Reduce { kind, axis, keep }, &[a])
    }
    /// A range of an axis.
    pub fn slice(&mut self, a: ValueId, axis: usize, start: u64, len: u64) -> Result<ValueId, HirError> {
        self.op(Op::Slice { axis, start, len }, &[a])
    }
    /// Another shape of closed dimensions.
    pub fn reshape(&mut self, a: ValueId, shape: &[u64]) -> Result<ValueId, HirError> {
        let shape = shape.iter().map(|&n| Dim::from(n)).collect();
        self.op(Op::Reshape { shape }, &[a])
    }
    /// Axes permuted.
    pub fn transpose(&mut self, a: ValueId, perm: &[usize]) -> Result<ValueId, HirError> {
        self.op(Op::Transpose { perm: perm.to_vec() }, &[a])
    }
    /// Two tensors one after the other along an axis.
    pub fn concat(&mut self, a: ValueId, b: ValueId, axis: usize) -> Result<ValueId, HirError> {
        self.op(Op::Concat { axis }, &[a, b])
    }
}

/// Joins two label or weight paths with a dot; an empty part adds nothing.
pub(crate) fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", s) | (s, "") => s.to_string(),
        (a, b) => format!("{a}.{b}"),
    }
}

fn print_types(operands: &[Vec<Type>]) -> String {
    let print = |types: &Vec<Type>| match types.as_slice() {
        [one] => one.to_string(),
        many => format!("({})", many.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")),
    };
    operands.iter().map(print).collect::<Vec<_>>().join(", ")
}
