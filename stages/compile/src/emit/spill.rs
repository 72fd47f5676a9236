//! What does not fit into LRM waits in L2: a value is stored where it was last used and loaded again where it is
//! used next.
//!
//! Nothing is stored while LRM has room. Formats stay, so no bit changes. A loop counts as one place: nothing is
//! stored or loaded within it.

use super::intervals::Intervals;
use super::place::{self, NoRoom, Placed};
use crate::ir::access::Role;
use crate::ir::{Inst, Item, L2Buf, L2Id, LrmId, Program, Reg, Span, Tile, build};
use mica_device::format::Format;

/// A buffer that may wait, and the items between which nothing names it.
#[derive(Clone, Copy, Debug)]
struct Wait {
    buf: LrmId,
    /// Its format and fraction bits.
    format: (Format, u8),
    /// It is stored before the item `from`, and loaded before `to`.
    from: usize,
    to: usize,
    /// Source ops of the instructions that use it before and after.
    src: [u16; 2],
}

/// The most values that are sent to wait; a program that needs more would spend its time on that, and the compiler too.
const MOST: usize = 256;

/// Places LRM below `limit`, with values sent to L2 where that is needed.
///
/// # Errors
/// `NoRoom` where that is not enough.
pub fn lrm(p: &mut Program, limit: u64) -> Result<Placed, NoRoom> {
    for _ in 0..MOST {
        let room = match place::lrm(p, limit) {
            Err(room) => room,
            placed => return placed,
        };
        let Some(wait) = best(p, room.at, limit) else { return Err(room) };
        store_and_load(p, wait);
    }
    place::lrm(p, limit)
}

/// The outermost loop that holds each item, as (its first item, one past its end); an item outside stands alone.
fn places(p: &Program) -> Vec<(usize, usize)> {
    let mut places: Vec<(usize, usize)> = (0..p.items.len()).map(|i| (i, i + 1)).collect();
    // outer ones come first
    for (start, end) in p.loops().into_iter().rev() {
        places[start..=end].fill((start, end + 1));
    }
    places
}

/// The wait across an item that frees most, the longest of those; `None` also where what cannot wait does not fit by itself.
fn best(p: &Program, at: usize, limit: u64) -> Option<Wait> {
    let places = places(p);
    let (begin, end) = places[at];
    let [mut first, mut before, mut after] = [(); 3].map(|()| vec![None; p.lrm.len()]);
    for (i, item) in p.items.iter().enumerate() {
        let Item::Inst(inst) = item else { continue };
        for b in inst.lrm() {
            let b = b.0 as usize;
            first[b].get_or_insert(i);
            if i < end {
                before[b] = Some(i);
            } else {
                after[b].get_or_insert(i);
            }
        }
    }
    // what is live here and named in the same place cannot wait
    let stays = |b: &usize| {
        let last = after[*b].or(before[*b]);
        before[*b] >= Some(begin) && first[*b].is_some_and(|i| i <= at) && last.is_some_and(|i| i >= at)
    };
    if (0..p.lrm.len()).filter(stays).map(|b| p.lrm[b]).sum::<u64>() > limit {
        return None;
    }
    let waits = (0..p.lrm.len()).filter_map(|b| {
        let (last, next) = (before[b].filter(|&i| i < begin)?, after[b]?);
        Some((b, last, next, places[last].1, places[next].0))
    });
    let mut waits: Vec<_> = waits.collect();
    waits.sort_by_key(|&(b, _, _, from, to)| (p.lrm[b], to - from));
    waits.into_iter().rev().find_map(|(b, last, next, from, to)| {
        let (format, src) = whole(p, b, last)?;
        let src = [src, source(&p.items[next])];
        Some(Wait { buf: LrmId(b as u32), format, from, to, src })
    })
}

fn source(item: &Item) -> u16 {
    match item {
        Item::Inst(i) => i.src,
        Item::End => 0,
    }
}

/// The format of a buffer, if all of it is written up to the item `last`, and the op of that item.
fn whole(p: &Program, b: usize, last: usize) -> Option<((Format, u8), u16)> {
    let mut written = Intervals::default();
    let mut format = None;
    for item in &p.items[..=last] {
        let Item::Inst(inst) = item else { continue };
        for (role, t) in inst.tiles().filter(|(_, t)| t.buf.0 as usize == b) {
            format = Some((t.format, t.frac));
            if role == Role::Write && t.count.is_none() {
                written.set(t.offset, t.offset + t.bytes(), 1);
            }
        }
    }
    written.covers(0, p.lrm[b]).then_some(())?;
    Some((format?, source(&p.items[last])))
}

/// Has a buffer stored and loaded again, into another buffer that takes its place from there on.
fn store_and_load(p: &mut Program, w: Wait) {
    let bytes = p.lrm[w.buf.0 as usize];
    let again = LrmId(p.lrm.len() as u32);
    p.lrm.push(bytes);
    let span = Span { buf: L2Id(p.l2.len() as u32), offset: 0, bytes };
    p.l2.push(L2Buf { bytes, fixed: None });
    let (format, frac) = w.format;
    let tile = |buf| {
        let cols = (bytes / format.bytes()) as u32;
        Tile { buf, offset: 0, rows: 1, cols, count: None, format, frac }
    };
    for item in &mut p.items[w.to..] {
        let Item::Inst(inst) = item else { continue };
        for reg in &mut inst.r {
            if let Reg::Tile(t) = reg
                && t.buf == w.buf
            {
                t.buf = again;
            }
        }
    }
    let of = |inst: Inst, src| Item::Inst(Inst { src, ..inst });
    p.items.insert(w.to, of(build::ldt(tile(again), span, format, frac), w.src[1]));
    p.items.insert(w.from, of(build::stt(span, tile(w.buf), format, frac), w.src[0]));
}
