//! The order in which nodes are lowered: the function's own, except that a region is one step, put
//! where its last node stands or as soon after as its inputs allow; so is a recurrence, where a call takes several
//! tokens.

use super::pattern::{Rule, Rules};
use super::{Graph, recurrence};
use crate::error::CompileError;
use mica_models::hir::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// One node.
    Node(ValueId),
    /// A region, by number.
    Region(usize),
    /// Nodes that wait for themselves from token to token, in order.
    Recurrence(Vec<ValueId>),
}

/// The steps in order. A node that reads from a region and from which the same region reads would be
/// inside it, so an order always exists.
///
/// # Errors
/// `Unsupported` where a call takes several tokens and a recurrence reaches out of a region.
pub fn order(g: &Graph, rules: &Rules, tokens: u64) -> Result<Vec<Step>, CompileError> {
    let recurrences = if tokens > 1 { outside_of_regions(g, rules)? } else { Vec::new() };
    let step = |v: ValueId| match rules.rule(v) {
        Rule::Region(r) => Step::Region(*r),
        _ => match recurrences.iter().find(|nodes| nodes.contains(&v)) {
            Some(nodes) => Step::Recurrence(nodes.clone()),
            None => Step::Node(v),
        },
    };
    // a step's rank is its last node, so that a region waits for what stands between its nodes
    let rank = |s: &Step| match s {
        Step::Node(v) => *v,
        Step::Region(r) => rules.regions[*r].nodes[rules.regions[*r].nodes.len() - 1],
        Step::Recurrence(nodes) => nodes[nodes.len() - 1],
    };
    let mut waits: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
    let mut feeds: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
    let mut follows = |to: &Step, from: Step| {
        if from != *to {
            waits.entry(to.clone()).or_default().insert(from.clone());
            feeds.entry(from).or_default().insert(to.clone());
        }
    };
    let mut all = BTreeSet::new();
    for (v, _) in g.live_nodes() {
        let to = step(v);
        for from in g.inputs(v) {
            if g.param(from).is_none() {
                follows(&to, step(from));
            } else if tokens > 1
                && let Some(next) = g.next_state(from).filter(|n| g.param(*n).is_none())
            {
                // the second token reads what the first one made of the state
                follows(&to, step(next));
            }
        }
        all.insert(to);
    }
    let ready = all.iter().filter(|s| waits.get(s).is_none_or(BTreeSet::is_empty));
    let mut ready: BTreeSet<(ValueId, Step)> = ready.map(|s| (rank(s), s.clone())).collect();
    let mut steps = Vec::new();
    while let Some((_, s)) = ready.pop_first() {
        for next in feeds.get(&s).into_iter().flatten() {
            let left = waits.entry(next.clone()).or_default();
            left.remove(&s);
            if left.is_empty() {
                ready.insert((rank(next), next.clone()));
            }
        }
        steps.push(s);
    }
    Ok(steps)
}

/// The recurrences that no region has whole.
fn outside_of_regions(g: &Graph, rules: &Rules) -> Result<Vec<Vec<ValueId>>, CompileError> {
    let mut found = Vec::new();
    for nodes in recurrence::find(g) {
        let region = |v: &ValueId| match rules.rule(*v) {
            Rule::Region(r) => Some(*r),
            _ => None,
        };
        let first = nodes.iter().find_map(region);
        match nodes.iter().find(|v| region(v) != first) {
            None if first.is_some() => {}
            Some(v) if first.is_some() => {
                let what = "the next value of a state that runs head by head rests on more than a head: \
                            compile one token a call";
                return Err(g.unsupported(*v, what));
            }
            _ => found.push(nodes),
        }
    }
    Ok(found)
}
