//! Liveness and addresses of LRM and L2 buffers.
//!
//! LRM is first fit, so that the peak is small. L2 is next fit around the whole of it: an address is
//! used again as late as possible, so that DMA runs ahead of the engines that read, as far as L2
//! allows. All addresses are multiples of 64.

use crate::ir::{Inst, Item, Program};
use mica_device::layout::ALIGN;

/// The instructions between which a buffer is live, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// First that names it.
    pub first: usize,
    /// Last that names it; of a buffer older than a loop, at least the loop's end.
    pub last: usize,
}

/// A buffer that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Item at which it becomes live.
    pub at: usize,
    /// Bytes that would be needed.
    pub need: u64,
}

/// Addresses of buffers, and the highest byte used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Address by buffer; 0 for one that nothing names.
    pub at: Vec<u64>,
    /// One past the highest byte.
    pub peak: u64,
}

/// The live range of each buffer, by what `names` says an instruction names.
pub fn live(p: &Program, buffers: usize, names: impl Fn(&Inst, &mut dyn FnMut(usize))) -> Vec<Option<Live>> {
    let mut all: Vec<Option<Live>> = vec![None; buffers];
    for (at, item) in p.items.iter().enumerate() {
        let Item::Inst(inst) = item else { continue };
        names(inst, &mut |b| {
            let range = all[b].get_or_insert(Live { first: at, last: at });
            range.last = at;
        });
    }
    for (start, end) in p.loops() {
        for range in all.iter_mut().flatten() {
            if range.first < start && (start..=end).contains(&range.last) {
                range.last = end;
            }
        }
    }
    all
}

fn up(n: u64) -> u64 {
    n.next_multiple_of(ALIGN)
}

/// What holds a range of addresses at one time.
struct Held {
    from: u64,
    to: u64,
    last: usize,
}

/// The lowest gap of `size` bytes from `from` on, between what is held.
fn gap(held: &[Held], mut from: u64, size: u64) -> u64 {
    for h in held {
        if from + size <= h.from {
            break;
        }
        from = from.max(h.to);
    }
    from
}

/// First fit for LRM. A result takes the place of an operand that dies in the same instruction where
/// that is element by element.
///
/// # Errors
/// `NoRoom` where a buffer ends above `limit`.
pub fn lrm(p: &Program, limit: u64) -> Result<Placed, NoRoom> {
    let ranges = live(p, p.lrm.len(), |i, f| i.lrm().for_each(|b| f(b.0 as usize)));
    let mut born: Vec<Vec<usize>> = vec![Vec::new(); p.items.len()];
    for (b, r) in ranges.iter().enumerate() {
        if let Some(r) = r {
            born[r.first].push(b);
        }
    }
    let mut placed = Placed { at: vec![0; p.lrm.len()], peak: 0 };
    let mut held: Vec<Held> = Vec::new();
    for (at, item) in p.items.iter().enumerate() {
        held.retain(|h| h.last >= at);
        for &b in &born[at] {
            let last = ranges[b].map_or(at, |r| r.last);
            if let Item::Inst(inst) = item
                && let Some((to, from)) = inst.in_place()
                && to.buf.0 as usize == b
            {
                let f = from.buf.0 as usize;
                let dies = ranges[f].is_some_and(|r| r.last == at);
                if dies && (to.bytes(), from.bytes()) == (p.lrm[b], p.lrm[f]) {
                    placed.at[b] = placed.at[f];
                    held.iter_mut().filter(|h| h.from == placed.at[f]).for_each(|h| h.last = last);
                    continue;
                }
            }
            let size = up(p.lrm[b]);
            let from = gap(&held, 0, size);
            if from + size > limit {
                return Err(NoRoom { at, need: from + size });
            }
            placed.at[b] = from;
            placed.peak = placed.peak.max(from + size);
            let after = held.partition_point(|h| h.from < from);
            held.insert(after, Held { from, to: from + size, last });
        }
    }
    Ok(placed)
}

/// Next fit for L2, below `limit`; buffers with an address keep it throughout.
///
/// # Errors
/// `NoRoom` where no gap is wide enough.
pub fn l2(p: &Program, limit: u64) -> Result<Placed, NoRoom> {
    let ranges = live(p, p.l2.len(), |i, f| i.l2().into_iter().for_each(|b| f(b.0 as usize)));
    let mut placed = Placed { at: vec![0; p.l2.len()], peak: 0 };
    let mut held: Vec<Held> = Vec::new();
    for (b, buf) in p.l2.iter().enumerate() {
        if let Some(from) = buf.fixed {
            placed.at[b] = from;
            let to = from + up(buf.bytes);
            placed.peak = placed.peak.max(to);
            held.push(Held { from, to, last: usize::MAX });
        }
    }
    held.sort_by_key(|h| h.from);
    let mut order: Vec<(usize, usize)> = ranges
        .iter()
        .enumerate()
        .filter(|(b, _)| p.l2[*b].fixed.is_none())
        .filter_map(|(b, r)| r.map(|r| (r.first, b)))
        .collect();
    order.sort_unstable();
    let mut next = 0;
    for (at, b) in order {
        held.retain(|h| h.last >= at);
        let size = up(p.l2[b].bytes);
        // from where the last one ended to the top, then from the bottom
        let fits = |from: &u64| from + size <= limit;
        let Some(from) = [next, 0].map(|from| gap(&held, from, size)).into_iter().find(fits) else {
            let live: u64 = held.iter().map(|h| h.to - h.from).sum();
            return Err(NoRoom { at, need: live + size });
        };
        placed.at[b] = from;
        next = from + size;
        placed.peak = placed.peak.max(next);
        let last = ranges[b].map_or(at, |r| r.last);
        let after = held.partition_point(|h| h.from < from);
        held.insert(after, Held { from, to: next, last });
    }
    Ok(placed)
}
