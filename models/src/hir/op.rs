//! The operations, with their attributes. Rules of shape, dtype, value and cost stand in one file a
//! family.

use super::types::{Dim, Dtype};
use serde::{Deserialize, Serialize};

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceKind {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
    /// Largest.
    Max,
}

/// An operation of the HIR. Binary element-wise operations broadcast as NumPy does; there is no implicit
/// promotion of dtypes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
    /// max(a, b)
    Max,
    /// −a
    Neg,
    /// e^a
    Exp,
    /// a²
    Square,
    /// 1 / √a
    Rsqrt,
    /// ln(1 + e^a), a itself above 20
    Softplus,
    /// 1 / (1 + e^−a)
    Sigmoid,
    /// a · sigmoid(a)
    Silu,
    /// NumPy's `matmul`: `[.., M, K] · [.., K, N]`; a one-dimensional operand is a vector.
    MatMul,
    /// Reduction over one axis, which stays with length 1 if `keep`.
    Reduce {
        /// What is computed.
        kind: ReduceKind,
        /// The axis.
        axis: usize,
        /// Whether the axis stays.
        keep: bool,
    },
    /// `x · rsqrt(mean(x², last axis) + eps) · weight`; inputs x, weight `[last]`. The weight is used as it is.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// Softmax over one axis.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// Rotary embedding of the first `rotary` elements of the last axis, half-split pairs; inputs x
    /// `[.., D]`, position (scalar I64).
    Rope {
        /// Elements that rotate.
        rotary: u64,
        /// Base of the frequencies theta^(−2j/rotary).
        theta: f64,
    },
    /// The k largest of the last axis, descending, ties to the lower index: a tuple (values, I64 indices).
    TopK {
        /// How many.
        k: u64,
    },
    /// Rows of axis 0 of a table: inputs table `[N, ..]`, indices (I64, any shape S): `S ++ [..]`.
    IndexSelect,
    /// Concatenation.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// A contiguous range of one axis.
    Slice {
        /// The axis.
        axis: usize,
        /// First element.
        start: u64,
        /// Number of elements.
        len: u64,
    },
    /// The same elements in row-major order under another shape.
    Reshape {
        /// The new shape.
        shape: Vec<Dim>,
    },
    /// Axes permuted: result axis i is input axis `perm[i]`.
    Transpose {
        /// The permutation.
        perm: Vec<usize>,
    },
    /// Each element of an axis repeated in place (0,0,1,1,…).
    RepeatInterleave {
        /// The axis.
        axis: usize,
        /// How often.
        repeats: u64,
    },
    /// Another dtype. Between float dtypes the float64 evaluator keeps the value.
    Cast {
        /// The new dtype.
        dtype: Dtype,
    },
    /// Rounding of the stored value through a dtype, as the published model stores an embedding row in
    /// bfloat16. The device rounds; the float64 evaluator rounds only where it is asked to.
    Round {
        /// The dtype rounded through.
        dtype: Dtype,
    },
    /// A tensor of the input's type filled with one value.
    FullLike {
        /// The value.
        value: f64,
    },
    /// Writes `s` rows of `new` into axis 0 of `cache` at `cur_pos`: inputs cache `[N, ..]`, new `[M, ..]`,
    /// cur_pos (scalar I64), s (scalar I64).
    CacheUpdate,
    /// One element of a tuple.
    TupleGet {
        /// Which.
        index: usize,
    },
    /// A function of a child module (or of this one, path empty), its weights bound by scope.
    Call {
        /// Path of child names.
        path: Vec<String>,
        /// Function name.
        function: String,
    },
}

impl Op {
    /// The operation's name, as it is printed and as `src` names it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::Div => "div",
            Op::Max => "max",
            Op::Neg => "neg",
            Op::Exp => "exp",
            Op::Square => "square",
            Op::Rsqrt => "rsqrt",
            Op::Softplus => "softplus",
            Op::Sigmoid => "sigmoid",
            Op::Silu => "silu",
            Op::MatMul => "matmul",
            Op::Reduce { .. } => "reduce",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Softmax { .. } => "softmax",
            Op::Rope { .. } => "rope",
            Op::TopK { .. } => "topk",
            Op::IndexSelect => "index_select",
            Op::Concat { .. } => "concat",
            Op::Slice { .. } => "slice",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::RepeatInterleave { .. } => "repeat_interleave",
            Op::Cast { .. } => "cast",
            Op::Round { .. } => "round",
            Op::FullLike { .. } => "full_like",
            Op::CacheUpdate => "cache_update",
            Op::TupleGet { .. } => "tuple_get",
            Op::Call { .. } => "call",
        }
    }
}
