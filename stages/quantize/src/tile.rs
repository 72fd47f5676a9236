//! Matrices and experts in the device's tile order. What the order is, `mica_device::layout` says.

use crate::error::QuantizeError;
use crate::interleave::{LANES, sub_block};
use crate::search::Grid;
use crate::source::Narrow;
use crate::tally::Tally;
use crate::unit::Units;
use crate::weight::{Integers, Stored, Weight};
use half::f16;
use half::slice::HalfFloatSliceExt;
use mica_device::format::Format;
use mica_device::layout::{MatrixLayout, Scaling, TILE_ROWS, WeightFormat};

/// A vector's bytes.
const VECTOR: usize = 64;

/// One matrix or a number of them, a tile a piece.
pub(crate) struct Tiles<'a> {
    pub weight: Weight<'a>,
    pub layout: MatrixLayout,
    /// Matrices: 1, or the number of experts.
    pub count: u64,
}

impl Units for Tiles<'_> {
    fn len(&self) -> u64 {
        self.count * self.layout.tiles()
    }

    fn bytes(&self, unit: u64) -> u64 {
        self.layout.tile_bytes(unit % self.layout.tiles())
    }

    fn write(&self, unit: u64, out: &mut [u8]) -> Result<Tally, QuantizeError> {
        let layout = &self.layout;
        let (matrix, tile) = (unit / layout.tiles(), unit % layout.tiles());
        let start = tile * TILE_ROWS;
        let end = layout.rows.min(start + TILE_ROWS);
        let rows = matrix * layout.rows + start..matrix * layout.rows + end;
        let padded = layout.tile_rows(tile) as usize;
        let cols = layout.cols;
        let Some(scaling) = layout.format.scaling else {
            let mut halves = Vec::new();
            let tally = self.weight.narrowed(rows, cols, Narrow::F16, &mut halves)?;
            interleave(&halves, cols as usize * 2, padded, out, bytes);
            return Ok(tally);
        };
        let i4 = layout.format.weight == WeightFormat::I4;
        let grid = if i4 { Grid::I4 } else { Grid::I8 };
        let integers = self.weight.integers(rows, cols, grid, scaling)?;
        let (scales, rest) = out.split_at_mut(layout.scale_bytes(padded as u64) as usize);
        let (zeros, vectors) = rest.split_at_mut(layout.zero_bytes(padded as u64) as usize);
        write_scales(&integers, layout.groups() as usize, padded, scaling, scales, zeros);
        let cols = cols as usize;
        match &integers.q {
            Stored::Words(words) => interleave(words, cols / 2, padded, vectors, relaid),
            Stored::Containers(q) if i4 => {
                interleave(bytemuck::cast_slice(q), cols, padded, vectors, |row, dwords| {
                    let (whole, tail) = row.as_chunks();
                    for (dword, &columns) in dwords.iter_mut().zip(whole) {
                        *dword = narrowed(columns);
                    }
                    if let (false, Some(dword)) = (tail.is_empty(), dwords.get_mut(whole.len())) {
                        let mut columns = [0; 8];
                        columns[..tail.len()].copy_from_slice(tail);
                        *dword = narrowed(columns);
                    }
                });
            }
            Stored::Containers(q) => interleave(bytemuck::cast_slice(q), cols, padded, vectors, bytes),
        }
        Ok(integers.tally)
    }
}

/// Eight containers as a dword: byte j holds column j in its low nibble and column 4 + j in its high one.
fn narrowed(columns: [u8; 8]) -> u32 {
    let columns = u64::from_le_bytes(columns) & 0x0f0f_0f0f_0f0f_0f0f;
    columns as u32 | (columns >> 28) as u32
}

/// The same dwords of words that have their first column lowest, each integer plus 8.
fn relaid(row: &[u8], dwords: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, all that the function asks for.
        unsafe { relaid_avx2(row, dwords) };
        return;
    }
    relaid_portable(row, dwords);
}

/// The same compiled for registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn relaid_avx2(row: &[u8], dwords: &mut [u32]) {
    relaid_portable(row, dwords);
}

