//! Where a tensor's bytes come from, and reading them as numbers.

use crate::error::QuantizeError;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mica_pack::{Dtype, Source};
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// The contents of tensors by digest. A delivery is mapped, so a range that lies in one piece of it is
/// lent, and one that crosses pieces is put together; the stage asks for a tile's rows at a time.
pub trait TensorBytes: Sync {
    /// Bytes `range` of the tensor's canonical row-major little-endian bytes.
    ///
    /// # Errors
    /// The surroundings' own; the stage reports them as [`QuantizeError::Io`].
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>>;

    /// The words of elements `range`, integers of four bits in whole rows: eight a word along a row, each plus 8, the
    /// first in the low bits. `None` where they do not lie so; the stage then asks for their bytes.
    ///
    /// # Errors
    /// As [`bytes`](TensorBytes::bytes).
    fn words(&self, source: &Source, range: Range<u64>) -> io::Result<Option<Cow<'_, [u8]>>> {
        let _ = (source, range);
        Ok(None)
    }
}

/// Reads elements of one weight's sources; a range is in elements.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub role: &'a str,
    pub bytes: &'a dyn TensorBytes,
}

impl<'a> Reader<'a> {
    /// The bytes of elements `range`.
    pub fn raw(&self, source: &Source, range: Range<u64>) -> Result<Cow<'a, [u8]>, QuantizeError> {
        let size = source.dtype.bytes();
        let range = range.start * size..range.end * size;
        let expected = range.end - range.start;
        let bytes = self.bytes.bytes(source, range);
        let bytes = bytes.map_err(|e| QuantizeError::io(self.role, "reading the delivery", &e))?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(QuantizeError::Length { role: self.role.into(), expected, found });
        }
        Ok(bytes)
    }

    /// The [`words`](TensorBytes::words) of elements `range`, if they lie so.
    pub fn words(&self, source: &Source, range: Range<u64>) -> Result<Option<Cow<'a, [u8]>>, QuantizeError> {
        let expected = (range.end - range.start) / 2;
        let words = self.bytes.words(source, range);
        let words = words.map_err(|e| QuantizeError::io(self.role, "reading the delivery", &e))?;
        match words.as_ref().map(|words| words.len() as u64) {
            Some(found) if found != expected => {
                Err(QuantizeError::Length { role: self.role.into(), expected, found })
            }
            _ => Ok(words),
        }
    }

    /// The bytes of elements `range` of a float source, which [`widen`] takes.
    pub fn raw_floats(&self, source: &Source, range: Range<u64>) -> Result<Cow<'a, [u8]>, QuantizeError> {
        if !matches!(source.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(QuantizeError::Dtype {
                role: self.role.into(),
                part: "data",
                found: source.dtype,
                expected: "F32, F16 or BF16",
            });
        }
        self.raw(source, range)
    }

    /// Elements `range` of a float source, exactly, as binary32.
    pub fn floats(&self, source: &Source, range: Range<u64>) -> Result<Vec<f32>, QuantizeError> {
        let mut out = Vec::new();
        widen(source.dtype, &self.raw_floats(source, range)?, &mut out);
        Ok(out)
    }
}

/// Little-endian floats as binary32, every bit pattern kept that binary32 has; none of other dtypes.
pub(crate) fn widen(dtype: Dtype, raw: &[u8], out: &mut Vec<f32>) {
    out.clear();
    match dtype {
        Dtype::F32 => out.extend(raw.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
        Dtype::BF16 => out.extend(
            raw.as_chunks().0.iter().map(|&b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
        ),
        Dtype::F16 => {
            let halves: Vec<f16> = raw.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b)).collect();
            out.resize(halves.len(), 0.0);
            halves.convert_to_f32_slice(out);
        }
        _ => {}
    }
}

/// The elements of `values` in a narrower stored format, little-endian, appended to nothing: `out` has
/// the room. Returns the element that a finite value overflowed at.
pub(crate) fn narrow(format: Narrow, values: &[f32], out: &mut [u8]) -> Result<(), usize> {
    match format {
        Narrow::F32 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                *out = value.to_le_bytes();
            }
        }
        Narrow::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            for (half, out) in halves.iter().zip(out.as_chunks_mut().0) {
                *out = half.to_le_bytes();
            }
            let overflow = |(half, value): (&f16, &f32)| half.is_infinite() && value.is_finite();
            if let Some(at) = halves.iter().zip(values).position(overflow) {
                return Err(at);
            }
        }
        Narrow::Bf16 => {
            for (index, (&value, out)) in values.iter().zip(out.as_chunks_mut().0).enumerate() {
                let narrow = bf16::from_f32(value);
                if narrow.is_infinite() && value.is_finite() {
                    return Err(index);
                }
                *out = narrow.to_le_bytes();
            }
        }
    }
    Ok(())
}

/// A float format that values are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    F32,
    F16,
    Bf16,
}

impl Narrow {
    pub const fn name(self) -> &'static str {
        match self {
            Narrow::F32 => "f32",
            Narrow::F16 => "f16",
            Narrow::Bf16 => "bf16",
        }
    }

    pub const fn dtype(self) -> Dtype {
        match self {
            Narrow::F32 => Dtype::F32,
            Narrow::F16 => Dtype::F16,
            Narrow::Bf16 => Dtype::BF16,
        }
    }
}

/// A value as an error shows it.
pub(crate) fn shown(value: f32) -> String {
    format!("{value}")
}
