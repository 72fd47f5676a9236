//! Regions that run head by head.
//!
//! A state `[B, M, N]` that comes on an edge may be larger than LRM, while each of its B matrices
//! fits. The ops between its first and its last reader at full size are batched over B, so they run
//! for one matrix after the other: load, compute, store. Small states run the same way.

use super::Graph;
use mica_models::hir::{ParamKind, ValueId};

/// A region: the state and the nodes that run once a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The state parameter `[B, M, N]`.
    pub state: ValueId,
    /// Number of matrices.
    pub heads: u64,
    /// The nodes, in order.
    pub nodes: Vec<ValueId>,
}

/// The regions of a function, by state parameter.
pub fn find(g: &Graph) -> Vec<Region> {
    let mut found: Vec<Region> = Vec::new();
    for (i, p) in g.f.params.iter().enumerate() {
        let state = ValueId(i as u32);
        let Some(shape) = p.ty.known_shape() else { continue };
        let &[heads, m, n] = shape.as_slice() else { continue };
        if p.kind == ParamKind::Tensor && m > 1 && n > 1 && g.live(state) {
            let nodes = members(g, state, &shape);
            // a node can run once a head of one state only; the first takes it
            let taken = nodes.iter().any(|n| found.iter().any(|r| r.nodes.contains(n)));
            if !taken && !nodes.is_empty() {
                found.push(Region { state, heads, nodes });
            }
        }
    }
    found
}

/// The nodes that depend on the state and on which a reader of a state-sized value depends.
fn members(g: &Graph, state: ValueId, shape: &[u64]) -> Vec<ValueId> {
    let full = |v: ValueId| g.ty(v).known_shape().as_deref() == Some(shape);
    let mut depends = vec![state];
    let mut readers = Vec::new();
    for (v, _) in g.live_nodes() {
        let inputs = g.inputs(v);
        let from_state = |i: &ValueId| depends.binary_search(i).is_ok();
        if inputs.iter().any(|i| from_state(i) && full(*i)) {
            readers.push(v);
        }
        if inputs.iter().any(from_state) {
            depends.push(v);
        }
    }
    let mut wanted = readers;
    let mut inside = Vec::new();
    while let Some(v) = wanted.pop() {
        if v == state || inside.contains(&v) || depends.binary_search(&v).is_err() {
            continue;
        }
        inside.push(v);
        wanted.extend(g.inputs(v));
    }
    inside.sort_unstable();
    inside
}
