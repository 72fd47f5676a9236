//! The plan of a constant segment: which weight lies where and in which format, no values.
//!
//! `quantize` makes and fills it, `compile` addresses by it. Parts of one kind whose weights have the
//! same formats have equal plans, hence share their code.

use crate::format::Format;
use crate::layout::{ALIGN, MatrixFormat, MatrixLayout, Scaling, TableLayout};
use serde::{Deserialize, Serialize};

/// How one weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Storage {
    /// `[rows, cols]`, tiled.
    Matrix(MatrixFormat),
    /// `[count, rows, cols]`: `count` tiled matrices, each at a multiple of the matrix's bytes.
    Experts(MatrixFormat),
    /// `[rows, cols]`, gathered by row.
    Table {
        /// Format of an element.
        element: Format,
        /// Scaling of an integer table.
        scaling: Option<Scaling>,
    },
    /// Any shape, plain row-major elements.
    Vector(Format),
}

impl Storage {
    /// Bytes of a weight of this shape, before alignment. `None` where the shape has the wrong rank.
    pub fn bytes(&self, shape: &[u64]) -> Option<u64> {
        Some(match (*self, shape) {
            (Storage::Matrix(format), &[rows, cols]) => MatrixLayout { rows, cols, format }.bytes(),
            (Storage::Experts(format), &[n, rows, cols]) => n * MatrixLayout { rows, cols, format }.bytes(),
            (Storage::Table { element, scaling }, &[rows, cols]) => {
                TableLayout { rows, cols, element, scaling }.bytes()
            }
            (Storage::Vector(format), shape) => shape.iter().product::<u64>() * format.bytes(),
            _ => return None,
        })
    }
}

/// One weight's place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanEntry {
    /// The weight's name within the part (`linear_attn.in_proj_qkv.weight`).
    pub role: String,
    /// Shape as the model's function takes it.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub storage: Storage,
    /// Offset from the start of the segment, a multiple of 64.
    pub offset: u64,
    /// Bytes without padding to the next entry.
    pub bytes: u64,
}

/// Every weight of a part in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentPlan {
    /// Ascending by offset.
    pub entries: Vec<PlanEntry>,
    /// Bytes of the segment, a multiple of 64.
    pub bytes: u64,
}

impl SegmentPlan {
    /// The entry of a weight.
    pub fn entry(&self, role: &str) -> Option<&PlanEntry> {
        self.entries.iter().find(|e| e.role == role)
    }

    /// Appends a weight. `false`, and nothing appended, where the shape does not fit the storage.
    pub fn push(&mut self, role: &str, shape: &[u64], storage: Storage) -> bool {
        let Some(bytes) = storage.bytes(shape) else { return false };
        self.entries.push(PlanEntry {
            role: role.into(),
            shape: shape.into(),
            storage,
            offset: self.bytes,
            bytes,
        });
        self.bytes += bytes.div_ceil(ALIGN) * ALIGN;
        true
    }
}
