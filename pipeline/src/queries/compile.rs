//! Objects: the code of a kind of part. It depends on shapes and formats, never on weight values.

use super::source::Planned;
use super::view::function;
use super::{Db, ModelInput, Result, facts, need, planned, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::{Call, Job};
use mica_cache::{Recipe, encode};
use mica_compile::Options;
use mica_device::NUMERICS;
use mica_models::hir::Function;
use std::sync::Arc;

/// The kind of an object's blob.
pub const KIND: &str = "object";

/// Results that only the reference has; a kernel has no entries to spare for them.
const REFERENCE_ONLY: &[&str] = &["router_logits"];

/// The options that a model's settings give for a function.
fn options(db: &dyn Db, model: ModelInput, f: &Function, tokens: u64) -> Options {
    Options { frac: model.frac(db), capacity: model.run(db).capacity, exports: exported(f), tokens }
}

/// The results of a part that leave a kernel.
pub fn exported(f: &Function) -> Vec<String> {
    let results = f.results.iter().map(|(name, _)| name.clone());
    results.filter(|r| !REFERENCE_ONLY.contains(&r.as_str())).collect()
}

/// The object of a kind, for the formats of the first part of that kind: output `object`.
pub fn compiled_kind(db: &dyn Db, model: ModelInput, kind: usize, call: Call) -> Result<Outcome> {
    let facts = facts(db, model)?;
    match facts.kind_of.iter().position(|&k| k == kind) {
        Some(first) => object(db, model, first, call),
        None => panic!("the kind {} has no part", facts.kinds[kind]),
    }
}

/// The object that a part runs: its kind's, unless its weights have other formats.
#[salsa::tracked(returns(clone))]
pub fn compiled(db: &dyn Db, model: ModelInput, part: usize, call: Call) -> Result<Outcome> {
    let facts = facts(db, model)?;
    let first = facts.kind_of.iter().position(|&k| k == facts.kind_of[part]).unwrap_or(part);
    let same = first == part || planned(db, model, first)?.digest == planned(db, model, part)?.digest;
    object(db, model, if same { first } else { part }, call)
}

#[salsa::tracked(returns(clone))]
fn object(db: &dyn Db, model: ModelInput, part: usize, call: Call) -> Result<Outcome> {
    retriable(db);
    let (facts, kind_target) = target(db, model, Job::Compile(facts(db, model)?.kind_of[part], call))?;
    let first = facts.kind_of.iter().position(|&k| k == facts.kind_of[part]) == Some(part);
    let target = if first { kind_target } else { format!("{kind_target}.{}", facts.parts[part]) };
    let plan: Arc<Planned> = need(&target, planned(db, model, part))?;
    let (function, function_digest) = need(&target, function(db, model, part))?;
    let tokens = if call == Call::One { 1 } else { facts.per_call };
    let (product, options) = (model.product(db), options(db, model, &function, tokens));
    let mut recipe = Recipe::new("compile", mica_compile::VERSION)
        .numerics(NUMERICS)
        .param("side", product.side)
        .param("lrm_per_pe", product.lrm_per_pe)
        .param("l2", product.l2)
        .param("entries", product.entries)
        .param("frac", options.frac)
        .param("capacity", options.capacity)
        .param("exports", options.exports.join(" "))
        .input("function", function_digest)
        .input("plan", plan.digest);
    // of one token, as of all calls before there were others
    if tokens > 1 {
        recipe = recipe.param("tokens", tokens);
    }
    let env = db.env();
    let kind = &facts.kinds[facts.kind_of[part]];
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let object = mica_compile::compile(kind, &function, &plan.plan, product, &options)
            .map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "object", &encode(KIND, &object))?;
        Ok(made)
    })
}
