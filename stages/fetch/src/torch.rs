//! What `torch.save` writes: a zip archive of storages, and a pickle that says which tensor is where.
//!
//! Yields the same index as a safetensors file does: the tensors' places in the file, which is mapped and
//! never read as a whole. Only the archive's directory, its record headers and the pickle are touched;
//! nothing is executed. A tensor is taken where its bytes lie in row-major order without gaps, as those of
//! a state_dict do. Several tensors may lie in one storage, as tied weights do.

mod fault;
mod pickle;
mod zip;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

pub use fault::{ArchiveFault, PickleFault};

use crate::container::impostor;
use crate::error::FetchError;
use crate::index::{Extent, TensorEntry, byte_count};
use pickle::{Pickled, Storage, Tensor};

/// How a file of torch.save's older format begins: a pickled number that is its mark.
pub(crate) const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";

/// The tensors of the file `bytes`, which is number `file` of its delivery.
pub(crate) fn read(
    path: &Path,
    file: u32,
    bytes: &[u8],
) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
    if !bytes.starts_with(b"PK\x03\x04") {
        return Err(if bytes.starts_with(LEGACY_MAGIC) {
            FetchError::LegacyTorch { path: path.to_owned() }
        } else {
            let what = impostor(bytes).unwrap_or("no zip archive");
            FetchError::NotTorch { path: path.to_owned(), what }
        });
    }
    let archive = Archive::open(bytes);
    archive.map_err(|fault| FetchError::Archive { path: path.to_owned(), fault })?.tensors(path, file)
}

/// The records of a torch archive, all in one folder.
pub(crate) struct Archive<'a> {
    bytes: &'a [u8],
    folder: &'a str,
    /// Of `FOLDER/data/`, by the names there.
    storages: BTreeMap<&'a str, Range<u64>>,
    /// All others, by their names in the folder.
    records: BTreeMap<&'a str, Range<u64>>,
}

impl<'a> Archive<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, ArchiveFault> {
        let all = zip::records(bytes)?;
        let folder = all.keys().find_map(|name| name.strip_suffix("/data.pkl").filter(|f| !f.contains('/')));
        let folder = folder.ok_or(ArchiveFault::NoPickle)?;
        let (mut storages, mut records) = (BTreeMap::new(), BTreeMap::new());
        for (name, range) in all {
            let inside = name.strip_prefix(folder).and_then(|name| name.strip_prefix('/'));
            let Some(inside) = inside else {
                return Err(ArchiveFault::Folder { record: name.to_owned(), folder: folder.to_owned() });
            };
            if inside == "constants.pkl" || inside.starts_with("code/") {
                return Err(ArchiveFault::Program { record: name.to_owned() });
            }
            match inside.strip_prefix("data/") {
                Some(key) => storages.insert(key, range),
                None => records.insert(inside, range),
            };
        }
        let archive = Archive { bytes, folder, storages, records };
        match archive.record("byteorder") {
            None | Some(b"little") => Ok(archive),
            Some(other) => {
                let order = String::from_utf8_lossy(&other[..other.len().min(16)]).into_owned();
                Err(ArchiveFault::ByteOrder { order })
            }
        }
    }

    fn record(&self, name: &str) -> Option<&'a [u8]> {
        let range = self.records.get(name)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    fn pickle(&self) -> (String, &'a [u8]) {
        // `open` found the folder by this record.
        (format!("{}/data.pkl", self.folder), self.record("data.pkl").unwrap_or_default())
    }

    /// A pickle and storages of these keys, as if they came from a file; all in the same bytes.
    #[cfg(any(test, feature = "testing"))]
    pub fn assumed(pickle: &'a [u8], keys: &[&'a str], size: u64) -> Self {
        let end = pickle.len() as u64;
        let storages = keys.iter().map(|&key| (key, end..end + size)).collect();
        Archive { bytes: pickle, folder: "m", storages, records: BTreeMap::from([("data.pkl", 0..end)]) }
    }

    /// The tensors of the pickle, each in its storage.
    pub fn tensors(&self, path: &Path, file: u32) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
        let (record, pickle) = self.pickle();
        let refused = |(byte, fault)| FetchError::Pickle { path: path.to_owned(), record, byte, fault };
        let pickled = pickle::read(pickle).map_err(refused)?;
        let storages = self.storages(&pickled);
        let storages = storages.map_err(|fault| FetchError::Archive { path: path.to_owned(), fault })?;
        let entry = |&(name, tensor): &(&str, Tensor<'_>)| {
            let entry = entry(path, file, name, &tensor, &pickled, &storages)?;
            Ok((name.to_owned(), entry))
        };
        pickled.tensors.iter().map(entry).collect()
    }

    /// Where each storage that tensors are in begins, by its key. Every one is there, has the length that
    /// the pickle says, and none is left over.
    fn storages(&self, pickled: &Pickled<'a>) -> Result<BTreeMap<&'a str, u64>, ArchiveFault> {
        let mut said: BTreeMap<&str, Storage<'_>> = BTreeMap::new();
        for (_, tensor) in &pickled.tensors {
            let storage = tensor.storage;
            if *said.entry(storage.key).or_insert(storage) != storage {
                return Err(ArchiveFault::StorageDisagrees { key: storage.key.to_owned() });
            }
        }
        let mut places = BTreeMap::new();
        let record = |key: &str| format!("{}/data/{key}", self.folder);
        if let Some(key) = self.storages.keys().find(|key| !said.contains_key(*key)) {
            return Err(ArchiveFault::UnusedStorage { record: record(key) });
        }
        for (key, storage) in said {
            let Some(range) = self.storages.get(key) else {
                return Err(ArchiveFault::NoStorage { key: key.to_owned(), record: record(key) });
            };
            let found = range.end - range.start;
            let expected = storage.elements.saturating_mul(storage.dtype.bytes());
            if found != expected {
                return Err(ArchiveFault::StorageSize { record: record(key), expected, found });
            }
            places.insert(key, range.start);
        }
        Ok(places)
    }
}

