//! References: the float64 evaluator on the very weights that the device runs on, dequantized.

use super::source::{self, Planned};
use super::view::function;
use super::{Db, ModelInput, Result, blob, need, output, planned, quantized, retriable, target, weights_of};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::error::NodeError;
use crate::graph::Job;
use mica_cache::{Blob, Recipe};
use mica_models::decode::Carried;
use mica_models::eval::{self, Data, Tensor};
use mica_models::hir::Function;
use mica_quantize::Dequantized;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A part's reference over a block: its per-call results by name (float64 or int64, little-endian),
/// `state.NAME` after the last call, and `rows.NAME` appended to each cache.
#[salsa::tracked(returns(clone))]
pub fn referenced(db: &dyn Db, model: ModelInput, part: usize, block: usize) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Reference(part, block))?;
    let weights = weights_of(db, model);
    let (function, function_digest) = need(&target, function(db, weights, part))?;
    let segment = need(&target, quantized(db, weights, part))?.digest("segment");
    let plan = need(&target, planned(db, weights, part))?;
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
        recipe = recipe.input("ids", ids.part(first, tokens));
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
                    let values = floats(&blob(env, o.digest)?);
                    let shape = carried.states.get(name).map(|t| t.shape.clone()).unwrap_or_default();
                    carried
                        .seed(name, Tensor { shape, data: Data::F64(values) })
                        .map_err(BodyError::stage)?;
                } else if let Some(name) = o.name.strip_prefix("rows.") {
                    carried.append(name, &floats(&blob(env, o.digest)?)).map_err(BodyError::stage)?;
                }
            }
        }
        let held: BTreeMap<String, usize> =
            carried.caches.iter().map(|(n, c)| (n.clone(), c.rows.len())).collect();
        let mut outputs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for t in 0..tokens {
            let mut own = BTreeMap::new();
            for p in function.activations() {
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
                own.insert(p.name.clone(), value);
            }
            let options = eval::Options { round: true, ..eval::Options::default() };
            let results = carried.step(&function, own, &weights, options).map_err(BodyError::stage)?;
            for (name, value) in results {
                let is_row =
                    name.strip_suffix("_row").is_some_and(|n| held.contains_key(&format!("{n}_cache")));
                if !is_row && !carried.states.contains_key(&name) {
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
        for (name, cache) in &carried.caches {
            let new = &cache.rows[held[name]..];
            let new: Vec<u8> = new.iter().flat_map(|v| v.to_le_bytes()).collect();
            made.put(env, &format!("rows.{name}"), &new)?;
        }
        Ok(made)
    })
}

/// What a part's reference is evaluated on.
pub struct Ground {
    /// The part's function.
    pub function: Arc<Function>,
    /// Where its weights lie.
    pub plan: Arc<Planned>,
    /// The weights.
    pub segment: Blob,
}

/// The ground of a part whose weights are quantized.
pub fn ground(db: &dyn Db, model: ModelInput, part: usize) -> Result<Ground> {
    let (_, target) = target(db, model, Job::Quantize(part))?;
    let (function, _) = need(&target, function(db, model, part))?;
    let digest = need(&target, quantized(db, model, part))?.digest("segment");
    let plan = need(&target, planned(db, model, part))?;
    let segment = blob(db.env(), digest).map_err(|e| match e {
        BodyError::Lost(d) => NodeError::Lost { target, blob: d.to_string() },
        BodyError::Stage(message) | BodyError::Environment(message) => {
            NodeError::Environment { target, message }
        }
    })?;
    Ok(Ground { function, plan, segment })
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
