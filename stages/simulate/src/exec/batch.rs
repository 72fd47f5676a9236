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
use crate::team::{Team, Units};
use mica_device::access::TileFile;
use mica_device::isa::{Instr, Opcode};
use mica_device::layout::{LANES, MatrixLayout, TILE_ROWS, WeightFormat};
use mica_device::tile::{Tile, matrix};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries after which a batch is full: as many tiles keep any number of threads busy.
const FULL: usize = 1 << 12;

/// Bytes of weights from which on products are shared out.
const SHARED_BYTES: u64 = 1 << 17;
/// Rows of a full tile, as a length.
const ROWS: usize = TILE_ROWS as usize;

/// One instruction that was put off.
#[derive(Debug)]
enum Work {
    /// A product into a tile: the next of `Products`.
    Product { to: Tile },
    /// A tile to L2.
    Store { tile: Tile, to: Stored, at: u32 },
    /// L2 to an edge.
    Send { from: u32, address: u64, bytes: u64 },
}

/// A product of constants and a prepared vector.
#[derive(Clone, Copy, Debug)]
struct Product<'c> {
    matrix: MatrixLayout,
    bytes: &'c [u8],
    /// The vector, by its number.
    x: usize,
    /// The first of its tiles among those of all products, and the first of its padded rows.
    tile: usize,
    row: usize,
}

/// Products that wait, and their results; a tile of a matrix is a unit of work.
#[derive(Debug, Default)]
struct Products<'c> {
    isa: Isa,
    list: Vec<Product<'c>>,
    /// Prepared vectors; those beyond the ones in use keep their memory for later.
    activations: Vec<Activation>,
    tiles: usize,
    rows: usize,
    bytes: u64,
    /// The bits of the results, padded rows product after product.
    out: Vec<AtomicU32>,
}

impl Units for Products<'_> {
    fn count(&self) -> usize {
        self.tiles
    }

    fn unit(&self, n: usize) {
        let p = &self.list[self.list.partition_point(|p| p.tile <= n) - 1];
        let first = n - p.tile;
        let rows = p.matrix.rows.next_multiple_of(LANES) as usize;
        let mut values = [0.0; ROWS];
        let values = &mut values[..ROWS.min(rows - first * ROWS)];
        Piece { matrix: p.matrix, bytes: p.bytes, first }.run(self.isa, &self.activations[p.x], values);
        for (out, v) in self.out[p.row + first * ROWS..].iter().zip(values) {
            // published with the end of the unit
            out.store(v.to_bits(), Ordering::Relaxed);
        }
    }
}

impl<'c> Products<'c> {
    fn push(&mut self, matrix: MatrixLayout, bytes: &'c [u8], x: usize) {
        self.list.push(Product { matrix, bytes, x, tile: self.tiles, row: self.rows });
        self.tiles += matrix.tiles() as usize;
        self.rows += matrix.rows.next_multiple_of(LANES) as usize;
        self.bytes += matrix.bytes();
        if self.out.len() < self.rows {
            self.out.resize_with(self.rows, AtomicU32::default);
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        (self.tiles, self.rows, self.bytes) = (0, 0, 0);
    }
}

/// What a vector was prepared from: place and length in local register memory, and the grouping.
type Vector = (u32, u64, Option<u32>);

/// The instructions put off, in program order, each with its place in the program.
#[derive(Debug, Default)]
pub struct Batch<'c> {
    work: Vec<(usize, Work)>,
    products: Arc<Products<'c>>,
    vectors: Vec<Vector>,
    /// Local register memory and L2 that the work will write, and L2 that it will read.
    lrm: Ranges,
    l2_writes: Ranges,
    l2_reads: Ranges,
    out: Vec<f32>,
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

    /// Whether `i` could see that the work has not been done, or change what it works on. `external`: whether a
    /// transfer reads what no call changes, and its length.
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
            Opcode::Dld => external.is_none_or(|(unchanging, bytes)| {
                let written = l2(bytes);
                (!unchanging && !self.l2_reads.0.is_empty())
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
        debug_assert_eq!(grouping.is_none(), matrix.format.weight == WeightFormat::F16);
        let vector = (from.offset, from.len(), grouping);
        let products = self.products();
        products.isa = isa;
        let x = self.vectors.iter().position(|v| *v == vector).unwrap_or(self.vectors.len());
        if x == self.vectors.len() {
            self.vectors.push(vector);
            let products = self.products();
            products.activations.resize_with((x + 1).max(products.activations.len()), Activation::default);
            products.activations[x].prepare(isa, &matrix, elements());
        }
        self.products().push(matrix, bytes, x);
        self.lrm.add(to.range());
        self.work.push((at, Work::Product { to }));
    }

    /// The products that wait, to be changed. A helper that looked in late may still hold those of the last
    /// round, which are left to it then.
    fn products(&mut self) -> &mut Products<'c> {
        if Arc::get_mut(&mut self.products).is_none() {
            self.products = Arc::default();
        }
        // nobody else has what was just made
        Arc::get_mut(&mut self.products).expect("the only owner")
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

    fn compute(&mut self, team: &Team<'c>) {
        let Batch { products, out, .. } = self;
        if products.bytes < SHARED_BYTES {
            (0..products.count()).for_each(|n| products.unit(n));
        } else {
            team.run(Arc::clone(products) as Arc<dyn Units + 'c>);
        }
        out.clear();
        let bits = products.out[..products.rows].iter();
        out.extend(bits.map(|v| f32::from_bits(v.load(Ordering::Relaxed))));
    }

    fn clear(&mut self) {
        self.work.clear();
        self.products().clear();
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
    batch.compute(&core.team);
    let mut rest = batch.out.as_slice();
    let mut done = Ok(());
    for (at, work) in &batch.work {
        let one = match work {
            Work::Product { to } => {
                // a product fills its tile, and its rows are padded
                let (out, after) = rest.split_at(to.len().next_multiple_of(LANES) as usize);
                rest = after;
                let out = &out[..to.len() as usize];
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
