//! Constructors: one an opcode that the compiler emits, so that lowering reads as a program.

use super::{Inst, Reg, Span, Tile};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, MatvFlags, Opcode, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use mica_device::object::Symbol;

/// The scalar that holds the constants' base.
pub const BASE: u8 = 0;

fn inst<const N: usize>(op: Opcode, regs: [Reg; N]) -> Inst {
    let mut r = [Reg::Unused; 5];
    r[..N].copy_from_slice(&regs);
    Inst { op, flags: 0, r, span: None, x: 0, y: 0, z: 0, symbol: None, src: 0 }
}

fn scalar(s: Option<u8>) -> Reg {
    s.map_or(Reg::Absent, Reg::Scalar)
}

fn frac(format: Format, bits: u8) -> Reg {
    if format == Format::Fx32 { Reg::Frac(bits) } else { Reg::Unused }
}

/// A place in external memory: `S[base] + S[index] + symbol + addend`. The base register of an edge is
/// set at link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What the address is relative to.
    pub symbol: Symbol,
    /// A scalar that is added.
    pub index: Option<u8>,
    /// Bytes that are added.
    pub addend: u64,
}

impl Place {
    /// A place with a constant address.
    pub fn new(symbol: Symbol, addend: u64) -> Place {
        Place { symbol, index: None, addend }
    }
}

/// `fence`.
pub fn fence() -> Inst {
    inst(Opcode::Fence, [])
}

/// `opb` of a tile.
pub fn opb(result: Tile) -> Inst {
    inst(Opcode::Opb, [Reg::Tile(result)])
}

/// `loop` over what follows, `S[count]` times, `S[counter]` counting.
pub fn repeat(count: u8, counter: u8) -> Inst {
    inst(Opcode::Loop, [Reg::Scalar(count), Reg::Scalar(counter)])
}

/// `S[to] = value`.
pub fn sli(to: u8, value: i64) -> Inst {
    Inst { z: value as u64, ..inst(Opcode::Sli, [Reg::Scalar(to)]) }
}

/// `S[to] = S[a] op imm`.
pub fn salui(op: ScalarOp, to: u8, a: u8, imm: i64) -> Inst {
    Inst { flags: op as u8 | 0x80, z: imm as u64, ..inst(Opcode::Salu, [Reg::Scalar(to), Reg::Scalar(a)]) }
}

/// `S[to] = S[a] op S[b]`.
pub fn salu(op: ScalarOp, to: u8, a: u8, b: u8) -> Inst {
    Inst { flags: op as u8, ..inst(Opcode::Salu, [Reg::Scalar(to), Reg::Scalar(a), Reg::Scalar(b)]) }
}

/// `S[to]` = the 64-bit integer at a place.
pub fn sld(to: u8, from: &Place) -> Inst {
    Inst {
        z: from.addend,
        symbol: Some(from.symbol.clone()),
        ..inst(Opcode::Sld, [Reg::Scalar(to), Reg::Scalar(BASE)])
    }
}

/// `S[to]` = element `at` of an I32 tile.
pub fn sget(to: u8, from: Tile, at: u32) -> Inst {
    Inst { x: at, ..inst(Opcode::Sget, [Reg::Scalar(to), Reg::Tile(from)]) }
}

fn transfer(op: Opcode, span: Span, place: &Place, bytes: Option<u8>) -> Inst {
    Inst {
        span: Some(span),
        y: span.bytes as u32,
        z: place.addend,
        symbol: Some(place.symbol.clone()),
        ..inst(op, [Reg::Unused, Reg::Scalar(BASE), scalar(place.index), scalar(bytes)])
    }
}

/// `dld`: a range of L2 from external memory, `S[bytes]` bytes where given.
pub fn dld(to: Span, from: &Place, bytes: Option<u8>) -> Inst {
    transfer(Opcode::Dld, to, from, bytes)
}

/// `dst`: external memory from a range of L2.
pub fn dst(to: &Place, from: Span) -> Inst {
    transfer(Opcode::Dst, from, to, None)
}

/// `ldt`: a tile from L2, where elements are stored as `stored`.
pub fn ldt(to: Tile, from: Span, stored: Format, bits: u8) -> Inst {
    Inst {
        flags: stored.code(),
        span: Some(from),
        ..inst(Opcode::Ldt, [Reg::Tile(to), Reg::Unused, frac(stored, bits)])
    }
}

/// `stt`: L2 from a tile, stored as `stored`.
pub fn stt(to: Span, from: Tile, stored: Format, bits: u8) -> Inst {
    Inst {
        flags: stored.code(),
        span: Some(to),
        ..inst(Opcode::Stt, [Reg::Tile(from), Reg::Unused, frac(stored, bits)])
    }
}

