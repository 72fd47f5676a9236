//! The ported model in float64: the evaluator on the very weights that the device has, dequantized.

use super::{Computed, Part, Ported};
use mica_models::eval::{self, Data, Tensor};
use mica_models::hir::ParamKind;
use mica_quantize::Dequantized;
use std::collections::BTreeMap;

/// Runs all tokens.
///
/// # Panics
/// If the evaluator refuses.
pub fn reference(ported: &Ported, ids: &[i64]) -> Computed {
    let mut computed = Computed::default();
    let mut hidden = Vec::new();
    for part in &ported.parts {
        let results = run(part, ids, &hidden);
        hidden = results.get("hidden").cloned().unwrap_or_default();
        computed.file(part.place, results);
    }
    computed
}

/// One part over all tokens: its results, the tokens' one after the other.
fn run(part: &Part, ids: &[i64], hidden: &[f64]) -> BTreeMap<String, Vec<f64>> {
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
        let made = eval::evaluate(&part.function, &inputs, &weights, eval::Options::default());
        for (name, value) in made.unwrap_or_else(|e| panic!("{}: {e}", part.place)) {
            if !memory.keep(&name, &value) {
                results.entry(name).or_default().extend(numbers(value));
            }
        }
    }
    results
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
