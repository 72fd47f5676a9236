//! Cycles of the whole kernel; clock and bandwidth enter only here.

use super::{Db, ModelInput, Result, kernel, linked, load, need, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::Job;
use mica_cache::{Recipe, encode};
use mica_device::NUMERICS;
use mica_device::object::Kernel;
use crate::fake_timing as timing;

/// The kind of a timing report's blob.
pub const KIND: &str = "timing-report";

/// The timing report of one call, at the last position that is run: output `report`.
#[salsa::tracked(returns(clone))]
pub fn timed(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Timing)?;
    let digest = need(&target, linked(db, model))?.digest("kernel");
    let (product, rates) = (model.product(db), model.rates(db));
    let position = model.run(db).tokens.max(1) - 1;
    let recipe = Recipe::new("timing", timing::VERSION)
        .numerics(NUMERICS)
        .param("side", product.side)
        .param("bus_bytes", rates.bus_bytes)
        .param("clock_mhz", rates.clock_mhz)
        .param("position", position)
        .input("kernel", digest);
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let image: Kernel = load(env, kernel::KIND, digest)?;
        let inputs = timing::Inputs { position };
        let report = timing::cycles(&image, product, rates, &inputs).map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &report))?;
        Ok(made)
    })
}
