//! What a count of cycles says: in total, a layer, and an op.

use super::traffic::{Kind, Named, Traffic};
use super::{Span, Work};
use crate::program::Program;
use mica_device::isa::Engine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes on the external bus, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Weights and other constants read, at known addresses or gathered.
    pub constants: u64,
    /// Edges read, caches among them.
    pub edges_in: u64,
    /// Edges written.
    pub edges_out: u64,
}

impl Bytes {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.constants + self.edges_in + self.edges_out
    }
}

/// What limits an op, a layer or the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The array.
    Compute,
    /// The external bus.
    Ddr,
    /// The path between L2 and local register memory.
    Flow,
    /// Waiting: more cycles pass than any engine works.
    #[default]
    Stall,
}

/// Cycles of a part of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// By how much it moved the end of the work so far; these add up to the total.
    pub elapsed: u64,
    /// Busy cycles of the array.
    pub compute: u64,
    /// Busy cycles of the external bus.
    pub ddr: u64,
    /// Busy cycles of the flow engine.
    pub flow: u64,
    /// Busy cycles of the front end.
    pub scalar: u64,
    /// Of a layer or op: `elapsed` less the busiest of the three. Of the whole: cycles in which
    /// none of the three works.
    pub stall: u64,
    /// Bytes moved.
    pub bytes: Bytes,
    /// What was done meanwhile.
    pub work: Work,
    /// Instructions executed.
    pub instructions: u64,
    /// The busiest of the three, or `Stall` if that is more.
    pub bound_by: Bound,
}

impl Share {
    /// Both together, as a report adds up the ops of a layer.
    pub fn plus(mut self, other: &Share) -> Share {
        self.add(other);
        self.settle(self.elapsed.saturating_sub(self.busiest()));
        self
    }

    fn busiest(&self) -> u64 {
        self.compute.max(self.ddr).max(self.flow)
    }

    fn settle(&mut self, stall: u64) {
        self.stall = stall;
        let most = self.busiest();
        self.bound_by = match most {
            _ if stall > most || most == 0 => Bound::Stall,
            _ if most == self.ddr => Bound::Ddr,
            _ if most == self.compute => Bound::Compute,
            _ => Bound::Flow,
        };
    }

    fn add(&mut self, o: &Share) {
        self.elapsed += o.elapsed;
        self.compute += o.compute;
        self.ddr += o.ddr;
        self.flow += o.flow;
        self.scalar += o.scalar;
        self.bytes.constants += o.bytes.constants;
        self.bytes.edges_in += o.bytes.edges_in;
        self.bytes.edges_out += o.bytes.edges_out;
        self.work += o.work;
        self.instructions += o.instructions;
    }
}

/// Cycles of one op.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpReport {
    /// Number in `src`.
    pub op: u32,
    /// Name of the op; empty where the kernel does not say.
    pub name: String,
    /// Where it stands in the model.
    pub label: String,
    /// Its cycles.
    pub share: Share,
    /// Its bytes by sort.
    pub traffic: Vec<Traffic>,
}

/// Cycles of one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Number in `src`.
    pub layer: u32,
    /// Kind of the part; empty where the kernel does not say.
    pub kind: String,
    /// Its cycles.
    pub share: Share,
    /// Its bytes by sort.
    pub traffic: Vec<Traffic>,
    /// Its ops, by number.
    pub ops: Vec<OpReport>,
}

/// Cycles of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Cycles from the first issue to the last retirement.
    pub total: u64,
    /// The whole; `elapsed` is `total`.
    pub share: Share,
    /// Its bytes by sort.
    pub traffic: Vec<Traffic>,
    /// The layers, by number.
    pub layers: Vec<LayerReport>,
}

/// Bytes and transfers by sort.
type Sorts = BTreeMap<Named, (u64, u64)>;

fn listed(sorts: &Sorts) -> Vec<Traffic> {
    let one = |((kind, what), &(bytes, transfers)): (&Named, &(u64, u64))| Traffic {
        kind: *kind,
        what: what.clone(),
        bytes,
        transfers,
    };
    sorts.iter().map(one).collect()
}

