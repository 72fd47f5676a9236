//! The first stage: what a published model's delivery holds.
//!
//! A delivery is a directory of files as their publisher ships them. This crate says which file is for
//! what ([`list`]), where each tensor's bytes lie ([`index`]), what those bytes are called whatever file
//! and name they came under ([`tensor_digest`]), and reads the small files: configuration, tokenizer,
//! captures.
//!
//! It trusts no byte of a delivery: every length, offset and shape is checked against the file before it
//! is used, and a delivery that two readers could take two ways is refused with the file and the tensor
//! named. It never writes, and it must not know salsa, the cache's place on disk, the terminal, nor what
//! any model does with a tensor.

mod captures;
mod config;
mod container;
mod digest;
mod dtype;
mod error;
mod files;
mod index;
mod listing;
mod names;
mod quantization;
mod safetensors_header;
mod shard_index;
mod strict_json;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tokenizer;
mod torch;

pub use captures::{
    Array, CaptureMap, CaptureSet, EVALUATOR, LayerName, MADE_BY, Name, SELF, SelfMade, self_made,
};
pub use config::RawConfig;
pub use container::is_weights;
pub use digest::{Digest, tensor_digest, tensor_digest_parallel, tensor_pieces};
pub use error::FetchError;
pub use files::{DeliveryFiles, MappedDelivery};
pub use index::{Extent, MAX_RANK, TensorEntry, TensorIndex, index, index_file};
pub use listing::{FileEntry, ListOptions, Listing, Weights, list};
pub use mica_dtype::Dtype;
pub use quantization::quantization;
pub use shard_index::{is_index, shards};
pub use tokenizer::Tokenizer;
pub use torch::{ArchiveFault, PickleFault};
