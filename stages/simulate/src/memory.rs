//! What lies where in L2 and in local register memory: read off a kernel's instructions, part by part.
//!
//! A value is written by one instruction and read by later ones until something overwrites it. From these lives
//! follow the bytes that are live at once, which say how tight a memory really is: addresses alone do not, as L2
//! is used round and round so that transfers run ahead. Loops are walked once; what is older than a loop and read
//! in it lives to its end, unless the loop overwrites it.

use crate::error::SimError;
use crate::program::Program;
use crate::timing::plan_entry;
use mica_device::access::{Memory, TileFile};
use mica_device::isa::{Instr, Opcode};
use mica_device::segment::SegmentPlan;
use mica_device::tile::{Tile, register};
use serde::{Deserialize, Serialize};

/// What one thing takes of a memory: an op's results, a weight on its way, an edge's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The weight or edge that lies there, or the op that left it.
    pub what: String,
    /// Lowest address that it ever has.
    pub from: u64,
    /// One past its highest.
    pub to: u64,
    /// The largest that is written at once, in bytes.
    pub bytes: u64,
    /// Times that it is written.
    pub writes: u64,
    /// First instruction that writes it.
    pub first: usize,
    /// Last instruction that reads it.
    pub last: usize,
}

/// What a part finds in L2 when it begins: the residual.
pub const BEFORE: &str = "left by the part before";

/// One memory of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// One past the highest byte used.
    pub peak: u64,
    /// The most bytes that are live at once.
    pub live: u64,
    /// The op at which they are.
    pub live_at: String,
    /// By address.
    pub regions: Vec<Region>,
}

/// A part's memories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartMap {
    /// The first part with this map.
    pub part: u32,
    /// Its kind.
    pub kind: String,
    /// How many parts of the kernel have it.
    pub count: u32,
    /// Local register memory.
    pub lrm: Use,
    /// L2.
    pub l2: Use,
}

/// The maps of a kernel's parts, each different one once. `plans`, a plan a part, name the weights; without them
/// they are constants.
///
/// # Errors
/// An instruction whose tiles or fields describe no memory.
pub fn map(program: &Program, plans: &[&SegmentPlan]) -> Result<Vec<PartMap>, SimError> {
    let code = program.code();
    let mut maps: Vec<PartMap> = Vec::new();
    let mut from = 0;
    while from < code.len() {
        let part = code[from].src >> 16;
        let to = code[from..].iter().position(|i| i.src >> 16 != part).map_or(code.len(), |n| from + n);
        let one = Walk::new(program, plans, from).part(from..to)?;
        let kind = program.parts.get(part as usize).cloned().unwrap_or_default();
        let same = |m: &&mut PartMap| m.kind == kind && m.lrm == one.0 && m.l2 == one.1;
        match maps.iter_mut().find(same) {
            Some(m) => m.count += 1,
            None => maps.push(PartMap { part, kind, count: 1, lrm: one.0, l2: one.1 }),
        }
        from = to;
    }
    Ok(maps)
}

/// A value in a memory.
struct Value {
    from: u64,
    to: u64,
    what: usize,
    first: usize,
    last: usize,
    /// The instruction that overwrites it.
    until: usize,
}

/// The values of one memory.
#[derive(Default)]
struct Values {
    held: Vec<Value>,
    dead: Vec<Value>,
}

impl Values {
    /// Notes a read; whether any value lies there.
    fn read(&mut self, from: u64, to: u64, at: usize) -> bool {
        let mut found = false;
        for v in self.held.iter_mut().filter(|v| v.from < to && from < v.to) {
            v.last = at;
            found = true;
        }
        found
    }

    fn write(&mut self, from: u64, to: u64, at: usize, what: usize) {
        let mut n = 0;
        while n < self.held.len() {
            let v = &self.held[n];
            if v.to <= from || to <= v.from {
                n += 1;
                continue;
            }
            let v = self.held.swap_remove(n);
            // what is left of it on either side is still there
            for (a, b) in [(v.from, from.max(v.from)), (to.min(v.to), v.to)] {
                if a < b {
                    self.held.push(Value { from: a, to: b, ..v });
                }
            }
            let (a, b) = (v.from.max(from), v.to.min(to));
            // what an instruction reads and overwrites is there once
            let last = if v.last == at && v.first < at { at - 1 } else { v.last };
            self.dead.push(Value { from: a, to: b, last, until: at, ..v });
        }
        self.held.push(Value { from, to, what, first: at, last: at, until: usize::MAX });
    }

    /// All values, those that a loop reads again living to its end, or to where the loop overwrites them.
    fn finish(mut self, loops: &[(usize, usize)]) -> Vec<Value> {
        self.dead.append(&mut self.held);
        for &(start, end) in loops.iter().rev() {
            for v in &mut self.dead {
                if v.first < start && (start..=end).contains(&v.last) {
                    v.last = v.last.max(end.min(v.until.saturating_sub(1)));
                }
            }
        }
        self.dead
    }
}

struct Walk<'p> {
    program: &'p Program,
    plans: &'p [&'p SegmentPlan],
    /// The part's first instruction: numbers count from it, so that equal code has equal maps.
    base: usize,
    names: Vec<String>,
    writes: Vec<Write>,
    lrm: Values,
    l2: Values,
}

