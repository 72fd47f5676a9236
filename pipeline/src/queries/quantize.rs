//! Constant segments: the recipe applied to a packed layer.

use super::{
    Db, ModelInput, Result, fetched, load, need, pack, packed, planned, resolved, retriable, target,
};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::bytes::{DeliveredBytes, in_delivery};
use crate::graph::Job;
use mica_cache::{Recipe, encode};
use mica_pack::PackedLayer;
use std::io;

/// What the stage holds at a time: rows of tiles, whatever the weight's size.
const MEMORY: u64 = 256 << 20;

/// The kind of the blob of error figures.
pub const FIGURES: &str = "tensor-figures";

/// The constant segment of a part: outputs `segment` and `figures`.
#[salsa::tracked(returns(clone))]
pub fn quantized(db: &dyn Db, model: ModelInput, part: usize) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Quantize(part))?;
    let packed = need(&target, packed(db, model, part))?;
    let layer = packed.digest("layer");
    let fetched = need(&target, fetched(db, model, part))?;
    let resolved = need(&target, resolved(db, model, part))?;
    let plan = need(&target, planned(db, model, part))?;
    let allow = model.allow_non_finite(db);
    let recipe = Recipe::new("quantize", mica_quantize::VERSION)
        .param("allow_non_finite", allow)
        .input("plan", plan.digest)
        .input("layer", layer);
    let env = db.env();
    let delivery = db.delivery(model.delivery(db).name(db));
    let request = Request { target: &target, recipe, memory: MEMORY, bytes_in: fetched.bytes() };
    action(env, request, || {
        let layer: PackedLayer = load(env, pack::KIND, layer)?;
        let places = mica_pack::places(&resolved, &layer);
        let bytes = DeliveredBytes::new(env, delivery, &fetched, places, pack::stored(&packed))?;
        let mut figures = None;
        let size = plan.plan.bytes;
        let stored = env.cache.put_pieces(size, |blob| {
            let put = |at: u64, piece: &[u8]| blob.write(at, piece);
            let made = mica_quantize::quantize(&layer, &plan.plan, &bytes, &put, allow);
            match made {
                Ok(f) => {
                    figures = Some(f);
                    Ok(())
                }
                Err(e) => Err(io::Error::other(in_delivery(e, &resolved))),
            }
        });
        let digest = stored.map_err(|e| bytes.blame(e))?;
        bytes.unchanged()?;
        let mut made = Produced::default();
        made.stored("segment", digest, size);
        made.put(env, "figures", &encode(FIGURES, &figures.unwrap_or_default()))?;
        Ok::<_, BodyError>(made)
    })
}
