//! Attention over a cache and this step's own row:
//!
//! ```text
//! k = concat(k_cache [Hkv, ctx, D], own_k [Hkv, 1, D], axis 1)
//! v = concat(v_cache [Hkv, ctx, D], own_v [Hkv, 1, D], axis 1)
//! matmul(softmax(matmul(q [Hkv, G, D], transpose(k)) · scale), v)
//! ```
//!
//! The scale may also be missing, or stand before the first product.

use super::Graph;
use mica_models::hir::{Op, ValueId};

/// A recognised attention; its root is the last `matmul`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Queries `[Hkv, G, D]`.
    pub q: ValueId,
    /// Cache parameters `[Hkv, ctx, D]`: keys, values.
    pub cache: [ValueId; 2],
    /// This step's rows `[Hkv, 1, D]`: keys, values.
    pub own: [ValueId; 2],
    /// What scores are multiplied by.
    pub scale: Option<f64>,
    /// The nodes inside, which are not lowered on their own.
    pub inner: Vec<ValueId>,
}

/// Both operands of a product by a constant: (other operand, constant).
fn scaled(g: &Graph, v: ValueId) -> Option<(ValueId, f64)> {
    let node = g.node(v)?;
    if node.op != Op::Mul {
        return None;
    }
    let (a, b) = (node.inputs[0], node.inputs[1]);
    g.fill(b).map(|c| (a, c)).or_else(|| g.fill(a).map(|c| (b, c)))
}

/// `concat(cache, own)` along axis 1.
fn cached(g: &Graph, v: ValueId) -> Option<[ValueId; 2]> {
    let node = g.node(v)?;
    let (Op::Concat { axis: 1 }, &[cache, own]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let open = g.param(cache)?.ty.shape.get(1)?.var.is_some();
    open.then_some([g.root(cache), g.root(own)])
}

/// The attention that ends in `v`, if one does.
pub fn find(g: &Graph, v: ValueId) -> Option<Attention> {
    let node = g.node(v)?;
    if node.op != Op::MatMul {
        return None;
    }
    let weights = g.root(node.inputs[0]);
    let values = g.root(node.inputs[1]);
    let [v_cache, v_own] = cached(g, values)?;
    let softmax = g.node(weights)?;
    let last = g.ty(weights).shape.len().checked_sub(1)?;
    if softmax.op != (Op::Softmax { axis: last }) {
        return None;
    }
    let mut inner = vec![values, weights];
    let mut scores = g.root(softmax.inputs[0]);
    let mut scale = None;
    if let Some((of, by)) = scaled(g, scores) {
        inner.push(scores);
        scores = g.root(of);
        scale = Some(by);
    }
    let product = g.node(scores)?;
    if product.op != Op::MatMul {
        return None;
    }
    inner.push(scores);
    let keys = g.root(product.inputs[1]);
    let turned = g.node(keys)?;
    if turned.op != (Op::Transpose { perm: vec![0, 2, 1] }) {
        return None;
    }
    inner.push(keys);
    let keys = g.root(turned.inputs[0]);
    let [k_cache, k_own] = cached(g, keys)?;
    inner.push(keys);
    inner.sort_unstable();
    let q = g.root(product.inputs[0]);
    Some(Attention { q, cache: [k_cache, v_cache], own: [k_own, v_own], scale, inner })
}
