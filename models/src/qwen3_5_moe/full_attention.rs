//! The gated attention mixer, one decode step against the cache before it.
//!
//! Hq query heads on Hkv key and value heads of length D, G = Hq / Hkv; query head h reads key head h / G.

use super::config::Config;
use super::norm::{ACTIVATION, linear, rms_norm};
use crate::hir::{Builder, Dim, DimVar, Dtype, Function, HirError, Op, Type, ValueId};

/// `hidden` `[H]` (normed), `pos`, the cache before this token `[Hkv, ctx_len, D]` to the mixer's output and this
/// token's own rows `[Hkv, D]`, which the caller appends. The cached key is the one after norm and rotation.
pub(super) fn mixer(c: &Config) -> Result<Function, HirError> {
    let mut b = Builder::new("full_attention");
    let x = b.param("hidden", Type::new(ACTIVATION, &[c.hidden_size]));
    let pos = b.param("pos", Type::new(Dtype::I64, &[]));
    let k_cache = b.param("k_cache", cache(c));
    let v_cache = b.param("v_cache", cache(c));

    let token = project(&mut b, c, x, pos)?;
    let keys = append(&mut b, c, k_cache, token.k_row)?;
    let values = append(&mut b, c, v_cache, token.v_row)?;
    let o = attend(&mut b, c, token.q, keys, values, None)?;
    let y = gated_output(&mut b, c, o, token.gate)?;

    b.result("hidden", y);
    b.result("k_row", token.k_row);
    b.result("v_row", token.v_row);
    b.finish()
}

/// The same step on a cache of fixed capacity `[capacity, Hkv, D]`, for a caller that replays one program on one
/// buffer: `s` rows (1) are written at `pos`, and the caches come out as states. `mask` `[capacity]` is 0 at the
/// positions up to `pos` and −∞ after it, where the cache must be finite.
pub(super) fn fixed_cache(c: &Config, capacity: u64) -> Result<Function, HirError> {
    let (hkv, d) = (c.num_key_value_heads, c.head_dim);
    let mut b = Builder::new("full_attention_fixed_cache");
    let scalar = Type::new(Dtype::I64, &[]);
    let cache = Type::new(ACTIVATION, &[capacity, hkv, d]);
    let x = b.param("hidden", Type::new(ACTIVATION, &[c.hidden_size]));
    let pos = b.param("pos", scalar.clone());
    let s = b.param("s", scalar);
    let mask = b.param("mask", Type::new(Dtype::F32, &[capacity]));
    let k_cache = b.param("k_cache", cache.clone());
    let v_cache = b.param("v_cache", cache);

    let token = project(&mut b, c, x, pos)?;
    let mut write = |cache, row| {
        let row = b.reshape(row, &[1, hkv, d])?;
        let cache = b.op(Op::CacheUpdate, &[cache, row, pos, s])?;
        Ok((cache, b.transpose(cache, &[1, 0, 2])?))
    };
    let (k_cache, keys) = write(k_cache, token.k_row)?;
    let (v_cache, values) = write(v_cache, token.v_row)?;
    let o = attend(&mut b, c, token.q, keys, values, Some(mask))?;
    let y = gated_output(&mut b, c, o, token.gate)?;

    b.result("hidden", y);
    b.result("k_cache", k_cache);
    b.result("v_cache", v_cache);
    b.finish()
}

/// What a token is projected to.
struct Token {
    /// `[Hq, D]`, after norm and rotation.
    q: ValueId,
    /// `[Hq, D]`, before its sigmoid.
    gate: ValueId,
    /// `[Hkv, D]`, after norm and rotation.
    k_row: ValueId,
    /// `[Hkv, D]`.
    v_row: ValueId,
}

fn project(b: &mut Builder, c: &Config, x: ValueId, pos: ValueId) -> Result<Token, HirError> {
    let (hq, hkv, d) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim);
    // Per head, D rows of query and then D rows of gate: not two halves of the matrix.
    let both = linear(b, "q_proj", hq * 2 * d, x)?;
    let k = linear(b, "k_proj", hkv * d, x)?;
    let v = linear(b, "v_proj", hkv * d, x)?;
    let both = b.reshape(both, &[hq, 2 * d])?;
    let q = b.slice(both, 1, 0, d)?;
    let gate = b.slice(both, 1, d, d)?;

    let rope = Op::Rope { rotary: c.rotary_dim, theta: c.rope_theta };
    let q = rms_norm(b, c, "q_norm", q)?;
    let q = b.op(rope.clone(), &[q, pos])?;
    let k = b.reshape(k, &[hkv, d])?;
    let k = rms_norm(b, c, "k_norm", k)?;
    let k_row = b.op(rope, &[k, pos])?;
    let v_row = b.reshape(v, &[hkv, d])?;
    Ok(Token { q, gate, k_row, v_row })
}

/// `o_proj (o · sigmoid(gate))`
fn gated_output(b: &mut Builder, c: &Config, o: ValueId, gate: ValueId) -> Result<ValueId, HirError> {
    let gate = b.reshape(gate, &[c.num_attention_heads * c.head_dim])?;
    let gate = b.unary(Op::Sigmoid, gate)?;
    let o = b.mul(o, gate)?;
    linear(b, "o_proj", c.hidden_size, o)
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

/// `softmax(q kᵀ · D^-0.5 + mask) v`, softmax in float32. Query heads are grouped by key head, so no key is repeated.
/// Returns `[Hq · D]`.
fn attend(
    b: &mut Builder,
    c: &Config,
    q: ValueId,
    keys: ValueId,
    values: ValueId,
    mask: Option<ValueId>,
) -> Result<ValueId, HirError> {
    let (hkv, d) = (c.num_key_value_heads, c.head_dim);
    let q = b.reshape(q, &[hkv, c.num_attention_heads / hkv, d])?;
    let keys = b.transpose(keys, &[0, 2, 1])?;
    let scores = b.matmul(q, keys)?;
    let scores = b.scale(scores, 1.0 / libm::sqrt(d as f64))?;
    let mut scores = b.cast(scores, Dtype::F32)?;
    if let Some(mask) = mask {
        scores = b.add(scores, mask)?;
    }
    let weights = b.op(Op::Softmax { axis: 2 }, &[scores])?;
    let weights = b.cast(weights, ACTIVATION)?;
    let o = b.matmul(weights, values)?;
    b.reshape(o, &[c.num_attention_heads * d])
}
