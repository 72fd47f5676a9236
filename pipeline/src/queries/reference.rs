//! References: the float64 evaluator on the very weights that the device runs on, dequantized.

use super::source::{self, function};
use super::{Db, ModelInput, Result, blob, need, output, planned, quantized, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::Job;
use mica_cache::{Blob, Recipe};
use mica_models::eval::{self, Data, Tensor};
use mica_quantize::Dequantized;
use std::collections::BTreeMap;

/// A part's reference over a block: its per-call results by name (float64 or int64, little-endian),
/// `state.NAME` after the last call, and `rows.NAME` appended to each cache.
#[salsa::tracked(returns(clone))]
pub fn referenced(db: &dyn Db, model: ModelInput, part: usize, block: usize) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Reference(part, block))?;
    let (function, function_digest) = need(&target, function(db, model, part))?;
    let segment = need(&target, quantized(db, model, part))?.digest("segment");
    let plan = need(&target, planned(db, model, part))?;
    let (first, tokens) = model.run(db).span(block);
    let mut recipe = Recipe::new("reference", eval::NUMERICS_VERSION)
        .param("first", first)
        .param("tokens", tokens)
        .input("function", function_digest)
        .input("plan", plan.digest)
        .input("constants", segment);
    let below = match part {
        0 => None,
        _ => {
            let below = need(&target, referenced(db, model, part - 1, block))?;
            recipe = recipe.input("hidden", below.digest("hidden"));
            Some(below)
        }
    };
    let ids = need(&target, source::token_ids(db, model))?;
    if part == 0 {
        recipe = recipe.input("ids", ids.digest);
    }
    let mut earlier = Vec::new();
    for b in 0..block {
        let e = need(&target, referenced(db, model, part, b))?;
        for o in e.outputs() {
            let state = o.name.starts_with("state.") && b + 1 == block;
            if state || o.name.starts_with("rows.") {
                recipe = recipe.input(&format!("{} of block {b}", o.name), o.digest);
            }
        }
        earlier.push(e);
    }
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let segment = blob(env, segment)?;
        let weights = Dequantized::new(&plan.plan, &segment).map_err(BodyError::stage)?;
        let hidden = below.map(|b| output(env, &b, "hidden")).transpose()?.map(|b| floats(&b));
        let mut carried = Carried::new(&function);
        for (b, e) in earlier.iter().enumerate() {
            for o in e.outputs() {
                if let Some(name) = o.name.strip_prefix("state.").filter(|_| b + 1 == block) {
                    carried.seed(name, &blob(env, o.digest)?);
                } else if let Some(name) = o.name.strip_prefix("rows.") {
                    carried.append(name, &floats(&blob(env, o.digest)?));
                }
            }
        }
        carried.new_rows.clear();
        let mut outputs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for t in 0..tokens {
            let mut inputs = carried.inputs();
            for p in function.params.iter().filter(|p| p.kind == mica_models::hir::ParamKind::Tensor) {
                let value = match p.name.as_str() {
                    "token" => Tensor::scalar(ids.ids[(first + t) as usize]),
                    "pos" => Tensor::scalar((first + t) as i64),
                    "hidden" => {
                        let all = hidden.as_deref().unwrap_or_default();
                        let n = all.len() / tokens as usize;
                        Tensor::f64(&[n], all[t as usize * n..(t as usize + 1) * n].to_vec())
                    }
                    _ => continue,
                };
                inputs.insert(p.name.clone(), value);
            }
            let results = eval::evaluate(&function, &inputs, &weights, eval::Options { round: true, ..eval::Options::default() })
                .map_err(BodyError::stage)?;
            for (name, value) in results {
                if !carried.take(&name, &value) {
                    outputs.entry(name).or_default().extend(bytes(&value));
                }
            }
        }
        let mut made = Produced::default();
        for (name, bytes) in &outputs {
            made.put(env, name, bytes)?;
        }
        for (name, state) in &carried.states {
            made.put(env, &format!("state.{name}"), &bytes(state))?;
        }
        for (name, rows) in &carried.new_rows {
            let rows: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
            made.put(env, &format!("rows.{name}"), &rows)?;
        }
        Ok(made)
    })
}

/// States and caches between the calls of a reference, by the same names as on the device's edges.
struct Carried {
    states: BTreeMap<String, Tensor>,
    /// `[heads, positions, dim]`: heads and dim, then the rows `[positions][heads][dim]` so far.
    caches: BTreeMap<String, ([usize; 2], Vec<f64>)>,
    /// Rows of this block alone.
    new_rows: BTreeMap<String, Vec<f64>>,
}

impl Carried {
    /// Zero states and empty caches of a part's function.
    fn new(function: &mica_models::hir::Function) -> Carried {
        let mut c = Carried { states: BTreeMap::new(), caches: BTreeMap::new(), new_rows: BTreeMap::new() };
        for p in &function.params {
            if p.name.ends_with("_cache") {
                let dim = |i: usize| p.ty.shape[i].known().unwrap_or_default() as usize;
                c.caches.insert(p.name.clone(), ([dim(0), dim(2)], Vec::new()));
            } else if p.name != "hidden" && function.results.iter().any(|(n, _)| *n == p.name) {
                let shape: Vec<usize> =
                    p.ty.known_shape().unwrap_or_default().iter().map(|&n| n as usize).collect();
                let zeros = vec![0.0; shape.iter().product()];
                c.states.insert(p.name.clone(), Tensor { shape, data: Data::F64(zeros) });
            }
        }
        c
    }

    fn seed(&mut self, name: &str, blob: &Blob) {
        if let Some(t) = self.states.get_mut(name) {
            t.data = Data::F64(floats(blob));
        }
    }

    fn append(&mut self, cache: &str, rows: &[f64]) {
        if let Some((_, all)) = self.caches.get_mut(cache) {
            all.extend(rows);
            self.new_rows.entry(cache.into()).or_default().extend(rows);
        }
    }

    /// States and caches as the next call's inputs.
    fn inputs(&self) -> BTreeMap<String, Tensor> {
        let mut inputs = self.states.clone();
        for (name, ([heads, dim], rows)) in &self.caches {
            let positions = rows.len() / (heads * dim);
            let mut data = Vec::with_capacity(rows.len());
            for h in 0..*heads {
                for p in 0..positions {
                    let at = (p * heads + h) * dim;
                    data.extend(&rows[at..at + dim]);
                }
            }
            let shape = vec![*heads, positions, *dim];
            inputs.insert(name.clone(), Tensor { shape, data: Data::F64(data) });
        }
        inputs
    }

    /// Keeps a result that is a state or rows; false where it is neither.
    fn take(&mut self, name: &str, value: &Tensor) -> bool {
        if let Some(state) = self.states.get_mut(name) {
            *state = value.clone();
            return true;
        }
        let Some(cache) = name.strip_suffix("_row").map(|n| format!("{n}_cache")) else { return false };
        match &value.data {
            Data::F64(rows) => self.append(&cache, rows),
            Data::I64(_) => return false,
        }
        true
    }
}

/// A tensor's elements, little-endian.
pub fn bytes(t: &Tensor) -> Vec<u8> {
    match &t.data {
        Data::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// Float64 elements of a blob.
pub fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<8>().0.iter().map(|c| f64::from_le_bytes(*c)).collect()
}

/// Int64 elements of a blob.
pub fn integers(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks::<8>().0.iter().map(|c| i64::from_le_bytes(*c)).collect()
}
