//! Tile descriptors: what `TDEF` leaves behind and every other instruction reads.
//!
//! A descriptor is read when an instruction is issued, so defining it anew never disturbs work in
//! flight.

use crate::format::Format;
use crate::isa::{Instr, MatvFlags, NONE, Opcode};
use crate::layout::{MatrixFormat, MatrixLayout, Scaling, WeightFormat};
use std::ops::Range;

/// A row-major block `[rows, cols]` of local register memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// First byte in local register memory.
    pub offset: u32,
    /// Element format.
    pub format: Format,
    /// Fraction bits of `Fx32`, else 0.
    pub frac: u8,
    /// Rows now; 0 is possible where a scalar gives them.
    pub rows: u32,
    /// The most rows that the descriptor may have: what it reserves.
    pub max_rows: u32,
    /// Columns.
    pub cols: u32,
}

impl Tile {
    /// The tile that a `TDEF` defines; `rows` is the value of the scalar `r1` where there is one.
    ///
    /// `None` if the format code is unknown, the shape is empty or the rows exceed their bound.
    pub fn define(i: &Instr, rows: Option<u64>) -> Option<Tile> {
        let format = Format::from_code(i.flags)?;
        let (max_rows, cols) = (i.z as u32, (i.z >> 32) as u32);
        let rows = match rows {
            Some(n) => u32::try_from(n).ok().filter(|&n| n <= max_rows)?,
            None => max_rows,
        };
        (max_rows > 0 && cols > 0).then_some(Tile { offset: i.x, format, frac: i.r[2], rows, max_rows, cols })
    }

    /// Elements.
    pub const fn len(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Whether a scalar made the tile empty.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The bytes it occupies now.
    pub const fn range(&self) -> Range<u64> {
        self.offset as u64..self.offset as u64 + self.len() * self.format.bytes()
    }

    /// The bytes it may occupy: with its most rows.
    pub const fn reserved(&self) -> Range<u64> {
        let n = self.max_rows as u64 * self.cols as u64 * self.format.bytes();
        self.offset as u64..self.offset as u64 + n
    }
}

/// The matrix that a `MATV` reads, for an input of `cols` elements.
///
/// `None` if the flags mean nothing, a shape is empty, or the scale group is not one that the array
/// can walk: it must be a multiple of the columns in a dword, or cover the whole row.
pub fn matrix(i: &Instr, cols: u64) -> Option<MatrixLayout> {
    debug_assert_eq!(i.op, Opcode::Matv);
    let flags = MatvFlags::from_code(i.flags)?;
    let scaling = match flags.weight {
        WeightFormat::F16 => {
            if i.z != 0 {
                return None;
            }
            None
        }
        weight => {
            let group = u32::try_from(i.z).ok()?;
            if group == 0 || !(u64::from(group) >= cols || u64::from(group).is_multiple_of(weight.step())) {
                return None;
            }
            Some(Scaling {
                group,
                scale: if flags.scale_f32 { Format::F32 } else { Format::F16 },
                zero: flags.zero,
            })
        }
    };
    (i.y > 0 && cols > 0).then_some(MatrixLayout {
        rows: u64::from(i.y),
        cols,
        format: MatrixFormat { weight: flags.weight, scaling },
    })
}

/// The optional register of a field.
pub const fn register(r: u8) -> Option<u8> {
    if r == NONE { None } else { Some(r) }
}
