//! Objects and kernels: what `compile` hands to link and link to `simulate`.
//!
//! A part's object is code with relocations and no weight values; a kernel is code whose addresses
//! are final, a list of constant segments by size, and its entries.

use crate::format::Format;
use serde::{Deserialize, Serialize};

/// Where a relocated 64-bit operand (`z`) gets its base from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Symbol {
    /// The part's constant segment.
    Constants,
    /// The part's literals, constants that the compiler made (rotary frequencies).
    Literals,
    /// The part's share of the named edge: link sets the pointer register (`r1`) and adds the part's
    /// offset within the edge.
    Edge(String),
}

/// `z` of instruction `at` is an addend to `symbol`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relocation {
    /// Index of the instruction.
    pub at: u32,
    /// What is added.
    pub symbol: Symbol,
}

/// Which way an edge's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Direction {
    /// Read by the kernel.
    In,
    /// Written by the kernel.
    Out,
    /// Read and written by the kernel, and kept from call to call: a cache to which it appends.
    InOut,
}

impl Direction {
    /// Whether the caller gives its bytes.
    pub const fn is_given(self) -> bool {
        matches!(self, Direction::In | Direction::InOut)
    }
}

/// A part's share of an edge: name, direction, and what lies there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EdgeUse {
    /// `token`, `pos`, `hidden_in`, `conv_state_in`, …
    pub name: String,
    /// Read, written, or both.
    pub direction: Direction,
    /// Element format in external memory.
    pub format: Format,
    /// Fraction bits when the format is FX32.
    pub frac: u8,
    /// Shape, outermost first; for a cache the compiled capacity stands in it.
    pub shape: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

impl EdgeUse {
    /// Whether it holds integers of 64 bits, a value or one a token: they are the call's, the same for all parts.
    pub fn is_scalar(&self) -> bool {
        self.format == Format::I32 && self.bytes == 8 * self.shape.iter().product::<u64>()
    }
}

/// A source op: what an instruction's `src` leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpInfo {
    /// The HIR op's name, `matmul`.
    pub op: String,
    /// Where it stands in the model, `linear_attn.in_proj_qkv`.
    pub label: String,
}

/// The code of one part of a model (embedding, a layer kind, head); holds no weight values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// `embed`, the layer kind's name, or `head`.
    pub kind: String,
    /// Encoded instructions, without a final `halt`. `src` holds the op alone; link adds the layer.
    pub code: Vec<u8>,
    /// Relocations, ascending by `at`.
    pub relocations: Vec<Relocation>,
    /// Constants that the compiler made.
    pub literals: Vec<u8>,
    /// Bytes of the constant segment that the code expects.
    pub constants: u64,
    /// Edges that it reads and writes.
    pub edges: Vec<EdgeUse>,
    /// Whether it takes the residual from the seam, and leaves it there.
    pub seam_in: bool,
    /// See `seam_in`.
    pub seam_out: bool,
    /// Bytes of the residual at the seam (L2 address 0).
    pub seam_bytes: u64,
    /// Highest LRM byte used.
    pub lrm_peak: u64,
    /// Highest L2 byte used.
    pub l2_peak: u64,
    /// Source ops, by the op number in `src`.
    pub ops: Vec<OpInfo>,
}

/// What the name of an entry begins with that gives a part its constants: `weights.3.in` is part 3's.
pub const WEIGHTS: &str = "weights.";

/// Where a kernel gets its parts' constants from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Constants {
    /// Below the one base pointer, S0, for all calls: they cost no entry.
    #[default]
    Baked,
    /// Each part's on an entry of its own, given anew at every call.
    Edges,
}

impl Constants {
    /// As the workspace writes it.
    pub const fn text(self) -> &'static str {
        match self {
            Constants::Baked => "baked",
            Constants::Edges => "edges",
        }
    }
}

/// One entry pointer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Edge name.
    pub name: String,
    /// Scalar register that holds its address, 1 to 15.
    pub register: u8,
    /// Read, written, or both.
    pub direction: Direction,
    /// Bytes.
    pub bytes: u64,
    /// The parts' shares in order: (part index, offset, what lies there).
    pub shares: Vec<(u32, u64, EdgeUse)>,
}

impl Entry {
    /// The part whose constants it gives, if it gives any.
    pub fn weights_of(&self) -> Option<usize> {
        self.name.strip_prefix(WEIGHTS)?.strip_suffix(".in")?.parse().ok()
    }
}

/// A constant segment's place below the one base pointer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Offset from the base.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Which part's constants, or literals that stand in `Kernel::literals`.
    pub part: u32,
    /// True: the part's literals.
    pub literals: bool,
}

/// A linked program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Encoded instructions, ended by `halt`.
    pub code: Vec<u8>,
    /// Constant segments, ascending by offset.
    pub segments: Vec<Segment>,
    /// Literals a part (index = part).
    pub literals: Vec<Vec<u8>>,
    /// Entries.
    pub entries: Vec<Entry>,
    /// Source ops a part, by the layer number in `src`.
    pub ops: Vec<Vec<OpInfo>>,
    /// Kind of each part, by the layer number in `src`.
    pub parts: Vec<String>,
    /// Highest LRM byte used.
    pub lrm_peak: u64,
    /// Highest L2 byte used.
    pub l2_peak: u64,
}
