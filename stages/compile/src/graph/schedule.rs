//! The order in which nodes are lowered: the function's own, except that a region is one step, put
//! where its last node stands or as soon after as its inputs allow.

use super::Graph;
use super::pattern::{Rule, Rules};
use mica_models::hir::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// One node.
    Node(ValueId),
    /// A region, by number.
    Region(usize),
}

/// The steps in order. A node that reads from a region and from which the same region reads would be
/// inside it, so an order always exists.
pub fn order(g: &Graph, rules: &Rules) -> Vec<Step> {
    let step = |v: ValueId| match rules.rule(v) {
        Rule::Region(r) => Step::Region(*r),
        _ => Step::Node(v),
    };
    // a step's rank is its last node, so that a region waits for what stands between its nodes
    let rank = |s: Step| match s {
        Step::Node(v) => v,
        Step::Region(r) => rules.regions[r].nodes[rules.regions[r].nodes.len() - 1],
    };
    let mut waits: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
    let mut feeds: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
    for (v, _) in g.live_nodes() {
        let to = step(v);
        waits.entry(to).or_default();
        for from in g.inputs(v) {
            if g.param(from).is_none() && step(from) != to {
                waits.entry(to).or_default().insert(step(from));
                feeds.entry(step(from)).or_default().insert(to);
            }
        }
    }
    let mut ready: BTreeSet<(ValueId, Step)> =
        waits.iter().filter(|(_, w)| w.is_empty()).map(|(&s, _)| (rank(s), s)).collect();
    let mut steps = Vec::new();
    while let Some((_, s)) = ready.pop_first() {
        steps.push(s);
        for &next in feeds.get(&s).into_iter().flatten() {
            let left = waits.entry(next).or_default();
            left.remove(&s);
            if left.is_empty() {
                ready.insert((rank(next), next));
            }
        }
    }
    steps
}
