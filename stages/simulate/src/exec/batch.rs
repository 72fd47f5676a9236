//! Matrix products put off until something needs their results, so that many are worked on at once.
//!
//! A transfer of the device holds a tile or two, too little to split over threads. Products of constants
//! depend on nothing but their vectors, so a run of them is collected with the stores between them, computed
//! together, and then written in program order: what the program sees is what it would see without this.

use super::flow::{self, Stored};
use super::{Core, count_infinite};
use crate::edges::Edges;
use crate::error::Fault;
use crate::matv::{Activation, Isa, Piece};
use crate::team::{Job, Team};
use mica_device::access::TileFile;
use mica_device::isa::{Instr, Opcode};
use mica_device::layout::{LANES, MatrixLayout, WeightFormat};
use mica_device::tile::{Tile, matrix};
use std::ops::Range;
use std::sync::Arc;

/// Entries after which a batch is full: as many tiles keep any number of threads busy.
const FULL: usize = 1 << 12;

/// Bytes of weights from which on products are shared out.
const SHARED_BYTES: u64 = 1 << 17;
/// Pieces a thread that work is cut into, so that threads of unequal speed end together, and the fewest bytes
/// of a piece.
const PIECES: u64 = 8;
const PIECE_BYTES: u64 = 1 << 16;

/// One instruction that was put off.
#[derive(Debug)]
enum Work<'c> {
    /// A product into a tile.
    Product { to: Tile, matrix: MatrixLayout, bytes: &'c [u8], x: usize },
    /// A tile to L2.
    Store { tile: Tile, to: Stored, at: u32 },
    /// L2 to an edge.
    Send { from: u32, address: u64, bytes: u64 },
}

/// What a vector was prepared from: place and length in local register memory, and the grouping.
type Vector = (u32, u64, Option<u32>);

/// The instructions put off, in program order, each with its place in the program.
#[derive(Debug, Default)]
pub struct Batch<'c> {
    work: Vec<(usize, Work<'c>)>,
    /// Prepared vectors; those beyond `vectors` keep their memory for later.
    activations: Vec<Arc<Activation>>,
    vectors: Vec<Vector>,
    /// Local register memory and L2 that the work will write, and L2 that it will read.
    lrm: Ranges,
    l2_writes: Ranges,
    l2_reads: Ranges,
    out: Vec<f32>,
    /// Buffers of pieces, for the next ones.
    spare: Vec<Vec<f32>>,
}

/// A few ranges; one that goes on where another ends extends it.
#[derive(Debug, Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, r: Range<u64>) {
        match self.0.iter_mut().find(|o| o.start <= r.start && r.start <= o.end) {
            Some(o) => o.end = o.end.max(r.end),
            None => self.0.push(r),
        }
    }

    fn meet(&self, r: &Range<u64>) -> bool {
        self.0.iter().any(|o| o.start < r.end && r.start < o.end)
    }
}

impl<'c> Batch<'c> {
    /// Whether nothing is put off.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Whether `i` could see that the work has not been done, or change what it works on. `external`: the
    /// address and length of a transfer.
    pub fn meets(&self, i: &Instr, tiles: &TileFile, external: Option<(bool, u64)>) -> bool {
        if self.work.len() >= FULL {
            return true;
        }
        let tile = |n: usize| tiles.get(i.r[n]).map_or(0..0, |t| t.range());
        let l2 = |bytes: u64| u64::from(i.x)..u64::from(i.x) + bytes;
        match i.op {
            Opcode::Nop
            | Opcode::Fence
            | Opcode::Opb
            | Opcode::Loop
            | Opcode::Sli
            | Opcode::Salu
            | Opcode::Tdef
            | Opcode::Stt
            | Opcode::Dst => false,
            // an edge that is read may be one that is sent to
            Opcode::Sld => !self.l2_reads.0.is_empty(),
            Opcode::Sget => self.lrm.meet(&tile(1)),
            Opcode::Dld => external.is_none_or(|(constant, bytes)| {
                let written = l2(bytes);
                (!constant && !self.l2_reads.0.is_empty())
                    || self.l2_writes.meet(&written)
                    || self.l2_reads.meet(&written)
            }),
            Opcode::Matv => {
                let m = tiles.get(i.r[1]).and_then(|x| matrix(i, x.len()));
                self.lrm.meet(&tile(1)) || m.is_none_or(|m| self.l2_writes.meet(&l2(m.bytes())))
            }
            _ => true,
        }
    }

