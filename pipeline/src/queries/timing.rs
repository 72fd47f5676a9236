//! Cycles of the whole kernel; clock and bandwidth enter only here.

use super::{Db, ModelInput, Result, kernel, linked, load, need, planned, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::Job;
use crate::timing::{Calls, On, SCHEMA, Timing};
use mica_cache::{Recipe, encode};
use mica_device::NUMERICS;
use mica_device::object::Kernel;
use mica_device::segment::SegmentPlan;

/// The kind of a timing report's blob.
pub const KIND: &str = "timing-report";

/// The timing report of one call, at the last positions that are run: output `report`.
#[salsa::tracked(returns(clone))]
pub fn timed(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Timing)?;
    let digest = need(&target, linked(db, model, facts.whole()))?.digest("kernel");
    let (product, rates) = (model.product(db), model.rates(db));
    let tokens = facts.per_call;
    let position = model.run(db).tokens.max(tokens) - tokens;
    let mut recipe = Recipe::new("timing", mica_simulate::timing::VERSION)
        .numerics(NUMERICS)
        .param("schema", SCHEMA)
        .param("product", &product.name)
        .param("side", product.side)
        .param("lrm", product.lrm())
        .param("l2", product.l2)
        .param("entries", product.entries)
        .param("bus_bytes", rates.bus_bytes)
        .param("clock_mhz", rates.clock_mhz)
        .param("position", position)
        .param("tokens", tokens)
        .input("kernel", digest);
    let mut plans = Vec::new();
    for (p, name) in facts.parts.iter().enumerate() {
        let plan = need(&target, planned(db, model, p))?;
        recipe = recipe.input(&format!("{name}.plan"), plan.digest);
        plans.push(plan);
    }
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let image: Kernel = load(env, kernel::KIND, digest)?;
        let plans: Vec<&SegmentPlan> = plans.iter().map(|p| &p.plan).collect();
        let on = On { product, rates };
        let timing = Timing::new(&image, &plans, &facts.parts, on, Calls { position, tokens })
            .map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &timing))?;
        Ok(made)
    })
}