#[inline(always)]
fn relaid_portable(row: &[u8], dwords: &mut [u32]) {
    // four nibbles to the low halves of four bytes
    let spread = |four: u32| {
        let pairs = (four | (four << 8)) & 0x00ff_00ff;
        (pairs | (pairs << 4)) & 0x0f0f_0f0f
    };
    for (dword, &columns) in dwords.iter_mut().zip(row.as_chunks().0) {
        // less 8 modulo 16
        let columns = u32::from_le_bytes(columns) ^ 0x8888_8888;
        *dword = spread(columns & 0xffff) | (spread(columns >> 16) << 4);
    }
}

/// Four bytes a dword, as they lie; those that are missing at the end stay zero.
fn bytes(row: &[u8], dwords: &mut [u32]) {
    let (whole, tail) = row.as_chunks();
    for (dword, &bytes) in dwords.iter_mut().zip(whole) {
        *dword = u32::from_le_bytes(bytes);
    }
    if let (false, Some(dword)) = (tail.is_empty(), dwords.get_mut(whole.len())) {
        let mut bytes = [0; 4];
        bytes[..tail.len()].copy_from_slice(tail);
        *dword = u32::from_le_bytes(bytes);
    }
}

/// How far ahead of what is read to ask for bytes. Rows lie one after the other, and the machine's own guesses end with
/// each page of them.
const AHEAD: usize = 4096;

/// Asks the memory for what lies [`AHEAD`] of a row, as long as it is.
fn ask_for(row: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..row.len()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: whatever lies there, asking for it is no access.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(AHEAD + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// Rows of `row` bytes into vectors `[step][sub-block of 16 rows]` of one dword a row; `dwords` makes a row's from its
/// bytes, into zeros. Rows and columns that are missing stay zero.
fn interleave(rows: &[u8], row: usize, padded: usize, out: &mut [u8], dwords: impl Fn(&[u8], &mut [u32])) {
    let count = padded / LANES;
    let steps = out.len() / (count * VECTOR);
    let mut made = vec![0; LANES * steps];
    for (number, rows) in rows.chunks(LANES * row).enumerate() {
        if rows.len() < LANES * row {
            made.fill(0);
        }
        for (row, made) in rows.chunks_exact(row).zip(made.chunks_exact_mut(steps)) {
            ask_for(row);
            dwords(row, made);
        }
        sub_block(&made, steps, number, count, out);
    }
}

/// The scale and zero-point sections, `[group][row]`.
fn write_scales(
    integers: &Integers<'_>,
    groups: usize,
    padded: usize,
    scaling: Scaling,
    scales: &mut [u8],
    zeros: &mut [u8],
) {
    if scaling.scale == Format::F16 {
        let mut halves = vec![f16::ZERO; integers.scales.len()];
        halves.convert_from_f32_slice(&integers.scales);
        let scales = scales.as_chunks_mut().0;
        for (row, values) in halves.chunks_exact(groups).enumerate() {
            for (group, &scale) in values.iter().enumerate() {
                scales[group * padded + row] = scale.to_le_bytes();
            }
        }
    } else {
        let scales = scales.as_chunks_mut().0;
        for (row, values) in integers.scales.chunks_exact(groups).enumerate() {
            for (group, &scale) in values.iter().enumerate() {
                scales[group * padded + row] = scale.to_le_bytes();
            }
        }
    }
    for (row, values) in integers.zeros.chunks_exact(groups).enumerate() {
        for (group, &zero) in values.iter().enumerate() {
            zeros[group * padded + row] = zero as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of any integers become the dwords of their containers.
    #[test]
    fn words_lie_as_containers_do() {
        let row: Vec<u8> = (0..36 * 256u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let integers = row.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let containers: Vec<u8> = integers.map(|integer| integer.wrapping_sub(8)).collect();
        let expected: Vec<u32> = containers.as_chunks().0.iter().map(|&columns| narrowed(columns)).collect();
        for relaid in [relaid as fn(&[u8], &mut [u32]), relaid_portable] {
            let mut dwords = vec![0; expected.len()];
            relaid(&row, &mut dwords);
            assert_eq!(dwords, expected);
        }
        assert_eq!(narrowed([0, 1, 2, 3, 4, 5, 6, 0xff]), u32::from_le_bytes([0x40, 0x51, 0x62, 0xf3]));
    }
}
