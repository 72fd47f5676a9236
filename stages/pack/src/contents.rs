//! What packing asks of the delivery's values.

use crate::packed::Digest;
use crate::resolve::Virtual;
use mica_digest::Pieces;
use mica_dtype::Dtype;
use std::borrow::Cow;

/// The values of delivered tensors and a place for converted ones.
pub trait Contents: Sync {
    /// Why a tensor could not be had.
    type Error: Send;

    /// The digest of dtype, shape and the pieces' bytes in order, so that a tensor in pieces has the digest
    /// of the same tensor in one.
    ///
    /// # Errors
    /// The surroundings' own.
    fn digest(&mut self, tensor: &Virtual) -> Result<Digest, Self::Error>;

    /// The pieces' bytes in order.
    ///
    /// # Errors
    /// The surroundings' own.
    fn bytes(&self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Self::Error>;

    /// What takes the bytes of a tensor that is not in the delivery, in pieces. Once all came, it gives the
    /// digest that [`digest`](Contents::digest) would give a delivered tensor of the same dtype, shape and bytes,
    /// so that a weight packs alike whatever format it is unpacked from.
    ///
    /// # Errors
    /// The surroundings' own.
    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> Result<Pieces, Self::Error>;

    /// Keeps a converted tensor and gives its digest, by which it is found from then on.
    ///
    /// # Errors
    /// The surroundings' own.
    fn store(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Result<Digest, Self::Error>;
}
