//! What a call of a kernel costs on a device: cycles, bytes, energy and memories, put together from the count.
//!
//! It is data, made from a kernel and its plans alone; [`render`] makes text of it, [`roofline`] a picture, and
//! [`trace`] a timeline of the same call. It knows no workspace and no cache.

pub mod render;
pub mod roofline;
pub mod shaped;
#[cfg(test)]
mod tests;
pub mod trace;

use mica_device::object::Kernel;
use mica_device::product::{Energy, Product, Rates};
use mica_device::segment::SegmentPlan;
use mica_simulate::memory::{self, PartMap};
use mica_simulate::timing::cost::MACS;
use mica_simulate::timing::{self, Inputs, Share, Work};
use mica_simulate::{Program, SimError};
use roofline::Roofline;
use serde::{Deserialize, Serialize};

/// Raised when a field of the report changes its meaning or goes away. `docs/timing.md` lists the fields.
pub const SCHEMA: u32 = 2;

/// How much of something is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes up to the highest one used, or entries.
    pub used: u64,
    /// What there is.
    pub size: u64,
    /// What is left.
    pub slack: u64,
}

impl Room {
    fn new(used: u64, size: u64) -> Room {
        Room { used, size, slack: size.saturating_sub(used) }
    }
}

/// How busy the parts of the machine are, each from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Utilization {
    /// Multiplications done, of those that all processing elements could do in the whole time.
    pub macs: f64,
    /// Cycles in which the array works, of all.
    pub array: f64,
    /// Cycles in which the external bus works, of all.
    pub bus: f64,
    /// Cycles in which the path between L2 and local register memory works, of all.
    pub flow: f64,
}

/// Energy of a call in microjoules: a proxy, see `mica_device::product::Energy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Multiplications.
    pub macs_uj: f64,
    /// Local register memory.
    pub lrm_uj: f64,
    /// L2.
    pub l2_uj: f64,
    /// External memory.
    pub ddr_uj: f64,
    /// All of it.
    pub total_uj: f64,
    /// What each was counted as.
    pub assumed: Energy,
}

/// A call's figures, of each of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Each {
    /// Cycles.
    pub cycles: f64,
    /// Bytes of weights and other constants read.
    pub constants: f64,
    /// Bytes of edges read, caches among them.
    pub edges_in: f64,
    /// Bytes of edges written.
    pub edges_out: f64,
}

impl Each {
    fn new(s: &Share, tokens: u64) -> Each {
        let of = |n: u64| n as f64 / tokens as f64;
        Each {
            cycles: of(s.elapsed),
            constants: of(s.bytes.constants),
            edges_in: of(s.bytes.edges_in),
            edges_out: of(s.bytes.edges_out),
        }
    }
}

/// A constant segment's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// The part that it belongs to.
    pub part: String,
    /// `constants`, `literals` (made by the compiler), or the entry's name where they come on an edge.
    pub what: String,
    /// Offset from its base pointer.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One call's cycles and what goes with them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Version of this form.
    pub schema: u32,
    /// Name of the product.
    pub product: String,
    /// Processing elements.
    pub pes: u64,
    /// Clock in MHz.
    pub clock_mhz: u32,
    /// Bytes a cycle on the external bus.
    pub bus_bytes: u32,
    /// Position of the call's first token.
    pub position: u64,
    /// Tokens that the call takes.
    pub tokens: u64,
    /// Tokens a second at the clock.
    pub tokens_per_second: f64,
    /// What a token takes of the call.
    pub per_token: Each,
    /// Local register memory.
    pub lrm: Room,
    /// L2.
    pub l2: Room,
    /// Entry pointers.
    pub entries: Room,
    /// How busy the machine is.
    pub utilization: Utilization,
    /// What it takes.
    pub energy: Spent,
    /// How close to its bounds it comes.
    pub roofline: Roofline,
    /// What lies where on the chip, each different part once.
    pub memory: Vec<PartMap>,
    /// What lies where in external memory.
    pub constants: Vec<Constant>,
    /// Names of the parts, by the number that the count calls layer.
    pub parts: Vec<String>,
    /// The count.
    pub cycles: timing::Report,
}

/// The call that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Position of its first token.
    pub position: u64,
    /// Tokens that the kernel takes a call.
    pub tokens: u64,
}

/// A machine to count for.
#[derive(Clone, Copy, Debug)]
pub struct On<'a> {
    /// What programs depend on.
    pub product: &'a Product,
    /// Clock and bandwidth.
    pub rates: &'a Rates,
}

impl On<'_> {
    /// Multiplications a cycle at most.
    pub fn peak_macs(&self) -> u64 {
        MACS * self.product.pes()
    }
}

