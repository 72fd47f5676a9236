//! A value in LRM: a contiguous view of a buffer with a shape and a format.

use crate::ir::{LrmId, Tile};
use mica_device::format::Format;

/// A tensor in LRM, row-major and contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The buffer.
    pub buf: LrmId,
    /// Bytes from its start.
    pub offset: u64,
    /// Shape, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32, else 0.
    pub frac: u8,
}

impl Tensor {
    /// Elements.
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }
    /// Length of the last axis; 1 for a scalar.
    pub fn last(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }
    /// The tile of its rows along the last axis.
    pub fn tile(&self) -> Tile {
        self.matrix(self.count() / self.last().max(1), self.last())
    }
    /// The tile `[rows, cols]` over the same elements.
    pub fn matrix(&self, rows: u64, cols: u64) -> Tile {
        Tile {
            buf: self.buf,
            offset: self.offset,
            rows: rows as u32,
            cols: cols as u32,
            count: None,
            format: self.format,
            frac: self.frac,
        }
    }
    /// The same elements under another shape of as many elements.
    pub fn view(&self, shape: &[u64]) -> Tensor {
        Tensor { shape: shape.into(), ..self.clone() }
    }
    /// The elements from `first`, as `shape`.
    pub fn part(&self, first: u64, shape: &[u64]) -> Tensor {
        Tensor { offset: self.offset + first * self.format.bytes(), ..self.view(shape) }
    }
    /// Element `i` of axis 0, without that axis.
    pub fn at(&self, i: u64) -> Tensor {
        let inner = &self.shape[1..];
        self.part(i * inner.iter().product::<u64>(), inner)
    }
}
