//! Matrices and experts in the device's tile order. What the order is, `mica_device::layout` says.

use crate::error::QuantizeError;
use crate::search::Grid;
use crate::source::Narrow;
use crate::tally::Tally;
use crate::unit::Units;
use crate::weight::{Integers, Weight};
use half::f16;
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixLayout, Scaling, TILE_ROWS, WeightFormat};

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
            interleave(&halves, cols as usize * 2, padded, out, |dword: [u8; 4]| dword);
            return Ok(tally);
        };
        let i4 = layout.format.weight == WeightFormat::I4;
        let grid = if i4 { Grid::I4 } else { Grid::I8 };
        let integers = self.weight.integers(rows, cols, grid, scaling)?;
        let (scales, rest) = out.split_at_mut(layout.scale_bytes(padded as u64) as usize);
        let (zeros, vectors) = rest.split_at_mut(layout.zero_bytes(padded as u64) as usize);
        write_scales(&integers, layout.groups() as usize, padded, scaling, scales, zeros);
        let q: &[u8] = bytemuck::cast_slice(&integers.q);
        if i4 {
            interleave(q, cols as usize, padded, vectors, nibbles);
        } else {
            interleave(q, cols as usize, padded, vectors, |dword: [u8; 4]| dword);
        }
        Ok(integers.tally)
    }
}

/// Eight containers as a dword: byte j holds column j in its low nibble and column 4 + j in its high one.
fn nibbles(columns: [u8; 8]) -> [u8; 4] {
    let columns = u64::from_le_bytes(columns) & 0x0f0f_0f0f_0f0f_0f0f;
    (columns as u32 | (columns >> 28) as u32).to_le_bytes()
}

/// Rows of `row` bytes into vectors `[step][sub-block of 16 rows]` of one dword a row; `dword` makes a
/// row's dword from the `N` bytes of a step. Rows and columns that are missing stay zero.
fn interleave<const N: usize>(
    rows: &[u8],
    row: usize,
    padded: usize,
    out: &mut [u8],
    dword: impl Fn([u8; N]) -> [u8; 4],
) {
    let lanes = LANES as usize;
    let stride = padded / lanes * VECTOR;
    for (at, row) in rows.chunks_exact(row).enumerate() {
        let place = at / lanes * VECTOR + at % lanes * 4;
        let (whole, tail) = row.as_chunks::<N>();
        let mut steps = out.chunks_exact_mut(stride);
        for (&columns, step) in whole.iter().zip(&mut steps) {
            step[place..place + 4].copy_from_slice(&dword(columns));
        }
        if let (false, Some(step)) = (tail.is_empty(), steps.next()) {
            let mut columns = [0; N];
            columns[..tail.len()].copy_from_slice(tail);
            step[place..place + 4].copy_from_slice(&dword(columns));
        }
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
    for (row, values) in integers.scales.chunks_exact(groups).enumerate() {
        for (group, &scale) in values.iter().enumerate() {
            let at = group * padded + row;
            match scaling.scale {
                Format::F16 => {
                    let bytes = f16::from_f32(scale).to_le_bytes();
                    scales[at * 2..][..2].copy_from_slice(&bytes);
                }
                _ => scales[at * 4..][..4].copy_from_slice(&scale.to_le_bytes()),
            }
        }
    }
    for (row, values) in integers.zeros.chunks_exact(groups).enumerate() {
        for (group, &zero) in values.iter().enumerate() {
            zeros[group * padded + row] = zero as u8;
        }
    }
}
