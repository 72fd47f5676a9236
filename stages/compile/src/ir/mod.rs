//! The tile IR: a linear program of device instructions whose tiles and L2 ranges are still virtual.
//!
//! An instruction is the device's own, so nothing is left to choose after lowering except addresses,
//! tile numbers and waits. It knows no HIR and no weights' values.

pub mod access;
pub mod build;
pub mod print;

use mica_device::format::Format;
use mica_device::isa::Opcode;
use mica_device::object::Symbol;

/// An LRM buffer: an index into [`Program::lrm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LrmId(pub u32);

/// An L2 buffer: an index into [`Program::l2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct L2Id(pub u32);

/// A view of an LRM buffer, as one tile descriptor will describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The buffer.
    pub buf: LrmId,
    /// Bytes from its start.
    pub offset: u64,
    /// Rows, or their upper bound.
    pub rows: u32,
    /// Elements of a row.
    pub cols: u32,
    /// The scalar that holds the number of rows, where it is known only at run time.
    pub count: Option<u8>,
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32, else 0.
    pub frac: u8,
}

impl Tile {
    /// Elements, at most.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols)
    }
    /// Bytes, at most.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.format.bytes()
    }
}

/// A range of an L2 buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The buffer.
    pub buf: L2Id,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A register operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// Not read by the opcode.
    Unused,
    /// Optional and absent.
    Absent,
    /// A scalar register.
    Scalar(u8),
    /// A tile, whose number is chosen later.
    Tile(Tile),
    /// Fraction bits of an FX32 value stored in L2.
    Frac(u8),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inst {
    /// Operation.
    pub op: Opcode,
    /// Format, sub-operation or mode.
    pub flags: u8,
    /// r0–r4.
    pub r: [Reg; 5],
    /// The L2 range, whose address becomes `x`.
    pub span: Option<Span>,
    /// First 32-bit operand, where there is no span.
    pub x: u32,
    /// Second 32-bit operand.
    pub y: u32,
    /// 64-bit operand.
    pub z: u64,
    /// What `z` is added to at link.
    pub symbol: Option<Symbol>,
    /// The op number it was compiled from.
    pub src: u16,
}

/// An element of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An instruction; a `loop` runs what stands between it and its [`Item::End`].
    Inst(Inst),
    /// The end of the innermost loop.
    End,
}

/// An L2 buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Buf {
    /// Bytes.
    pub bytes: u64,
    /// Its address, where that is given (the seam).
    pub fixed: Option<u64>,
}

/// A part's program before addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Instructions and loop ends in order.
    pub items: Vec<Item>,
    /// Bytes of each LRM buffer.
    pub lrm: Vec<u64>,
    /// L2 buffers.
    pub l2: Vec<L2Buf>,
    /// Constants that the compiler made.
    pub literals: Vec<u8>,
}

impl Program {
    /// The loops as (index of the `loop`, index of its end), outer before inner.
    pub fn loops(&self) -> Vec<(usize, usize)> {
        let mut open = Vec::new();
        let mut found = Vec::new();
        for (at, item) in self.items.iter().enumerate() {
            match item {
                Item::Inst(i) if i.op == Opcode::Loop => open.push(at),
                Item::Inst(_) => {}
                Item::End => {
                    if let Some(start) = open.pop() {
                        found.push((start, at));
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }
}
