//! What every reader promises whatever bytes it is given: no panic, and nothing taken that is not there.
//! The property tests, the random driver (`examples/fuzz.rs`) and the coverage-guided targets (`fuzz/`)
//! all hold the readers to this.

use std::collections::BTreeMap;
use std::path::Path;

use crate::index::{TensorEntry, byte_count};
use crate::shard_index::ShardIndex;
use crate::{safetensors_header, torch};

/// A reader, and bytes that it takes, to be mutated.
pub struct Checked {
    /// Its name.
    pub name: &'static str,
    /// Gives the reader any bytes; says whether it took them.
    ///
    /// # Panics
    /// If the reader breaks its promise.
    pub check: fn(&[u8]) -> bool,
    /// Sound inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Bytes of the storages that a lone pickle is given.
const STORAGE: u64 = 24;

/// All readers of this crate that take a stranger's bytes.
pub const READERS: [Checked; 4] = [
    Checked { name: "safetensors", check: safetensors, seeds: super::seeds::safetensors },
    Checked { name: "torch", check: torch, seeds: super::seeds::torch },
    Checked { name: "pickle", check: pickle, seeds: super::seeds::pickle },
    Checked { name: "shard-index", check: shard_index, seeds: super::seeds::shard_index },
];

/// A safetensors file: what is taken, the format's own crate takes too, with the same tensors.
pub fn safetensors(bytes: &[u8]) -> bool {
    let Ok(ours) = safetensors_header::read(Path::new("m.safetensors"), 0, bytes) else { return false };
    let theirs = ::safetensors::SafeTensors::deserialize(bytes).expect("we are the stricter reader");
    assert_eq!(theirs.len(), ours.len());
    for (name, entry) in &ours {
        let view = theirs.tensor(name).expect("the same names");
        assert_eq!(view.data().len() as u64, entry.bytes());
    }
    inside(&ours, bytes);
    true
}

/// A file of `torch.save`.
pub fn torch(bytes: &[u8]) -> bool {
    let Ok(tensors) = torch::read(Path::new("m.pth"), 0, bytes) else { return false };
    inside(&tensors, bytes);
    true
}

/// A pickle in an otherwise sound archive, whose storages have 24 bytes each.
pub fn pickle(bytes: &[u8]) -> bool {
    let archive = torch::Archive::assumed(bytes, &["0", "1", "2", "3"], STORAGE);
    let Ok(tensors) = archive.tensors(Path::new("m.pth"), 0) else { return false };
    let end = bytes.len() as u64 + STORAGE;
    for entry in tensors.values() {
        let extent = &entry.extents[0];
        assert!(extent.offset >= bytes.len() as u64 && extent.offset + extent.len <= end, "{}", entry.name);
    }
    true
}

/// A shard index: shards stay in the delivery.
pub fn shard_index(bytes: &[u8]) -> bool {
    let Ok(index) = ShardIndex::parse(Path::new("m.safetensors.index.json"), bytes) else { return false };
    for shard in index.shards() {
        assert!(!shard.starts_with('/') && shard.split('/').all(|part| part != ".."), "{shard}");
    }
    true
}

/// Every tensor lies in the file and has the size of its shape.
fn inside(tensors: &BTreeMap<String, TensorEntry>, bytes: &[u8]) {
    for entry in tensors.values() {
        let extent = &entry.extents[0];
        assert!(extent.offset + extent.len <= bytes.len() as u64, "{}", entry.name);
        assert_eq!(byte_count(entry.dtype, &entry.shape), Some(extent.len), "{}", entry.name);
    }
}
