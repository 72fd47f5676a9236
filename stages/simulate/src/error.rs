//! What can go wrong: a kernel that is no program, edges or constants that do not fit it, and the
//! typed traps of a running program.

use mica_device::access::Memory;
use mica_device::check::Malformed;
use mica_device::isa::DecodeError;
use thiserror::Error;

/// Why a kernel was not loaded or not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimError {
    /// The code does not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The code decodes to no program.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A part's literals are not as long as the kernel's segment for them.
    #[error("part {part}: the segment has {expected} bytes of literals, the kernel {found}")]
    Literals {
        /// Part.
        part: u32,
        /// Bytes of the segment.
        expected: u64,
        /// Bytes in the kernel.
        found: u64,
    },
    /// Segments overlap, are out of order, or lie past the 48 bits of an address.
    #[error("constant segment {segment} at {offset:#x} overlaps the one before, or its end is past 2^48")]
    Segments {
        /// Index of the segment.
        segment: usize,
        /// Its offset.
        offset: u64,
    },
    /// An entry's register is not its own, or not one of S1–S15.
    #[error("entry `{name}` cannot use register s{register}: it is taken, or not one of s1 to s15")]
    Register {
        /// Edge name.
        name: String,
        /// Register.
        register: u8,
    },
    /// The kernel needs more than the product has.
    #[error("the kernel needs {needs} {what}, {product} has {has}")]
    Product {
        /// `bytes of LRM`, `bytes of L2`, `entries`.
        what: &'static str,
        /// What the kernel needs.
        needs: u64,
        /// What there is.
        has: u64,
        /// Name of the product.
        product: String,
    },
    /// A part's constants are not as long as the kernel expects.
    #[error("part {part} ({kind}): expected {expected} bytes of constants, found {found}")]
    Constants {
        /// Part.
        part: u32,
        /// Its kind.
        kind: String,
        /// Bytes of the kernel's segment.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The kernel has no such edge.
    #[error("the kernel has no {direction} edge `{name}`")]
    NoEdge {
        /// Edge name.
        name: String,
        /// `in` or `out`.
        direction: &'static str,
    },
    /// An edge's buffer has the wrong size.
    #[error("edge `{name}`: expected {expected} bytes, found {found}")]
    EdgeSize {
        /// Edge name.
        name: String,
        /// Bytes of the entry.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// An `in` edge was not set before the call.
    #[error("edge `{name}` is not set")]
    EdgeUnset {
        /// Edge name.
        name: String,
    },
    /// A call at a position for which a cache has no row.
    #[error(
        "position {position} is past the cache `{edge}`, which was compiled for {rows} positions: raise the \
         capacity, or stop before it"
    )]
    PastCache {
        /// Edge name of the cache.
        edge: String,
        /// The position.
        position: u64,
        /// Positions that the cache holds.
        rows: u64,
    },
    /// A run of tokens that is no whole number of calls.
    #[error(
        "{given} tokens are no whole number of calls of {each}: run the rest by a kernel of one token a call"
    )]
    PartOfCall {
        /// Tokens of the run.
        given: u64,
        /// Tokens that a call takes.
        each: u64,
    },
    /// The edges were made for another program.
    #[error("the edges were made for a kernel with other entries")]
    OtherEdges,
    /// The program faulted.
    #[error(transparent)]
    Trap(#[from] Box<Trap>),
}

/// A fault, and the instruction that met it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("instruction {instruction} ({mnemonic}), part {part} ({kind}), op {op} ({name} {label}): {fault}")]
pub struct Trap {
    /// Index of the instruction in the kernel.
    pub instruction: usize,
    /// Its mnemonic.
    pub mnemonic: &'static str,
    /// Part it was compiled from, counted in the kernel: `src >> 16`.
    pub part: u32,
    /// Op it was compiled from: `src & 0xffff`.
    pub op: u32,
    /// Kind of the part; empty where the kernel does not say.
    pub kind: String,
    /// Name of the op; empty where the kernel does not say.
    pub name: String,
    /// Where the op stands in the model; empty where the kernel does not say.
    pub label: String,
    /// What happened.
    pub fault: Fault,
}

/// What a running program can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The instruction `trap`.
    #[error("trap {code}")]
    Trap {
        /// Its code.
        code: u32,
    },
    /// An external address in no buffer, or a range that leaves one.
    #[error("external address {address:#x}, {bytes} bytes: in no buffer, or past its end")]
    External {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A write to constants or to an `in` edge.
    #[error("external address {address:#x} is read only")]
    ReadOnly {
        /// First address.
        address: u64,
    },
    /// A range past the end of a memory inside the device.
    #[error("{memory:?} {start:#x}, {bytes} bytes: past its end")]
    Range {
        /// Which memory.
        memory: Memory,
        /// First byte.
        start: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Strict mode: bytes were read that nothing wrote in this call.
    #[error("{memory:?} {start:#x}, {bytes} bytes: read before anything wrote all of them")]
    Unwritten {
        /// Which memory.
        memory: Memory,
        /// First byte of the read.
        start: u64,
        /// Bytes of the read.
        bytes: u64,
    },
    /// A tile that no `tdef` defined.
    #[error("tile t{tile} is not defined")]
    Undefined {
        /// Its number.
        tile: u8,
    },
    /// A tile of a format that the instruction does not take there.
    #[error("tile t{tile} has a format that cannot stand there")]
    Format {
        /// Its number.
        tile: u8,
    },
    /// A tile of a shape that does not go with the others.
    #[error("tile t{tile} has {found} elements where {expected} are meant")]
    Shape {
        /// Its number.
        tile: u8,
        /// Elements that it should have.
        expected: u64,
        /// Elements that it has.
        found: u64,
    },
    /// Tiles that overlap where the instruction does not allow it.
    #[error("tiles t{a} and t{b} overlap")]
    Overlap {
        /// One.
        a: u8,
        /// The other.
        b: u8,
    },
    /// An operand whose value means nothing.
    #[error("{what} = {value} is out of its range")]
    Operand {
        /// Which.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// Strict mode: a result was clamped.
    #[error("a fixed-point result saturated")]
    Saturation,
    /// Strict mode: a result overflowed F16.
    #[error("a result overflowed f16")]
    F16Overflow,
    /// Strict mode: a result is NaN, or infinite from finite operands.
    #[error("a result is not finite")]
    NonFinite,
    /// More instructions than the budget.
    #[error("watchdog: {budget} instructions executed without reaching halt")]
    Watchdog {
        /// The budget.
        budget: u64,
    },
}
