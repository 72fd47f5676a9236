//! `mica-cache`: results kept on disk under the name of what they were made from.
//!
//! Four parts. [`Recipe`] names an action and explains how it differs from an earlier one. [`codec`] is
//! the wire encoding. [`Cache`] holds blobs by digest and action records by key. [`StampMemo`] spares
//! reading a file again whose stamp has not changed.
//!
//! The crate knows no stage, no target syntax, no query engine and no terminal; the clock and the place
//! on disk are handed to it.
//!
//! Invariants, each with a test:
//! - A read gives the bytes that were stored or nothing. Whatever happens to a file, it is a miss.
//! - A blob is in place before the record that names it.
//! - Nothing that outlives its process is needed to go on: no lock, no temporary, no torn log.
//! - Two processes on one directory never wait for each other and never spoil each other's work.

mod action;
mod blob;
mod blobs;
mod cache;
pub mod codec;
mod compact;
mod error;
mod event;
mod gc;
mod index;
mod key;
mod log;
mod pieces;
mod segment;
mod stamps;
mod stats;
mod temp;
mod verify;

pub use action::{ActionRecord, Output, STATE_PREFIX};
pub use blob::Blob;
pub use blobs::Hashing;
pub use cache::Cache;
pub use codec::{CodecError, decode, encode};
pub use error::CacheError;
pub use gc::{GcOptions, GcReport};
pub use key::{ActionKey, Difference, Recipe};
pub use pieces::BlobPieces;
pub use stamps::{Stamp, StampMemo};
pub use stats::{Session, Stats};
pub use verify::VerifyReport;

/// The name of a content: its BLAKE3-256.
pub type Digest = blake3::Hash;
