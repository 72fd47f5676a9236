//! Types: element kinds, static and open dimensions.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The element kind that the published model states for a value. It is not a device format: the
/// compiler chooses those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// 64-bit integers: positions, token and expert ids.
    I64,
}

impl Dtype {
    /// Whether values are real numbers.
    pub fn is_float(self) -> bool {
        self != Dtype::I64
    }
    /// Bytes of one stored element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F32 => 4,
            Dtype::I64 => 8,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::I64 => "i64",
        })
    }
}

/// An open dimension, `lo <= value < hi`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DimVar {
    /// Name; two uses of one name must agree in bounds.
    pub name: String,
    /// Smallest value.
    pub lo: u64,
    /// One past the largest value.
    pub hi: u64,
}

/// A dimension: a number, or an open dimension plus a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dim {
    /// The open part.
    pub var: Option<DimVar>,
    /// The constant part.
    pub plus: u64,
}

impl Dim {
    /// The number, where the dimension is closed.
    pub fn known(&self) -> Option<u64> {
        self.var.is_none().then_some(self.plus)
    }
    /// An open dimension.
    pub fn open(var: DimVar) -> Dim {
        Dim { var: Some(var), plus: 0 }
    }
    /// The smallest number it can be.
    pub fn least(&self) -> u64 {
        self.var.as_ref().map_or(0, |v| v.lo) + self.plus
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Dim {
        Dim { var: None, plus: n }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.var, self.plus) {
            (None, n) => write!(f, "{n}"),
            (Some(v), 0) => write!(f, "{}", v.name),
            (Some(v), n) => write!(f, "{}+{n}", v.name),
        }
    }
}

/// Element kind and shape; an empty shape is a scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element kind.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<Dim>,
}

impl Type {
    /// A type whose dimensions are all closed.
    pub fn new(dtype: Dtype, shape: &[u64]) -> Type {
        Type { dtype, shape: shape.iter().map(|&n| n.into()).collect() }
    }
    /// The dimensions as numbers, where all are closed.
    pub fn known_shape(&self) -> Option<Vec<u64>> {
        self.shape.iter().map(Dim::known).collect()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}
