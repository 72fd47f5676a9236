//! The integers of groups at their scales.
//!
//! How a scale was found is not known here.

use super::grid::Grid;
use super::lanes::{Column, LANES, Lanes, Scratch, inverse, times};
use super::machine::{Machine, ROUND};

/// What the integers of a scale leave out, a lane each.
pub(super) struct Assigned {
    /// Weights beyond the integer range.
    pub(super) clamped: Lanes<u32>,
    /// Weights that f32(q) · scale is not exactly.
    pub(super) differ: Lanes<u32>,
}

/// Writes the integers as the groups, of `len` weights each, lie.
#[inline(always)]
pub(super) fn assign<M: Machine>(
    m: M,
    scratch: &Scratch,
    len: usize,
    scale: &Lanes,
    toward_one: &Lanes,
    grid: Grid,
    q: &mut [i8],
) -> Assigned {
    // A word holds a lane's integers of four columns.
    const WORD: usize = 4;
    const BLOCK: usize = WORD * LANES;
    let inverse = m.floats(&inverse(&times(scale, toward_one)));
    let scale = m.floats(scale);
    let (lo, hi) = (m.floats(&[grid.lo; LANES]), m.floats(&[grid.hi; LANES]));
    let round = m.floats(&[ROUND; LANES]);
    let none = m.words(&[0; LANES]);
    let (mut clamped, mut differ) = (none, none);
    let blocks = scratch.w.chunks(BLOCK).zip(scratch.bits.chunks(BLOCK));
    for (at, (w, bits)) in blocks.enumerate() {
        let mut words = [none; LANES];
        for (words, (w, bits)) in words.iter_mut().zip(w.chunks(WORD).zip(bits.chunks(WORD))) {
            for (at, (Column(w), Column(bits))) in w.iter().zip(bits).enumerate() {
                let free = m.nearest(m.mul(m.floats(w), inverse));
                let x = m.at_least(lo, m.at_most(hi, free));
                clamped = m.count(clamped, x, free);
                differ = m.count(differ, m.mul(x, scale), m.floats(bytemuck::cast_ref(bits)));
                // The low bits of x + ROUND are the integer in two's complement.
                *words = m.place(*words, at, m.add(x, round));
            }
        }
        let from = at * BLOCK;
        let left = BLOCK.min(len - from);
        for (lane, words) in m.turn(words).into_iter().take(q.len() / len).enumerate() {
            let bytes: [i8; BLOCK] = bytemuck::cast(m.word_lanes(words));
            let q = &mut q[lane * len + from..];
            match q.first_chunk_mut() {
                // What lies beyond a group that is shorter is written next.
                Some(whole) if at == 0 || left == BLOCK => *whole = bytes,
                _ => q[..left].copy_from_slice(&bytes[..left]),
            }
        }
    }
    Assigned { clamped: m.word_lanes(clamped), differ: m.word_lanes(differ) }
}
