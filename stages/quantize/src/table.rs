//! Tables that are gathered by row: a row is its elements, then its scales.

use crate::error::QuantizeError;
use crate::search::Grid;
use crate::source::Narrow;
use crate::tally::Tally;
use crate::unit::Units;
use crate::weight::{Stored, Weight};
use mica_device::format::Format;
use mica_device::layout::TableLayout;

/// Rows of a piece.
const ROWS: u64 = 64;

/// A table, some rows a piece.
pub(crate) struct TableRows<'a> {
    pub weight: Weight<'a>,
    pub layout: TableLayout,
}

impl TableRows<'_> {
    fn rows(&self, unit: u64) -> std::ops::Range<u64> {
        unit * ROWS..self.layout.rows.min((unit + 1) * ROWS)
    }
}

impl Units for TableRows<'_> {
    fn len(&self) -> u64 {
        self.layout.rows.div_ceil(ROWS)
    }

    fn bytes(&self, unit: u64) -> u64 {
        let rows = self.rows(unit);
        (rows.end - rows.start) * self.layout.row_bytes()
    }

    fn write(&self, unit: u64, out: &mut [u8]) -> Result<Tally, QuantizeError> {
        let (rows, cols) = (self.rows(unit), self.layout.cols);
        let places = out.chunks_exact_mut(self.layout.row_bytes() as usize);
        let Some(scaling) = self.layout.scaling else {
            let format = match self.layout.element {
                Format::F16 => Narrow::F16,
                Format::Bf16 => Narrow::Bf16,
                _ => Narrow::F32,
            };
            let mut floats = Vec::new();
            let tally = self.weight.narrowed(rows, cols, format, &mut floats)?;
            let row = (cols * self.layout.element.bytes()) as usize;
            for (place, row) in places.zip(floats.chunks_exact(row)) {
                place[..row.len()].copy_from_slice(row);
                place[row.len()..].fill(0);
            }
            return Ok(tally);
        };
        let integers = self.weight.integers(rows, cols, Grid::I8, scaling)?;
        let Stored::Containers(q) = &integers.q else { unreachable!("only i4 is read as words") };
        let each = q.chunks_exact(cols as usize);
        let (start, len) = (self.layout.scale_offset(), self.layout.groups() * scaling.scale.bytes());
        let [start, end] = [start, start + len].map(|at| at as usize);
        let scales = integers.scales.chunks_exact(len as usize);
        for (place, (q, scales)) in places.zip(each.zip(scales)) {
            place[..q.len()].copy_from_slice(bytemuck::cast_slice(q));
            place[q.len()..start].fill(0);
            place[start..end].copy_from_slice(scales);
            place[end..].fill(0);
        }
        Ok(integers.tally)
    }
}