fn merge(into: &mut Sorts, from: &Sorts) {
    for (named, (bytes, transfers)) in from {
        let sum = into.entry(named.clone()).or_default();
        sum.0 += bytes;
        sum.1 += transfers;
    }
}

/// Collects spans, in program order.
#[derive(Debug, Default)]
pub struct Builder {
    total: u64,
    instructions: u64,
    /// `[layer][op]`.
    shares: Vec<Vec<(Share, Sorts)>>,
    /// Busy intervals of array, bus and flow.
    busy: Vec<(u64, u64)>,
}

impl Builder {
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    pub fn add(&mut self, span: &Span, moved: Option<Named>, work: Work) {
        let (layer, op) = ((span.src >> 16) as usize, (span.src & 0xffff) as usize);
        if self.shares.len() <= layer {
            self.shares.resize(layer + 1, Vec::new());
        }
        let ops = &mut self.shares[layer];
        if ops.len() <= op {
            ops.resize(op + 1, Default::default());
        }
        let (share, sorts) = &mut ops[op];
        let busy = span.end - span.start;
        match span.engine {
            Engine::Scalar => share.scalar += busy,
            Engine::DmaIn | Engine::DmaOut => share.ddr += busy,
            Engine::Flow => share.flow += busy,
            Engine::Array => share.compute += busy,
        }
        if span.engine != Engine::Scalar && busy > 0 {
            self.busy.push((span.start, span.end));
        }
        if let (Some(named), Some(t)) = (moved, &span.transfer) {
            *match named.0 {
                Kind::Constants | Kind::Gathered => &mut share.bytes.constants,
                Kind::Cache | Kind::EdgeIn => &mut share.bytes.edges_in,
                Kind::EdgeOut => &mut share.bytes.edges_out,
            } += t.bytes;
            let sum = sorts.entry(named).or_default();
            sum.0 += t.bytes;
            sum.1 += 1;
        }
        share.work += work;
        share.instructions += 1;
        self.instructions += 1;
        let end = self.total.max(span.retired);
        share.elapsed += end - self.total;
        self.total = end;
    }

    pub fn finish(mut self, program: &Program) -> Report {
        let mut whole = Share::default();
        let mut all = Sorts::new();
        let mut layers = Vec::new();
        for (layer, shares) in self.shares.iter_mut().enumerate() {
            let mut sum = Share::default();
            let mut moved = Sorts::new();
            let mut ops = Vec::new();
            for (op, (share, sorts)) in shares.iter_mut().enumerate() {
                if share.instructions == 0 {
                    continue;
                }
                share.settle(share.elapsed.saturating_sub(share.busiest()));
                sum.add(share);
                merge(&mut moved, sorts);
                let info = program.op((layer as u32) << 16 | op as u32);
                ops.push(OpReport {
                    op: op as u32,
                    name: info.map(|i| i.op.clone()).unwrap_or_default(),
                    label: info.map(|i| i.label.clone()).unwrap_or_default(),
                    share: *share,
                    traffic: listed(sorts),
                });
            }
            if ops.is_empty() {
                continue;
            }
            sum.settle(sum.elapsed.saturating_sub(sum.busiest()));
            whole.add(&sum);
            merge(&mut all, &moved);
            layers.push(LayerReport {
                layer: layer as u32,
                kind: program.parts.get(layer).cloned().unwrap_or_default(),
                share: sum,
                traffic: listed(&moved),
                ops,
            });
        }
        whole.settle(self.total - covered(&mut self.busy));
        Report { total: self.total, share: whole, traffic: listed(&all), layers }
    }
}

/// Cycles that at least one interval covers.
fn covered(intervals: &mut [(u64, u64)]) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for &(start, end) in intervals.iter() {
        let start = start.max(reached);
        if end > start {
            sum += end - start;
            reached = end;
        }
    }
    sum
}
