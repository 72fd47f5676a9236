//! The candidates for a scale, and which of them has the least error.
//!
//! How an error is summed is not known here.

use super::grid::{Clamps, Grid};
use super::lanes::{Column, LANES, Lanes, inverse, times};
use super::machine::Machine;
use super::sums::{TERMS, errors_of};
use crate::recipe::ScaleFormat;
use crate::scale::rounded;

/// Candidates for a scale.
pub(super) const CANDIDATES: usize = 12;
/// Candidates whose errors are summed side by side.
const TOGETHER: usize = 3;

/// The scale of least error in each lane, the first of equals.
#[inline(always)]
pub(super) fn best<M: Machine, const EXACT: bool>(
    m: M,
    w: &[Column],
    max: &Lanes,
    toward_one: &Lanes,
    grid: Grid,
    format: ScaleFormat,
) -> Lanes {
    let [mut scales, mut s, mut inverses] = [[[0.0; LANES]; CANDIDATES]; 3];
    for k in 0..CANDIDATES {
        let shrink = 1.0 - k as f32 * grid.step;
        for l in 0..LANES {
            scales[k][l] = rounded(max[l] / grid.hi * shrink, format);
        }
        s[k] = times(&scales[k], toward_one);
        inverses[k] = inverse(&s[k]);
    }
    let (s, inverses) = (s.as_chunks::<TOGETHER>().0, inverses.as_chunks::<TOGETHER>().0);
    // Products and their rounding grow with the factors, and scales fall from candidate to candidate: the integer of the
    // largest magnitude at the last one bounds them all.
    let largest = m.floats(&times(max, toward_one));
    let mut clamps = [Clamps::Both; CANDIDATES / TOGETHER];
    for (clamps, inverses) in clamps.iter_mut().zip(inverses) {
        let q = m.nearest(m.mul(largest, m.floats(&inverses[TOGETHER - 1])));
        *clamps = grid.clamps(m.most(q));
    }
    let mut errors = [m.doubles(&[0.0; LANES]); CANDIDATES];
    for block in w.chunks(TERMS) {
        let totals = errors.as_chunks_mut::<TOGETHER>().0;
        for (((totals, s), inverses), clamps) in totals.iter_mut().zip(s).zip(inverses).zip(clamps) {
            let sums = match clamps {
                Clamps::Neither => errors_of::<M, TOGETHER, EXACT, false, false>(m, block, s, inverses, grid),
                Clamps::High => errors_of::<M, TOGETHER, EXACT, true, false>(m, block, s, inverses, grid),
                Clamps::Both => errors_of::<M, TOGETHER, EXACT, true, true>(m, block, s, inverses, grid),
            };
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = m.fold(*total, sum);
            }
        }
    }
    let zero = m.doubles(&[0.0; LANES]);
    let mut scale = m.fold(zero, m.floats(&scales[0]));
    let mut least = errors[0];
    for (scales, &errors) in scales.iter().zip(&errors).skip(1) {
        // As wide as the errors are, exactly.
        scale = m.choose(errors, least, m.fold(zero, m.floats(scales)), scale);
        least = m.choose(errors, least, errors, least);
    }
    m.double_lanes(scale).map(|scale| scale as f32)
}
