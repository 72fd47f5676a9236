//! Matrices and experts in the device's tile order. What the order is, `mica_device::layout` says.

use crate::error::QuantizeError;
use crate::interleave::{Rows, interleave};
use crate::search::Grid;
use crate::source::Narrow;
use crate::tally::Tally;
use crate::unit::Units;
use crate::weight::{Stored, Weight};
use mica_device::layout::{MatrixLayout, TILE_ROWS, WeightFormat};

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
            interleave(Rows::Bytes, &halves, cols as usize * 2, padded, out);
            return Ok(tally);
        };
        let i4 = layout.format.weight == WeightFormat::I4;
        let grid = if i4 { Grid::I4 } else { Grid::I8 };
        let integers = self.weight.integers(rows, cols, grid, scaling)?;
        let (scales, rest) = out.split_at_mut(layout.scale_bytes(padded as u64) as usize);
        let (zeros, vectors) = rest.split_at_mut(layout.zero_bytes(padded as u64) as usize);
        write_columns(&integers.scales, layout.groups() as usize, scaling.scale.bytes(), padded, scales);
        write_columns(bytemuck::cast_slice(&integers.zeros), layout.groups() as usize, 1, padded, zeros);
        let cols = cols as usize;
        match &integers.q {
            Stored::Words(words) => interleave(Rows::Words, words, cols / 2, padded, vectors),
            Stored::Containers(q) => {
                let kind = if i4 { Rows::Containers } else { Rows::Bytes };
                interleave(kind, bytemuck::cast_slice(q), cols, padded, vectors);
            }
        }
        Ok(integers.tally)
    }
}

/// A section of scales or zero points of `width` bytes each, `[group][row]`, from rows of them. What is missing of `padded`
/// rows is zero.
fn write_columns(rows: &[u8], groups: usize, width: u64, padded: usize, out: &mut [u8]) {
    out.fill(0);
    match width {
        1 => transpose::<1>(rows, groups, padded, out),
        2 => transpose::<2>(rows, groups, padded, out),
        _ => transpose::<4>(rows, groups, padded, out),
    }
}

fn transpose<const WIDTH: usize>(rows: &[u8], groups: usize, padded: usize, out: &mut [u8]) {
    let rows: &[[u8; WIDTH]] = rows.as_chunks().0;
    let columns = out.as_chunks_mut().0.chunks_mut(padded);
    for (group, column) in columns.take(groups.min(rows.len())).enumerate() {
        for (to, value) in column.iter_mut().zip(rows[group..].iter().step_by(groups)) {
            *to = *value;
        }
    }
}
