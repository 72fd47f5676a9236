//! Proof that a program is ordered: every two accesses of different engines that overlap, of which
//! one writes, have a wait or a fence between them.
//!
//! The simulator runs instructions one after another, so it cannot see a missing wait; this walk
//! does. It keeps, for every engine, how many instructions of each other engine are known to have
//! retired (a vector clock): an instruction knows what its engine and the front end knew before it,
//! what it waits for, and what those instructions knew. Loop bodies are walked twice, which meets
//! every pair of neighbouring iterations. External memory counts as the memories inside do: what `DST`
//! writes to an edge a later `DLD` or `SLD` of the same bytes must await.

use crate::access::{Access, Memory, NoAccess, TileFile, external};
use crate::isa::{ENGINES, Engine, Instr, Opcode};
use crate::tile::Tile;
use std::ops::Range;
use thiserror::Error;

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Hazard {
    /// The later instruction may run before the earlier has retired.
    #[error(
        "instruction {later} ({later_op}) may run before instruction {earlier} ({earlier_op}) has \
         retired: both touch {memory:?} {start:#x}..{end:#x}"
    )]
    Unordered {
        /// Index of the earlier instruction.
        earlier: usize,
        /// Its mnemonic.
        earlier_op: &'static str,
        /// Index of the later instruction.
        later: usize,
        /// Its mnemonic.
        later_op: &'static str,
        /// Where they meet.
        memory: Memory,
        /// First byte that both touch.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The memory of an instruction cannot be told.
    #[error("instruction {index}: {cause}")]
    Access {
        /// Index of the instruction.
        index: usize,
        /// Why.
        cause: NoAccess,
    },
}

type Clock = [u64; ENGINES];

struct Past {
    engine: usize,
    /// The number of this instruction on its engine, from 1.
    number: u64,
    index: usize,
    op: Opcode,
    access: Access,
}

struct Walk<'p> {
    program: &'p [Instr],
    tiles: TileFile,
    /// What each engine knows; `Scalar` is the front end, which every later instruction follows.
    known: [Clock; ENGINES],
    /// What each issued instruction knew, itself among it, an engine each.
    history: [Vec<Clock>; ENGINES],
    past: Vec<Past>,
    external: External,
}

/// What of external memory needs an order: buffers that the program both reads and writes.
struct External {
    /// The registers below 16 that no instruction writes: they name their buffer throughout.
    names: u16,
    /// The buffers read and written, a bit each.
    shared: u16,
}

impl External {
    fn of(program: &[Instr]) -> External {
        let bit = |r: u8| 1u16.checked_shl(r.into()).unwrap_or(0);
        let written = program.iter().filter_map(|i| i.op.written_scalar(&i.r));
        let names = !written.map(bit).fold(0, |all, b| all | b);
        // a base that is no name may be any buffer
        let of = |i: &Instr| if names & bit(i.r[1]) == 0 { u16::MAX } else { bit(i.r[1]) };
        let buffers = |write| {
            let moves = program.iter().filter(move |i| match i.op {
                Opcode::Dst => write,
                Opcode::Dld | Opcode::Sld => !write,
                _ => false,
            });
            moves.map(of).fold(0, |all, b| all | b)
        };
        External { names, shared: buffers(false) & buffers(true) }
    }

    /// What an instruction touches of them.
    fn access(&self, i: &Instr) -> Option<Access> {
        let named = |r: u8| r < 16 && self.names >> r & 1 == 1;
        let touches = if named(i.r[1]) { self.shared >> i.r[1] & 1 == 1 } else { self.shared != 0 };
        if touches { external(i, named) } else { None }
    }
}

/// Checks a program; loop bodies are walked twice.
pub fn check(program: &[Instr]) -> Result<(), Hazard> {
    check_iterations(program, 2)
}

