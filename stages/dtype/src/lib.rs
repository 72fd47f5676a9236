//! Element types of delivered tensors, by the names that safetensors gives them.
//!
//! Names and widths, and nothing else: what a type means to a delivery, to a model or to the device is not known here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements. Always little-endian in a delivery.
///
/// Where serde's format has names it is stored as its [`name`](Dtype::name), elsewhere as its number in this order:
/// the order is part of what caches hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Dtype {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 16 bits.
    I16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// One byte, 0 or 1.
    Bool,
}

impl Dtype {
    /// Every type, in declaration order.
    pub const ALL: [Dtype; 13] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::Bool,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::BF16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }

    /// The name in a safetensors header.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "F64",
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::I64 => "I64",
            Dtype::I32 => "I32",
            Dtype::I16 => "I16",
            Dtype::I8 => "I8",
            Dtype::U8 => "U8",
            Dtype::U16 => "U16",
            Dtype::U32 => "U32",
            Dtype::U64 => "U64",
            Dtype::Bool => "BOOL",
        }
    }

    /// Whether the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }

    /// Whether they are floating-point numbers of which binary32 holds every one: binary32, binary16, bfloat16.
    pub const fn is_narrow_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no element type has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no element type; there are {}", Dtype::ALL.map(Dtype::name).join(", "))]
pub struct UnknownDtype {
    /// As it was given.
    pub name: String,
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    /// The type of a [`name`](Dtype::name), letter by letter.
    fn from_str(name: &str) -> Result<Dtype, UnknownDtype> {
        let found = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| UnknownDtype { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_are_what_serde_writes() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{dtype}\""));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
        }
        for name in ["f32", "Bool", "F8_E4M3", ""] {
            let message = name.parse::<Dtype>().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{name:?} is no element type; there are F64, ")),
                "{message}"
            );
        }
    }

    /// What caches hold: a number may be taken by no other type.
    #[test]
    fn numbers_are_golden() {
        let names: [&str; 13] =
            ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL"];
        for (number, name) in names.into_iter().enumerate() {
            let dtype: Dtype = name.parse().unwrap();
            let stored = bincode::serde::encode_to_vec(dtype, bincode::config::standard()).unwrap();
            assert_eq!(stored, [number as u8], "{name}");
        }
    }
}
