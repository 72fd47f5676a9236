//! Patterns of several nodes that have a lowering of their own, as one rule a node.

use super::Graph;
use super::attention::{self, Attention};
use super::batch::{self, Region};
use mica_models::hir::{Op, ReduceKind, ValueId};
use std::fmt;

/// How a live node is lowered.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// By its op.
    Op,
    /// Not at all: it is inside another node's pattern.
    Inner,
    /// Attention over a cache.
    Attention(Box<Attention>),
    /// `Σ_i a[i]·b[i]` over axis 0 of `[K, C]` operands of which one is a concatenation of rows: a row
    /// at a time, so that the concatenation never exists.
    ColumnDot {
        /// The concatenation.
        rows: ValueId,
        /// The other operand.
        by: ValueId,
    },
    /// Sum or mean of squares, exact for a fixed-point operand.
    SumSquares {
        /// What is squared.
        of: ValueId,
    },
    /// Rows of a concatenation along axis 0, which only leave the part.
    LeavingRows {
        /// The concatenation.
        rows: ValueId,
        /// First row.
        start: u64,
    },
    /// In the region of that number.
    Region(usize),
}

/// The rules of a function.
#[derive(Debug)]
pub struct Rules {
    /// One a value (parameters have `Op`).
    pub of: Vec<Rule>,
    /// The regions.
    pub regions: Vec<Region>,
}

impl Rules {
    /// Whether anything attends over a cache.
    pub fn attend(&self) -> bool {
        self.of.iter().any(|r| matches!(r, Rule::Attention(_)))
    }

    /// Recognises the patterns.
    pub fn find(g: &Graph) -> Rules {
        let mut of = vec![Rule::Op; g.f.params.len() + g.f.nodes.len()];
        let regions = batch::find(g);
        for (r, region) in regions.iter().enumerate() {
            for v in &region.nodes {
                of[v.0 as usize] = Rule::Region(r);
            }
        }
        for (v, _) in g.live_nodes() {
            if of[v.0 as usize] != Rule::Op {
                continue;
            }
            let Some((rule, inner)) = rule(g, v) else { continue };
            of[v.0 as usize] = rule;
            for i in inner {
                of[i.0 as usize] = Rule::Inner;
            }
        }
        // concatenations and constants are taken apart by those who read them
        for (v, node) in g.live_nodes() {
            if matches!(node.op, Op::FullLike { .. }) {
                of[v.0 as usize] = Rule::Inner;
            }
        }
        Rules { of, regions }
    }
    /// The rule of a value.
    pub fn rule(&self, v: ValueId) -> &Rule {
        &self.of[v.0 as usize]
    }
}

fn concat_rows(g: &Graph, v: ValueId) -> bool {
    g.node(v).is_some_and(|n| n.op == Op::Concat { axis: 0 }) && g.ty(v).shape.len() == 2
}

fn rule(g: &Graph, v: ValueId) -> Option<(Rule, Vec<ValueId>)> {
    if let Some(a) = attention::find(g, v) {
        // what also leaves, or is read elsewhere, cannot vanish into the pattern
        let own = |i: &ValueId| {
            g.exports(*i).is_empty() && g.users(*i).iter().all(|u| *u == v || a.inner.contains(u))
        };
        if a.inner.iter().all(own) {
            let inner = a.inner.clone();
            return Some((Rule::Attention(Box::new(a)), inner));
        }
    }
    let node = g.node(v)?;
    match node.op {
        Op::Reduce { kind, axis, .. } => {
            let of = g.root(node.inputs[0]);
            let under = g.node(of)?;
            if !g.only_user(of, v) {
                return None;
            }
            match under.op {
                Op::Square if kind != ReduceKind::Max => {
                    let rule = Rule::SumSquares { of: g.root(under.inputs[0]) };
                    Some((rule, vec![of]))
                }
                Op::Mul if kind == ReduceKind::Sum && axis == 0 => {
                    let (a, b) = (g.root(under.inputs[0]), g.root(under.inputs[1]));
                    let (rows, by) = if concat_rows(g, a) { (a, b) } else { (b, a) };
                    let same = g.ty(a).shape == g.ty(b).shape;
                    (concat_rows(g, rows) && same && g.fill(by).is_none())
                        .then(|| (Rule::ColumnDot { rows, by }, vec![of]))
                }
                _ => None,
            }
        }
        Op::Slice { axis: 0, start, .. } => {
            let rows = g.root(node.inputs[0]);
            (g.users(v).is_empty() && concat_rows(g, rows))
                .then(|| (Rule::LeavingRows { rows, start }, vec![]))
        }
        _ => None,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Op => f.write_str("by its op"),
            Rule::Inner => f.write_str("inside a pattern"),
            Rule::Attention(a) => write!(
                f,
                "attention of %{} over cache %{} %{} and own %{} %{}, scale {:?}",
                a.q.0, a.cache[0].0, a.cache[1].0, a.own[0].0, a.own[1].0, a.scale
            ),
            Rule::ColumnDot { rows, by } => write!(f, "column dot of rows %{} by %{}", rows.0, by.0),
            Rule::SumSquares { of } => write!(f, "sum of squares of %{}", of.0),
            Rule::LeavingRows { rows, start } => write!(f, "rows of %{} from {start} leave", rows.0),
            Rule::Region(r) => write!(f, "once a head, region {r}"),
        }
    }
}
