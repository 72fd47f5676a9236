//! What each instruction does to the state of the device. Operands are read before any result is
//! written, so a destination may be an operand's own memory unless an entry says otherwise.

pub mod batch;
pub mod flow;
pub mod matrix;
pub mod reduce;
pub mod rotary;
pub mod scalar;
pub mod state;
pub mod vector;

use crate::counters::Counters;
use crate::error::Fault;
use crate::l2::L2;
use crate::lrm::Lrm;
use crate::matv::{Activation, Isa};
use crate::team::Team;
use batch::Batch;
use mica_device::access::TileFile;
use mica_device::format::Format;
use mica_device::isa::{Instr, SCALARS};
use mica_device::tile::Tile;
use std::sync::Arc;

/// The state of the device, and buffers that instructions reuse.
pub struct Core<'c> {
    pub lrm: Lrm,
    pub l2: L2<'c>,
    pub tiles: TileFile,
    pub scalars: [u64; SCALARS as usize],
    pub counters: Counters,
    pub isa: Isa,
    pub team: Arc<Team<'c>>,
    pub scratch: Scratch,
    pub batch: Batch<'c>,
}

/// Buffers that keep their memory from one instruction to the next.
#[derive(Default)]
pub struct Scratch {
    pub a: Vec<f32>,
    pub b: Vec<f32>,
    pub c: Vec<f32>,
    pub out: Vec<f32>,
    pub ia: Vec<i32>,
    pub ib: Vec<i32>,
    pub io: Vec<i32>,
    pub bytes: Vec<u8>,
    pub activation: Activation,
    pub order: Vec<u32>,
}

impl Core<'_> {
    /// The tile in register field `n`.
    pub fn tile(&self, i: &Instr, n: usize) -> Result<Tile, Fault> {
        let tile = i.r[n];
        self.tiles.get(tile).ok_or(Fault::Undefined { tile })
    }

    /// The tile in field `n`, which must hold numbers that arithmetic takes.
    pub fn number(&self, i: &Instr, n: usize) -> Result<Tile, Fault> {
        let t = self.tile(i, n)?;
        match t.format {
            Format::F32 | Format::F16 | Format::Bf16 | Format::Fx32 => Ok(t),
            Format::I32 | Format::I8 => Err(Fault::Format { tile: i.r[n] }),
        }
    }

    /// The tile in field `n`, which must have a certain format.
    pub fn of(&self, i: &Instr, n: usize, format: Format) -> Result<Tile, Fault> {
        let t = self.tile(i, n)?;
        if t.format == format { Ok(t) } else { Err(Fault::Format { tile: i.r[n] }) }
    }
}

/// Checks the number of elements of the tile in field `n`.
pub fn expect(i: &Instr, n: usize, t: &Tile, expected: u64) -> Result<(), Fault> {
    if t.len() == expected { Ok(()) } else { Err(Fault::Shape { tile: i.r[n], expected, found: t.len() }) }
}

/// Counts infinite results, where operands were finite or cannot be told. NaNs are counted when
/// they are stored.
pub fn count_infinite(values: &[f32], counters: &mut Counters) {
    if crate::convert::any_non_finite(values) {
        counters.non_finite += values.iter().filter(|v| v.is_infinite()).count() as u64;
    }
}
