//! Sums over a group's weights at one scale: each term in binary32 in the order of the columns, folded into binary64.
//!
//! Where a scale comes from is not known here.

use super::grid::Grid;
use super::lanes::{Column, LANES, Lanes, inverse};
use super::machine::Machine;

/// Terms of a binary32 sum before it is folded into binary64.
pub(super) const TERMS: usize = 32;

/// Σ (w − q·s)² over a block, at some scales; `HIGH` and `LOW`: whether to clamp.
#[inline(always)]
pub(super) fn errors_of<M: Machine, const N: usize, const EXACT: bool, const HIGH: bool, const LOW: bool>(
    m: M,
    block: &[Column],
    s: &[Lanes; N],
    inverses: &[Lanes; N],
    grid: Grid,
) -> [M::Float; N] {
    let limits = [m.floats(&[grid.lo; LANES]), m.floats(&[grid.hi; LANES])];
    let zero = m.floats(&[0.0; LANES]);
    let [mut scales, mut inverse, mut sums] = [[zero; N]; 3];
    for k in 0..N {
        scales[k] = m.floats(&s[k]);
        inverse[k] = m.floats(&inverses[k]);
    }
    if M::MANY {
        for Column(w) in block {
            let w = m.floats(w);
            for k in 0..N {
                let square = square_of::<M, EXACT, HIGH, LOW>(m, w, scales[k], inverse[k], limits);
                sums[k] = m.add(sums[k], square);
            }
        }
    } else {
        for k in 0..N {
            let mut sum = zero;
            for Column(w) in block {
                let square = square_of::<M, EXACT, HIGH, LOW>(m, m.floats(w), scales[k], inverse[k], limits);
                sum = m.add(sum, square);
            }
            sums[k] = sum;
        }
    }
    sums
}

/// (w − q·s)².
#[inline(always)]
fn square_of<M: Machine, const EXACT: bool, const HIGH: bool, const LOW: bool>(
    m: M,
    w: M::Float,
    s: M::Float,
    inverse: M::Float,
    [lo, hi]: [M::Float; 2],
) -> M::Float {
    let mut q = m.nearest(m.mul(w, inverse));
    if HIGH {
        q = m.at_most(hi, q);
    }
    if LOW {
        q = m.at_least(lo, q);
    }
    let r = rest::<M, EXACT>(m, w, q, s);
    m.mul(r, r)
}

/// w − q·s.
#[inline(always)]
fn rest<M: Machine, const EXACT: bool>(m: M, w: M::Float, q: M::Float, s: M::Float) -> M::Float {
    if EXACT { m.sub_exact(w, q, s) } else { m.sub(w, m.mul(q, s)) }
}

/// Σ (w − q·s)².
#[inline(always)]
pub(super) fn errors<M: Machine, const EXACT: bool>(m: M, w: &[Column], s: &Lanes, grid: Grid) -> Lanes<f64> {
    let inverse = inverse(s);
    let mut total = m.doubles(&[0.0; LANES]);
    for block in w.chunks(TERMS) {
        let [sum] = errors_of::<M, 1, EXACT, true, true>(m, block, &[*s], &[inverse], grid);
        total = m.fold(total, sum);
    }
    m.double_lanes(total)
}

/// What a scale comes to, a lane each.
pub(super) struct Sums {
    /// Σ (w − q·s)².
    pub(super) error: Lanes<f64>,
    /// Σ wq.
    pub(super) wq: Lanes<f64>,
    /// Σ qq.
    pub(super) qq: Lanes<f64>,
    /// Σ ww.
    pub(super) ww: Lanes<f64>,
}

/// The sums at one scale a lane, in the scaled groups' terms.
#[inline(always)]
pub(super) fn measure<M: Machine, const EXACT: bool>(m: M, w: &[Column], s: &Lanes, grid: Grid) -> Sums {
    let (s, inverse) = (m.floats(s), m.floats(&inverse(s)));
    let (lo, hi) = (m.floats(&[grid.lo; LANES]), m.floats(&[grid.hi; LANES]));
    let mut totals = [m.doubles(&[0.0; LANES]); 4];
    for block in w.chunks(TERMS) {
        let [mut error, mut wq, mut qq, mut ww] = [m.floats(&[0.0; LANES]); 4];
        for Column(w) in block {
            let w = m.floats(w);
            let q = m.at_least(lo, m.at_most(hi, m.nearest(m.mul(w, inverse))));
            let r = rest::<M, EXACT>(m, w, q, s);
            error = m.add(error, m.mul(r, r));
            wq = m.add(wq, m.mul(w, q));
            qq = m.add(qq, m.mul(q, q));
            ww = m.add(ww, m.mul(w, w));
        }
        for (total, sum) in totals.iter_mut().zip([error, wq, qq, ww]) {
            *total = m.fold(*total, sum);
        }
    }
    let [error, wq, qq, ww] = totals;
    Sums {
        error: m.double_lanes(error),
        wq: m.double_lanes(wq),
        qq: m.double_lanes(qq),
        ww: m.double_lanes(ww),
    }
}
