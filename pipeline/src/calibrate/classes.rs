//! Which classes a function's values are of, by the operations around them.
//!
//! The formats are the compiler's rule: what is added to the residual is fixed point, a vector for a matrix
//! is float16, what leaves on an edge is as wide as its type says, all else is float32.

use super::{Class, Held};
use mica_compile::SEAM;
use mica_models::decode::Carried;
use mica_models::hir::{Dtype, Function, Node, Op, ParamKind, ReduceKind, ValueId};

/// What a value is looked at for.
#[derive(Clone, Debug, PartialEq)]
pub enum Tag {
    /// Its magnitude.
    Magnitude(Class, Held),
    /// Its elements, arguments of a function.
    Argument(&'static str, String),
    /// The spread along an axis.
    Spread(usize, String),
    /// The root mean square along the last axis.
    Size(&'static str, String),
}

/// What each value is looked at for: parameters first, then nodes.
pub fn tags(f: &Function) -> Vec<Vec<Tag>> {
    let mut tags = vec![Vec::new(); f.params.len() + f.nodes.len()];
    let mut put = |v: ValueId, tag: Tag| {
        let of: &mut Vec<Tag> = &mut tags[v.0 as usize];
        if !of.contains(&tag) {
            of.push(tag);
        }
    };
    let carried = Carried::new(f);
    let residual = residual(f);
    for (v, node) in f.values() {
        let input = |i: usize| node.inputs[i];
        if residual[v.0 as usize] {
            put(v, Tag::Magnitude(Class::Residual, Held::Fx32));
        }
        let name = node.op.name();
        let here = place(node);
        match &node.op {
            Op::Sigmoid | Op::Silu | Op::Softplus | Op::Exp => {
                put(input(0), Tag::Magnitude(Class::Gates, Held::F32));
                put(v, Tag::Magnitude(Class::Gates, Held::F32));
                put(input(0), Tag::Argument(name, here));
            }
            Op::Rsqrt => put(input(0), Tag::Argument(name, here)),
            Op::Softmax { axis } => {
                put(input(0), Tag::Magnitude(Class::Logits, Held::F32));
                put(input(0), Tag::Spread(*axis, here));
            }
            Op::RmsNorm { .. } => {
                put(v, Tag::Magnitude(Class::Norms, Held::F32));
                put(root(f, input(0)), Tag::Size("rms-norm", here));
            }
            Op::Mul if node.inputs.iter().any(|&i| op(f, root(f, i)) == Some(&Op::Rsqrt)) => {
                put(v, Tag::Magnitude(Class::Norms, Held::F32));
            }
            Op::MatMul => {
                put(v, Tag::Magnitude(Class::Accumulators, Held::F32));
                if is_weight(f, input(0)) {
                    put(input(1), Tag::Magnitude(Class::Vectors, Held::F16));
                }
            }
            Op::Reduce { kind: ReduceKind::Sum, .. } => {
                put(v, Tag::Magnitude(Class::Accumulators, Held::F32));
            }
            _ => {}
        }
    }
    for (name, v) in &f.results {
        let row =
            name.strip_suffix("_row").is_some_and(|n| carried.caches.contains_key(&format!("{n}_cache")));
        let held = match f.ty(*v).dtype {
            Dtype::F32 => Held::F32,
            Dtype::BF16 | Dtype::F16 => Held::F16,
            Dtype::I64 => continue,
        };
        if row || carried.states.contains_key(name) {
            put(*v, Tag::Magnitude(Class::States, held));
        } else if op(f, root(f, *v)) == Some(&Op::MatMul) {
            put(*v, Tag::Magnitude(Class::Logits, held));
        }
    }
    tags
}

/// Where an operation stands.
pub fn place(node: &Node) -> String {
    format!("{} {}", node.label, node.op.name()).trim().to_string()
}

/// Which values are the residual: the seam, what is added to it, and the same under another type or shape.
fn residual(f: &Function) -> Vec<bool> {
    let mut residual = vec![false; f.params.len() + f.nodes.len()];
    for (i, p) in f.params.iter().enumerate() {
        residual[i] = p.kind == ParamKind::Tensor && p.name == SEAM && f.result(SEAM).is_some();
    }
    if let Some(v) = f.result(SEAM) {
        residual[v.0 as usize] = true;
    }
    for (v, node) in f.values() {
        let from = node.inputs.iter().any(|&i| residual[root(f, i).0 as usize]);
        residual[v.0 as usize] |= node.op == Op::Add && from;
    }
    residual
}

/// The value behind casts and reshapes.
fn root(f: &Function, v: ValueId) -> ValueId {
    match f.node(v) {
        Some(n) if matches!(n.op, Op::Cast { .. } | Op::Reshape { .. }) => root(f, n.inputs[0]),
        _ => v,
    }
}

fn op(f: &Function, v: ValueId) -> Option<&Op> {
    f.node(v).map(|n| &n.op)
}

/// Whether a value is a weight, or rows gathered from one.
fn is_weight(f: &Function, v: ValueId) -> bool {
    match f.node(v) {
        None => f.param(v).is_some_and(|p| p.kind == ParamKind::Const),
        Some(n) => n.op == Op::IndexSelect && is_weight(f, n.inputs[0]),
    }
}
