//! What waits for itself from token to token: nodes that read a state and on which its next value rests.
//!
//! Such nodes run for one token after the other, and those that only read a state come after what makes its next
//! value; everything else may run for all tokens of a call before the next node does.

use super::Graph;
use mica_models::hir::ValueId;
use std::collections::BTreeSet;

/// The nodes of each recurrence, ascending. States that wait for each other share one.
pub fn find(g: &Graph) -> Vec<Vec<ValueId>> {
    let mut found: Vec<Vec<ValueId>> = Vec::new();
    for (state, next) in states(g) {
        let after = reached(state, |v| later(g, v));
        let before = reached(next, |v| earlier(g, v));
        let nodes: Vec<ValueId> =
            after.intersection(&before).copied().filter(|v| g.node(*v).is_some()).collect();
        if !nodes.is_empty() && !found.contains(&nodes) {
            found.push(nodes);
        }
    }
    found
}

/// The states, each with its next value.
pub fn states<'g>(g: &'g Graph) -> impl Iterator<Item = (ValueId, ValueId)> + 'g {
    let params = (0..g.f.params.len() as u32).map(ValueId);
    params.filter_map(|p| g.next_state(p).map(|next| (p, next)))
}

/// What reads a value, in this token or in the next.
fn later(g: &Graph, v: ValueId) -> Vec<ValueId> {
    let kept = states(g).filter(|(_, next)| *next == v).map(|(state, _)| state);
    g.users(v).iter().copied().chain(kept).collect()
}

/// What a value is made of, in this token or in the one before.
fn earlier(g: &Graph, v: ValueId) -> Vec<ValueId> {
    g.inputs(v).into_iter().chain(g.next_state(v)).collect()
}

fn reached(from: ValueId, step: impl Fn(ValueId) -> Vec<ValueId>) -> BTreeSet<ValueId> {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(v) = open.pop() {
        open.extend(step(v).into_iter().filter(|n| seen.insert(*n)));
    }
    seen
}
