//! The packed layer: which tensors, named by digest, play which role in a part of a model.
//!
//! It must not know a file, an offset, a tensor's delivered name or a layer's number, so that the same
//! weights in another container, under another prefix or in another layer pack to an equal value.

use mica_dtype::Dtype;
use mica_models::analysis::WeightUse;
use serde::{Deserialize, Serialize};

/// BLAKE3-256 of a tensor: dtype, shape and canonical bytes.
pub type Digest = blake3::Hash;

/// A tensor by content: canonical row-major little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// What the tensor is called by: its own digest. Integers of which every one has four bits are called by that
    /// of their words (`I32`, eight a word along a row, each plus 8, the first in the low bits).
    pub digest: Digest,
    /// Its elements.
    pub dtype: Dtype,
    /// Its shape, outermost first.
    pub shape: Vec<u64>,
}

impl Source {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}

/// One weight of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTensor {
    /// The weight's name within the part (`linear_attn.in_proj_qkv.weight`).
    pub role: String,
    /// What the part does with it, which decides how it may be stored.
    pub weight_use: WeightUse,
    /// Shape as the model's function takes it. `data` has as many elements in the same order, perhaps
    /// under the published shape.
    pub shape: Vec<u64>,
    /// The values; where `scale` is present, `I8` containers.
    pub data: Source,
    /// Scales `[.., rows, groups]` of a quantized weight: the value is f32(q) · f32(scale).
    pub scale: Option<Source>,
    /// Integer zero points of the scales' shape: the value is f32(q − zero) · f32(scale).
    pub zero: Option<Source>,
}

/// Everything that a part's constant segment is made of, in the segment's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLayer {
    /// The part's kind; parts of one kind run the same function.
    pub kind: String,
    /// Roles whose products the device makes in one operation that shares the input; each group is
    /// contiguous in `tensors`. The members may differ in format.
    pub fused: Vec<Vec<String>>,
    /// The weights.
    pub tensors: Vec<PackedTensor>,
}

impl PackedLayer {
    /// The weight of a role.
    pub fn tensor(&self, role: &str) -> Option<&PackedTensor> {
        self.tensors.iter().find(|tensor| tensor.role == role)
    }
}