    /// Puts off the product of instruction `at`; `elements` gives the vector's.
    pub fn product<I: Iterator<Item = u16>>(
        &mut self,
        at: usize,
        isa: Isa,
        (to, from): (Tile, Tile),
        (matrix, bytes): (MatrixLayout, &'c [u8]),
        elements: impl FnOnce() -> I,
    ) {
        let grouping = matrix.format.scaling.map(|s| s.group);
        let vector = (from.offset, from.len(), grouping);
        let x = self.vectors.iter().position(|v| *v == vector).unwrap_or_else(|| {
            self.vectors.push(vector);
            let n = self.vectors.len();
            self.activations.resize_with(n.max(self.activations.len()), Arc::default);
            Arc::make_mut(&mut self.activations[n - 1]).prepare(isa, &matrix, elements());
            n - 1
        });
        debug_assert_eq!(grouping.is_none(), matrix.format.weight == WeightFormat::F16);
        self.lrm.add(to.range());
        self.work.push((at, Work::Product { to, matrix, bytes, x }));
    }

    /// Puts off a store of instruction `at`.
    pub fn store(&mut self, at: usize, tile: Tile, to: Stored, l2: u32) {
        let start = u64::from(l2);
        self.l2_writes.add(start..start + tile.len() * to.format.bytes());
        self.work.push((at, Work::Store { tile, to, at: l2 }));
    }

    /// Puts off a transfer of instruction `at`.
    pub fn send(&mut self, at: usize, from: u32, address: u64, bytes: u64) {
        let start = u64::from(from);
        self.l2_reads.add(start..start.saturating_add(bytes));
        self.work.push((at, Work::Send { from, address, bytes }));
    }

    fn compute(&mut self, isa: Isa, team: &Team<'c>) {
        let Batch { work, activations, out, spare, .. } = self;
        let mut rows = 0;
        let mut total = 0;
        let mut all = Vec::with_capacity(work.len());
        for (_, w) in work.iter() {
            if let Work::Product { matrix, bytes, x, .. } = w {
                all.push((*matrix, *bytes, *x, rows));
                rows += matrix.rows.next_multiple_of(LANES) as usize;
                total += matrix.bytes();
            }
        }
        if out.len() < rows {
            out.resize(rows, 0.0);
        }
        let threads = team.threads() as u64;
        if threads == 1 || total < SHARED_BYTES {
            for (matrix, bytes, x, at) in all {
                let rows = matrix.rows.next_multiple_of(LANES) as usize;
                Piece { matrix, bytes, first: 0 }.run(isa, &activations[x], &mut out[at..at + rows]);
            }
            return;
        }
        let about = (total / (PIECES * threads)).max(PIECE_BYTES);
        let mut jobs = Vec::new();
        for (matrix, bytes, x, at) in all {
            for (piece, first, rows) in Piece::of(matrix, bytes, about) {
                let mut values = spare.pop().unwrap_or_default();
                values.resize(rows, 0.0);
                jobs.push((Job::Product { piece, x: activations[x].clone(), isa }, at + first, values));
            }
        }
        team.run(jobs, |at, values| {
            out[at..at + values.len()].copy_from_slice(&values);
            spare.push(values);
        });
    }

    fn clear(&mut self) {
        self.work.clear();
        self.vectors.clear();
        self.lrm.0.clear();
        self.l2_writes.0.clear();
        self.l2_reads.0.clear();
    }
}

/// Does what was put off. Errors: the place of the instruction that faulted, and how.
pub fn flush(core: &mut Core<'_>, edges: &mut Edges<'_>) -> Result<(), (usize, Fault)> {
    if core.batch.is_empty() {
        return Ok(());
    }
    let mut batch = std::mem::take(&mut core.batch);
    batch.compute(core.isa, &core.team);
    let mut rest = batch.out.as_slice();
    let mut done = Ok(());
    for (at, work) in &batch.work {
        let one = match work {
            Work::Product { to, matrix, .. } => {
                let (out, after) = rest.split_at(matrix.rows.next_multiple_of(LANES) as usize);
                rest = after;
                let out = &out[..matrix.rows as usize];
                count_infinite(out, &mut core.counters);
                core.lrm.store(to, out, &mut core.counters);
                Ok(())
            }
            Work::Store { tile, to, at } => flow::store(core, tile, *to, *at),
            Work::Send { from, address, bytes } => flow::send(core, edges, *from, *address, *bytes),
        };
        if let Err(fault) = one {
            done = Err((*at, fault));
            break;
        }
    }
    batch.clear();
    core.batch = batch;
    done
}
