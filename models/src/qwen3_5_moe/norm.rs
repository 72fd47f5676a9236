//! The model's norms and the linear layer. All norms compute in float32.

use super::config::Config;
use crate::hir::builder::join;
use crate::hir::{Builder, Dtype, HirError, Op, Type, ValueId};

/// The dtype of activations and of most weights.
pub(super) const ACTIVATION: Dtype = Dtype::BF16;

/// `W x`: the published weight `<name>.weight` `[out, in]` times a vector; no linear here has a bias.
pub(super) fn linear(b: &mut Builder, name: &str, out: u64, x: ValueId) -> Result<ValueId, HirError> {
    let mut shape = b.ty(x).shape.clone();
    shape.insert(0, out.into());
    let dtype = ACTIVATION;
    let weight = b.weight(join(name, "weight"), Type { dtype, shape });
    b.label(name, |b| b.matmul(weight, x))
}

/// `x · rsqrt(mean(x²) + eps) · (1 + w)` over the last axis: the input, post-attention, query, key and final
/// norms store their weight less one.
pub(super) fn rms_norm(b: &mut Builder, c: &Config, name: &str, x: ValueId) -> Result<ValueId, HirError> {
    let last = b.ty(x).shape.last().cloned();
    let weight = Type { dtype: ACTIVATION, shape: last.into_iter().collect() };
    let weight = b.weight(format!("{name}.weight"), weight);
    b.label(name, |b| {
        let x = b.cast(x, Dtype::F32)?;
        let weight = b.cast(weight, Dtype::F32)?;
        let one = b.full_like(weight, 1.0)?;
        let weight = b.add(weight, one)?;
        let y = b.op(Op::RmsNorm { eps: c.rms_norm_eps }, &[x, weight])?;
        b.cast(y, ACTIVATION)
    })
}

/// `norm(x) · silu(z)`, x and z `[Hv, Dv]`: the DeltaNet's output norm. Its weight is used as it is, and is
/// float32 as published.
pub(super) fn gated_rms_norm(
    b: &mut Builder,
    c: &Config,
    name: &str,
    x: ValueId,
    z: ValueId,
) -> Result<ValueId, HirError> {
    let weight = b.weight(format!("{name}.weight"), Type::new(Dtype::F32, &[c.linear_value_head_dim]));
    b.label(name, |b| {
        let x = b.cast(x, Dtype::F32)?;
        let y = b.op(Op::RmsNorm { eps: c.rms_norm_eps }, &[x, weight])?;
        let z = b.cast(z, Dtype::F32)?;
        let gate = b.unary(Op::Silu, z)?;
        let y = b.mul(y, gate)?;
        b.cast(y, ACTIVATION)
    })
}

/// `x · rsqrt(Σx² + 1e-6)` over the last axis of `[heads, D]`: a sum, not a mean, and an epsilon of its own.
pub(super) fn l2_norm(b: &mut Builder, x: ValueId) -> Result<ValueId, HirError> {
    let square = b.unary(Op::Square, x)?;
    let sum = b.sum(square, 1, true)?;
    let eps = b.full_like(sum, 1e-6)?;
    let sum = b.add(sum, eps)?;
    let scale = b.unary(Op::Rsqrt, sum)?;
    b.mul(x, scale)
}
