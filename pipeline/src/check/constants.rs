//! The weights of a subtree in the device's formats: packed and quantized here, in memory, by the recipe that
//! a build would use. The evaluator reads them back as the numbers that they stand for.

use super::Refused;
use super::published::{PartWeights, Published};
use crate::bytes::in_delivery;
use mica_device::segment::SegmentPlan;
use mica_digest::Pieces;
use mica_pack::{Contents, Digest, Dtype, Place, Resolved, Source, Virtual};
use mica_quantize::{Recipe, TensorBytes};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// A constant segment and its plan, the weights named as in the subtree's module.
pub struct Constants {
    /// What lies where.
    pub plan: SegmentPlan,
    /// The bytes.
    pub segment: Vec<u8>,
}

impl Constants {
    /// The weights of a part that lie within `scope`, by the recipe's rules for the part.
    ///
    /// # Errors
    /// What packing and quantizing say.
    pub fn new(weights: &PartWeights<'_>, scope: &str, recipe: &Recipe) -> Result<Constants, Refused> {
        let whole = &weights.resolved;
        let roles: Vec<_> =
            whole.roles.iter().filter(|r| within(&r.role, scope).is_some()).cloned().collect();
        let resolved = Resolved { roles, ..whole.clone() };
        let mut hands = Hands::new(weights.source());
        let packed = mica_pack::pack(&resolved, &mut hands).map_err(|e| Refused(e.to_string()))?;
        hands.places.extend(mica_pack::places(&resolved, &packed));
        let refused = |e: mica_quantize::QuantizeError| Refused(e.to_string());
        let mut plan = mica_quantize::plan(&packed, recipe).map_err(refused)?;
        let made = mica_quantize::quantize_in_memory(&packed, &plan, &hands, false);
        let (segment, _) = made.map_err(|e| refused(in_delivery(e, &resolved)))?;
        rename(&mut plan, scope);
        Ok(Constants { plan, segment })
    }
}

/// The plan of a part's weights by a recipe, from shapes alone.
///
/// # Errors
/// What planning says.
pub fn plan(weights: &PartWeights<'_>, scope: &str, recipe: &Recipe) -> Result<SegmentPlan, Refused> {
    let mut shapes = weights.resolved.outline();
    shapes.tensors.retain(|t| within(&t.role, scope).is_some());
    let mut plan = mica_quantize::plan(&shapes, recipe).map_err(Refused::because)?;
    rename(&mut plan, scope);
    Ok(plan)
}

/// Names a part's weights as the module in `scope` does.
fn rename(plan: &mut SegmentPlan, scope: &str) {
    for e in &mut plan.entries {
        if let Some(name) = within(&e.role, scope) {
            e.role = name.to_string();
        }
    }
}

/// A weight's name below a scope.
pub fn within<'n>(name: &'n str, scope: &str) -> Option<&'n str> {
    match scope {
        "" => Some(name),
        scope => name.strip_prefix(scope)?.strip_prefix('.'),
    }
}

/// The published tensors, as pack and quantize ask for them. Nothing is kept, so names serve as digests.
struct Hands<'a> {
    source: &'a Published,
    places: HashMap<Digest, Place>,
    made: HashMap<Digest, Vec<u8>>,
}

impl Hands<'_> {
    fn new(source: &Published) -> Hands<'_> {
        Hands { source, places: HashMap::new(), made: HashMap::new() }
    }

    fn raw(&self, tensor: &Virtual, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.source.raw(tensor, range).map_err(io::Error::other)
    }
}

impl Contents for Hands<'_> {
    type Error = Refused;

    fn digest(&mut self, tensor: &Virtual) -> Result<Digest, Refused> {
        Ok(blake3::hash(tensor.pieces.join(" ").as_bytes()))
    }

    fn bytes(&self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Refused> {
        let bytes = tensor.shape.iter().product::<u64>() * tensor.dtype.bytes();
        self.source.raw(tensor, 0..bytes).map(Cow::Owned).map_err(Refused)
    }

    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> Result<Pieces, Refused> {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        Ok(Pieces::derived("mica check: an unpacked tensor", format!("{dtype} {shape:?} ").as_bytes(), bytes))
    }

    fn store(&mut self, _: Dtype, _: &[u64], bytes: Vec<u8>) -> Result<Digest, Refused> {
        let digest = blake3::hash(&bytes);
        self.made.insert(digest, bytes);
        Ok(digest)
    }
}

impl TensorBytes for Hands<'_> {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        if let Some(made) = self.made.get(&source.digest) {
            return Ok(Cow::Borrowed(&made[range.start as usize..range.end as usize]));
        }
        match self.places.get(&source.digest) {
            Some(place) => place.read(range, |stored| self.raw(place.tensor(), stored).map(Cow::Owned)),
            None => Err(io::Error::other("a tensor that was not packed")),
        }
    }
}
