//! Packed layers: which digests play which role.

use super::source::{Fetched, bytes};
use super::{Db, ModelInput, Result, fetched, need, resolved, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::delivery::OpenDelivery;
use crate::env::Env;
use crate::graph::Job;
use mica_cache::{Digest, Output, Recipe, encode};
use mica_digest::Pieces;
use mica_fetch::tensor_digest_parallel;
use mica_pack::{Contents, Dtype, PackFailure, Resolved, Virtual};
use std::borrow::Cow;

/// The kind of a packed layer's blob.
pub const KIND: &str = "packed-layer";

/// What naming a weight's integers takes: some pieces of them.
const UNPACKED: u64 = 16 << 20;

/// What an output is called that holds a stored tensor, before the tensor's digest.
const TENSOR: &str = "tensor ";

/// The blobs of the tensors that packing stored, by the tensors' digests.
pub fn stored(packed: &Outcome) -> impl Iterator<Item = (Digest, Digest)> {
    let tensor = |o: &Output| Some((Digest::from_hex(o.name.strip_prefix(TENSOR)?).ok()?, o.digest));
    packed.outputs().iter().filter_map(tensor)
}

/// The packed layer of a part: output `layer`, and a blob for each weight that was laid out anew.
#[salsa::tracked(returns(clone))]
pub fn packed(db: &dyn Db, model: ModelInput, part: usize) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Pack(part))?;
    let fetched = need(&target, fetched(db, model, part))?;
    let resolved = need(&target, resolved(db, model, part))?;
    let mut recipe = Recipe::new("pack", mica_pack::VERSION).input("form", form(&resolved));
    for (name, d) in fetched.named() {
        recipe = recipe.input(name, d);
    }
    let env = db.env();
    let open = db.delivery(model.delivery(db).name(db));
    let memory = resolved.roles.iter().map(|r| {
        let elements = r.shape.iter().product::<u64>();
        match (&r.converter, &r.scale) {
            (Some(_), _) => elements * 32,
            (None, Some(_)) => UNPACKED,
            (None, None) => 0,
        }
    });
    let memory = memory.sum();
    let request = Request { target: &target, recipe, memory, bytes_in: fetched.bytes() };
    action(env, request, || {
        let mut hands = Hands { env, open, fetched: &fetched, made: Produced::default() };
        let packed = mica_pack::pack(&resolved, &mut hands).map_err(|e| match e {
            PackFailure::Contents { error, .. } => error,
            PackFailure::Pack(refused) => BodyError::stage(refused),
        })?;
        let mut made = hands.made;
        fetched.unchanged(open)?;
        made.put(env, "layer", &encode(KIND, &packed))?;
        Ok(made)
    })
}

/// The digest of all that packing depends on beside the tensors: roles, shapes, converters. Names that a
/// publisher chose are not among it.
fn form(resolved: &Resolved) -> Digest {
    let roles: Vec<_> = resolved
        .roles
        .iter()
        .map(|r| {
            let tensors: Vec<_> = r.tensors().map(|(kind, t)| (kind, t.dtype.name(), &t.shape)).collect();
            (&r.role, r.weight_use, &r.shape, tensors, &r.converter, &r.unpack)
        })
        .collect();
    blake3::hash(&encode("form", &(&resolved.kind, &resolved.fused, roles)))
}

/// The delivery's tensors and the cache, as pack asks for them.
struct Hands<'a> {
    env: &'a Env,
    open: &'a OpenDelivery,
    fetched: &'a Fetched,
    made: Produced,
}

impl Contents for Hands<'_> {
    type Error = BodyError;

    fn digest(&mut self, tensor: &Virtual) -> std::result::Result<Digest, BodyError> {
        let unknown = || BodyError::Stage(format!("{} was not fetched", tensor.pieces.join(", ")));
        self.fetched.of(tensor).ok_or_else(unknown)
    }

    fn bytes(&self, tensor: &Virtual) -> std::result::Result<Cow<'_, [u8]>, BodyError> {
        bytes(self.open, tensor)
    }

    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> std::result::Result<Pieces, BodyError> {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        Ok(mica_fetch::tensor_pieces(dtype, shape, bytes))
    }

    fn store(
        &mut self,
        dtype: Dtype,
        shape: &[u64],
        bytes: Vec<u8>,
    ) -> std::result::Result<Digest, BodyError> {
        let digest = tensor_digest_parallel(dtype, shape, [&bytes[..]].into_iter());
        self.made.put(self.env, &format!("{TENSOR}{digest}"), &bytes)?;
        Ok(digest)
    }
}
