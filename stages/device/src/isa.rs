//! The instruction set: opcodes, the one 32-byte encoding, and the decoder that checks it.
//!
//! Every instruction has the same fields; an opcode says which it reads, and a field that it does
//! not read is zero. Semantics, faults and cycles of each are in `docs/spec/device.md`.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | opcode | |
//! | 1 | flags | format, sub-operation, mode |
//! | 2–6 | wait | one distance an engine: 0 none, d: the d-th last instruction issued to that engine must have retired |
//! | 7, 12–15 | r0, r1–r4 | tile or scalar numbers; `NONE` where optional and absent |
//! | 8–11 | src | `layer << 16 \| op` it was compiled from |
//! | 16–19 | x | |
//! | 20–23 | y | |
//! | 24–31 | z | |

use thiserror::Error;

/// Bytes of an encoded instruction.
pub const INSTR_BYTES: usize = 32;
/// An absent optional register.
pub const NONE: u8 = 0xff;
/// Scalar registers; S0 is the constant base, S1–S15 the entry pointers.
pub const SCALARS: u8 = 32;
/// Tile descriptors.
pub const TILES: u8 = 64;

/// The units that run instructions; each retires its own in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Engine {
    /// Scalar unit and front end.
    Scalar = 0,
    /// External memory to L2.
    DmaIn = 1,
    /// L2 to external memory.
    DmaOut = 2,
    /// Between L2 and LRM.
    Flow = 3,
    /// The processing elements.
    Array = 4,
}

/// Number of engines.
pub const ENGINES: usize = 5;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $engine:ident;)*) => {
        /// The operations of `vg1`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $code,)* }
        impl Opcode {
            /// Every opcode, in the order of the manual.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
            /// The opcode of an encoded byte.
            pub const fn from_code(code: u8) -> Option<Opcode> {
                match code { $($code => Some(Opcode::$name),)* _ => None }
            }
            /// The mnemonic.
            pub const fn text(self) -> &'static str { match self { $(Opcode::$name => $text,)* } }
            /// The engine that runs it.
            pub const fn engine(self) -> Engine { match self { $(Opcode::$name => Engine::$engine,)* } }
        }
    };
}

opcodes! {
    /// Nothing.
    Nop = 0x00, "nop", Scalar;
    /// End of the program.
    Halt = 0x01, "halt", Scalar;
    /// Fault with code `x`.
    Trap = 0x02, "trap", Scalar;
    /// Wait until every engine is idle.
    Fence = 0x03, "fence", Scalar;
    /// Boundary of the op `src`; `r0` is the tile that holds its result, or `NONE`.
    Opb = 0x04, "opb", Scalar;
    /// Run the next `x` instructions `S[r0]` times (0: skip them); `S[r1]` counts from 0.
    Loop = 0x05, "loop", Scalar;
    /// `S[r0] = z`.
    Sli = 0x06, "sli", Scalar;
    /// `S[r0] = S[r1] op b`; flags: `ScalarOp`, bit 7 set: b is `z` (signed), else `S[r2]`.
    Salu = 0x07, "salu", Scalar;
    /// `S[r0] =` the 64-bit little-endian integer at external address `S[r1] + z`.
    Sld = 0x08, "sld", Scalar;
    /// `S[r0] =` element `x` of the I32 tile `T[r1]`.
    Sget = 0x09, "sget", Scalar;
    /// Element `x` of the I32 tile `T[r0] = S[r1]`.
    Sput = 0x0a, "sput", Scalar;
    /// Define `T[r0]`: LRM offset `x`, format = flags, `r2` fraction bits of FX32, `z` = rows | cols << 32;
    /// with `r1 != NONE` rows are `S[r1]`, and the rows in `z` their upper bound.
    Tdef = 0x0b, "tdef", Scalar;
    /// L2 `[x, x+n)` from external `S[r1] + S[r2] + z` (`r2` may be NONE); n = `y`, or `S[r3]` (at most `y`) if `r3 != NONE`.
    Dld = 0x10, "dld", DmaIn;
    /// External `S[r1] + S[r2] + z` from L2 `[x, x+n)`, as `Dld`.
    Dst = 0x11, "dst", DmaOut;
    /// Tile `T[r0]` from L2 at `x`, elements stored there in the format of flags (FX32: `r2` fraction bits).
    Ldt = 0x18, "ldt", Flow;
    /// L2 at `x` from tile `T[r0]`, stored in the format of flags (FX32: `r2` fraction bits).
    Stt = 0x19, "stt", Flow;
    /// Broadcast: F16 tile `T[r0]` from the F32, F16 or FX32 tile `T[r1]`, to every row of the array.
    Bct = 0x1a, "bct", Flow;
    /// Matrix–vector: F32 tile `T[r0]` (`y` rows) from F16 tile `T[r1]` (columns = its length) and the tiled
    /// matrix at L2 `x`; flags: `MatvFlags`; `z` = scale group (0 for F16 weights).
    Matv = 0x20, "matv", Array;
    /// `T[r0] = T[r1] op T[r2]` element-wise; flags: `VectorOp` | `Broadcast` of r2 << 4.
    Vbin = 0x21, "vbin", Array;
    /// `T[r0] = T[r1] op imm`, imm the f32 whose bits are `x`; flags: `VectorOp`.
    Vbini = 0x22, "vbini", Array;
    /// `T[r0] = f(T[r1])`; flags: `UnaryOp`.
    Vun = 0x23, "vun", Array;
    /// `T[r0] =` reduction of `T[r1]`; flags: `ReduceOp` | axis << 4 (0: along each row, 1: down each column).
    Red = 0x24, "red", Array;
    /// The `x` largest of F32 `T[r2]`, descending, ties to the lower index: indices to I32 `T[r0]`, values to F32
    /// `T[r1]`. With `r3 != NONE` and element 0 of I32 `T[r3]` not negative: those indices, their values gathered.
    Topk = 0x25, "topk", Array;
    /// Strided copy, same format: for i < rows, j < len: `T[r0][x + i·ds + j] = T[r1][y + i·ss + j]`;
    /// `z` = rows | len << 16 | ss << 32 | ds << 48.
    Vmov = 0x26, "vmov", Array;
    /// cos to F32 `T[r0]`, sin to F32 `T[r1]` of the angles `f32(S[r3]) · T[r2]`, `T[r2]` F32.
    Vsincos = 0x27, "vsincos", Array;
    /// Rotary: `T[r0]` from `T[r1]` (`[heads, dim]`), cos `T[r2]`, sin `T[r3]`; the first `x` of each row rotate.
    Vrot = 0x28, "vrot", Array;
    /// F32 `T[r0]` `[rows] = A · v`: A `T[r1]` `[rows, cols]`, v `T[r2]` `[cols]`.
    Tmv = 0x29, "tmv", Array;
    /// F32 `T[r0]` `[cols] = vᵀ · A` (flags bit 0: added to what it holds): A `T[r1]` `[rows, cols]`, v `T[r2]` `[rows]`.
    Tmvt = 0x2a, "tmvt", Array;
    /// F32 `T[r0] = T[r1] + u ⊗ v`: u `T[r2]` `[rows]`, v `T[r3]` `[cols]`; `r0` and `r1` may be the same LRM.
    Tout = 0x2b, "tout", Array;
}

