//! Cycles of the whole kernel; clock and bandwidth enter only here.

use super::{Db, ModelInput, Result, kernel, linked, load, need, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::graph::Job;
use mica_cache::{Recipe, encode};
use mica_device::NUMERICS;
use mica_device::object::Kernel;
use mica_simulate::timing;
use serde::{Deserialize, Serialize};

/// The kind of a timing report's blob.
pub const KIND: &str = "timing-report";

/// One call's cycles, and the machine that they are counted for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Name of the product.
    pub product: String,
    /// Clock in MHz.
    pub clock_mhz: u32,
    /// Bytes a cycle on the external bus.
    pub bus_bytes: u32,
    /// Position of the call.
    pub position: u64,
    /// Highest byte used and size of the local register memory.
    pub lrm: (u64, u64),
    /// Highest byte used and size of L2.
    pub l2: (u64, u64),
    /// Entry pointers used and had.
    pub entries: (u64, u64),
    /// The count.
    pub cycles: timing::Report,
}

/// The timing report of one call, at the last position that is run: output `report`.
#[salsa::tracked(returns(clone))]
pub fn timed(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Timing)?;
    let digest = need(&target, linked(db, model))?.digest("kernel");
    let (product, rates) = (model.product(db), model.rates(db));
    let position = model.run(db).tokens.max(1) - 1;
    let recipe = Recipe::new("timing", mica_simulate::VERSION)
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
        let cycles = timing::cycles(&image, product, rates, inputs).map_err(BodyError::stage)?;
        let timing = Timing {
            product: product.name.clone(),
            clock_mhz: rates.clock_mhz,
            bus_bytes: rates.bus_bytes,
            position,
            lrm: (image.lrm_peak, product.lrm()),
            l2: (image.l2_peak, product.l2),
            entries: (image.entries.len() as u64, product.entries.into()),
            cycles,
        };
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &timing))?;
        Ok(made)
    })
}
