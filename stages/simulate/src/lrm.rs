//! Local register memory, as the one byte space that tiles lie in.

use crate::convert;
use crate::counters::Counters;
use crate::error::Fault;
use crate::l2::FILL;
use crate::written::Written;
use mica_device::access::Memory;
use mica_device::format::Format;
use mica_device::tile::Tile;

/// The memory; its bytes grow with the tiles that are defined.
#[derive(Clone, Debug)]
pub struct Lrm {
    size: u64,
    bytes: Vec<u8>,
    written: Option<Written>,
}

impl Lrm {
    pub fn new(size: u64, strict: bool) -> Lrm {
        Lrm { size, bytes: Vec::new(), written: strict.then(Written::default) }
    }

    /// Undefined contents again.
    pub fn reset(&mut self) {
        self.bytes.fill(FILL);
        if let Some(w) = &mut self.written {
            w.clear();
        }
    }

    /// Makes room for a tile that is being defined.
    pub fn reserve(&mut self, tile: &Tile) -> Result<(), Fault> {
        let range = tile.reserved();
        if range.end > self.size {
            return Err(Fault::Range {
                memory: Memory::Lrm,
                start: range.start,
                bytes: range.end - range.start,
            });
        }
        let end = range.end as usize;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(1 << 14), FILL);
        }
        Ok(())
    }

    /// `elements` elements of a tile from element `first` on, which the caller knows lie in it.
    pub fn read(&self, tile: &Tile, first: u64, elements: u64) -> Result<&[u8], Fault> {
        let start = u64::from(tile.offset) + first * tile.format.bytes();
        let bytes = elements * tile.format.bytes();
        if let Some(w) = &self.written
            && !w.all(start, bytes)
        {
            return Err(Fault::Unwritten { memory: Memory::Lrm, start, bytes });
        }
        Ok(&self.bytes[start as usize..(start + bytes) as usize])
    }

    /// Bytes as they are, whether or not anything wrote them; `None` past the end.
    pub fn peek(&self, start: u64, bytes: u64) -> Option<Vec<u8>> {
        let end = start.checked_add(bytes).filter(|&end| end <= self.size)?;
        let held = self.bytes.get(start as usize..self.bytes.len().min(end as usize)).unwrap_or_default();
        let mut out = held.to_vec();
        out.resize(bytes as usize, FILL);
        Some(out)
    }

    /// The bytes of elements that are about to be overwritten, as `read`.
    pub fn write(&mut self, tile: &Tile, first: u64, elements: u64) -> &mut [u8] {
        let start = u64::from(tile.offset) + first * tile.format.bytes();
        let bytes = elements * tile.format.bytes();
        if let Some(w) = &mut self.written {
            w.set(start, bytes);
        }
        &mut self.bytes[start as usize..(start + bytes) as usize]
    }

    /// The f32 values of a whole tile.
    pub fn load(&self, tile: &Tile, out: &mut Vec<f32>) -> Result<(), Fault> {
        self.load_part(tile, 0, tile.len(), out)
    }

    /// The f32 values of some elements.
    pub fn load_part(&self, tile: &Tile, first: u64, elements: u64, out: &mut Vec<f32>) -> Result<(), Fault> {
        out.clear();
        let bytes = self.read(tile, first, elements)?;
        convert::decode(tile.format, tile.frac, bytes, out);
        Ok(())
    }

    /// Some elements of an F32 tile as they are stored.
    pub fn floats(&self, tile: &Tile, first: u64, elements: u64) -> Result<&[[u8; 4]], Fault> {
        debug_assert_eq!(tile.format, Format::F32);
        Ok(self.read(tile, first, elements)?.as_chunks().0)
    }

    /// Stores f32 values that are known to be finite, as `store_part`.
    pub fn store_finite(&mut self, tile: &Tile, first: u64, values: &[f32], counters: &mut Counters) {
        if tile.format != Format::F32 {
            return self.store_part(tile, first, values, counters);
        }
        let out = self.write(tile, first, values.len() as u64).as_chunks_mut().0;
        for (o, v) in out.iter_mut().zip(values) {
            *o = v.to_le_bytes();
        }
    }

    /// Stores f32 values as the tile's first elements, as many as there are values.
    pub fn store(&mut self, tile: &Tile, values: &[f32], counters: &mut Counters) {
        self.store_part(tile, 0, values, counters);
    }

    /// Stores f32 values from element `first` on.
    pub fn store_part(&mut self, tile: &Tile, first: u64, values: &[f32], counters: &mut Counters) {
        let bytes = self.write(tile, first, values.len() as u64);
        convert::encode(values, tile.format, tile.frac, bytes, counters);
    }
}