impl Opcode {
    /// The scalar register that an instruction with these registers writes.
    pub fn written_scalar(self, r: &[u8; 5]) -> Option<u8> {
        let written = match self {
            Opcode::Sli | Opcode::Salu | Opcode::Sld | Opcode::Sget => r[0],
            Opcode::Loop => r[1],
            _ => return None,
        };
        (written < SCALARS).then_some(written)
    }
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $v:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $v = $code,)* }
        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$v,)*];
            /// The value of an encoded number.
            pub const fn from_code(code: u8) -> Option<$name> { match code { $($code => Some($name::$v),)* _ => None } }
            /// How it is written in assembly.
            pub const fn text(self) -> &'static str { match self { $($name::$v => $text,)* } }
        }
    };
}

codes! {
    /// Scalar operations, 64-bit wrapping, signed comparison.
    ScalarOp { /// Sum.
        Add = 0 "add", /// Difference.
        Sub = 1 "sub", /// Product.
        Mul = 2 "mul", /// Smaller.
        Min = 3 "min", /// Larger.
        Max = 4 "max", /// Shift left.
        Shl = 5 "shl", /// Arithmetic shift right.
        Shr = 6 "shr", }
}
codes! {
    /// Element-wise operations of two operands.
    VectorOp { /// Sum.
        Add = 0 "add", /// Difference.
        Sub = 1 "sub", /// Product.
        Mul = 2 "mul", /// Quotient.
        Div = 3 "div", /// Larger.
        Max = 4 "max", /// Smaller.
        Min = 5 "min", }
}
codes! {
    /// How the second operand of `Vbin` meets the first, of n elements; the second has m, and m divides n.
    Broadcast { /// m = n.
        Same = 0 "same", /// Element i meets element i mod m.
        Cyclic = 1 "cyclic", /// Element i meets element i / (n / m).
        Stretch = 2 "stretch", }
}
codes! {
    /// Element-wise functions.
    UnaryOp { /// Conversion to the format of the destination.
        Cvt = 0 "cvt", /// Negation.
        Neg = 1 "neg", /// e to the x.
        Exp = 2 "exp", /// 1 / (1 + e^-x).
        Sigmoid = 3 "sigmoid", /// x · sigmoid(x).
        Silu = 4 "silu", /// ln(1 + e^x), x itself above 20.
        Softplus = 5 "softplus", /// 1 / √x.
        Rsqrt = 6 "rsqrt", /// x · x.
        Square = 7 "square", /// Rounded through bfloat16.
        RoundBf16 = 8 "round.bf16", }
}
codes! {
    /// Reductions.
    ReduceOp { /// Sum.
        Sum = 0 "sum", /// Sum of squares; exact for FX32.
        Sumsq = 1 "sumsq", /// Largest.
        Max = 2 "max", }
}

