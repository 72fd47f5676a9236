//! The header of a safetensors file, read as strictly as the format can be.
//!
//! The format: eight bytes, little-endian, the header's length; the header, a JSON object from tensor
//! names to type, shape and byte range; the data. A file is accepted only if its tensors tile the data
//! exactly. Touches the header's bytes and no tensor's. Knows neither shards nor models.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;

use mica_dtype::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::container::impostor;
use crate::dtype;
use crate::error::FetchError;
use crate::index::{Extent, MAX_RANK, TensorEntry, byte_count};
use crate::strict_json::UniqueMap;

/// The key that holds free-form strings and no tensor.
const METADATA: &str = "__metadata__";

/// Bytes of the length before the header.
const PREFIX: u64 = 8;

/// The tensors of the safetensors file `bytes`, which is number `file` of its delivery.
pub(crate) fn read(
    path: &Path,
    file: u32,
    bytes: &[u8],
) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
    let header = header_bytes(path, bytes)?;
    let data_start = PREFIX + header.len() as u64;
    let available = bytes.len() as u64 - data_start;

    let Header(wires) = serde_json::from_slice(header).map_err(|e| FetchError::header(path, &e))?;
    let duplicate = |key: &str| FetchError::DuplicateKey { path: path.to_owned(), key: key.to_owned() };
    let mut metadata = false;
    let mut tensors = BTreeMap::new();
    for (name, value) in wires {
        let Some(wire) = value else {
            if std::mem::replace(&mut metadata, true) {
                return Err(duplicate(METADATA));
            }
            continue;
        };
        let (begin, end) = wire.data_offsets;
        let (dtype, shape) = checked(path, &name, wire, available)?;
        let extents = vec![Extent { file, offset: data_start + begin, len: end - begin }];
        match tensors.entry(name) {
            Entry::Vacant(slot) => {
                let name = slot.key().clone();
                slot.insert(TensorEntry { name, dtype, shape, extents });
            }
            Entry::Occupied(slot) => return Err(duplicate(slot.key())),
        }
    }
    tiles(path, &tensors, data_start, bytes.len() as u64)?;
    Ok(tensors)
}

/// The free-form strings of the safetensors file `bytes`; none where it has no such entry.
pub(crate) fn metadata(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, String>, FetchError> {
    let header = header_bytes(path, bytes)?;
    let said: Strings = serde_json::from_slice(header).map_err(|e| FetchError::header(path, &e))?;
    Ok(said.strings.map(|s| s.0).unwrap_or_default())
}

/// The header's JSON, once its stated length is known to fit.
fn header_bytes<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], FetchError> {
    let size = bytes.len() as u64;
    let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(match impostor(bytes) {
            Some(what) => FetchError::NotSafetensors { path: path.to_owned(), what },
            None => FetchError::NoHeader { path: path.to_owned(), size },
        });
    };
    let length = u64::from_le_bytes(*prefix);
    match usize::try_from(length).ok().and_then(|n| rest.get(..n)) {
        Some(header) if header.first() == Some(&b'{') => Ok(header),
        Some(_) => Err(FetchError::Header {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: "a header begins with an opening brace".to_owned(),
        }),
        None => Err(match impostor(bytes) {
            Some(what) => FetchError::NotSafetensors { path: path.to_owned(), what },
            None => FetchError::HeaderTooLong { path: path.to_owned(), header: length, size },
        }),
    }
}

/// Type and shape of one tensor, once its range is known to lie in the file and to fit the shape.
fn checked(path: &Path, name: &str, wire: Wire<'_>, available: u64) -> Result<(Dtype, Vec<u64>), FetchError> {
    let path = || path.to_owned();
    let tensor = || name.to_owned();
    let dtype = dtype::named(&wire.dtype).map_err(|reason| FetchError::UnknownDtype {
        path: path(),
        tensor: tensor(),
        reason: Box::new(reason),
    })?;
    let (begin, end) = wire.data_offsets;
    let shape = wire.shape.0;
    if end < begin {
        return Err(FetchError::BackwardRange { path: path(), tensor: tensor(), begin, end });
    }
    if end > available {
        return Err(FetchError::Truncated { path: path(), tensor: tensor(), end, available });
    }
    match byte_count(dtype, &shape) {
        None => Err(FetchError::ShapeOverflow { path: path(), tensor: tensor(), shape }),
        Some(expected) if expected != end - begin => Err(FetchError::SizeMismatch {
            path: path(),
            tensor: tensor(),
            dtype,
            shape,
            expected,
            actual: end - begin,
        }),
        Some(_) => Ok((dtype, shape)),
    }
}

/// Whether the tensors follow one another without overlap or gap from `start` to `size`, in bytes of the
/// file.
fn tiles(
    path: &Path,
    tensors: &BTreeMap<String, TensorEntry>,
    start: u64,
    size: u64,
) -> Result<(), FetchError> {
    let mut ranges: Vec<(&Extent, &str)> =
        tensors.values().flat_map(|t| t.extents.iter().map(|e| (e, t.name.as_str()))).collect();
    // An empty tensor may lie at the beginning of a full one, never inside it.
    ranges.sort_unstable_by_key(|(e, name)| (e.offset, e.len, *name));
    let path = || path.to_owned();
    let mut cursor = start;
    let mut previous = "";
    for (extent, name) in ranges {
        let (tensor, begin) = (|| name.to_owned(), extent.offset);
        if begin < cursor {
            let other = previous.to_owned();
            return Err(FetchError::Overlap { path: path(), tensor: tensor(), begin, other, end: cursor });
        }
        if begin > cursor {
            return Err(FetchError::Hole { path: path(), tensor: tensor(), bytes: begin - cursor });
        }
        cursor += extent.len;
        previous = name;
    }
    if cursor < size {
        return Err(FetchError::TrailingBytes { path: path(), bytes: size - cursor });
    }
    Ok(())
}

/// The header's pairs in file order, duplicates kept for the caller to refuse; the metadata are no tensor.
struct Header<'a>(Vec<(String, Option<Wire<'a>>)>);

/// One tensor as the header says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Header<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor).map(Header)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, Option<Wire<'de>>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = if name == METADATA {
                map.next_value::<Option<UniqueMap<String>>>().map(|_| None)
            } else {
                map.next_value().map(Some)
            };
            let value = value.map_err(|e| A::Error::custom(format_args!("{name}: {e}")))?;
            out.push((name, value));
        }
        Ok(out)
    }
}

/// The free-form strings of a header whose tensors are read elsewhere.
#[derive(Deserialize)]
struct Strings {
    #[serde(rename = "__metadata__")]
    strings: Option<UniqueMap<String>>,
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_RANK} axes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut out = Vec::new();
        while let Some(axis) = seq.next_element()? {
            if out.len() == MAX_RANK {
                return Err(A::Error::invalid_length(MAX_RANK + 1, &self));
            }
            out.push(axis);
        }
        Ok(Shape(out))
    }
}

#[cfg(test)]
mod tests;
