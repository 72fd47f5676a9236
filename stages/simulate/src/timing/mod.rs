//! Cycles, counted from the instruction stream: scalar instructions are interpreted, tiles are not
//! executed, so a count costs milliseconds and depends on no weight value.
//!
//! The front end issues one instruction a cycle, in order, into a queue an engine. An instruction
//! starts when its engine is free and what it waits for has retired; scalar instructions run in the
//! front end itself. Both DMA engines share the external bus. The total is the last retirement.
//! Values that only an execution could tell (`SGET`, and loads other than the position)
//! read as 0.

mod bus;
pub mod cost;
mod report;
mod traffic;
mod work;

use crate::error::{Fault, SimError};
use crate::exec::scalar::salu;
use crate::loops::Loops;
use crate::program::{BUFFER_SHIFT, Program};
use bus::Bus;
use cost::{Cost, Sizes, cost};
use mica_device::access::TileFile;
use mica_device::isa::{ENGINES, Engine, Instr, Opcode};
use mica_device::object::{Direction, Kernel};
use mica_device::product::{Product, Rates};
use mica_device::segment::SegmentPlan;
use mica_device::tile::{Tile, register};
use report::Builder;
pub use report::{Bound, Bytes, LayerReport, OpReport, Report, Share};
use traffic::Contents;
pub(crate) use traffic::plan_entry;
pub use traffic::{Kind, Traffic, storage};
pub use work::Work;

/// The version of the count, part of the key of every report; raised whenever a kernel gets other figures.
pub const VERSION: u32 = 3;
/// The edge whose value the count knows, with or without a direction behind a dot (`pos.in`).
pub const POSITION_EDGE: &str = "pos";
/// Instructions after which a count is given up.
const BUDGET: u64 = 1 << 32;

/// What a count needs to know of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// The value of the position's edge.
    pub position: u64,
    /// What lies in each part's constants; empty where nobody knows, and then all constants are of one kind.
    pub plans: &'a [&'a SegmentPlan],
}

/// A transfer on the external bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// First external address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether an index that only an execution knows chooses the address.
    pub indexed: bool,
}

/// One instruction's time on its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the instruction.
    pub instruction: usize,
    /// `layer << 16 | op`.
    pub src: u32,
    /// Its engine.
    pub engine: Engine,
    /// First busy cycle.
    pub start: u64,
    /// One past the last busy cycle.
    pub end: u64,
    /// When those that wait for it may start.
    pub retired: u64,
    /// What it moves on the external bus.
    pub transfer: Option<Transfer>,
}

/// The cycles of one call.
///
/// Errors: a kernel that is no program, or a fault that the stream alone shows (an undefined tile).
pub fn cycles(
    kernel: &Kernel,
    product: &Product,
    rates: &Rates,
    inputs: Inputs<'_>,
) -> Result<Report, SimError> {
    timeline(kernel, product, rates, inputs, |_| ())
}

/// The cycles of one call; every instruction's span is shown to `sink`, in program order.
///
/// Errors: as `cycles`.
pub fn timeline(
    kernel: &Kernel,
    product: &Product,
    rates: &Rates,
    inputs: Inputs<'_>,
    mut sink: impl FnMut(Span),
) -> Result<Report, SimError> {
    let program = Program::load(kernel)?;
    let mut walk = Walk::new(&program, product, rates, inputs);
    let mut loops = Loops::default();
    let mut at = 0;
    while let Some(i) = program.code().get(at) {
        let step = walk.step(at, i, &mut loops, &mut sink);
        let next = step.map_err(|fault| program.trap(at, fault))?;
        match next {
            Some(next) => at = loops.turn(next, &mut walk.scalars),
            None => break,
        }
    }
    Ok(walk.builder.finish(&program))
}