/// One tensor's entry, once it is known to be contiguous and inside its storage.
fn entry(
    path: &Path,
    file: u32,
    name: &str,
    tensor: &Tensor<'_>,
    pickled: &Pickled<'_>,
    storages: &BTreeMap<&str, u64>,
) -> Result<TensorEntry, FetchError> {
    let (path, tensor_name) = (|| path.to_owned(), || name.to_owned());
    let Storage { dtype, key, elements } = tensor.storage;
    let (shape, strides) = (pickled.sizes(tensor.shape), pickled.sizes(tensor.strides));
    let Some(len) = byte_count(dtype, &shape) else {
        return Err(FetchError::ShapeOverflow { path: path(), tensor: tensor_name(), shape });
    };
    if !contiguous(&shape, &strides) {
        return Err(FetchError::NotContiguous { path: path(), tensor: tensor_name(), shape, strides });
    }
    let end = (len / dtype.bytes()).checked_add(tensor.offset);
    let start = storages.get(key).copied();
    match (start, end) {
        (Some(start), Some(end)) if end <= elements => {
            // Inside the storage, whose bytes were counted.
            let extents = vec![Extent { file, offset: start + tensor.offset * dtype.bytes(), len }];
            Ok(TensorEntry { name: tensor_name(), dtype, shape, extents })
        }
        _ => Err(FetchError::OutsideStorage {
            path: path(),
            tensor: tensor_name(),
            key: key.to_owned(),
            end: end.unwrap_or(u64::MAX),
            elements,
        }),
    }
}

/// Whether the elements lie in row-major order without gaps. The stride of an axis of one entry, or of any
/// axis of an empty tensor, says nothing.
fn contiguous(shape: &[u64], strides: &[u64]) -> bool {
    if shape.len() != strides.len() {
        return false;
    }
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1u64;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 && stride != expected {
            return false;
        }
        // The shape's product is known not to overflow.
        expected = expected.saturating_mul(size);
    }
    true
}

#[cfg(test)]
mod tests;
