//! The ported model in float64: the evaluator on the very weights that the device has, dequantized.

use super::{Computed, Part, Ported};
use mica_models::eval::{self, Data, Tensor};
use mica_models::hir::{Dtype, Function, Node, Op, ParamKind, ValueId};
use mica_models::stack::Part as Place;
use mica_quantize::Dequantized;
use std::collections::BTreeMap;

/// Runs all tokens.
///
/// # Panics
/// If the evaluator refuses.
pub fn reference(ported: &Ported, ids: &[i64]) -> Computed {
    forced_reference(ported, ids, None)
}

/// The same with the experts given, `[T, k]` a layer.
///
/// # Panics
/// If the evaluator refuses.
pub fn forced_reference(ported: &Ported, ids: &[i64], experts: Option<&[Vec<i64>]>) -> Computed {
    let mut computed = Computed::default();
    let mut hidden = Vec::new();
    for part in &ported.parts {
        let forced = match (part.place, experts) {
            (Place::Layer(layer), Some(all)) => Some(all[layer].as_slice()),
            _ => None,
        };
        let results = run(part, ids, &hidden, forced);
        hidden = results.get("hidden").cloned().unwrap_or_default();
        computed.file(part.place, results);
    }
    computed
}

/// One part over all tokens: its results, the tokens' one after the other.
fn run(part: &Part, ids: &[i64], hidden: &[f64], forced: Option<&[i64]>) -> BTreeMap<String, Vec<f64>> {
    let weights = Dequantized::new(&part.plan, &part.constants).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::of(part);
    let mut results: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (position, &id) in ids.iter().enumerate() {
        let mut inputs = memory.inputs();
        for param in part.function.params.iter().filter(|p| p.kind == ParamKind::Tensor) {
            let value = match param.name.as_str() {
                "token" => Tensor::scalar(id),
                "pos" => Tensor::scalar(position as i64),
                "hidden" => {
                    let width = hidden.len() / ids.len();
                    Tensor::f64(&[width], hidden[position * width..][..width].to_vec())
                }
                _ => continue,
            };
            inputs.insert(param.name.clone(), value);
        }
        let k = forced.map_or(0, |f| f.len() / ids.len());
        let forced_ids = forced.map(|f| &f[position * k..(position + 1) * k]);
        let options = eval::Options { round: true, forced_ids, ..eval::Options::default() };
        let made = eval::evaluate(&part.function, &inputs, &weights, options);
        for (name, value) in made.unwrap_or_else(|e| panic!("{}: {e}", part.place)) {
            if !memory.keep(&name, &value) {
                results.entry(name).or_default().extend(numbers(value));
            }
        }
    }
    results
}

/// The same model where it rounds to float16 what the device holds in float16: vectors that meet a weight, rows
/// of caches, and 16-bit states.
#[must_use]
pub fn in_float16(ported: &Ported) -> Ported {
    let mut ported = ported.clone();
    for part in &mut ported.parts {
        part.function = rounded(&part.function);
    }
    ported
}

fn rounded(f: &Function) -> Function {
    let mut out =
        Function { name: f.name.clone(), params: f.params.clone(), nodes: Vec::new(), results: Vec::new() };
    let mut moved: Vec<ValueId> = (0..f.params.len() as u32).map(ValueId).collect();
    let push = |out: &mut Function, node: Node| {
        out.nodes.push(node);
        ValueId((out.params.len() + out.nodes.len() - 1) as u32)
    };
    let round = |of: ValueId, like: ValueId, label: &str| Node {
        op: Op::Round { dtype: Dtype::F16 },
        inputs: vec![of],
        types: vec![f.ty(like).clone()],
        label: label.into(),
    };
    for (v, node) in f.values() {
        let mut node = node.clone();
        let (old, label) = (node.inputs.clone(), node.label.clone());
        node.inputs.iter_mut().for_each(|i| *i = moved[i.0 as usize]);
        if node.op == Op::MatMul && is_weight(f, old[0]) {
            node.inputs[1] = push(&mut out, round(node.inputs[1], old[1], &label));
        }
        let mut new = push(&mut out, node);
        if f.results.iter().any(|(name, row)| *row == v && name.ends_with("_row")) {
            new = push(&mut out, round(new, v, &label));
        }
        moved.push(new);
    }
    for (name, v) in &f.results {
        let state = f.params.iter().any(|p| p.name == *name && name != "hidden");
        let new = moved[v.0 as usize];
        let new = match state && f.ty(*v).dtype == Dtype::BF16 {
            true => push(&mut out, round(new, *v, name)),
            false => new,
        };
        out.results.push((name.clone(), new));
    }
    out
}

fn is_weight(f: &Function, v: ValueId) -> bool {
    match f.node(v) {
        None => f.param(v).is_some_and(|p| p.kind == ParamKind::Const),
        Some(n) => n.op == Op::IndexSelect && is_weight(f, n.inputs[0]),
    }
}

fn numbers(tensor: Tensor) -> Vec<f64> {
    match tensor.data {
        Data::F64(values) => values,
        Data::I64(values) => values.into_iter().map(|v| v as f64).collect(),
    }
}

/// What passes from one token to the next: states, and a row a token of each cache.
struct Memory {
    states: BTreeMap<String, Tensor>,
    caches: BTreeMap<String, Cache>,
}

/// `[heads, positions, dim]`, kept as a row `[heads][dim]` a position.
struct Cache {
    heads: usize,
    dim: usize,
    rows: Vec<Vec<f64>>,
}

impl Memory {
    fn of(part: &Part) -> Memory {
        let mut memory = Memory { states: BTreeMap::new(), caches: BTreeMap::new() };
        for param in part.function.params.iter().filter(|p| p.kind == ParamKind::Tensor && p.name != "hidden")
        {
            let dim = |axis: usize| param.ty.shape[axis].known().expect("a known dimension") as usize;
            if param.name.ends_with("_cache") {
                memory
                    .caches
                    .insert(param.name.clone(), Cache { heads: dim(0), dim: dim(2), rows: Vec::new() });
            } else if part.function.results.iter().any(|(name, _)| *name == param.name) {
                let shape: Vec<usize> = (0..param.ty.shape.len()).map(dim).collect();
                memory.states.insert(param.name.clone(), Tensor::zeros(&shape));
            }
        }
        memory
    }

    fn inputs(&self) -> BTreeMap<String, Tensor> {
        let mut inputs = self.states.clone();
        for (name, Cache { heads, dim, rows }) in &self.caches {
            let row = |head: usize| rows.iter().flat_map(move |row| &row[head * dim..(head + 1) * dim]);
            let data: Vec<f64> = (0..*heads).flat_map(row).copied().collect();
            inputs.insert(name.clone(), Tensor::f64(&[*heads, rows.len(), *dim], data));
        }
        inputs
    }

    /// Keeps a result that the next token is given; false for any other.
    fn keep(&mut self, name: &str, value: &Tensor) -> bool {
        if let Some(state) = self.states.get_mut(name) {
            *state = value.clone();
            return true;
        }
        let cache = name.strip_suffix("_row").and_then(|name| self.caches.get_mut(&format!("{name}_cache")));
        match cache {
            Some(cache) => cache.rows.push(value.as_f64().expect("a row of real numbers").to_vec()),
            None => return false,
        }
        true
    }
}
