//! What a flattened function does with its weights: found from the HIR, for packing and compiling.

use crate::hir::{Function, Op, ValueId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a function uses a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WeightUse {
    /// First operand of a matrix product with a vector.
    Matrix,
    /// Indexed along axis 0, what is gathered being the first operand of a matrix product.
    Experts,
    /// Indexed along axis 0 otherwise.
    Table,
    /// Anything else: added, multiplied, a norm's weight.
    Vector,
}

/// The use of each weight, by name: of several uses, the one listed first in `WeightUse`.
pub fn weight_uses(function: &Function) -> BTreeMap<String, WeightUse> {
    function
        .params
        .iter()
        .enumerate()
        .filter(|(_, p)| p.kind == crate::hir::ParamKind::Const)
        .map(|(i, p)| {
            let weight = ValueId(i as u32);
            let uses = function.values().filter_map(|(v, node)| match (&node.op, node.inputs.as_slice()) {
                (Op::MatMul, [a, x]) if *a == weight && function.ty(*x).shape.len() == 1 => {
                    Some(WeightUse::Matrix)
                }
                (Op::IndexSelect, [table, _]) if *table == weight => Some(match multiplies(function, v) {
                    true => WeightUse::Experts,
                    false => WeightUse::Table,
                }),
                _ => None,
            });
            (p.name.clone(), uses.min().unwrap_or(WeightUse::Vector))
        })
        .collect()
}

/// Whether a value is the first operand of a matrix product.
fn multiplies(function: &Function, v: ValueId) -> bool {
    let is = |n: &crate::hir::Node| n.op == Op::MatMul && n.inputs.first() == Some(&v);
    function.nodes.iter().any(is)
}

/// The matrices (as of `weight_uses`) grouped by the activation that they multiply, groups and members in
/// order of first use. Every matrix is in one group; a group of one has nothing to fuse with.
pub fn fused_groups(function: &Function) -> Vec<Vec<String>> {
    let uses = weight_uses(function);
    let mut groups: Vec<(ValueId, Vec<String>)> = Vec::new();
    for node in function.nodes.iter().filter(|n| n.op == Op::MatMul) {
        let [a, x] = node.inputs[..] else { continue };
        let Some(weight) = function.param(a).filter(|p| uses.get(&p.name) == Some(&WeightUse::Matrix)) else {
            continue;
        };
        if groups.iter().any(|(_, names)| names.contains(&weight.name)) {
            continue;
        }
        match groups.iter_mut().find(|(activation, _)| *activation == x) {
            Some((_, names)) => names.push(weight.name.clone()),
            None => groups.push((x, vec![weight.name.clone()])),
        }
    }
    groups.into_iter().map(|(_, names)| names).collect()
}