/// The flags of `Matv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatvFlags {
    /// Stored format of the matrix.
    pub weight: crate::layout::WeightFormat,
    /// Scales are F32 (else F16); not of F16 weights, which have none.
    pub scale_f32: bool,
    /// Groups have zero points; not of F16 weights.
    pub zero: bool,
}

impl MatvFlags {
    /// The encoded byte.
    pub const fn code(self) -> u8 {
        (match self.weight {
            crate::layout::WeightFormat::I4 => 0,
            crate::layout::WeightFormat::I8 => 1,
            crate::layout::WeightFormat::F16 => 2,
        }) | (self.scale_f32 as u8) << 2
            | (self.zero as u8) << 3
    }
    /// The flags of an encoded byte.
    pub const fn from_code(code: u8) -> Option<MatvFlags> {
        use crate::layout::WeightFormat::{F16, I4, I8};
        if code >> 4 != 0 {
            return None;
        }
        let weight = match code & 3 {
            0 => I4,
            1 => I8,
            2 => F16,
            _ => return None,
        };
        let flags = MatvFlags { weight, scale_f32: code & 4 != 0, zero: code & 8 != 0 };
        // what no group has is not said of it: each instruction has one encoding
        if matches!(weight, F16) && (flags.scale_f32 || flags.zero) { None } else { Some(flags) }
    }
}

/// One instruction, decoded. Fields that the opcode does not read are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instr {
    /// Operation.
    pub op: Opcode,
    /// Format, sub-operation or mode.
    pub flags: u8,
    /// Distance to await on each engine, 0 for none.
    pub wait: [u8; ENGINES],
    /// Registers r0–r4.
    pub r: [u8; 5],
    /// `layer << 16 | op` it was compiled from.
    pub src: u32,
    /// First 32-bit operand.
    pub x: u32,
    /// Second 32-bit operand.
    pub y: u32,
    /// 64-bit operand.
    pub z: u64,
}

/// Why a word is not an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// No such opcode.
    #[error("instruction {index}: no opcode has the code {code:#04x}")]
    Opcode {
        /// Position in the program.
        index: usize,
        /// The byte found.
        code: u8,
    },
    /// The code is not a whole number of instructions.
    #[error("the code has {bytes} bytes, not a multiple of 32")]
    Length {
        /// Bytes found.
        bytes: usize,
    },
}

impl Instr {
    /// An instruction with every other field zero.
    pub const fn new(op: Opcode) -> Instr {
        Instr { op, flags: 0, wait: [0; ENGINES], r: [0; 5], src: 0, x: 0, y: 0, z: 0 }
    }

    /// The 32 bytes.
    pub fn encode(&self) -> [u8; INSTR_BYTES] {
        let mut b = [0; INSTR_BYTES];
        b[0] = self.op as u8;
        b[1] = self.flags;
        b[2..7].copy_from_slice(&self.wait);
        b[7] = self.r[0];
        b[8..12].copy_from_slice(&self.src.to_le_bytes());
        b[12..16].copy_from_slice(&self.r[1..]);
        b[16..20].copy_from_slice(&self.x.to_le_bytes());
        b[20..24].copy_from_slice(&self.y.to_le_bytes());
        b[24..32].copy_from_slice(&self.z.to_le_bytes());
        b
    }

    /// The instruction that 32 bytes stand for; `index` is its place, for the error.
    pub fn decode(index: usize, b: &[u8; INSTR_BYTES]) -> Result<Instr, DecodeError> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let op = Opcode::from_code(b[0]).ok_or(DecodeError::Opcode { index, code: b[0] })?;
        Ok(Instr {
            op,
            flags: b[1],
            wait: [b[2], b[3], b[4], b[5], b[6]],
            r: [b[7], b[12], b[13], b[14], b[15]],
            src: u32_at(8),
            x: u32_at(16),
            y: u32_at(20),
            z: u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32,
        })
    }
}

/// Encodes a program.
pub fn encode(program: &[Instr]) -> Vec<u8> {
    program.iter().flat_map(Instr::encode).collect()
}

/// Decodes a program.
pub fn decode(code: &[u8]) -> Result<Vec<Instr>, DecodeError> {
    let (words, rest) = code.as_chunks::<INSTR_BYTES>();
    if !rest.is_empty() {
        return Err(DecodeError::Length { bytes: code.len() });
    }
    words.iter().enumerate().map(|(i, w)| Instr::decode(i, w)).collect()
}
