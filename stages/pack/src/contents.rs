//! What packing asks of the delivery's values.

use crate::dtype::Dtype;
use crate::packed::Digest;
use crate::resolve::Virtual;
use std::borrow::Cow;

/// The values of delivered tensors and a place for converted ones.
pub trait Contents {
    /// Why a tensor could not be had.
    type Error;

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
    fn bytes(&mut self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Self::Error>;

    /// Keeps a converted tensor and gives the digest that it is found by from then on.
    ///
    /// # Errors
    /// The surroundings' own.
    fn store(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Result<Digest, Self::Error>;
}
