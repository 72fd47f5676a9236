//! Which fields each opcode reads, and as what: the one table that the checker, the disassembler
//! and the assembler share.

use crate::isa::Opcode;

/// One operand of an instruction, in the order of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A scalar register in `r[n]`.
    Scalar(usize),
    /// A scalar register in `r[n]`, or `NONE`.
    ScalarOrNone(usize),
    /// A tile in `r[n]`.
    Tile(usize),
    /// A tile in `r[n]`, or `NONE`.
    TileOrNone(usize),
    /// Fraction bits in `r[n]`.
    Frac(usize),
    /// The scalar register in `r[n]`, or `z` as a signed number if bit 7 of the flags is set.
    ScalarOrZ(usize),
    /// `x`, unsigned, under a name.
    X(&'static str),
    /// `y`, unsigned, under a name.
    Y(&'static str),
    /// `z`, unsigned, under a name.
    Z(&'static str),
    /// `z` as a signed number, under a name.
    SignedZ(&'static str),
    /// `x` as the bits of an f32.
    Imm,
    /// `z` as rows and columns.
    Shape,
    /// `z` as the rows, length and strides of a copy.
    Strides,
}

/// What the flags byte means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// Nothing: it is zero.
    None,
    /// A `Format`.
    Format,
    /// A `ScalarOp`; bit 7 chooses the second operand.
    Scalar,
    /// `MatvFlags`.
    Matv,
    /// A `VectorOp` and a `Broadcast`.
    Binary,
    /// A `VectorOp`.
    Immediate,
    /// A `UnaryOp`.
    Unary,
    /// A `ReduceOp` and an axis.
    Reduce,
    /// Bit 0: add to what the destination holds.
    Accumulate,
}

/// The reading of one opcode's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The flags byte.
    pub flags: Flags,
    /// The operands.
    pub operands: &'static [Operand],
}

/// The signature of an opcode.
pub const fn signature(op: Opcode) -> Signature {
    use Operand::{
        Frac, Imm, Scalar, ScalarOrNone, ScalarOrZ, Shape, SignedZ, Strides, Tile, TileOrNone, X, Y, Z,
    };
    const fn sig(flags: Flags, operands: &'static [Operand]) -> Signature {
        Signature { flags, operands }
    }
    match op {
        Opcode::Nop | Opcode::Halt | Opcode::Fence => sig(Flags::None, &[]),
        Opcode::Trap => sig(Flags::None, &[X("code")]),
        Opcode::Opb => sig(Flags::None, &[TileOrNone(0)]),
        Opcode::Loop => sig(Flags::None, &[ScalarOrNone(1), Scalar(0), X("body")]),
        Opcode::Sli => sig(Flags::None, &[Scalar(0), SignedZ("value")]),
        Opcode::Salu => sig(Flags::Scalar, &[Scalar(0), Scalar(1), ScalarOrZ(2)]),
        Opcode::Sld => sig(Flags::None, &[Scalar(0), Scalar(1), SignedZ("off")]),
        Opcode::Sget => sig(Flags::None, &[Scalar(0), Tile(1), X("at")]),
        Opcode::Sput => sig(Flags::None, &[Tile(0), Scalar(1), X("at")]),
        Opcode::Tdef => sig(Flags::Format, &[Tile(0), X("lrm"), Shape, ScalarOrNone(1), Frac(2)]),
        Opcode::Dld | Opcode::Dst => sig(
            Flags::None,
            &[X("l2"), Y("bytes"), ScalarOrNone(3), Scalar(1), ScalarOrNone(2), SignedZ("off")],
        ),
        Opcode::Ldt | Opcode::Stt => sig(Flags::Format, &[Tile(0), X("l2"), Frac(2)]),
        Opcode::Bct => sig(Flags::None, &[Tile(0), Tile(1)]),
        Opcode::Matv => sig(Flags::Matv, &[Tile(0), Tile(1), X("l2"), Y("rows"), Z("group")]),
        Opcode::Vbin => sig(Flags::Binary, &[Tile(0), Tile(1), Tile(2)]),
        Opcode::Vbini => sig(Flags::Immediate, &[Tile(0), Tile(1), Imm]),
        Opcode::Vun => sig(Flags::Unary, &[Tile(0), Tile(1)]),
        Opcode::Red => sig(Flags::Reduce, &[Tile(0), Tile(1)]),
        Opcode::Topk => sig(Flags::None, &[Tile(0), Tile(1), Tile(2), TileOrNone(3), X("k")]),
        Opcode::Vmov => sig(Flags::None, &[Tile(0), X("to"), Tile(1), Y("from"), Strides]),
        Opcode::Vsincos => sig(Flags::None, &[Tile(0), Tile(1), Tile(2), Scalar(3)]),
        Opcode::Vrot => sig(Flags::None, &[Tile(0), Tile(1), Tile(2), Tile(3), X("rotate")]),
        Opcode::Tmv => sig(Flags::None, &[Tile(0), Tile(1), Tile(2)]),
        Opcode::Tmvt => sig(Flags::Accumulate, &[Tile(0), Tile(1), Tile(2)]),
        Opcode::Tout => sig(Flags::None, &[Tile(0), Tile(1), Tile(2), Tile(3)]),
    }
}
