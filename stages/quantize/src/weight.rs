//! A weight's rows as the numbers that are stored: integers with scales, delivered or fitted, or floats of
//! a narrower format. Where they go in the segment is not its business.

use crate::error::QuantizeError;
use crate::recipe::ScaleFormat;
use crate::search::{self, Grid, Groups, Scratch, Unfit};
use crate::source::{Narrow, Reader, narrow, shown, widen};
use crate::tally::Tally;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mica_device::format::Format;
use mica_device::layout::Scaling;
use mica_pack::{Dtype, PackedTensor, Source};
use std::borrow::Cow;
use std::ops::Range;

/// A weight and how to read it.
#[derive(Clone, Copy)]
pub(crate) struct Weight<'a> {
    pub tensor: &'a PackedTensor,
    pub reader: Reader<'a>,
    pub allow_non_finite: bool,
}

/// Integers, row-major.
pub(crate) enum Stored<'a> {
    /// One a byte; as they lie in the delivery, where they come from there.
    Containers(Cow<'a, [i8]>),
    /// Eight a word, each plus 8, the first in the low bits.
    Words(Cow<'a, [u8]>),
}

/// Whether any integer may have this scale; zero is for groups of zeros only.
fn is_scale(scale: f32) -> bool {
    scale > 0.0 && scale < f32::INFINITY
}

/// Whether all of some stored scales are such. Looks at every one, as a vector of them is looked at in one step; of a
/// positive number the bits are positive, and those of infinity the least that are no number's.
fn all_scale(dtype: Dtype, raw: &[u8]) -> bool {
    fn all<const BYTES: usize>(raw: &[u8], is_scale: impl Fn([u8; BYTES]) -> bool) -> bool {
        raw.as_chunks().0.iter().fold(true, |all, &scale| all & is_scale(scale))
    }
    let halves = |infinity: u16| all(raw, move |s| u16::from_le_bytes(s).wrapping_sub(1) < infinity - 1);
    match dtype {
        Dtype::F16 => halves(f16::INFINITY.to_bits()),
        Dtype::BF16 => halves(bf16::INFINITY.to_bits()),
        _ => all(raw, |s| u32::from_le_bytes(s).wrapping_sub(1) < f32::INFINITY.to_bits() - 1),
    }
}

/// Scales that are values of the stored format, in it.
fn stored_scales(scales: &[f32], format: Format) -> Vec<u8> {
    if format == Format::F16 {
        let mut halves = vec![f16::ZERO; scales.len()];
        halves.convert_from_f32_slice(scales);
        halves.iter().map(|scale| scale.to_le_bytes()).collect::<Vec<_>>().into_flattened()
    } else {
        scales.iter().map(|scale| scale.to_le_bytes()).collect::<Vec<_>>().into_flattened()
    }
}

impl Stored<'_> {
    /// Whether all of some elements are `value`.
    fn are(&self, elements: Range<usize>, value: i8) -> bool {
        match self {
            Stored::Containers(q) => q[elements].iter().all(|&q| q == value),
            Stored::Words(words) => {
                let nibble = |at: usize| (words[at / 2] >> (at % 2 * 4)) & 15;
                elements.into_iter().all(|at| nibble(at).wrapping_sub(8) as i8 == value)
            }
        }
    }
}

/// Rows of integers with their scales, row-major: `[row][col]` and `[row][group]`.
pub(crate) struct Integers<'a> {
    pub q: Stored<'a>,
    /// In their stored format, little-endian.
    pub scales: Cow<'a, [u8]>,
    /// Empty where there are none.
    pub zeros: Vec<i8>,
    pub tally: Tally,
}

impl<'a> Weight<'a> {
    fn role(&self) -> String {
        self.tensor.role.clone()
    }

