//! The memory that an instruction touches: byte ranges of L2, of local register memory and of external memory.
//!
//! Ranges are bounds (a tile with its most rows, the hull of a strided copy), so that what holds for
//! them holds whatever the scalars are.

use crate::format::Format;
use crate::isa::{Instr, Opcode, TILES};
use crate::tile::{Tile, matrix, register};
use std::ops::Range;
use thiserror::Error;

/// A memory that instructions touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The shared second level.
    L2,
    /// Local register memory, as one space.
    Lrm,
    /// External memory, by address: its upper 16 bits name the buffer.
    External,
}

/// The bits of an external address below the number of its buffer.
pub const BUFFER_SHIFT: u32 = 48;

/// One read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub memory: Memory,
    /// Which bytes.
    pub range: Range<u64>,
    /// Written, else read.
    pub write: bool,
}

/// The tile descriptors at one point of a program.
#[derive(Clone, Debug)]
pub struct TileFile([Option<Tile>; TILES as usize]);

impl Default for TileFile {
    fn default() -> Self {
        TileFile([None; TILES as usize])
    }
}

/// What `i` reads or writes of external memory. A base register of which `named` is true holds the pointer of the
/// buffer with its number; any other may point anywhere. An index moves anywhere within its buffer.
pub fn external(i: &Instr, named: impl Fn(u8) -> bool) -> Option<Access> {
    let (indexed, bytes) = match i.op {
        Opcode::Dld | Opcode::Dst => (register(i.r[2]).is_some(), u64::from(i.y)),
        Opcode::Sld => (false, 8),
        _ => return None,
    };
    let buffer = u64::from(i.r[1]) << BUFFER_SHIFT;
    let range = match (named(i.r[1]), indexed) {
        (false, _) => 0..u64::MAX,
        (true, true) => buffer..buffer + (1 << BUFFER_SHIFT),
        (true, false) => {
            let start = buffer.wrapping_add(i.z);
            start..start.saturating_add(bytes)
        }
    };
    Some(Access { memory: Memory::External, range, write: i.op == Opcode::Dst })
}

/// Why an instruction's memory cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoAccess {
    /// It names a tile that no `tdef` defined.
    #[error("tile t{0} is not defined")]
    Undefined(u8),
    /// A `tdef` or `matv` whose fields describe nothing.
    #[error("its fields describe no tile or matrix")]
    Shape,
}

impl TileFile {
    /// The descriptor `t`.
    pub fn get(&self, t: u8) -> Option<Tile> {
        self.0.get(usize::from(t)).copied().flatten()
    }

    /// Replaces the descriptor `t`, a number that the static check has passed.
    pub fn set(&mut self, t: u8, tile: Tile) {
        self.0[usize::from(t)] = Some(tile);
    }

    /// What `i` reads and writes of the memories inside the device. A `tdef` touches nothing and is not applied.
    pub fn accesses(&self, i: &Instr) -> Result<Vec<Access>, NoAccess> {
        let tile = |n: usize| self.get(i.r[n]).ok_or(NoAccess::Undefined(i.r[n]));
        let lrm =
            |n: usize, write: bool| Ok(Access { memory: Memory::Lrm, range: tile(n)?.reserved(), write });
        let l2 = |bytes: u64, write: bool| Access {
            memory: Memory::L2,
            range: u64::from(i.x)..u64::from(i.x) + bytes,
            write,
        };
        let stored = |n: usize| {
            let t = tile(n)?;
            let format = Format::from_code(i.flags).ok_or(NoAccess::Shape)?;
            Ok(u64::from(t.max_rows) * u64::from(t.cols) * format.bytes())
        };
        Ok(match i.op {
            Opcode::Nop
            | Opcode::Halt
            | Opcode::Trap
            | Opcode::Fence
            | Opcode::Opb
            | Opcode::Loop
            | Opcode::Sli
            | Opcode::Salu
            | Opcode::Sld
            | Opcode::Tdef => Vec::new(),
            Opcode::Sget => vec![lrm(1, false)?],
            Opcode::Sput => vec![lrm(0, true)?],
            Opcode::Dld => vec![l2(u64::from(i.y), true)],
            Opcode::Dst => vec![l2(u64::from(i.y), false)],
            Opcode::Ldt => vec![l2(stored(0)?, false), lrm(0, true)?],
            Opcode::Stt => vec![lrm(0, false)?, l2(stored(0)?, true)],
            Opcode::Bct | Opcode::Vbini | Opcode::Vun | Opcode::Red => {
                vec![lrm(1, false)?, lrm(0, true)?]
            }
            Opcode::Matv => {
                let x = tile(1)?;
                let m = matrix(i, u64::from(x.max_rows) * u64::from(x.cols)).ok_or(NoAccess::Shape)?;
                vec![l2(m.bytes(), false), lrm(1, false)?, lrm(0, true)?]
            }
            Opcode::Vbin | Opcode::Tmv => vec![lrm(1, false)?, lrm(2, false)?, lrm(0, true)?],
            Opcode::Tmvt => {
                let mut all = vec![lrm(1, false)?, lrm(2, false)?, lrm(0, true)?];
                if i.flags & 1 != 0 {
                    all.push(lrm(0, false)?);
                }
                all
            }
            Opcode::Topk => {
                let mut all = vec![lrm(2, false)?, lrm(0, true)?, lrm(1, true)?];
                if register(i.r[3]).is_some() {
                    all.push(lrm(3, false)?);
                }
                all
            }
            Opcode::Vmov => {
                let s = Strides::of(i);
                let hull = |n: usize, first: u32, stride: u16, write: bool| {
                    let t = tile(n)?;
                    let bytes = t.format.bytes();
                    let start = u64::from(t.offset) + u64::from(first) * bytes;
                    Ok(Access { memory: Memory::Lrm, range: start..start + s.span(stride) * bytes, write })
                };
                vec![hull(1, i.y, s.from, false)?, hull(0, i.x, s.to, true)?]
            }
            Opcode::Vsincos => vec![lrm(2, false)?, lrm(0, true)?, lrm(1, true)?],
            Opcode::Vrot | Opcode::Tout => {
                vec![lrm(1, false)?, lrm(2, false)?, lrm(3, false)?, lrm(0, true)?]
            }
        })
    }
}

/// The `z` of a `VMOV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Rows copied.
    pub rows: u16,
    /// Elements of a row.
    pub len: u16,
    /// Elements from one source row to the next.
    pub from: u16,
    /// Elements from one destination row to the next.
    pub to: u16,
}

impl Strides {
    /// The strides of a `VMOV`.
    pub const fn of(i: &Instr) -> Strides {
        Strides {
            rows: i.z as u16,
            len: (i.z >> 16) as u16,
            from: (i.z >> 32) as u16,
            to: (i.z >> 48) as u16,
        }
    }

    /// The `z` that holds them.
    pub const fn code(self) -> u64 {
        self.rows as u64 | (self.len as u64) << 16 | (self.from as u64) << 32 | (self.to as u64) << 48
    }

    /// Elements from the first to one past the last, at `stride`.
    pub const fn span(self, stride: u16) -> u64 {
        if self.rows == 0 || self.len == 0 {
            0
        } else {
            (self.rows as u64 - 1) * stride as u64 + self.len as u64
        }
    }
}
