//! The whole kernel: link, and the device run as it would really run, token by token or several a call.

use super::segment::{Kernels, Simulation, constants};
use super::{
    Db, ModelInput, Result, compile, compiled, load, need, quantized, retriable, target, weights_of,
};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::{Call, Job};
use crate::host::Feed;
use mica_cache::{Recipe, encode};
use mica_compile::Seams;
use mica_device::NUMERICS;
use mica_device::object::{Kernel, Object};
use std::collections::BTreeMap;

/// The kind of a kernel's blob.
pub const KIND: &str = "kernel";

/// The linked kernel of one token a call, or of several: output `kernel`. Its constants are named in the key, so that
/// it is the image of these very weights.
#[salsa::tracked(returns(clone))]
pub fn linked(db: &dyn Db, model: ModelInput, call: Call) -> Result<Outcome> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Link(call))?;
    let product = model.product(db);
    let mut recipe = Recipe::new("link", mica_compile::VERSION)
        .param("entries", product.entries)
        .param("constants", model.constants(db).text())
        .param("l2", product.l2)
        .param("lrm", product.lrm());
    let mut objects = Vec::new();
    for (p, name) in facts.parts.iter().enumerate() {
        let object = need(&target, compiled(db, model, p, call))?.digest("object");
        let segment = need(&target, quantized(db, model, p))?.digest("segment");
        recipe = recipe.input(&format!("{name}.object"), object).input(&format!("{name}.constants"), segment);
        objects.push(object);
    }
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let mut decoded = BTreeMap::new();
        for &d in &objects {
            if let std::collections::btree_map::Entry::Vacant(e) = decoded.entry(*d.as_bytes()) {
                e.insert(load::<Object>(env, compile::KIND, d)?);
            }
        }
        let parts: Vec<&Object> = objects.iter().map(|d| &decoded[d.as_bytes()]).collect();
        let kernel = mica_compile::link_with(&parts, product, Seams::Whole, model.constants(db))
            .map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "kernel", &encode(KIND, &kernel))?;
        Ok(made)
    })
}

/// The linked kernel on the first tokens, choosing experts itself: the same outputs as the segments have,
/// for the score to compare bit by bit.
#[salsa::tracked(returns(clone))]
pub fn whole(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Kernel)?;
    let weights = weights_of(db, model);
    let kernel = need(&target, linked(db, weights, facts.whole()))?.digest("kernel");
    let ids = need(&target, super::source::token_ids(db, model))?;
    let run = model.run(db);
    let tokens = run.whole_tokens.min(run.tokens) as usize;
    let product = model.product(db);
    let mut recipe = Recipe::new("simulate", mica_simulate::VERSION)
        .numerics(NUMERICS)
        .param("tokens", tokens)
        .param("l2", product.l2)
        .param("lrm", product.lrm())
        .input("ids", ids.part(0, tokens as u64))
        .input("kernel", kernel);
    // what no whole call is left of
    let mut rest = None;
    if !(tokens as u64).is_multiple_of(facts.per_call) {
        let one = need(&target, linked(db, weights, Call::One))?.digest("kernel");
        recipe = recipe.input("kernel of the rest", one);
        rest = Some(one);
    }
    let mut segments = Vec::new();
    for (p, name) in facts.parts.iter().enumerate() {
        let segment = need(&target, quantized(db, weights, p))?.digest("segment");
        recipe = recipe.input(&format!("{name}.constants"), segment);
        segments.push(segment);
    }
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 256 << 20, bytes_in: 0 };
    action(env, request, || {
        let kernel: Kernel = load(env, KIND, kernel)?;
        let rest: Option<Kernel> = rest.map(|r| load(env, KIND, r)).transpose()?;
        let constants = constants(env, &segments)?;
        let feed = Feed { ids: &ids.ids[..tokens], ..Feed::default() };
        let kernels = Kernels { kernel: &kernel, tokens: facts.per_call, rest: rest.as_ref() };
        let parts = &facts.parts;
        Simulation { env, product, kernels, parts, constants: (&segments, &constants) }.run(&feed)
    })
}
