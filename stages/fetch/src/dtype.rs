//! Element types, by the names that safetensors gives them.
//!
//! Knows widths and names only; what a type means to a model or to the device is not its business.

use std::fmt;
use std::str::FromStr;

use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Serialize};

use crate::error::FetchError;

/// The type of a tensor's elements. Always little-endian in a delivery.
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

    /// Bytes an element.
    pub const fn size(self) -> u64 {
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
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = FetchError;

    fn from_str(name: &str) -> Result<Self, FetchError> {
        let refuse = |reason| FetchError::DtypeName { name: name.to_owned(), reason };
        // The format's own crate owns the list of names; ours may lag behind it, and says so.
        let read: Result<safetensors::Dtype, serde::de::value::Error> =
            safetensors::Dtype::deserialize(name.into_deserializer());
        match read.map_err(|_| refuse("no safetensors type"))? {
            safetensors::Dtype::F64 => Ok(Dtype::F64),
            safetensors::Dtype::F32 => Ok(Dtype::F32),
            safetensors::Dtype::F16 => Ok(Dtype::F16),
            safetensors::Dtype::BF16 => Ok(Dtype::BF16),
            safetensors::Dtype::I64 => Ok(Dtype::I64),
            safetensors::Dtype::I32 => Ok(Dtype::I32),
            safetensors::Dtype::I16 => Ok(Dtype::I16),
            safetensors::Dtype::I8 => Ok(Dtype::I8),
            safetensors::Dtype::U8 => Ok(Dtype::U8),
            safetensors::Dtype::U16 => Ok(Dtype::U16),
            safetensors::Dtype::U32 => Ok(Dtype::U32),
            safetensors::Dtype::U64 => Ok(Dtype::U64),
            safetensors::Dtype::BOOL => Ok(Dtype::Bool),
            _ => Err(refuse("a safetensors type that has no use here")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_serde_agree() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{dtype}\""));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
        }
        for (name, said) in [("F8_E4M3", "has no use here"), ("f32", "no safetensors type")] {
            let message = name.parse::<Dtype>().unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(said), "{message}");
        }
    }
}
