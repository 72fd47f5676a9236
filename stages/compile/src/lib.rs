//! From a flattened HIR function to an object, and from objects to a kernel.
//!
//! Rules are for ops and patterns of ops, never for a model. A part goes through these passes, each a
//! folder or a file of its own:
//!
//! 1. `graph`: casts seen through, dead nodes dropped, patterns recognised, nodes scheduled;
//! 2. `lower`: the tile IR of `ir`, device instructions on virtual buffers;
//! 3. `emit`: addresses, tile numbers, waits.
//!
//! Where LRM is too short for what is live at one time, values wait in L2 until they are used again (`emit::spill`), and
//! where that is not enough attention takes fewer rows of a cached block at a time. Neither changes a bit of the results, and
//! nothing of it is in a program that fits without.
//!
//! What it goes by are names: the parameter and result [`SEAM`] stays on chip between parts; the scalar
//! parameter [`POSITION`] is the number of cached rows; parameter `p` comes on edge `p.in`, result `r`
//! leaves on `r.out`, and every choice of experts also reads [`FORCED_IDS`] (first index negative: choose
//! freely). On an edge BF16 and F16 values are F16, F32 are F32, index tensors are I32, and an integer
//! scalar is 64 bits little-endian. A parameter that nothing live reads has no edge.
//!
//! A call may take several tokens ([`Options::tokens`]) and then gives the bits of as many calls of one. Every
//! edge has a leading axis of tokens, but for the position (the first token's), for a *state*, that is a parameter
//! with an exported result of the same name, which comes in for the first token and leaves after the last, and for
//! a cache, which comes on `p.inout`: the call appends its own rows to it.
//!
//! It knows no weight's value, no clock, no bandwidth, no file and no model.

mod emit;
mod error;
mod graph;
mod ir;
mod link;
mod lower;
#[cfg(test)]
mod tests;

pub use error::CompileError;
pub use graph::{POSITION, SEAM};
pub use link::{Seams, link, link_with};
pub use lower::FORCED_IDS;

use emit::{place, spill, tiles, waits};
use graph::Graph;
use graph::pattern::Rules;
use ir::{Item, Program};
use lower::attention::blocks::BLOCK;
use mica_device::isa;
use mica_device::object::{Object, OpInfo, Relocation};
use mica_device::product::Product;
use mica_device::segment::SegmentPlan;
use mica_models::hir::Function;

/// The fewest rows of a cached block that are in LRM at a time; of less the array would mostly be filled and emptied.
const SHORTEST_STRIP: u64 = 16;

/// What the compiler is told beside the function, the plan and the product.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Fraction bits of the residual stream's FX32.
    pub frac: u8,
    /// Rows for which a K or V cache edge has room; the stride from one head to the next.
    pub capacity: u64,
    /// The results that leave on edges.
    pub exports: Vec<String>,
    /// Tokens that one call takes, at least 1. A matrix is fetched once a call.
    pub tokens: u64,
}

/// Compiles one part: a flattened function, its weights placed by `plan`.
///
/// # Errors
/// An op without a rule, a weight missing or stored in a way its use cannot read, LRM or L2 too small.
pub fn compile(
    kind: &str,
    f: &Function,
    plan: &SegmentPlan,
    product: &Product,
    o: &Options,
) -> Result<Object, CompileError> {
    if o.tokens == 0 {
        return Err(CompileError::NoTokens { kind: kind.into() });
    }
    if f.nodes.len() > usize::from(u16::MAX) {
        return Err(CompileError::Field {
            what: format!("`{kind}`: the number of ops"),
            figure: f.nodes.len() as u64,
            limit: u64::from(u16::MAX),
        });
    }
    let g = Graph::new(f, &o.exports)?;
    let rules = Rules::find(&g);
    let limits = [("LRM", product.lrm()), ("L2", product.l2)];
    let overflow = |p: &Program, which: usize, room: place::NoRoom| {
        let (memory, limit) = limits[which];
        CompileError::Overflow {
            kind: kind.into(),
            memory,
            need: room.need,
            limit,
            at: room.at,
            label: label_at(p, f, room.at),
            product: product.name.clone(),
            tokens: o.tokens,
        }
    };
    let mut strip = BLOCK;
    let (lowered, p, lrm) = loop {
        let mut lowered = lower::lower(&g, &rules, plan, product, o, strip)?;
        let mut p = std::mem::take(&mut lowered.program);
        match spill::lrm(&mut p, product.lrm()) {
            Ok(lrm) => break (lowered, p, lrm),
            Err(_) if strip > SHORTEST_STRIP && rules.attend() => strip /= 2,
            Err(room) => return Err(overflow(&p, 0, room)),
        }
    };
    let p = &p;
    let l2 = place::l2(p, product.l2).map_err(|e| overflow(p, 1, e))?;
    let mut code = tiles::assign(p, &lrm, &l2);
    waits::set(&mut code);
    let relocations = code
        .iter()
        .enumerate()
        .filter_map(|(at, c)| c.symbol.clone().map(|symbol| Relocation { at: at as u32, symbol }));
    let seam = |direction| lowered.edges.iter().any(|e| e.direction == direction && link::is_seam(&e.name));
    Ok(Object {
        kind: kind.into(),
        relocations: relocations.collect(),
        code: isa::encode(&code.iter().map(|c| c.instr).collect::<Vec<_>>()),
        literals: p.literals.clone(),
        constants: plan.bytes,
        seam_in: seam(mica_device::object::Direction::In),
        seam_out: seam(mica_device::object::Direction::Out),
        edges: lowered.edges,
        seam_bytes: lowered.seam_bytes,
        lrm_peak: lrm.peak,
        l2_peak: l2.peak,
        ops: f.nodes.iter().map(|n| OpInfo { op: n.op.name().into(), label: n.label.clone() }).collect(),
    })
}

/// The tile IR of a part as text: what the passes up to lowering make of a function.
///
/// # Errors
/// As [`compile`], memories apart.
pub fn tile_ir(
    f: &Function,
    plan: &SegmentPlan,
    product: &Product,
    o: &Options,
) -> Result<String, CompileError> {
    let g = Graph::new(f, &o.exports)?;
    let rules = Rules::find(&g);
    Ok(lower::lower(&g, &rules, plan, product, o, BLOCK)?.program.to_string())
}

fn label_at(p: &Program, f: &Function, at: usize) -> String {
    match &p.items[at] {
        Item::Inst(i) => f.nodes.get(usize::from(i.src)).map_or(&f.name, |n| &n.label).clone(),
        Item::End => f.name.clone(),
    }
}

/// The version of this stage, part of every key; raised whenever the same inputs give other code.
pub const VERSION: u32 = 4;
