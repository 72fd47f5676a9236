//! The busy cycles of each instruction: the formulas of the manual, an arm each.

use crate::error::Fault;
use mica_device::access::TileFile;
use mica_device::format::Format;
use mica_device::isa::{Instr, Opcode, UnaryOp, VectorOp};
use mica_device::layout::WeightFormat;
use mica_device::tile::matrix;

/// Cycles from the end of a transfer to its last byte.
pub const DMA_LATENCY: u64 = 64;
/// Multiplications of a PE in a cycle with 16-bit activations.
pub const MACS: u64 = 4;

/// What the formulas read of a product and its rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// N: side of the array.
    pub side: u64,
    /// P: processing elements.
    pub pes: u64,
    /// Bytes a cycle on the external bus.
    pub bus: u64,
}

/// What an instruction costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Cycles that it holds its engine.
    pub busy: u64,
    /// Further cycles until it has retired.
    pub latency: u64,
}

/// The cost of `i` with these descriptors; `bytes` is the length of a DMA transfer.
pub fn cost(i: &Instr, tiles: &TileFile, s: &Sizes, bytes: u64) -> Result<Cost, Fault> {
    let tile = |n: usize| {
        let tile = i.r[n];
        tiles.get(tile).ok_or(Fault::Undefined { tile })
    };
    let len = |n: usize| tile(n).map(|t| t.len());
    // an element each for all PEs; a sweep over the array and back for a reduction
    let passes = |n: u64| n.div_ceil(s.pes);
    let sweep = 2 * (s.side - 1);
    let flow = |bytes: u64| bytes.div_ceil(4 * s.side) + s.side;
    let mut latency = 0;
    let busy = match i.op {
        Opcode::Nop
        | Opcode::Halt
        | Opcode::Trap
        | Opcode::Fence
        | Opcode::Opb
        | Opcode::Loop
        | Opcode::Sli
        | Opcode::Salu
        | Opcode::Tdef => 1,
        Opcode::Sget | Opcode::Sput => 1 + s.side,
        Opcode::Sld => {
            latency = DMA_LATENCY;
            1
        }
        Opcode::Dld | Opcode::Dst => {
            latency = DMA_LATENCY;
            bytes.div_ceil(s.bus) + 2
        }
        Opcode::Ldt | Opcode::Stt => {
            let stored = Format::from_code(i.flags).map_or(0, Format::bytes);
            flow(len(0)? * stored)
        }
        Opcode::Bct => flow(len(0)? * Format::F16.bytes()),
        Opcode::Matv => {
            let cols = len(1)?;
            let m = matrix(i, cols).ok_or(Fault::Operand { what: "group", value: i.z as i64 })?;
            let blocks = match m.format.weight {
                WeightFormat::F16 => cols.div_ceil(128),
                _ => blocks(cols, i.z),
            };
            let sums = passes(m.rows) * cols.div_ceil(MACS);
            m.bytes().div_ceil(4 * s.side).max(sums) + s.side + 7 + blocks * passes(m.rows)
        }
        Opcode::Vbin | Opcode::Vbini => {
            passes(len(0)?) * binary(VectorOp::from_code(i.flags & 15).unwrap_or(VectorOp::Add))
        }
        Opcode::Vun => passes(len(0)?) * unary(UnaryOp::from_code(i.flags).unwrap_or(UnaryOp::Cvt)),
        Opcode::Red => passes(len(1)?) + sweep,
        Opcode::Topk => u64::from(i.x) * (passes(len(2)?) + sweep + 2),
        Opcode::Vmov => {
            let z = mica_device::access::Strides::of(i);
            passes(u64::from(z.rows) * u64::from(z.len))
        }
        Opcode::Vsincos => passes(len(2)?) * SINCOS,
        Opcode::Vrot => passes(len(1)?) * 3,
        Opcode::Tmv | Opcode::Tmvt => passes(len(1)?) + sweep,
        Opcode::Tout => passes(len(1)?),
    };
    Ok(Cost { busy, latency })
}

/// Passes of sine and cosine together.
const SINCOS: u64 = 32;

/// Passes of an operation of two operands.
const fn binary(op: VectorOp) -> u64 {
    match op {
        VectorOp::Div => 12,
        _ => 1,
    }
}

/// Passes of a function.
const fn unary(op: UnaryOp) -> u64 {
    match op {
        UnaryOp::Cvt | UnaryOp::Neg | UnaryOp::Square | UnaryOp::RoundBf16 => 1,
        UnaryOp::Exp | UnaryOp::Rsqrt => 12,
        UnaryOp::Sigmoid => 24,
        UnaryOp::Silu => 25,
        UnaryOp::Softplus => 32,
    }
}

/// The blocks of a row of integer weights: its groups, those above 512 columns in blocks of 128.
const fn blocks(cols: u64, group: u64) -> u64 {
    let group = if group < cols { group } else { cols };
    if group <= 512 {
        cols.div_ceil(group)
    } else {
        let whole = cols / group;
        whole * group.div_ceil(128) + (cols % group).div_ceil(128)
    }
}
