//! Groups side by side, each in a lane of its own, and near 1.
//!
//! What is searched for in them is not known here.

use super::machine::Machine;

/// Groups that are fitted side by side.
pub(crate) const LANES: usize = 16;

/// A value of each lane.
pub(crate) type Lanes<T = f32> = [T; LANES];

/// Buffers that are used again, `[column][lane]`, with columns of zeros up to a multiple of [`LANES`]: they add nothing to
/// any sum.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The weights' bits.
    pub(super) bits: Vec<Column<u32>>,
    /// The weights, scaled.
    pub(super) w: Vec<Column>,
}

/// A column's value of each lane, where a register of 512 bits crosses no cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Column<T = f32>(pub(super) Lanes<T>);

/// Groups of `len` weights one after the other, at most [`LANES`] of them.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    pub weights: &'a [f32],
    pub len: usize,
}

/// The bits of the groups' weights, a group a lane, and each group's largest magnitude. Lanes without a group are
/// zero, which adds nothing to any sum.
#[inline(always)]
pub(super) fn spread<M: Machine>(m: M, groups: Groups<'_>, bits: &mut Vec<Column<u32>>) -> Lanes {
    bits.resize(groups.len.next_multiple_of(LANES), Column([0; LANES]));
    let none = m.words(&[0; LANES]);
    let mut most = none;
    let mut rows = [none; LANES];
    for (at, columns) in bits.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for (row, group) in rows.iter_mut().zip(groups.weights.chunks_exact(groups.len)) {
            let words: &[u32] = bytemuck::cast_slice(&group[at * LANES..]);
            *row = match words.first_chunk() {
                Some(words) => m.words(words),
                None => {
                    let mut part = [0; LANES];
                    part[..words.len()].copy_from_slice(words);
                    m.words(&part)
                }
            };
        }
        for (column, words) in columns.iter_mut().zip(m.turn(rows)) {
            most = m.magnitude(most, words);
            column.0 = m.word_lanes(words);
        }
    }
    m.word_lanes(most).map(f32::from_bits)
}

/// The weights, scaled.
#[inline(always)]
pub(super) fn shrink<M: Machine>(m: M, bits: &[Column<u32>], toward_one: &Lanes, w: &mut Vec<Column>) {
    w.resize(bits.len(), Column([0.0; LANES]));
    let toward_one = m.floats(toward_one);
    for (Column(w), Column(bits)) in w.iter_mut().zip(bits) {
        *w = m.lanes(m.mul(m.floats(bytemuck::cast_ref(bits)), toward_one));
    }
}

/// a · b.
#[inline(always)]
pub(super) fn times(a: &Lanes, b: &Lanes) -> Lanes {
    let mut product = [0.0; LANES];
    for l in 0..LANES {
        product[l] = a[l] * b[l];
    }
    product
}

/// 1 / s.
#[inline(always)]
pub(super) fn inverse(s: &Lanes) -> Lanes {
    let mut inverse = [0.0; LANES];
    for l in 0..LANES {
        inverse[l] = 1.0 / s[l];
    }
    inverse
}