/// What is known of a write beside its life.
struct Write {
    memory: Memory,
    what: usize,
    from: u64,
    to: u64,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, plans: &'p [&'p SegmentPlan], base: usize) -> Walk<'p> {
        Walk {
            program,
            plans,
            base,
            names: Vec::new(),
            writes: Vec::new(),
            lrm: Values::default(),
            l2: Values::default(),
        }
    }

    fn part(mut self, range: std::ops::Range<usize>) -> Result<(Use, Use), SimError> {
        let mut tiles = TileFile::default();
        let mut loops = Vec::new();
        for at in range {
            let i = &self.program.code()[at];
            if i.op == Opcode::Loop {
                loops.push((at + 1 - self.base, at + i.x as usize - self.base));
            }
            let described = match i.op {
                Opcode::Tdef => Tile::define(i, None).map(|t| tiles.set(i.r[0], t)),
                _ => tiles.accesses(i).ok().map(|all| self.touch(at, i, &all)),
            };
            if described.is_none() {
                let fault = crate::error::Fault::Undefined { tile: i.r[0] };
                return Err(self.program.trap(at, fault));
            }
        }
        let Walk { names, writes, lrm, l2, program, base, .. } = self;
        let label = |at: usize| {
            let i = &program.code()[at + base];
            program.op(i.src).map_or_else(String::new, |o| o.label.clone())
        };
        let one = |memory, values: Values| {
            used(&names, writes.iter().filter(|w| w.memory == memory), &values.finish(&loops), label)
        };
        Ok((one(Memory::Lrm, lrm), one(Memory::L2, l2)))
    }

    fn touch(&mut self, at: usize, i: &Instr, accesses: &[mica_device::access::Access]) {
        let n = at - self.base;
        // operands are read before results are written
        for write in [false, true] {
            for a in accesses.iter().filter(|a| a.write == write) {
                let (from, to) = (a.range.start, a.range.end);
                let name = if write { self.name(i) } else { BEFORE.into() };
                let values = match a.memory {
                    Memory::Lrm => &mut self.lrm,
                    Memory::L2 => &mut self.l2,
                    Memory::External => continue,
                };
                // what nothing in the part wrote was there when it began
                if write || !values.read(from, to, n) {
                    let what = self.names.iter().position(|n| *n == name).unwrap_or_else(|| {
                        self.names.push(name);
                        self.names.len() - 1
                    });
                    values.write(from, to, if write { n } else { 0 }, what);
                    values.read(from, to, n);
                    self.writes.push(Write { memory: a.memory, what, from, to });
                }
            }
        }
    }

    /// The name of what an instruction writes.
    fn name(&self, i: &Instr) -> String {
        if i.op == Opcode::Dld {
            return self.source(i);
        }
        match self.program.op(i.src) {
            Some(o) if o.label.is_empty() => o.op.clone(),
            Some(o) => format!("{} {}", o.op, o.label),
            None => "no op".into(),
        }
    }

    /// What a transfer brings in, by its base pointer and offset: an index only moves within it.
    fn source(&self, i: &Instr) -> String {
        let base = register(i.r[1]).unwrap_or(0);
        let program = self.program;
        if base == 0 {
            let n = program.segments.partition_point(|s| s.offset <= i.z);
            return match n.checked_sub(1).map(|n| &program.segments[n]) {
                Some(s) if s.literals => "literals".into(),
                Some(s) => self.weight(s.part as usize, i.z - s.offset),
                None => "constants".into(),
            };
        }
        match program.entries.iter().find(|e| e.register == base) {
            Some(e) if e.weights_of().is_some() => self.weight(e.weights_of().unwrap_or(0), i.z),
            Some(e) => e.name.clone(),
            None => "no entry".into(),
        }
    }

    fn weight(&self, part: usize, offset: u64) -> String {
        let entry = self.plans.get(part).and_then(|p| plan_entry(p, offset));
        entry.map_or_else(|| "constants".into(), |e| e.role.clone())
    }
}

/// A memory's use from its writes and the lives of its values.
fn used<'w>(
    names: &[String],
    writes: impl Iterator<Item = &'w Write>,
    values: &[Value],
    label: impl Fn(usize) -> String,
) -> Use {
    let mut regions: Vec<Option<Region>> = vec![None; names.len()];
    for w in writes {
        let r = regions[w.what].get_or_insert_with(|| Region {
            what: names[w.what].clone(),
            from: w.from,
            to: w.to,
            bytes: 0,
            writes: 0,
            first: usize::MAX,
            last: 0,
        });
        r.from = r.from.min(w.from);
        r.to = r.to.max(w.to);
        r.bytes = r.bytes.max(w.to - w.from);
        r.writes += 1;
    }
    // bytes that become live at an instruction, and that are so no longer after one
    let mut steps: Vec<(usize, bool, u64)> = Vec::new();
    for v in values {
        if let Some(r) = &mut regions[v.what] {
            r.first = r.first.min(v.first);
            r.last = r.last.max(v.last);
        }
        steps.push((v.first, false, v.to - v.from));
        steps.push((v.last, true, v.to - v.from));
    }
    steps.sort_unstable();
    let (mut now, mut live, mut at) = (0, 0, 0);
    for (n, end, bytes) in steps {
        if end {
            now -= bytes;
        } else {
            now += bytes;
            if now > live {
                (live, at) = (now, n);
            }
        }
    }
    let mut regions: Vec<Region> = regions.into_iter().flatten().collect();
    regions.sort_by(|a, b| (a.from, a.to, &a.what).cmp(&(b.from, b.to, &b.what)));
    let peak = regions.iter().map(|r| r.to).max().unwrap_or(0);
    Use { peak, live, live_at: if live > 0 { label(at) } else { String::new() }, regions }
}
