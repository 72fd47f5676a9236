//! The device's tile order of a weight matrix, computed from shape and format alone.
//!
//! `quantize` writes it, `compile` cuts it into transfers, `simulate` reads it. Nothing here
//! touches a value.
//!
//! A matrix `[rows, cols]` is cut into tiles of 64 rows (the last may hold 16, 32 or 48; rows are
//! padded with zeros to a multiple of 16). A tile is contiguous and self-contained:
//!
//! 1. scales, `[group][row of the tile]`, padded to 64 bytes (absent for `F16`);
//! 2. zero points, one signed byte each in the same order, padded to 64 bytes (only if present);
//! 3. vectors of 64 bytes, `[step of columns][sub-block of 16 rows]`: each vector is 16 dwords, one
//!    a row, each dword holding consecutive columns: 8 for `I4` (byte j: low nibble column j, high
//!    nibble column 4 + j), 4 for `I8`, 2 for `F16`. Columns are padded with zeros to a whole step.
//!
//! A table `[rows, cols]` that is gathered by row (the embedding) is not tiled: each row is its
//! elements, then its scales, padded to 64 bytes.

use crate::format::Format;
use serde::{Deserialize, Serialize};

/// Rows of a full tile.
pub const TILE_ROWS: u64 = 64;
/// Rows of a sub-block: the lanes of one vector.
pub const LANES: u64 = 16;
/// Alignment of every section, tile and symbol, in bytes.
pub const ALIGN: u64 = 64;

/// What a weight's elements are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WeightFormat {
    /// Two's complement, 4 bits, two a byte.
    I4,
    /// Two's complement, 8 bits.
    I8,
    /// IEEE binary16, no scale.
    F16,
}

impl WeightFormat {
    /// Columns that one dword of a vector holds.
    pub const fn step(self) -> u64 {
        match self {
            WeightFormat::I4 => 8,
            WeightFormat::I8 => 4,
            WeightFormat::F16 => 2,
        }
    }
}

/// Scales and zero points of an integer weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scaling {
    /// Consecutive columns that share a scale; divides the number of columns.
    pub group: u32,
    /// `F16` or `F32`, as delivered.
    pub scale: Format,
    /// Whether each group also has an integer zero point.
    pub zero: bool,
}

/// How a weight matrix is stored: element format, and scaling where the elements are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MatrixFormat {
    /// The elements.
    pub weight: WeightFormat,
    /// `None` exactly for `F16`.
    pub scaling: Option<Scaling>,
}

const fn up(n: u64, to: u64) -> u64 {
    n.div_ceil(to) * to
}

/// The place of everything in a tiled matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// Rows before padding.
    pub rows: u64,
    /// Columns before padding.
    pub cols: u64,
    /// The stored format.
    pub format: MatrixFormat,
}

impl MatrixLayout {
    /// Number of tiles.
    pub const fn tiles(&self) -> u64 {
        self.rows.div_ceil(TILE_ROWS)
    }
    /// Padded rows of tile `t`: 16, 32, 48 or 64.
    pub const fn tile_rows(&self, t: u64) -> u64 {
        let left = up(self.rows, LANES) - t * TILE_ROWS;
        if left < TILE_ROWS { left } else { TILE_ROWS }
    }
    /// Groups along the columns; 0 without scaling.
    pub const fn groups(&self) -> u64 {
        match self.format.scaling {
            Some(s) => self.cols.div_ceil(s.group as u64),
            None => 0,
        }
    }
    /// Column steps after padding.
    pub const fn steps(&self) -> u64 {
        self.cols.div_ceil(self.format.weight.step())
    }
    /// Bytes of the scale section of a tile with `rows` padded rows.
    pub const fn scale_bytes(&self, rows: u64) -> u64 {
        match self.format.scaling {
            Some(s) => up(self.groups() * rows * s.scale.bytes(), ALIGN),
            None => 0,
        }
    }
    /// Bytes of the zero-point section of a tile with `rows` padded rows.
    pub const fn zero_bytes(&self, rows: u64) -> u64 {
        match self.format.scaling {
            Some(s) if s.zero => up(self.groups() * rows, ALIGN),
            _ => 0,
        }
    }
    /// Bytes of tile `t`.
    pub const fn tile_bytes(&self, t: u64) -> u64 {
        let rows = self.tile_rows(t);
        self.scale_bytes(rows) + self.zero_bytes(rows) + self.steps() * (rows / LANES) * ALIGN
    }
    /// Offset of tile `t` from the start of the matrix.
    pub const fn tile_offset(&self, t: u64) -> u64 {
        // all tiles before the last are full
        if t == 0 { 0 } else { t * self.tile_bytes(0) }
    }
    /// Bytes of the whole matrix.
    pub const fn bytes(&self) -> u64 {
        let n = self.tiles();
        if n == 0 { 0 } else { self.tile_offset(n - 1) + self.tile_bytes(n - 1) }
    }
}

/// A table gathered by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableLayout {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub cols: u64,
    /// Format of an element: `I8` with scales, or `F16`, `Bf16`, `F32` without.
    pub element: Format,
    /// Scaling of an integer table; zero points are not supported here.
    pub scaling: Option<Scaling>,
}

impl TableLayout {
    /// Offset of the scales from the start of a row.
    pub const fn scale_offset(&self) -> u64 {
        // scales start aligned for their own size
        up(self.cols * self.element.bytes(), 4)
    }
    /// Groups of a row; 0 without scaling.
    pub const fn groups(&self) -> u64 {
        match self.scaling {
            Some(s) => self.cols.div_ceil(s.group as u64),
            None => 0,
        }
    }
    /// Bytes from one row to the next.
    pub const fn row_bytes(&self) -> u64 {
        let scales = match self.scaling {
            Some(s) => self.groups() * s.scale.bytes(),
            None => 0,
        };
        up(self.scale_offset() + scales, ALIGN)
    }
    /// Bytes of the whole table.
    pub const fn bytes(&self) -> u64 {
        self.rows * self.row_bytes()
    }
}
