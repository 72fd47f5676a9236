//! The Gated DeltaNet mixer, one decode step.
//!
//! Hk key heads of length Dk, Hv value heads of length Dv, r = Hv / Hk; value head h reads key head h / r.
//! The state of each value head is a matrix S `[Dk, Dv]`.

use super::config::Config;
use super::norm::{ACTIVATION, gated_rms_norm, l2_norm, linear};
use crate::hir::{Builder, Dtype, Function, HirError, Op, Type, ValueId};

/// `hidden` `[H]` (normed), `conv_state` `[K−1, C]`, `recurrent_state` `[Hv, Dk, Dv]` to the mixer's output and
/// the states after this token.
pub(super) fn mixer(c: &Config) -> Result<Function, HirError> {
    let (hv, dk, dv) = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim);
    let mut b = Builder::new("linear_attention");
    let x = b.param("hidden", Type::new(ACTIVATION, &[c.hidden_size]));
    let conv_state = b.param("conv_state", conv_state(c));
    let state = b.param("recurrent_state", recurrent_state(c));

    let qkv = linear(&mut b, "in_proj_qkv", c.conv_channels(), x)?;
    let z = linear(&mut b, "in_proj_z", c.value_size(), x)?;
    let beta = linear(&mut b, "in_proj_b", hv, x)?;
    let a = linear(&mut b, "in_proj_a", hv, x)?;

    let (mixed, conv_state) = b.label("conv1d", |b| causal_conv(b, c, qkv, conv_state))?;
    let (q, k, v) = heads(&mut b, c, mixed)?;
    let beta = b.label("beta", |b| {
        let beta = b.cast(beta, Dtype::F32)?;
        b.unary(Op::Sigmoid, beta)
    })?;
    let g = log_decay(&mut b, c, a)?;
    let (o, state) = delta_rule(&mut b, c, [q, k, v], beta, g, state)?;

    let o = b.reshape(o, &[hv, dv])?;
    let z = b.reshape(z, &[hv, dv])?;
    let y = gated_rms_norm(&mut b, c, "norm", o, z)?;
    let y = b.reshape(y, &[c.value_size()])?;
    let y = linear(&mut b, "out_proj", c.hidden_size, y)?;

    debug_assert_eq!(b.ty(state), &Type::new(Dtype::F32, &[hv, dk, dv]));
    b.result("hidden", y);
    b.result("conv_state", conv_state);
    b.result("recurrent_state", state);
    b.finish()
}

/// The inputs of the convolution at the K−1 tokens before this one, newest last.
pub(super) fn conv_state(c: &Config) -> Type {
    Type::new(ACTIVATION, &[c.linear_conv_kernel_dim - 1, c.conv_channels()])
}

/// One matrix a value head, float32 as published.
pub(super) fn recurrent_state(c: &Config) -> Type {
    let shape = [c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim];
    Type::new(Dtype::F32, &shape)
}

/// Depthwise causal convolution over all channels, then silu: `silu(Σ_j w[j] · x[t−K+1+j])`. Returns it and the
/// window's newest K−1 rows.
fn causal_conv(
    b: &mut Builder,
    c: &Config,
    x: ValueId,
    conv_state: ValueId,
) -> Result<(ValueId, ValueId), HirError> {
    let (taps, channels) = (c.linear_conv_kernel_dim, c.conv_channels());
    // Published as [C, 1, K]; the delivery's converter makes it time-major like the state.
    let weight = b.weight("conv1d.weight", Type::new(ACTIVATION, &[taps, channels]));
    let row = b.reshape(x, &[1, channels])?;
    let window = b.concat(conv_state, row, 0)?;
    let next = b.slice(window, 0, 1, taps - 1)?;
    let products = b.mul(window, weight)?;
    let y = b.sum(products, 0, false)?;
    Ok((b.unary(Op::Silu, y)?, next))
}

/// Splits the rows q | k | v, norms q and k, scales q by Dk^-0.5 and gives each value head its key head. All in
/// float32: q and k `[Hv, Dk]`, v `[Hv, Dv]`.
fn heads(b: &mut Builder, c: &Config, mixed: ValueId) -> Result<(ValueId, ValueId, ValueId), HirError> {
    let (hk, dk, keys) = (c.linear_num_key_heads, c.linear_key_head_dim, c.key_size());
    let mixed = b.cast(mixed, Dtype::F32)?;
    let part = |b: &mut Builder, start, heads, len| {
        let flat = b.slice(mixed, 0, start, heads * len)?;
        b.reshape(flat, &[heads, len])
    };
    let q = part(b, 0, hk, dk)?;
    let k = part(b, keys, hk, dk)?;
    let v = part(b, 2 * keys, c.linear_num_value_heads, c.linear_value_head_dim)?;
    let q = l2_norm(b, q)?;
    let q = b.scale(q, 1.0 / libm::sqrt(dk as f64))?;
    let k = l2_norm(b, k)?;
    let repeat = Op::RepeatInterleave { axis: 0, repeats: c.linear_num_value_heads / hk };
    Ok((b.op(repeat.clone(), &[q])?, b.op(repeat, &[k])?, v))
}

/// `g = −exp(A_log) · softplus(a + dt_bias)` `[Hv]`, in float32.
fn log_decay(b: &mut Builder, c: &Config, a: ValueId) -> Result<ValueId, HirError> {
    let hv = c.linear_num_value_heads;
    let a_log = b.weight("A_log", Type::new(Dtype::F32, &[hv]));
    let dt_bias = b.weight("dt_bias", Type::new(ACTIVATION, &[hv]));
    b.label("g", |b| {
        let a = b.cast(a, Dtype::F32)?;
        let dt_bias = b.cast(dt_bias, Dtype::F32)?;
        let dt = b.add(a, dt_bias)?;
        let dt = b.unary(Op::Softplus, dt)?;
        let rate = b.unary(Op::Exp, a_log)?;
        let rate = b.unary(Op::Neg, rate)?;
        b.mul(rate, dt)
    })
}

/// The delta rule on all value heads at once:
/// `S ← e^g S; d = β (v − kᵀS); S ← S + k dᵀ; o = qᵀS`. The prediction reads the decayed state, the output the
/// updated one. Returns o `[Hv, 1, Dv]` and S.
fn delta_rule(
    b: &mut Builder,
    c: &Config,
    [q, k, v]: [ValueId; 3],
    beta: ValueId,
    g: ValueId,
    state: ValueId,
) -> Result<(ValueId, ValueId), HirError> {
    let (hv, dk, dv) = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim);
    let g = b.reshape(g, &[hv, 1, 1])?;
    let decay = b.unary(Op::Exp, g)?;
    let decayed = b.mul(state, decay)?;
    let k_row = b.reshape(k, &[hv, 1, dk])?;
    let predicted = b.matmul(k_row, decayed)?;
    let v = b.reshape(v, &[hv, 1, dv])?;
    let error = b.sub(v, predicted)?;
    let beta = b.reshape(beta, &[hv, 1, 1])?;
    let delta = b.mul(beta, error)?;
    let k_column = b.reshape(k, &[hv, dk, 1])?;
    let update = b.matmul(k_column, delta)?;
    let state = b.add(decayed, update)?;
    let q = b.reshape(q, &[hv, 1, dk])?;
    Ok((b.matmul(q, state)?, state))
}
