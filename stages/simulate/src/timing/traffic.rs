//! What crosses the external bus, by what it is: constants by use and format where plans say what lies where,
//! edges by name.

use super::Transfer;
use crate::program::{BUFFER_SHIFT, Program};
use mica_device::disasm::weight_text;
use mica_device::layout::MatrixFormat;
use mica_device::object::Entry;
use mica_device::segment::{PlanEntry, SegmentPlan, Storage};
use serde::{Deserialize, Serialize};

/// What sort of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Constants at an address that the program knows.
    Constants,
    /// Constants that an index chooses: experts, rows of a table.
    Gathered,
    /// Rows of a cache that is read.
    Cache,
    /// Any other edge that is read.
    EdgeIn,
    /// An edge that is written.
    EdgeOut,
}

impl Kind {
    /// As a person reads it.
    pub const fn text(self) -> &'static str {
        match self {
            Kind::Constants => "constants",
            Kind::Gathered => "gathered",
            Kind::Cache => "cache",
            Kind::EdgeIn => "edge in",
            Kind::EdgeOut => "edge out",
        }
    }
}

/// Bytes of one sort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The sort.
    pub kind: Kind,
    /// Use and format of constants (`matrix i8`), or the edge's name.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Transfers.
    pub transfers: u64,
}

/// What lies at external addresses.
pub struct Contents<'p> {
    program: &'p Program,
    plans: &'p [&'p SegmentPlan],
}

/// Kind and name of a transfer's bytes.
pub type Named = (Kind, String);

impl<'p> Contents<'p> {
    pub fn new(program: &'p Program, plans: &'p [&'p SegmentPlan]) -> Contents<'p> {
        Contents { program, plans }
    }

    /// What a transfer moves.
    pub fn of(&self, t: &Transfer, out: bool) -> Named {
        let (buffer, offset) = (t.address >> BUFFER_SHIFT, t.address & ((1 << BUFFER_SHIFT) - 1));
        if buffer == 0 {
            let n = self.program.segments.partition_point(|s| s.offset <= offset);
            let segment = n.checked_sub(1).map(|n| &self.program.segments[n]);
            let what = match segment {
                Some(s) if s.literals => "literals".into(),
                Some(s) => self.constants(s.part as usize, offset - s.offset),
                None => "constants".into(),
            };
            return (constant_kind(t), what);
        }
        let entry = self.program.entries.iter().find(|e| u64::from(e.register) == buffer);
        match entry {
            Some(e) if e.weights_of().is_some() => (constant_kind(t), self.weights(e, offset)),
            Some(e) if out => (Kind::EdgeOut, e.name.clone()),
            Some(e) if is_cache(&e.name) => (Kind::Cache, e.name.clone()),
            Some(e) => (Kind::EdgeIn, e.name.clone()),
            None => (if out { Kind::EdgeOut } else { Kind::EdgeIn }, "no entry".into()),
        }
    }

    /// Constants that come on an edge.
    fn weights(&self, e: &Entry, offset: u64) -> String {
        match e.shares.iter().rev().find(|s| s.1 <= offset) {
            Some((part, from, _)) => self.constants(*part as usize, offset - from),
            None => "constants".into(),
        }
    }

    /// Use and format of what lies in a part's constants.
    fn constants(&self, part: usize, offset: u64) -> String {
        let entry = self.plans.get(part).and_then(|p| plan_entry(p, offset));
        entry.map_or_else(|| "constants".into(), |e| storage(&e.storage))
    }
}

/// What lies at an offset of a part's constants.
pub fn plan_entry(plan: &SegmentPlan, offset: u64) -> Option<&PlanEntry> {
    let n = plan.entries.partition_point(|e| e.offset <= offset);
    n.checked_sub(1).map(|n| &plan.entries[n])
}

/// Rows of a cache that the host keeps, by the name of its edge.
fn is_cache(name: &str) -> bool {
    let base = name.strip_suffix(".in").or_else(|| name.strip_suffix(".inout"));
    base.is_some_and(|n| n.ends_with("_cache"))
}

const fn constant_kind(t: &Transfer) -> Kind {
    if t.indexed { Kind::Gathered } else { Kind::Constants }
}

/// Use and format in words: `experts i4`.
pub fn storage(s: &Storage) -> String {
    let matrix = |f: &MatrixFormat| weight_text(f.weight);
    match s {
        Storage::Matrix(f) => format!("matrix {}", matrix(f)),
        Storage::Experts(f) => format!("experts {}", matrix(f)),
        Storage::Table { element, .. } => format!("table {}", element.text()),
        Storage::Vector(f) => format!("vector {}", f.text()),
    }
}
