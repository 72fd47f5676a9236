//! Waits: before an instruction touches bytes of LRM or L2, what another engine did to them is over.
//!
//! Each engine retires its own instructions in order, so one distance an engine, to the latest
//! conflicting instruction, is enough; a shorter distance than needed is only stronger. A `fence`
//! leaves every engine idle; loops begin and end with one, so distances never reach across an
//! iteration. Scalars and tile descriptors are read at issue, in program order, and need no wait.

use super::intervals::Intervals;
use super::tiles::{Code, Memory};
use mica_device::isa::{ENGINES, Opcode};

/// The longest distance that an instruction can hold.
const FARTHEST: u64 = 255;

/// What one engine has done since the last fence, by instruction number from 1.
#[derive(Clone, Debug, Default)]
struct History {
    issued: u64,
    reads: [Intervals; 2],
    writes: [Intervals; 2],
    /// Of each engine, the last instruction that is over when this one's next instruction starts.
    over: [u64; ENGINES],
}

fn memory(m: Memory) -> usize {
    match m {
        Memory::Lrm => 0,
        Memory::L2 => 1,
    }
}

/// Sets the waits of a program.
pub fn set(code: &mut [Code]) {
    let mut engines: [History; ENGINES] = Default::default();
    for c in code {
        let own = c.instr.op.engine() as usize;
        for other in 0..ENGINES {
            let needed = if other == own { None } else { conflict(c, &engines[other]) };
            let Some(needed) = needed.filter(|n| *n > engines[own].over[other]) else { continue };
            let issued = engines[other].issued;
            let distance = (issued - needed + 1).min(FARTHEST);
            c.instr.wait[other] = distance as u8;
            engines[own].over[other] = issued + 1 - distance;
        }
        if c.instr.op == Opcode::Fence {
            engines = Default::default();
        }
        let h = &mut engines[own];
        h.issued += 1;
        for a in &c.access {
            let m = memory(a.memory);
            if a.role.reads() {
                h.reads[m].set(a.from, a.to, h.issued);
            }
            if a.role.writes() {
                h.writes[m].set(a.from, a.to, h.issued);
            }
        }
    }
}

/// The latest instruction of an engine that must be over before `c` starts.
fn conflict(c: &Code, other: &History) -> Option<u64> {
    let after = |a: &super::tiles::Access| {
        let m = memory(a.memory);
        let written = other.writes[m].last(a.from, a.to);
        let read = a.role.writes().then(|| other.reads[m].last(a.from, a.to)).flatten();
        written.max(read)
    };
    c.access.iter().filter_map(after).max()
}