struct Walk<'p> {
    program: &'p Program,
    contents: Contents<'p>,
    sizes: Sizes,
    position: u64,
    scalars: [u64; 32],
    tiles: TileFile,
    /// The same tiles, reserving only what they hold now.
    held: TileFile,
    bus: Bus,
    /// When the front end issues next.
    front: u64,
    /// When each engine is free, and when each of its instructions retired.
    free: [u64; ENGINES],
    retired: [Vec<u64>; ENGINES],
    builder: Builder,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, product: &Product, rates: &Rates, inputs: Inputs<'p>) -> Walk<'p> {
        let mut scalars = [0; 32];
        for e in program.entries() {
            scalars[usize::from(e.register)] = u64::from(e.register) << BUFFER_SHIFT;
        }
        Walk {
            program,
            contents: Contents::new(program, inputs.plans),
            sizes: Sizes {
                side: u64::from(product.side),
                pes: product.pes(),
                bus: u64::from(rates.bus_bytes),
            },
            position: inputs.position,
            scalars,
            tiles: TileFile::default(),
            held: TileFile::default(),
            bus: Bus::default(),
            front: 0,
            free: [0; ENGINES],
            retired: Default::default(),
            builder: Builder::default(),
        }
    }

    /// Times one instruction; returns the next, or `None` at the end of the program.
    fn step(
        &mut self,
        at: usize,
        i: &Instr,
        loops: &mut Loops,
        sink: &mut impl FnMut(Span),
    ) -> Result<Option<usize>, Fault> {
        if self.builder.instructions() >= BUDGET {
            return Err(Fault::Watchdog { budget: BUDGET });
        }
        let transfer = self.transfer(i);
        let bytes = transfer.map_or(0, |t| t.bytes);
        // shapes are read at issue, before the instruction can change any
        let Cost { busy, latency } = cost(i, &self.tiles, &self.sizes, bytes)?;
        let mut ready = self.front;
        for (e, &distance) in i.wait.iter().enumerate() {
            let history = &self.retired[e];
            if distance > 0
                && let Some(awaited) = history.len().checked_sub(usize::from(distance))
            {
                ready = ready.max(history[awaited]);
            }
        }
        if i.op == Opcode::Fence {
            for last in self.retired.iter().filter_map(|h| h.last()) {
                ready = ready.max(*last);
            }
        }
        let engine = i.op.engine();
        let e = engine as usize;
        ready = ready.max(self.free[e]);
        let start = match engine {
            Engine::DmaIn | Engine::DmaOut => self.bus.take(ready, busy),
            Engine::Scalar | Engine::Flow | Engine::Array => ready,
        };
        let end = start + busy;
        let retired = end + latency;
        self.free[e] = end;
        self.retired[e].push(retired);
        // a scalar instruction holds the front end until it is done
        self.front = if engine == Engine::Scalar { retired } else { self.front + 1 };
        let span = Span { instruction: at, src: i.src, engine, start, end, retired, transfer };
        let moved = transfer.map(|t| self.contents.of(&t, i.op == Opcode::Dst));
        self.builder.add(&span, moved, work::of(i, &self.held, bytes)?);
        sink(span);
        self.interpret(at, i, loops)
    }

    fn value(&self, r: u8) -> Option<u64> {
        register(r).map(|r| self.scalars[usize::from(r)])
    }

    /// What a DMA instruction moves; `None` for others.
    fn transfer(&self, i: &Instr) -> Option<Transfer> {
        if !matches!(i.op, Opcode::Dld | Opcode::Dst) {
            return None;
        }
        let most = u64::from(i.y);
        let index = self.value(i.r[2]);
        let base = self.scalars[usize::from(i.r[1] & 31)];
        Some(Transfer {
            address: base.wrapping_add(index.unwrap_or(0)).wrapping_add(i.z),
            bytes: self.value(i.r[3]).map_or(most, |n| n.min(most)),
            indexed: index.is_some(),
        })
    }

    /// The effect on scalars, descriptors and the program counter.
    fn interpret(&mut self, at: usize, i: &Instr, loops: &mut Loops) -> Result<Option<usize>, Fault> {
        match i.op {
            Opcode::Halt => return Ok(None),
            Opcode::Trap => return Err(Fault::Trap { code: i.x }),
            Opcode::Loop => return loops.enter(at, i, &mut self.scalars).map(Some),
            Opcode::Sli => self.scalars[usize::from(i.r[0])] = i.z,
            Opcode::Salu => self.scalars[usize::from(i.r[0])] = salu(i, &self.scalars),
            Opcode::Sget => self.scalars[usize::from(i.r[0])] = 0,
            Opcode::Sld => {
                let address = self.scalars[usize::from(i.r[1])].wrapping_add(i.z);
                let register = (address >> BUFFER_SHIFT) as u8;
                let position = self.program.entries().iter().any(|e| {
                    e.register == register
                        && e.direction == Direction::In
                        && e.name.split('.').next() == Some(POSITION_EDGE)
                });
                self.scalars[usize::from(i.r[0])] = if position { self.position } else { 0 };
            }
            Opcode::Tdef => {
                let rows = self.value(i.r[1]).map(|n| n.min(i.z & 0xffff_ffff));
                let tile = Tile::define(i, rows).ok_or(Fault::Operand { what: "rows", value: i.z as i64 })?;
                self.tiles.set(i.r[0], tile);
                self.held.set(i.r[0], Tile { max_rows: tile.rows, ..tile });
            }
            _ => {}
        }
        Ok(Some(at + 1))
    }
}