/// `bct`: the F16 broadcast of a tile.
pub fn bct(to: Tile, from: Tile) -> Inst {
    inst(Opcode::Bct, [Reg::Tile(to), Reg::Tile(from)])
}

/// `matv`: `rows` rows of a tiled matrix in L2 times a broadcast vector.
pub fn matv(to: Tile, vector: Tile, matrix: Span, flags: MatvFlags, rows: u32, group: u64) -> Inst {
    Inst {
        flags: flags.code(),
        span: Some(matrix),
        y: rows,
        z: group,
        ..inst(Opcode::Matv, [Reg::Tile(to), Reg::Tile(vector)])
    }
}

/// `vbin`.
pub fn vbin(op: VectorOp, how: Broadcast, to: Tile, a: Tile, b: Tile) -> Inst {
    Inst {
        flags: op as u8 | (how as u8) << 4,
        ..inst(Opcode::Vbin, [Reg::Tile(to), Reg::Tile(a), Reg::Tile(b)])
    }
}

/// `vbini`.
pub fn vbini(op: VectorOp, to: Tile, a: Tile, imm: f32) -> Inst {
    Inst { flags: op as u8, x: imm.to_bits(), ..inst(Opcode::Vbini, [Reg::Tile(to), Reg::Tile(a)]) }
}

/// `vun`.
pub fn vun(op: UnaryOp, to: Tile, a: Tile) -> Inst {
    Inst { flags: op as u8, ..inst(Opcode::Vun, [Reg::Tile(to), Reg::Tile(a)]) }
}

/// `red` along each row (axis 0) or down each column (axis 1).
pub fn red(op: ReduceOp, axis: u8, to: Tile, a: Tile) -> Inst {
    Inst { flags: op as u8 | axis << 4, ..inst(Opcode::Red, [Reg::Tile(to), Reg::Tile(a)]) }
}

/// `topk`, with the tile of forced indices.
pub fn topk(ids: Tile, values: Tile, from: Tile, forced: Tile, k: u32) -> Inst {
    Inst {
        x: k,
        ..inst(Opcode::Topk, [Reg::Tile(ids), Reg::Tile(values), Reg::Tile(from), Reg::Tile(forced)])
    }
}

/// The shape of a strided copy, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Rows copied.
    pub rows: u64,
    /// Elements of a row.
    pub len: u64,
    /// From one row to the next in the source.
    pub from: u64,
    /// From one row to the next in the destination.
    pub to: u64,
}

/// `vmov` from element `y` of `a` to element `x` of `to`. The caller has checked the 16-bit fields.
pub fn vmov(to: Tile, x: u32, a: Tile, y: u32, s: Strides) -> Inst {
    Inst {
        x,
        y,
        z: s.rows | s.len << 16 | s.from << 32 | s.to << 48,
        ..inst(Opcode::Vmov, [Reg::Tile(to), Reg::Tile(a)])
    }
}

/// `vsincos` of a position times frequencies.
pub fn vsincos(cos: Tile, sin: Tile, freq: Tile, pos: u8) -> Inst {
    inst(Opcode::Vsincos, [Reg::Tile(cos), Reg::Tile(sin), Reg::Tile(freq), Reg::Scalar(pos)])
}

/// `vrot` of the first `rotary` elements of each row.
pub fn vrot(to: Tile, a: Tile, cos: Tile, sin: Tile, rotary: u32) -> Inst {
    Inst { x: rotary, ..inst(Opcode::Vrot, [Reg::Tile(to), Reg::Tile(a), Reg::Tile(cos), Reg::Tile(sin)]) }
}

/// `tmv`: A · v.
pub fn tmv(to: Tile, a: Tile, v: Tile) -> Inst {
    inst(Opcode::Tmv, [Reg::Tile(to), Reg::Tile(a), Reg::Tile(v)])
}

/// `tmvt`: vᵀ · A, added to what is there if `more`.
pub fn tmvt(to: Tile, a: Tile, v: Tile, more: bool) -> Inst {
    Inst { flags: u8::from(more), ..inst(Opcode::Tmvt, [Reg::Tile(to), Reg::Tile(a), Reg::Tile(v)]) }
}

/// `tout`: A + u ⊗ v.
pub fn tout(to: Tile, a: Tile, u: Tile, v: Tile) -> Inst {
    inst(Opcode::Tout, [Reg::Tile(to), Reg::Tile(a), Reg::Tile(u), Reg::Tile(v)])
}
