//! The second stage: which of a delivery's tensors play which role in a part of a model.
//!
//! [`resolve`] finds a part's weights by the model's own naming, whatever prefix and form the publisher
//! chose, and checks shapes, dtypes and scales from the delivery's index alone. [`pack`] then names them by
//! content: a [`PackedLayer`] holds digests, roles and shapes. Only a weight that the model lays out
//! otherwise than its publisher is read and stored again; everything else stays in the delivery, integers in containers
//! or in words: they are read at most for their name, and whoever needs a stretch of them asks [`Place`].
//!
//! It must not know files, offsets, the device, the cache's place, salsa nor the terminal. The delivery is
//! what [`Names`] says it has and [`Contents`] gives.

mod contents;
mod convert;
mod delivered;
mod error;
mod in_words;
mod integers;
mod names;
mod pack;
mod packed;
mod place;
mod resolve;
mod scheme;
#[cfg(feature = "testing")]
pub mod testing;
mod unpack;
mod words;

pub use contents::Contents;
pub use error::{PackError, PackFailure};
pub use in_words::{InWords, RoleInWords};
pub use mica_dtype::Dtype;
pub use names::{Names, TensorInfo, unread};
pub use pack::pack;
pub use packed::{Digest, PackedLayer, PackedTensor, Source};
pub use place::{Place, places};
pub use resolve::{Resolved, ResolvedRole, Virtual, resolve};
pub use scheme::{Described, Scheme};
pub use words::{Packing, Unpack};

/// The stage's version, part of every key; raised whenever the same inputs pack otherwise.
pub const VERSION: u32 = 3;
