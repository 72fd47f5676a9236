//! Where every tensor of a delivery lies, whatever container its files are.
//!
//! Knows names, types, shapes and places. No tensor's bytes are read here, and nothing is said about what
//! a tensor is for.

use std::collections::BTreeMap;
use std::path::Path;

use mica_dtype::Dtype;
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::digest::{Digest, tensor_digest, tensor_digest_parallel};
use crate::error::FetchError;
use crate::files::DeliveryFiles;
use crate::listing::{Listing, Weights, folder_of};
use crate::names::nearest;
use crate::shard_index::ShardIndex;

/// The most axes a tensor may have; the frameworks that write deliveries have the same limit or less.
pub const MAX_RANK: usize = 64;

/// A contiguous run of bytes in one delivery file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Index into [`Listing::files`].
    pub file: u32,
    /// From the start of the file, in bytes; aligned to nothing.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// One tensor: its canonical row-major little-endian bytes are its extents, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorEntry {
    /// As the delivery spells it.
    pub name: String,
    /// The elements' type.
    pub dtype: Dtype,
    /// Outermost axis first. Empty for a scalar; a zero makes the tensor empty.
    pub shape: Vec<u64>,
    /// Where the bytes are.
    pub extents: Vec<Extent>,
}

impl TensorEntry {
    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|e| e.len).sum()
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.bytes()
    }

    /// The tensor's bytes, one slice an extent.
    ///
    /// # Errors
    /// If a file cannot be mapped, or is shorter than the extent says: an index of other files.
    pub fn chunks<'a>(&self, files: &'a dyn DeliveryFiles) -> Result<Vec<&'a [u8]>, FetchError> {
        self.extents.iter().map(|e| self.chunk(e, files)).collect()
    }

    fn chunk<'a>(&self, extent: &Extent, files: &'a dyn DeliveryFiles) -> Result<&'a [u8], FetchError> {
        let bytes = files.bytes(extent.file)?;
        let end = extent.offset.checked_add(extent.len);
        let range = usize::try_from(extent.offset).ok().zip(end.and_then(|e| usize::try_from(e).ok()));
        range.and_then(|(begin, end)| bytes.get(begin..end)).ok_or_else(|| FetchError::Truncated {
            path: files.path(extent.file),
            tensor: self.name.clone(),
            end: end.unwrap_or(u64::MAX),
            available: bytes.len() as u64,
        })
    }

    /// The tensor's digest. `parallel` hashes with rayon's threads when the tensor is large; the result is
    /// the same.
    ///
    /// # Errors
    /// As [`TensorEntry::chunks`].
    pub fn digest(&self, files: &dyn DeliveryFiles, parallel: bool) -> Result<Digest, FetchError> {
        let chunks = self.chunks(files)?.into_iter();
        Ok(if parallel {
            tensor_digest_parallel(self.dtype, &self.shape, chunks)
        } else {
            tensor_digest(self.dtype, &self.shape, chunks)
        })
    }
}

/// Every tensor of a delivery, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorIndex {
    /// In the order of their names.
    pub tensors: BTreeMap<String, TensorEntry>,
}

impl TensorIndex {
    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`FetchError::MissingTensor`] with the nearest names. To probe for a name, use
    /// [`TensorIndex::find`], which costs no search.
    pub fn get(&self, name: &str) -> Result<&TensorEntry, FetchError> {
        self.find(name).ok_or_else(|| FetchError::MissingTensor {
            name: name.to_owned(),
            nearest: nearest(name, self.tensors.keys().map(String::as_str)),
        })
    }

    /// The tensor called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }
}

/// The tensors of the delivery's weights.
///
/// # Errors
/// Whatever makes the weights ambiguous, incomplete or damaged, with file and tensor named.
pub fn index(files: &dyn DeliveryFiles, listing: &Listing) -> Result<TensorIndex, FetchError> {
    match &listing.weights {
        Weights::Single(file) => index_file(files, *file),
        Weights::Sharded { index, shards } => sharded(files, listing, *index, shards),
    }
}

/// The tensors of one file of the delivery, for example of a capture file; the ending of its name says
/// how it is read.
///
/// # Errors
/// As [`index`].
pub fn index_file(files: &dyn DeliveryFiles, file: u32) -> Result<TensorIndex, FetchError> {
    let path = files.path(file);
    let container = Container::of(&path.to_string_lossy());
    let unknown = || FetchError::UnknownFormat { name: path.display().to_string() };
    let tensors = container.ok_or_else(unknown)?.read(&path, file, files.bytes(file)?)?;
    Ok(TensorIndex { tensors })
}

/// Bytes of a tensor. A shape that overflows without its zeros is refused even if a zero makes it empty:
/// whether it overflows must not depend on the order of multiplication.
pub(crate) fn byte_count(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let nonzero = shape.iter().filter(|&&d| d != 0).try_fold(dtype.bytes(), |n, &d| n.checked_mul(d))?;
    Some(if shape.contains(&0) { 0 } else { nonzero })
}

/// The shards' tensors, once every one is known to be where the shard index says, and nowhere else.
fn sharded(
    files: &dyn DeliveryFiles,
    listing: &Listing,
    index: u32,
    shards: &[u32],
) -> Result<TensorIndex, FetchError> {
    let said = ShardIndex::parse(&files.path(index), files.bytes(index)?)?;
    let folder = folder_of(&listing.file(index)?.name);
    let mut all = TensorIndex::default();
    for &shard in shards {
        let path = files.path(shard);
        let name = &listing.file(shard)?.name;
        let shard_name = name.strip_prefix(folder).unwrap_or(name);
        let found = index_file(files, shard)?;
        for tensor in found.tensors.keys() {
            agrees(&said, &path, shard_name, tensor)?;
        }
        // `agrees` lets a name pass in one shard only, so nothing is overwritten.
        all.tensors.extend(found.tensors);
    }
    for (tensor, shard) in &said.weight_map {
        if all.find(tensor).is_none() {
            let shard = files.path(index).with_file_name(shard);
            return Err(FetchError::MissingFromShard { shard, tensor: tensor.clone() });
        }
    }
    Ok(all)
}

fn agrees(said: &ShardIndex, path: &Path, shard: &str, tensor: &str) -> Result<(), FetchError> {
    match said.weight_map.get(tensor) {
        Some(expected) if expected == shard => Ok(()),
        Some(expected) => Err(FetchError::MisplacedTensor {
            shard: path.to_owned(),
            tensor: tensor.to_owned(),
            expected: expected.clone(),
        }),
        None => Err(FetchError::StrayTensor { shard: path.to_owned(), tensor: tensor.to_owned() }),
    }
}
