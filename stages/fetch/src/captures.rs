//! Captures: what the published implementation computed, tensor by tensor, for a given prompt.
//!
//! A capture file is a safetensors file; which of its names means what is data, since every publisher
//! names theirs in its own way. A file of our own evaluator says so itself. Knows nothing of gates.

mod map;
mod origin;

use half::{bf16, f16};
use mica_dtype::Dtype;

use crate::error::FetchError;
use crate::files::DeliveryFiles;
use crate::index::{TensorEntry, TensorIndex};

pub use map::{CaptureMap, LayerName, Name};
pub use origin::{EVALUATOR, MADE_BY, SELF, SelfMade, self_made};

/// A tensor's values in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Outermost axis first; in captures that is the token.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub values: Vec<T>,
}

impl<T> Array<T> {
    /// The elements of one entry of the outermost axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Entry `i` of the outermost axis, or `None` past its end.
    pub fn row(&self, i: usize) -> Option<&[T]> {
        let len = self.row_len();
        let rows = *self.shape.first()?;
        (i < rows).then(|| &self.values[i * len..(i + 1) * len])
    }
}

/// The captures that an index of capture files offers.
#[derive(Clone, Copy)]
pub struct CaptureSet<'a> {
    index: &'a TensorIndex,
    files: &'a dyn DeliveryFiles,
}

impl<'a> CaptureSet<'a> {
    /// The captures of `index`, whose extents point into `files`.
    pub fn new(index: &'a TensorIndex, files: &'a dyn DeliveryFiles) -> Self {
        CaptureSet { index, files }
    }

    /// The capture's type, shape and place, if there is such a capture.
    pub fn find(&self, name: &str) -> Option<&'a TensorEntry> {
        self.index.find(name)
    }

    /// A floating-point capture, widened to float64 (exactly, whatever its type).
    ///
    /// # Errors
    /// If there is none of that name, or it holds integers.
    pub fn get_f64(&self, name: &str) -> Result<Array<f64>, FetchError> {
        let entry = self.index.get(name)?;
        let decode: fn(&[u8]) -> f64 = match entry.dtype {
            Dtype::F64 => |b| f64::from_le_bytes(fixed(b)),
            Dtype::F32 => |b| f64::from(f32::from_le_bytes(fixed(b))),
            Dtype::F16 => |b| f16::from_le_bytes(fixed(b)).to_f64(),
            Dtype::BF16 => |b| bf16::from_le_bytes(fixed(b)).to_f64(),
            dtype => return Err(wrong(name, dtype, "a floating-point type")),
        };
        let values = self.elements(entry)?.chunks_exact(width(entry)).map(decode).collect();
        array(entry, values)
    }

    /// An integer capture.
    ///
    /// # Errors
    /// If there is none of that name, it holds floating-point numbers, or a value beyond `i64`.
    pub fn get_i64(&self, name: &str) -> Result<Array<i64>, FetchError> {
        let entry = self.index.get(name)?;
        let decode: fn(&[u8]) -> Result<i64, u64> = match entry.dtype {
            Dtype::I64 => |b| Ok(i64::from_le_bytes(fixed(b))),
            Dtype::I32 => |b| Ok(i32::from_le_bytes(fixed(b)).into()),
            Dtype::I16 => |b| Ok(i16::from_le_bytes(fixed(b)).into()),
            Dtype::I8 => |b| Ok(i8::from_le_bytes(fixed(b)).into()),
            Dtype::U8 | Dtype::Bool => |b| Ok(u8::from_le_bytes(fixed(b)).into()),
            Dtype::U16 => |b| Ok(u16::from_le_bytes(fixed(b)).into()),
            Dtype::U32 => |b| Ok(u32::from_le_bytes(fixed(b)).into()),
            Dtype::U64 => |b| {
                let value = u64::from_le_bytes(fixed(b));
                i64::try_from(value).map_err(|_| value)
            },
            dtype => return Err(wrong(name, dtype, "an integer type")),
        };
        let bytes = self.elements(entry)?;
        let beyond = |(element, value)| FetchError::CaptureRange { name: name.to_owned(), element, value };
        let decoded = bytes.chunks_exact(width(entry)).map(decode).enumerate();
        let values = decoded.map(|(i, v)| v.map_err(|value| beyond((i, value)))).collect::<Result<_, _>>()?;
        array(entry, values)
    }

    /// The capture's bytes in one piece. Captures are small next to weights, so the copy is too.
    fn elements(&self, entry: &TensorEntry) -> Result<Vec<u8>, FetchError> {
        Ok(entry.chunks(self.files)?.concat())
    }
}

fn array<T>(entry: &TensorEntry, values: Vec<T>) -> Result<Array<T>, FetchError> {
    // The values are in memory, so each axis but those of an empty tensor fits; a huge axis beside a zero
    // would not on a 32-bit machine.
    let axis = |d: &u64| usize::try_from(*d);
    let shape =
        entry.shape.iter().map(axis).collect::<Result<_, _>>().map_err(|_| FetchError::ShapeOverflow {
            path: entry.name.clone().into(),
            tensor: entry.name.clone(),
            shape: entry.shape.clone(),
        })?;
    Ok(Array { shape, values })
}

fn width(entry: &TensorEntry) -> usize {
    entry.dtype.bytes() as usize
}

/// The element's bytes; `chunks_exact` by the type's own width makes the length right.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

fn wrong(name: &str, dtype: Dtype, wanted: &'static str) -> FetchError {
    FetchError::CaptureType { name: name.to_owned(), dtype, wanted }
}

#[cfg(test)]
mod tests;
