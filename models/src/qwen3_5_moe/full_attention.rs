//! The gated attention mixer, one decode step against the cache before it.
//!
//! Hq query heads on Hkv key and value heads of length D, G = Hq / Hkv; query head h reads key head h / G.

use super::config::Config;
use super::norm::{ACTIVATION, linear, rms_norm};
use crate::hir::{Builder, Dim, DimVar, Dtype, Function, HirError, Op, Type, ValueId};

/// `hidden` `[H]` (normed), `pos`, the cache before this token `[Hkv, ctx_len, D]` to the mixer's output and this
/// token's own rows `[Hkv, D]`, which the caller appends. The cached key is the one after norm and rotation.
pub(super) fn mixer(c: &Config) -> Result<Function, HirError> {
    let (hq, hkv, d) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim);
    let mut b = Builder::new("full_attention");
    let x = b.param("hidden", Type::new(ACTIVATION, &[c.hidden_size]));
    let pos = b.param("pos", Type::new(Dtype::I64, &[]));
    let k_cache = b.param("k_cache", cache(c));
    let v_cache = b.param("v_cache", cache(c));

    // Per head, D rows of query and then D rows of gate: not two halves of the matrix.
    let both = linear(&mut b, "q_proj", hq * 2 * d, x)?;
    let k = linear(&mut b, "k_proj", hkv * d, x)?;
    let v = linear(&mut b, "v_proj", hkv * d, x)?;
    let both = b.reshape(both, &[hq, 2 * d])?;
    let q = b.slice(both, 1, 0, d)?;
    let gate = b.slice(both, 1, d, d)?;

    let rope = Op::Rope { rotary: c.rotary_dim, theta: c.rope_theta };
    let q = rms_norm(&mut b, c, "q_norm", q)?;
    let q = b.op(rope.clone(), &[q, pos])?;
    let k = b.reshape(k, &[hkv, d])?;
    let k = rms_norm(&mut b, c, "k_norm", k)?;
    let k_row = b.op(rope, &[k, pos])?;
    let v_row = b.reshape(v, &[hkv, d])?;

    let keys = append(&mut b, c, k_cache, k_row)?;
    let values = append(&mut b, c, v_cache, v_row)?;
    let o = attend(&mut b, c, q, keys, values)?;
    let gate = b.reshape(gate, &[hq * d])?;
    let gate = b.unary(Op::Sigmoid, gate)?;
    let o = b.mul(o, gate)?;
    let y = linear(&mut b, "o_proj", c.hidden_size, o)?;

    b.result("hidden", y);
    b.result("k_row", k_row);
    b.result("v_row", v_row);
    b.finish()
}

/// The cache before this token. `ctx_len` starts at 0; its bound leaves this token the last position.
pub(super) fn cache(c: &Config) -> Type {
    let ctx_len = Dim::open(DimVar { name: "ctx_len".to_string(), lo: 0, hi: c.max_position_embeddings });
    Type { dtype: ACTIVATION, shape: vec![c.num_key_value_heads.into(), ctx_len, c.head_dim.into()] }
}

/// The cache and this token's row `[Hkv, D]`: `[Hkv, ctx_len + 1, D]`.
fn append(b: &mut Builder, c: &Config, cache: ValueId, row: ValueId) -> Result<ValueId, HirError> {
    let row = b.reshape(row, &[c.num_key_value_heads, 1, c.head_dim])?;
    b.concat(cache, row, 1)
}

/// `softmax(q kᵀ · D^-0.5) v`, softmax in float32. Query heads are grouped by key head, so no key is repeated.
/// Returns `[Hq · D]`.
fn attend(
    b: &mut Builder,
    c: &Config,
    q: ValueId,
    keys: ValueId,
    values: ValueId,
) -> Result<ValueId, HirError> {
    let (hkv, d) = (c.num_key_value_heads, c.head_dim);
    let q = b.reshape(q, &[hkv, c.num_attention_heads / hkv, d])?;
    let keys = b.transpose(keys, &[0, 2, 1])?;
    let scores = b.matmul(q, keys)?;
    let scores = b.scale(scores, 1.0 / libm::sqrt(d as f64))?;
    let scores = b.cast(scores, Dtype::F32)?;
    let weights = b.op(Op::Softmax { axis: 2 }, &[scores])?;
    let weights = b.cast(weights, ACTIVATION)?;
    let o = b.matmul(weights, values)?;
    b.reshape(o, &[c.num_attention_heads * d])
}
