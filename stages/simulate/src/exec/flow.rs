//! Between L2 and local register memory: load, store, broadcast, and the conversion they share.

use super::{Core, Scratch, expect};
use crate::convert::{self, fx_to_fx};
use crate::counters::Counters;
use crate::edges::Edges;
use crate::error::Fault;
use mica_device::format::Format;
use mica_device::isa::Instr;
use mica_device::tile::Tile;

/// How one side of a conversion stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub format: Format,
    pub frac: u8,
}

/// Whether elements of one format become elements of another: integers only stay themselves, but
/// I8 widens to any number.
pub fn converts(from: Format, to: Format) -> bool {
    match (from, to) {
        (_, Format::I8) => false,
        (Format::I32, _) | (_, Format::I32) => from == to,
        _ => true,
    }
}

/// Converts elements. Equal formats copy the bits; FX32 to FX32 shifts; everything else goes
/// through f32.
pub fn convert(
    from: Stored,
    source: &[u8],
    to: Stored,
    out: &mut [u8],
    scratch: &mut Vec<f32>,
    counters: &mut Counters,
) {
    if from == to {
        out.copy_from_slice(source);
    } else if from.format == Format::Fx32 && to.format == Format::Fx32 {
        let (out, _) = out.as_chunks_mut();
        for (o, v) in out.iter_mut().zip(convert::words(source)) {
            *o = fx_to_fx(v, from.frac, to.frac, counters).to_le_bytes();
        }
    } else {
        scratch.clear();
        convert::decode(from.format, from.frac, source, scratch);
        convert::encode(scratch, to.format, to.frac, out, counters);
    }
}

fn stored_as(i: &Instr) -> Stored {
    Stored {
        // the static check knows the format
        format: Format::from_code(i.flags).unwrap_or(Format::F32),
        frac: i.r[2],
    }
}

/// L2 to tile.
pub fn ldt(core: &mut Core<'_>, i: &Instr, edges: &Edges<'_>) -> Result<(), Fault> {
    let t = core.tile(i, 0)?;
    let from = stored_as(i);
    if !converts(from.format, t.format) {
        return Err(Fault::Format { tile: i.r[0] });
    }
    let source = core.l2.read(i.x, t.len() * from.format.bytes(), edges)?;
    let out = core.lrm.write(&t, 0, t.len());
    let to = Stored { format: t.format, frac: t.frac };
    convert(from, source, to, out, &mut core.scratch.a, &mut core.counters);
    Ok(())
}

/// Tile to L2, at once or after the products that are put off.
pub fn stt(core: &mut Core<'_>, at: usize, i: &Instr) -> Result<(), Fault> {
    let (tile, to) = (core.tile(i, 0)?, stored_as(i));
    if !converts(tile.format, to.format) {
        return Err(Fault::Format { tile: i.r[0] });
    }
    if core.batch.is_empty() {
        return store(core, &tile, to, i.x);
    }
    core.batch.store(at, tile, to, i.x);
    Ok(())
}

/// A tile's elements to L2.
pub fn store(core: &mut Core<'_>, t: &Tile, to: Stored, at: u32) -> Result<(), Fault> {
    let source = core.lrm.read(t, 0, t.len())?;
    let out = core.l2.write(at, t.len() * to.format.bytes())?;
    let from = Stored { format: t.format, frac: t.frac };
    convert(from, source, to, out, &mut core.scratch.a, &mut core.counters);
    Ok(())
}

/// L2 to an edge.
pub fn send(
    core: &mut Core<'_>,
    edges: &mut Edges<'_>,
    from: u32,
    address: u64,
    bytes: u64,
) -> Result<(), Fault> {
    let source = core.l2.read_apart(from, bytes, edges)?;
    edges.write(address, bytes)?.copy_from_slice(source);
    Ok(())
}

/// Tile to F16 tile.
pub fn bct(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, from) = (core.of(i, 0, Format::F16)?, core.number(i, 1)?);
    expect(i, 0, &to, from.len())?;
    let Scratch { a, .. } = &mut core.scratch;
    core.lrm.load(&from, a)?;
    core.lrm.store(&to, a, &mut core.counters);
    Ok(())
}