/// Checks a program with every loop body walked `iterations` times; 0 and 1 prove the cases of a
/// loop that may not run or not repeat, where wait distances reach behind it.
pub fn check_iterations(program: &[Instr], iterations: usize) -> Result<(), Hazard> {
    let mut walk = Walk {
        program,
        tiles: TileFile::default(),
        known: [[0; ENGINES]; ENGINES],
        history: Default::default(),
        past: Vec::new(),
        external: External::of(program),
    };
    walk.run(0..program.len(), iterations)
}

fn join(a: &mut Clock, b: &Clock) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(*b);
    }
}

impl Walk<'_> {
    fn run(&mut self, range: Range<usize>, iterations: usize) -> Result<(), Hazard> {
        let mut at = range.start;
        while at < range.end {
            self.step(at)?;
            let i = &self.program[at];
            at += 1;
            if i.op == Opcode::Loop {
                let end = (at + i.x as usize).min(range.end);
                for _ in 0..iterations {
                    self.run(at..end, iterations)?;
                }
                at = end;
            }
        }
        Ok(())
    }

    fn step(&mut self, index: usize) -> Result<(), Hazard> {
        let i = &self.program[index];
        let engine = i.op.engine() as usize;
        let front = self.known[Engine::Scalar as usize];
        let mut clock = self.known[engine];
        join(&mut clock, &front);
        for (history, &distance) in self.history.iter().zip(&i.wait) {
            if distance > 0
                && let Some(awaited) = history.len().checked_sub(usize::from(distance))
            {
                join(&mut clock, &history[awaited]);
            }
        }
        if i.op == Opcode::Fence {
            for last in self.history.iter().filter_map(|history| history.last()) {
                join(&mut clock, last);
            }
        }
        let failed = |cause| Hazard::Access { index, cause };
        if i.op == Opcode::Tdef {
            // rows from a scalar are taken at their bound
            let tile = Tile::define(i, None).ok_or_else(|| failed(NoAccess::Shape))?;
            self.tiles.set(i.r[0], tile);
        }
        let mut accesses = self.tiles.accesses(i).map_err(failed)?;
        accesses.extend(self.external.access(i));
        for access in &accesses {
            self.meet(index, &clock, access)?;
        }
        let number = self.history[engine].len() as u64 + 1;
        for access in accesses {
            self.remember(Past { engine, number, index, op: i.op, access });
        }
        // an engine retires in order: who knows this one knows all before it
        let mut knew = clock;
        knew[engine] = number;
        self.history[engine].push(knew);
        self.known[engine] = knew;
        Ok(())
    }

    fn meet(&self, later: usize, clock: &Clock, access: &Access) -> Result<(), Hazard> {
        for p in &self.past {
            let ordered = p.number <= clock[p.engine];
            let start = p.access.range.start.max(access.range.start);
            let end = p.access.range.end.min(access.range.end);
            let meets = p.access.memory == access.memory && start < end;
            if !ordered && meets && (p.access.write || access.write) {
                return Err(Hazard::Unordered {
                    earlier: p.index,
                    earlier_op: p.op.text(),
                    later,
                    later_op: self.program[later].op.text(),
                    memory: access.memory,
                    start,
                    end,
                });
            }
        }
        Ok(())
    }

    fn remember(&mut self, new: Past) {
        // whoever is ordered after `new` is ordered after what the same engine did before it, so
        // an access that `new` covers says nothing more; nor does one that every engine knows of
        let known = &self.known;
        let front = &known[Engine::Scalar as usize];
        self.past.retain(|p| {
            let same = p.engine == new.engine && p.access.memory == new.access.memory;
            let inside =
                new.access.range.start <= p.access.range.start && p.access.range.end <= new.access.range.end;
            let covered = same && inside && (new.access.write || !p.access.write);
            let settled = known
                .iter()
                .enumerate()
                .all(|(e, clock)| e == p.engine || p.number <= clock[p.engine].max(front[p.engine]));
            !covered && !settled
        });
        self.past.push(new);
    }
}
