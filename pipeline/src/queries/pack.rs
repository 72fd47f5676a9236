//! Packed layers: which digests play which role.

use super::source::{Fetched, bytes};
use super::{Db, ModelInput, Result, fetched, need, resolved, retriable, target};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::delivery::OpenDelivery;
use crate::env::Env;
use crate::graph::Job;
use mica_cache::{Digest, Recipe, encode};
use mica_pack::{Contents, Dtype, PackFailure, Resolved, Virtual};
use std::borrow::Cow;

/// The kind of a packed layer's blob.
pub const KIND: &str = "packed-layer";

/// The packed layer of a part: output `layer`, and a blob for each converted weight.
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
    let converted = resolved.roles.iter().filter(|r| r.converter.is_some());
    let memory = converted.map(|r| r.shape.iter().product::<u64>() * 32).sum();
    let request = Request { target: &target, recipe, memory, bytes_in: fetched.bytes() };
    action(env, request, || {
        let mut hands = Hands { env, open, fetched: &fetched, made: Produced::default() };
        let packed = mica_pack::pack(&resolved, &mut hands).map_err(|e| match e {
            PackFailure::Contents { error, .. } => error,
            PackFailure::Pack(refused) => BodyError::stage(refused),
        })?;
        let mut made = hands.made;
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
            let tensors = [Some(&r.data), r.scale.as_ref(), r.zero.as_ref()];
            let tensors = tensors.map(|t| t.map(|t| (t.dtype.name(), &t.shape)));
            (&r.role, r.weight_use, &r.shape, tensors, &r.converter)
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

    fn bytes(&mut self, tensor: &Virtual) -> std::result::Result<Cow<'_, [u8]>, BodyError> {
        bytes(self.open, tensor).map(Cow::Owned)
    }

    fn store(&mut self, _: Dtype, _: &[u64], bytes: Vec<u8>) -> std::result::Result<Digest, BodyError> {
        let name = format!("converted {}", self.made.count());
        self.made.put(self.env, &name, &bytes)
    }
}
