//! Broken variants of the authored Qwen3.5-MoE, made by rewriting its flattened functions. Tests use them to
//! show that a gate fails when one thing is wrong. Only behind the `testing` feature.

use crate::hir::{Builder, Function, HirError, Node, Op, ParamKind, ValueId};
use crate::stack::Stack;

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// Norm weights used as `w` instead of `1 + w`, the final norm's included.
    PlainNorms,
    /// The final norm's `1 +` forgotten.
    PlainFinalNorm,
    /// Rotary positions doubled.
    PositionsDoubled,
    /// No rotation at all.
    NoRope,
    /// Gate and query swapped in q_proj.
    GateQuerySwapped,
    /// The convolution sees zeros instead of the tokens before.
    ConvStateZeroed,
    /// Attention sees only the token itself.
    CacheDropped,
    /// Value head h reads key head h mod Hk instead of h / (Hv / Hk).
    KeyHeadOrder,
}

impl Broken {
    /// All of them.
    pub const ALL: [Broken; 8] = [
        Broken::PlainNorms,
        Broken::PlainFinalNorm,
        Broken::PositionsDoubled,
        Broken::NoRope,
        Broken::GateQuerySwapped,
        Broken::ConvStateZeroed,
        Broken::CacheDropped,
        Broken::KeyHeadOrder,
    ];
}

/// The stack with one thing broken in its functions (`embed`, `kinds[..].function`, `head`); modules stay.
///
/// # Errors
/// A function that is not the authored one may not rewrite.
pub fn broken(stack: &Stack, what: Broken) -> Result<Stack, HirError> {
    let mut stack = stack.clone();
    if what != Broken::PlainFinalNorm {
        for kind in &mut stack.kinds {
            kind.function = rewrite(&kind.function, what)?;
        }
    }
    if matches!(what, Broken::PlainNorms | Broken::PlainFinalNorm) {
        stack.head = rewrite(&stack.head, Broken::PlainNorms)?;
    }
    Ok(stack)
}

fn rewrite(function: &Function, what: Broken) -> Result<Function, HirError> {
    let mut b = Builder::new(function.name.clone());
    let mut map: Vec<ValueId> = Vec::new();
    for p in &function.params {
        map.push(match p.kind {
            ParamKind::Tensor => b.param(p.name.clone(), p.ty.clone()),
            ParamKind::Const => b.weight(p.name.clone(), p.ty.clone()),
        });
    }
    for node in &function.nodes {
        let inputs: Vec<ValueId> = node.inputs.iter().map(|v| map[v.0 as usize]).collect();
        map.push(b.label(&node.label, |b| replace(b, node, inputs, what))?);
    }
    for (name, v) in &function.results {
        b.result(name.clone(), map[v.0 as usize]);
    }
    b.finish()
}

fn replace(
    b: &mut Builder,
    node: &Node,
    mut inputs: Vec<ValueId>,
    what: Broken,
) -> Result<ValueId, HirError> {
    let mut op = node.op.clone();
    match (what, &mut op, node.label.as_str()) {
        (Broken::PlainNorms, Op::FullLike { value }, label) if label.ends_with("norm") && *value == 1.0 => {
            *value = 0.0
        }
        (Broken::PositionsDoubled, Op::Rope { .. }, _) => inputs[1] = b.add(inputs[1], inputs[1])?,
        (Broken::NoRope, Op::Rope { .. }, _) => return Ok(inputs[0]),
        (Broken::GateQuerySwapped, Op::Slice { start, len, .. }, "self_attn") => *start = *len - *start,
        (Broken::ConvStateZeroed, Op::Concat { .. }, "linear_attn.conv1d") => {
            inputs[0] = b.full_like(inputs[0], 0.0)?
        }
        (Broken::CacheDropped, Op::Concat { .. }, "self_attn") => return Ok(inputs[1]),
        (Broken::KeyHeadOrder, Op::RepeatInterleave { axis, repeats }, _) => {
            inputs = vec![inputs[0]; *repeats as usize];
            op = Op::Concat { axis: *axis };
        }
        _ => {}
    }
    b.op(op, &inputs)
}