impl Timing {
    /// The report of one call. `plans` and `parts` have a plan and a name a part.
    ///
    /// # Errors
    /// A kernel that is no program.
    pub fn new(
        kernel: &Kernel,
        plans: &[&SegmentPlan],
        parts: &[String],
        on: On<'_>,
        Calls { position, tokens }: Calls,
    ) -> Result<Timing, SimError> {
        let program = Program::load(kernel)?;
        let (product, rates) = (on.product, on.rates);
        let cycles = timing::cycles(kernel, product, rates, Inputs { position, plans })?;
        Ok(Timing {
            schema: SCHEMA,
            product: product.name.clone(),
            pes: product.pes(),
            clock_mhz: rates.clock_mhz,
            bus_bytes: rates.bus_bytes,
            position,
            tokens,
            tokens_per_second: f64::from(rates.clock_mhz) * 1e6 * tokens as f64 / cycles.total.max(1) as f64,
            per_token: Each::new(&cycles.share, tokens),
            lrm: Room::new(kernel.lrm_peak, product.lrm()),
            l2: Room::new(kernel.l2_peak, product.l2),
            entries: Room::new(kernel.entries.len() as u64, product.entries.into()),
            utilization: utilization(&cycles.share, on),
            energy: spent(&cycles.share.work, cycles.share.bytes.total(), product.energy()),
            roofline: Roofline::new(&cycles, on),
            memory: memory::map(&program, plans)?,
            constants: constants(kernel, parts),
            parts: parts.to_vec(),
            cycles,
        })
    }

    /// The name of a part.
    pub fn part(&self, number: u32) -> String {
        self.parts.get(number as usize).cloned().unwrap_or_else(|| number.to_string())
    }
}

fn utilization(s: &Share, on: On<'_>) -> Utilization {
    let of = |n: u64| n as f64 / s.elapsed.max(1) as f64;
    Utilization {
        macs: of(s.work.macs) / on.peak_macs() as f64,
        array: of(s.compute),
        bus: of(s.ddr),
        flow: of(s.flow),
    }
}

fn spent(work: &Work, external: u64, e: Energy) -> Spent {
    let uj = |n: u64, pj: f64| n as f64 * pj * 1e-6;
    let [macs_uj, lrm_uj, l2_uj, ddr_uj] = [
        uj(work.macs, e.mac_pj),
        uj(work.lrm_bytes, e.lrm_byte_pj),
        uj(work.l2_bytes, e.l2_byte_pj),
        uj(external, e.ddr_byte_pj),
    ];
    Spent { macs_uj, lrm_uj, l2_uj, ddr_uj, total_uj: macs_uj + lrm_uj + l2_uj + ddr_uj, assumed: e }
}

fn constants(kernel: &Kernel, parts: &[String]) -> Vec<Constant> {
    let name = |part: usize| parts.get(part).cloned().unwrap_or_else(|| part.to_string());
    let baked = kernel.segments.iter().map(|s| Constant {
        part: name(s.part as usize),
        what: if s.literals { "literals" } else { "constants" }.into(),
        offset: s.offset,
        bytes: s.bytes,
    });
    let on_edges = kernel.entries.iter().filter_map(|e| {
        let part = name(e.weights_of()?);
        Some(Constant { part, what: e.name.clone(), offset: 0, bytes: e.bytes })
    });
    baked.chain(on_edges).collect()
}

/// The parts of one kind, added up.
#[derive(Clone, Debug)]
pub struct OfKind {
    /// The kind.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// Their cycles.
    pub share: Share,
    /// Their ops: name with its place in the model, and cycles.
    pub ops: Vec<(String, Share)>,
}

/// A count by kinds of parts, in the order in which they first stand.
pub fn by_kind(r: &timing::Report) -> Vec<OfKind> {
    let mut all: Vec<OfKind> = Vec::new();
    for l in &r.layers {
        let at = all.iter().position(|k| k.kind == l.kind).unwrap_or_else(|| {
            all.push(OfKind { kind: l.kind.clone(), count: 0, share: Share::default(), ops: Vec::new() });
            all.len() - 1
        });
        let k = &mut all[at];
        k.count += 1;
        k.share = k.share.plus(&l.share);
        for o in &l.ops {
            let gap = if o.label.is_empty() { "" } else { " " };
            let name = format!("{}{gap}{}", o.name, o.label);
            match k.ops.iter_mut().find(|(n, _)| *n == name) {
                Some((_, s)) => *s = s.plus(&o.share),
                None => k.ops.push((name, o.share)),
            }
        }
    }
    all
}