    /// Rows `rows`, counted over the whole weight, as integers: as delivered, or fitted.
    pub fn integers(
        &self,
        rows: Range<u64>,
        cols: u64,
        grid: Grid,
        scaling: Scaling,
    ) -> Result<Integers<'a>, QuantizeError> {
        match &self.tensor.scale {
            Some(scales) => self.delivered(scales, rows, cols, grid, scaling),
            None => self.fitted(rows, cols, grid, scaling),
        }
    }

    fn delivered(
        &self,
        scales: &Source,
        rows: Range<u64>,
        cols: u64,
        grid: Grid,
        scaling: Scaling,
    ) -> Result<Integers<'a>, QuantizeError> {
        let group = u64::from(scaling.group);
        let elements = rows.start * cols..rows.end * cols;
        let q = self.stored(elements, cols, grid)?;
        let groups = rows.start * cols / group..rows.end * cols / group;
        let dtype = scales.dtype;
        let mut scales = self.reader.raw_floats(scales, groups.clone())?;
        let zeros: Vec<i8> = match &self.tensor.zero {
            Some(source) => {
                let raw = self.reader.raw(source, groups.clone())?;
                raw.iter().map(|&b| b as i8).collect()
            }
            None => Vec::new(),
        };
        let mut suspect = Vec::new();
        if !all_scale(dtype, &scales) {
            // one by one only where there is something to find
            widen(dtype, &scales, &mut suspect);
        }
        for (at, &scale) in suspect.iter().enumerate() {
            let zero = zeros.get(at).copied().unwrap_or(0);
            let reason = if is_scale(scale) {
                continue;
            } else if scale == 0.0 {
                let group = group as usize;
                if q.are(at * group..(at + 1) * group, zero) {
                    continue;
                }
                "zero is only the scale of a group that is all zero"
            } else {
                "a scale is positive and finite"
            };
            let (at, value) = ((groups.start + at as u64).into(), shown(scale));
            return Err(QuantizeError::Scale { role: self.role(), at, value, reason });
        }
        if !matches!((dtype, scaling.scale), (Dtype::F16, Format::F16) | (Dtype::F32, Format::F32)) {
            // bfloat16, which is stored as binary32
            let mut widened = Vec::new();
            widen(dtype, &scales, &mut widened);
            scales = stored_scales(&widened, scaling.scale).into();
        }
        Ok(Integers { q, scales, zeros, tally: Tally::new() })
    }

    /// Delivered integers of whole rows, of which every one has its place in the grid.
    fn stored(&self, elements: Range<u64>, cols: u64, grid: Grid) -> Result<Stored<'a>, QuantizeError> {
        if grid.is_i4()
            && cols.is_multiple_of(8)
            && let Some(words) = self.reader.words(&self.tensor.data, elements.clone())?
        {
            return Ok(Stored::Words(words));
        }
        let q: Cow<'a, [i8]> = match self.reader.raw(&self.tensor.data, elements.clone())? {
            Cow::Borrowed(raw) => Cow::Borrowed(bytemuck::cast_slice(raw)),
            Cow::Owned(raw) => Cow::Owned(bytemuck::allocation::cast_vec(raw)),
        };
        match grid.outside(&q) {
            None => Ok(Stored::Containers(q)),
            Some(at) => {
                let (at, value) = ((elements.start + at as u64).into(), q[at]);
                Err(QuantizeError::Container { role: self.role(), at, value })
            }
        }
    }

    fn fitted(
        &self,
        rows: Range<u64>,
        cols: u64,
        grid: Grid,
        scaling: Scaling,
    ) -> Result<Integers<'a>, QuantizeError> {
        let group = scaling.group as usize;
        let format = if scaling.scale == Format::F16 { ScaleFormat::F16 } else { ScaleFormat::F32 };
        let raw = self.reader.raw_floats(&self.tensor.data, rows.start * cols..rows.end * cols)?;
        let dtype = self.tensor.data.dtype;
        let mut q = vec![0; raw.len() / dtype.bytes() as usize];
        let mut scales = Vec::with_capacity(q.len() / group);
        let mut tally = Tally::new();
        let mut scratch = Scratch::default();
        let some = group * search::LANES;
        let mut index = rows.start * cols / group as u64;
        let mut weights = Vec::new();
        for (raw, q) in raw.chunks(some * dtype.bytes() as usize).zip(q.chunks_mut(some)) {
            // As many as are fitted at once, which the first cache holds.
            widen(dtype, raw, &mut weights);
            let mut infinite = Vec::new();
            let fits = loop {
                let groups = Groups { weights: &weights, len: group };
                match search::fit(groups, grid, format, &mut scratch, q) {
                    Ok(fits) => break fits,
                    Err(Unfit::NonFinite(lane)) => {
                        let first = (index + lane as u64) * group as u64;
                        let weights = &mut weights[lane * group..][..group];
                        let places = self.set_aside(weights, first, &mut tally)?;
                        infinite.extend(places.into_iter().map(|(at, negative)| (lane, at, negative)));
                    }
                    Err(Unfit::Overflow(lane, max)) => {
                        let (index, value) = (index + lane as u64, shown(max));
                        let format = if format == ScaleFormat::F16 { "f16" } else { "f32" };
                        return Err(QuantizeError::ScaleOverflow { role: self.role(), index, value, format });
                    }
                }
            };
            for (lane, at, negative) in infinite {
                tally.saturated += 1;
                if fits[lane].scale > 0.0 {
                    q[lane * group + at] = grid.limit(negative);
                }
            }
            for fit in &fits[..weights.len() / group] {
                scales.push(fit.scale);
                tally.group(index, fit.error, fit.energy);
                tally.saturated += fit.saturated;
                tally.lossless &= fit.exact;
                index += 1;
            }
        }
        let scales = stored_scales(&scales, scaling.scale).into();
        Ok(Integers { q: Stored::Containers(q.into()), scales, zeros: Vec::new(), tally })
    }

    /// Replaces what is not finite by zero, where that is allowed; the infinities' places and signs.
    fn set_aside(
        &self,
        values: &mut [f32],
        first: u64,
        tally: &mut Tally,
    ) -> Result<Vec<(usize, bool)>, QuantizeError> {
        let mut infinite = Vec::new();
        for (at, value) in values.iter_mut().enumerate().filter(|(_, value)| !value.is_finite()) {
            if !self.allow_non_finite {
                return Err(self.non_finite(first + at as u64, *value));
            }
            if value.is_infinite() {
                infinite.push((at, value.is_sign_negative()));
            }
            tally.non_finite += 1;
            tally.lossless = false;
            *value = 0.0;
        }
        Ok(infinite)
    }

    fn non_finite(&self, index: u64, value: f32) -> QuantizeError {
        QuantizeError::NonFinite { role: self.role(), at: index.into(), value: shown(value) }
    }

    /// Elements of rows `rows` (of `cols`) as little-endian floats of `format`; figures a row.
    pub fn narrowed(
        &self,
        rows: Range<u64>,
        cols: u64,
        format: Narrow,
        out: &mut Vec<u8>,
    ) -> Result<Tally, QuantizeError> {
        let elements = rows.start * cols..rows.end * cols;
        let values = self.reader.floats(&self.tensor.data, elements.clone())?;
        let mut tally = Tally::new();
        for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_finite()) {
            if !self.allow_non_finite {
                return Err(self.non_finite(elements.start + at as u64, *value));
            }
            tally.non_finite += 1;
        }
        out.clear();
        if self.tensor.data.dtype == format.dtype() {
            // The very bits, also of a NaN.
            out.extend_from_slice(&self.reader.raw(&self.tensor.data, elements)?);
            return Ok(tally);
        }
        out.resize(values.len() * format.dtype().bytes() as usize, 0);
        narrow(format, &values, out).map_err(|at| QuantizeError::Overflow {
            role: self.role(),
            at: (elements.start + at as u64).into(),
            value: shown(values[at]),
            format: format.name(),
        })?;
        if format.dtype() == Dtype::F32 {
            return Ok(tally); // every delivered float is a binary32
        }
        let mut kept = Vec::new();
        widen(format.dtype(), out, &mut kept);
        for (at, (was, is)) in values.chunks(cols as usize).zip(kept.chunks(cols as usize)).enumerate() {
            let (mut error, mut energy) = (0.0, 0.0);
            for (&was, &is) in was.iter().zip(is).filter(|(was, _)| was.is_finite()) {
                let (was, is) = (f64::from(was), f64::from(is));
                error += (was - is) * (was - is);
                energy += was * was;
                tally.lossless &= was == is;
            }
            tally.group(rows.start + at as u64, error, energy);
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_told_by_their_bits() {
        for bits in 0..=u16::MAX {
            let raw = bits.to_le_bytes();
            let wide = [raw, raw].concat();
            let cases = [
                (Dtype::F16, f16::from_bits(bits).to_f32(), &raw[..]),
                (Dtype::BF16, bf16::from_bits(bits).to_f32(), &raw),
                (Dtype::F32, f32::from_bits(u32::from(bits) << 16 | u32::from(bits)), &wide),
            ];
            for (dtype, scale, raw) in cases {
                assert_eq!(all_scale(dtype, raw), is_scale(scale), "{dtype:?} {bits:#x}");
            }
        }
    }
}
