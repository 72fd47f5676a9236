//! The debugger's view of a running kernel: a call at every op boundary, and one before any instruction that it
//! watches. Looking changes nothing: a run that is watched gives the bits of one that is not.

use crate::counters::Counters;
use crate::edges::Edges;
use crate::l2::L2;
use crate::lrm::Lrm;
use crate::program::BUFFER_SHIFT;
use mica_device::access::TileFile;
use mica_device::format::Format;
use mica_device::isa::{Instr, SCALARS};
use mica_device::tile::Tile;
use std::ops::ControlFlow;

/// An op boundary (`OPB`) that the program has reached.
#[derive(Clone, Copy, Debug)]
pub struct Boundary<'a> {
    /// `layer << 16 | op`.
    pub src: u32,
    /// Index of the `OPB` in the kernel.
    pub instruction: usize,
    /// The tile that holds the op's result, where the instruction names one.
    pub tile: Option<TileValues<'a>>,
}

/// The contents of a tile.
#[derive(Clone, Copy, Debug)]
pub struct TileValues<'a> {
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// The elements, row-major, each exact.
    pub values: &'a [f64],
}

/// The device between two instructions.
pub struct View<'a> {
    /// Index of the next instruction in the kernel.
    pub instruction: usize,
    /// That instruction.
    pub next: &'a Instr,
    /// The kernel's constant segments: first address, content.
    pub(crate) segments: &'a [(u64, &'a [u8])],
    pub(crate) scalars: &'a [u64; SCALARS as usize],
    pub(crate) tiles: &'a TileFile,
    pub(crate) lrm: &'a Lrm,
    pub(crate) l2: &'a L2<'a>,
    pub(crate) counters: Counters,
    pub(crate) edges: &'a Edges<'a>,
}

impl View<'_> {
    /// Scalar registers.
    pub fn scalars(&self) -> &[u64; SCALARS as usize] {
        self.scalars
    }

    /// What has been counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A tile descriptor, where one is defined.
    pub fn tile(&self, t: u8) -> Option<Tile> {
        self.tiles.get(t)
    }

    /// Bytes of local register memory; `None` past its end.
    pub fn lrm(&self, start: u64, bytes: u64) -> Option<Vec<u8>> {
        self.lrm.peek(start, bytes)
    }

    /// Bytes of L2; `None` past its end.
    pub fn l2(&self, start: u64, bytes: u64) -> Option<Vec<u8>> {
        self.l2.peek(start, bytes, self.edges)
    }

    /// Bytes of external memory, by address as a program forms it; `None` outside of the buffers.
    pub fn external(&self, address: u64, bytes: u64) -> Option<Vec<u8>> {
        if address >> BUFFER_SHIFT != 0 {
            return self.edges.peek(address, bytes);
        }
        let n = self.segments.partition_point(|s| s.0 <= address);
        let (offset, content) = self.segments[n.checked_sub(1)?];
        let from = (address - offset) as usize;
        content.get(from..from.checked_add(bytes as usize)?).map(<[u8]>::to_vec)
    }
}

/// Gets every boundary of a call.
pub trait Observer {
    /// Whether it wants to look before instruction `at`; what it does not watch costs next to nothing.
    fn watches(&self, at: usize) -> bool {
        let _ = at;
        false
    }

    /// Looks at the device before a watched instruction, everything before it done; `Break` ends the call.
    fn before(&mut self, view: &View<'_>) -> ControlFlow<()> {
        let _ = view;
        ControlFlow::Continue(())
    }

    /// Whether it wants the boundary of `src` at all; what it does not want costs nothing.
    fn wants(&self, src: u32) -> bool {
        let _ = src;
        true
    }

    /// Looks at a boundary; `Break` ends the call there, as `halt` would.
    fn boundary(&mut self, boundary: &Boundary<'_>) -> ControlFlow<()>;
}

/// Events by the op that they happened in. It watches every instruction, so a run with it is slow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Counters by `layer << 16 | op`, of ops with instructions that ran.
    pub by_src: std::collections::BTreeMap<u32, Counters>,
    seen: Counters,
    running: Option<u32>,
}

impl Tally {
    /// Notes what has been counted up to an instruction of `next`.
    pub fn look(&mut self, counters: Counters, next: Option<u32>) {
        if let Some(src) = self.running {
            *self.by_src.entry(src).or_default() += counters - self.seen;
        }
        self.seen = counters;
        self.running = next;
    }

    /// The call has ended with these counters; the next one counts from 0.
    pub fn end(&mut self, counters: Counters) {
        self.look(counters, None);
        self.seen = Counters::default();
    }
}

impl Observer for Tally {
    fn watches(&self, _: usize) -> bool {
        true
    }

    fn wants(&self, _: u32) -> bool {
        false
    }

    fn before(&mut self, view: &View<'_>) -> ControlFlow<()> {
        self.look(view.counters(), Some(view.next.src));
        ControlFlow::Continue(())
    }

    fn boundary(&mut self, _: &Boundary<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
