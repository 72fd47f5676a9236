//! The machine: it fetches, dispatches and counts. One call runs a kernel to its `halt`.
//!
//! Instructions take effect one after another in program order. That is what the device shows too,
//! if the program orders its engines as `mica_device::hazards` checks.

use crate::counters::Counters;
use crate::edges::Edges;
use crate::error::{Fault, SimError};
use crate::exec::batch::{Batch, flush};
use crate::exec::{Core, Scratch, flow, matrix, reduce, rotary, scalar, state, vector};
use crate::l2::{Base, L2};
use crate::loops::Loops;
use crate::lrm::Lrm;
use crate::matv::Isa;
use crate::observe::{Boundary, Observer, TileValues, View};
use crate::program::{BUFFER_SHIFT, Program};
use crate::team::Team;
use mica_device::access::TileFile;
use mica_device::format::Format;
use mica_device::isa::{Instr, Opcode};
use mica_device::product::Product;
use mica_device::tile::register;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Instructions after which a call is given up, unless told otherwise.
pub const DEFAULT_BUDGET: u64 = 1 << 32;

/// How to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that share large work, out of rayon's current pool. No result depends on it.
    pub threads: usize,
    /// Trap at the first saturation, F16 overflow, non-finite result, or read of memory that
    /// nothing wrote in this call.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { threads: 1, strict: false }
    }
}

/// A device with a program and its constants.
pub struct Machine<'c> {
    program: &'c Program,
    /// Constant segments: first address, content.
    segments: Vec<(u64, &'c [u8])>,
    core: Core<'c>,
    loops: Loops,
    values: Vec<f64>,
    strict: bool,
    budget: u64,
}

