//! Number formats: how a value is stored in a tile, in L2 or in a constant segment.

use serde::{Deserialize, Serialize};

/// The format of one stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16, subnormals kept.
    F16,
    /// bfloat16.
    Bf16,
    /// Saturating 32-bit fixed point; the number of fraction bits stands beside it in the
    /// descriptor.
    Fx32,
    /// Two's complement, 32 bits: expert ids, indices.
    I32,
    /// Two's complement, 8 bits: rows of a quantized table. Only `LDT` reads it.
    I8,
}

impl Format {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Format::F32 | Format::Fx32 | Format::I32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::I8 => 1,
        }
    }

    /// Every format, in the order of the codes.
    pub const ALL: &'static [Format] =
        &[Format::F32, Format::F16, Format::Bf16, Format::Fx32, Format::I32, Format::I8];

    /// How it is written in assembly.
    pub const fn text(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Fx32 => "fx32",
            Format::I32 => "i32",
            Format::I8 => "i8",
        }
    }

    /// The number that stands for the format in an encoded instruction.
    pub const fn code(self) -> u8 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Bf16 => 2,
            Format::Fx32 => 3,
            Format::I32 => 4,
            Format::I8 => 5,
        }
    }

    /// The format of a code, `None` where there is none.
    pub const fn from_code(code: u8) -> Option<Format> {
        Some(match code {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Bf16,
            3 => Format::Fx32,
            4 => Format::I32,
            5 => Format::I8,
            _ => return None,
        })
    }
}