impl<'c> Machine<'c> {
    /// A device of `product` that runs `program` with `constants`: the constant segment of each
    /// part, by part number, empty where a part has none.
    ///
    /// Errors: constants of another length than the program's segments, or a product with less
    /// memory or fewer entries than the program needs.
    pub fn new(
        program: &'c Program,
        product: &Product,
        constants: &'c [&'c [u8]],
        options: Options,
    ) -> Result<Machine<'c>, SimError> {
        for (what, needs, has) in [
            ("bytes of LRM", program.lrm_peak, product.lrm()),
            ("bytes of L2", program.l2_peak, product.l2),
            ("entries", program.entries.len() as u64, u64::from(product.entries)),
        ] {
            if needs > has {
                return Err(SimError::Product { what, needs, has, product: product.name.clone() });
            }
        }
        let mut segments = Vec::with_capacity(program.segments.len());
        for s in &program.segments {
            let part = s.part as usize;
            let content: &'c [u8] = if s.literals {
                &program.literals[part]
            } else {
                constants.get(part).copied().unwrap_or_default()
            };
            if content.len() as u64 != s.bytes {
                return Err(SimError::Constants {
                    part: s.part,
                    kind: program.parts.get(part).cloned().unwrap_or_default(),
                    expected: s.bytes,
                    found: content.len() as u64,
                });
            }
            segments.push((s.offset, content));
        }
        Ok(Machine {
            program,
            segments,
            core: Core {
                lrm: Lrm::new(product.lrm(), options.strict),
                l2: L2::new(product.l2, options.strict),
                tiles: TileFile::default(),
                scalars: [0; 32],
                counters: Counters::default(),
                isa: Isa::best(),
                team: Arc::new(Team::new(options.threads)),
                scratch: Scratch::default(),
                batch: Batch::default(),
            },
            loops: Loops::default(),
            values: Vec::new(),
            strict: options.strict,
            budget: DEFAULT_BUDGET,
        })
    }

    /// Gives a call up after so many instructions.
    pub fn with_budget(mut self, instructions: u64) -> Machine<'c> {
        self.budget = instructions;
        self
    }

    /// Chooses the implementation of the matrix kernels; all give the same bits.
    pub fn with_isa(mut self, isa: Isa) -> Machine<'c> {
        self.core.isa = isa;
        self
    }

    /// Runs the program once: scalars and memories are reset, `out` edges start zeroed.
    ///
    /// Errors: an edge that is not set, or a trap.
    pub fn call(&mut self, edges: &mut Edges<'_>) -> Result<Counters, SimError> {
        let team = Arc::clone(&self.core.team);
        team.with(|| self.run(edges, None))
    }

    /// Runs the program once and shows every op boundary to `observer`.
    ///
    /// Errors: as `call`.
    pub fn call_observed(
        &mut self,
        edges: &mut Edges<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Counters, SimError> {
        self.run(edges, Some(observer))
    }

    fn run(
        &mut self,
        edges: &mut Edges<'_>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Counters, SimError> {
        edges.start(self.program)?;
        let done = self.run_started(edges, observer);
        edges.finish();
        done
    }

    fn run_started(
        &mut self,
        edges: &mut Edges<'_>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Counters, SimError> {
        self.core.lrm.reset();
        self.core.l2.reset();
        self.core.tiles = TileFile::default();
        self.core.counters = Counters::default();
        self.core.scalars = [0; 32];
        for e in &self.program.entries {
            self.core.scalars[usize::from(e.register)] = u64::from(e.register) << BUFFER_SHIFT;
        }
        self.loops = Loops::default();
        let program = self.program;
        let mut at = 0;
        while let Some(i) = program.code.get(at) {
            if let Some(o) = observer.as_deref_mut().filter(|o| o.watches(at)) {
                flush(&mut self.core, edges).map_err(|(at, fault)| program.trap(at, fault))?;
                if o.before(&self.view(at, i, edges)).is_break() {
                    break;
                }
            }
            let events = self.core.counters.events();
            let next = self
                .settle(i, edges, observer.as_deref())
                .and_then(|()| self.step(at, i, edges, &mut observer).map_err(|fault| (at, fault)))
                .and_then(|next| {
                    if self.strict {
                        flush(&mut self.core, edges)?;
                    }
                    self.watch(events).map(|()| next).map_err(|fault| (at, fault))
                });
            match next {
                Ok(ControlFlow::Continue(next)) => at = self.loops.turn(next, &mut self.core.scalars),
                Ok(ControlFlow::Break(())) => break,
                Err(fault) => {
                    // what was put off came first
                    let (at, fault) = flush(&mut self.core, edges).err().unwrap_or(fault);
                    return Err(program.trap(at, fault));
                }
            }
        }
        flush(&mut self.core, edges).map_err(|(at, fault)| program.trap(at, fault))?;
        Ok(self.core.counters)
    }

    fn view<'v>(&'v self, at: usize, next: &'v Instr, edges: &'v Edges<'_>) -> View<'v> {
        let Core { scalars, tiles, lrm, l2, counters, .. } = &self.core;
        let (segments, counters) = (&self.segments, *counters);
        View { instruction: at, next, segments, scalars, tiles, lrm, l2, counters, edges }
    }

    /// The device as the last call left it, before instruction `at`: where it trapped, for a look at why.
    pub fn left<'v>(&'v self, at: usize, edges: &'v Edges<'_>) -> Option<View<'v>> {
        self.program.code.get(at).map(|next| self.view(at, next, edges))
    }

    /// Does what was put off if `i` could tell that it has not been done.
    fn settle(
        &mut self,
        i: &Instr,
        edges: &mut Edges<'_>,
        observer: Option<&(dyn Observer + '_)>,
    ) -> Result<(), (usize, Fault)> {
        if self.core.batch.is_empty() {
            return Ok(());
        }
        let external = match i.op {
            Opcode::Dld => self
                .transfer(i)
                .ok()
                .map(|(a, bytes)| (a >> BUFFER_SHIFT == 0 || edges.input_at(a, bytes).is_some(), bytes)),
            _ => None,
        };
        let seen = i.op == Opcode::Opb && observer.is_some_and(|o| o.wants(i.src));
        if seen || self.core.batch.meets(i, &self.core.tiles, external) {
            return flush(&mut self.core, edges);
        }
        Ok(())
    }

    /// The checks after every instruction.
    fn watch(&mut self, events_before: u64) -> Result<(), Fault> {
        let c = &mut self.core.counters;
        c.instructions += 1;
        if c.instructions > self.budget {
            return Err(Fault::Watchdog { budget: self.budget });
        }
        if self.strict && c.events() > events_before {
            // the run ends at the first event, so the counters name its kind
            return Err(match (c.saturations, c.f16_overflows) {
                (0, 0) => Fault::NonFinite,
                (0, _) => Fault::F16Overflow,
                _ => Fault::Saturation,
            });
        }
        Ok(())
    }

    fn step(
        &mut self,
        at: usize,
        i: &Instr,
        edges: &mut Edges<'_>,
        observer: &mut Option<&mut dyn Observer>,
    ) -> Result<ControlFlow<(), usize>, Fault> {
        let core = &mut self.core;
        let next = ControlFlow::Continue(at + 1);
        match i.op {
            Opcode::Nop | Opcode::Fence => {}
            Opcode::Halt => return Ok(ControlFlow::Break(())),
            Opcode::Trap => return Err(Fault::Trap { code: i.x }),
            Opcode::Opb => return self.boundary(at, i, observer),
            Opcode::Loop => {
                let next = self.loops.enter(at, i, &mut core.scalars)?;
                return Ok(ControlFlow::Continue(next));
            }
            Opcode::Sli => core.scalars[usize::from(i.r[0])] = i.z,
            Opcode::Salu => {
                core.scalars[usize::from(i.r[0])] = scalar::salu(i, &core.scalars);
            }
            Opcode::Sld => {
                let address = core.scalars[usize::from(i.r[1])].wrapping_add(i.z);
                let bytes = self.external(address, 8, edges)?;
                let (value, _) = bytes.as_chunks();
                self.core.scalars[usize::from(i.r[0])] = value.first().map_or(0, |v| u64::from_le_bytes(*v));
            }
            Opcode::Sget => scalar::sget(core, i)?,
            Opcode::Sput => scalar::sput(core, i)?,
            Opcode::Tdef => scalar::tdef(core, i)?,
            Opcode::Dld => self.dld(i, edges)?,
            Opcode::Dst => self.dst(at, i, edges)?,
            Opcode::Ldt => flow::ldt(core, i, edges)?,
            Opcode::Stt => flow::stt(core, at, i)?,
            Opcode::Bct => flow::bct(core, i)?,
            Opcode::Matv => matrix::matv(core, at, i, edges)?,
            Opcode::Vbin => vector::vbin(core, i)?,
            Opcode::Vbini => vector::vbini(core, i)?,
            Opcode::Vun => vector::vun(core, i)?,
            Opcode::Red => reduce::red(core, i)?,
            Opcode::Topk => reduce::topk(core, i)?,
            Opcode::Vmov => vector::vmov(core, i)?,
            Opcode::Vsincos => rotary::vsincos(core, i)?,
            Opcode::Vrot => rotary::vrot(core, i)?,
            Opcode::Tmv => state::tmv(core, i)?,
            Opcode::Tmvt => state::tmvt(core, i)?,
            Opcode::Tout => state::tout(core, i)?,
        }
        Ok(next)
    }

    /// Address and length of a transfer.
    fn transfer(&self, i: &Instr) -> Result<(u64, u64), Fault> {
        let scalars = &self.core.scalars;
        let value = |r: u8| register(r).map(|r| scalars[usize::from(r)]);
        let base = scalars[usize::from(i.r[1])];
        let address = base.wrapping_add(value(i.r[2]).unwrap_or(0)).wrapping_add(i.z);
        match value(i.r[3]) {
            None => Ok((address, u64::from(i.y))),
            Some(n) if n <= u64::from(i.y) => Ok((address, n)),
            Some(n) => Err(Fault::Operand { what: "bytes", value: n as i64 }),
        }
    }

    /// The segment that holds a range of the constant buffer, and where in it the range begins.
    fn constant(&self, address: u64, bytes: u64) -> Result<(&'c [u8], usize), Fault> {
        let n = self.segments.partition_point(|s| s.0 <= address);
        let found = n.checked_sub(1).map(|n| self.segments[n]);
        found
            .and_then(|(offset, content)| {
                let from = address - offset;
                let end = from.checked_add(bytes)?;
                (end <= content.len() as u64).then_some((content, from as usize))
            })
            .ok_or(Fault::External { address, bytes })
    }

    fn external<'e>(&self, address: u64, bytes: u64, edges: &'e mut Edges<'_>) -> Result<&'e [u8], Fault>
    where
        'c: 'e,
    {
        if address >> BUFFER_SHIFT == 0 {
            let (content, from) = self.constant(address, bytes)?;
            Ok(&content[from..from + bytes as usize])
        } else {
            edges.read(address, bytes)
        }
    }

    fn dld(&mut self, i: &Instr, edges: &mut Edges<'_>) -> Result<(), Fault> {
        let (address, bytes) = self.transfer(i)?;
        let (base, from) = if address >> BUFFER_SHIFT == 0 {
            let (content, from) = self.constant(address, bytes)?;
            (Base::Constants(content), from)
        } else if let Some((buffer, from)) = edges.input_at(address, bytes) {
            (Base::Edge(buffer), from)
        } else {
            let source = edges.read(address, bytes)?;
            self.core.l2.write(i.x, bytes)?.copy_from_slice(source);
            return Ok(());
        };
        self.core.l2.load(i.x, base, from, bytes as usize, edges)
    }

    fn dst(&mut self, at: usize, i: &Instr, edges: &mut Edges<'_>) -> Result<(), Fault> {
        let (address, bytes) = self.transfer(i)?;
        if address >> BUFFER_SHIFT == 0 {
            return Err(Fault::ReadOnly { address });
        }
        if self.core.batch.is_empty() {
            return flow::send(&mut self.core, edges, i.x, address, bytes);
        }
        self.core.batch.send(at, i.x, address, bytes);
        Ok(())
    }

    fn boundary(
        &mut self,
        at: usize,
        i: &Instr,
        observer: &mut Option<&mut dyn Observer>,
    ) -> Result<ControlFlow<(), usize>, Fault> {
        let tile = match register(i.r[0]) {
            None => None,
            Some(_) => Some(self.core.tile(i, 0)?),
        };
        let Some(observer) = observer.as_mut().filter(|o| o.wants(i.src)) else {
            return Ok(ControlFlow::Continue(at + 1));
        };
        self.values.clear();
        if let Some(t) = &tile {
            let bytes = self.core.lrm.read(t, 0, t.len())?;
            // every format but FX32 and I32 is exact in f32, and those are in f64
            match t.format {
                Format::Fx32 | Format::I32 => {
                    let unit = (-f64::from(t.frac)).exp2();
                    self.values.extend(crate::convert::words(bytes).map(|v| f64::from(v) * unit));
                }
                _ => {
                    let a = &mut self.core.scratch.a;
                    a.clear();
                    crate::convert::decode(t.format, t.frac, bytes, a);
                    self.values.extend(a.iter().map(|&v| f64::from(v)));
                }
            }
        }
        let flow = observer.boundary(&Boundary {
            src: i.src,
            instruction: at,
            tile: tile.map(|t| TileValues {
                format: t.format,
                frac: t.frac,
                rows: t.rows,
                cols: t.cols,
                values: &self.values,
            }),
        });
        Ok(match flow {
            ControlFlow::Continue(()) => ControlFlow::Continue(at + 1),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }
}
