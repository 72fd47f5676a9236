//! The scale of one group, searched for least squared error. Weights alone decide, no activation data.
//!
//! For a group w with largest magnitude m, integers q in `lo..=hi` and a scale s:
//! - candidates are s_k = (m / hi) · (1 − k · step), k = 0..12, each rounded to its stored format first
//!   and not below the format's least normal (binary16: least subnormal) value;
//! - q = clamp(round(w · (1/s)), lo, hi), to nearest, ties to even; the error is Σ (w − q·s)²;
//! - the best candidate (the first of equals) is refined once in closed form: s' = Σwq / Σqq, rounded to
//!   the stored format, taken if its error is smaller.
//!
//! i4 uses −8..=7 and steps of 1/32 (down to 0.66; k = 4 is the full range on the negative side), i8 uses
//! −127..=127 and steps of 1/384 (down to 0.97). The rounding of a scale comes first, so what is measured is what the
//! device will compute.
//!
//! Sixteen groups are worked on side by side, each in a lane of its own. Every operation is one IEEE binary32
//! operation in the order of the columns, or gives the bits of one; sums are folded into binary64 every 32 terms. So
//! neither the width of registers nor a group's neighbours change a bit. Each group is scaled by a power of two to near
//! 1 beforehand, so that squares neither overflow nor vanish.

use crate::recipe::ScaleFormat;
use crate::scale::{largest, rounded};
use assign::assign;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
use candidates::best;
use lanes::{Lanes, shrink, spread, times};
use machine::{Arrays, Machine};
use sums::{errors, measure};

mod assign;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod candidates;
mod grid;
mod lanes;
mod machine;
mod sums;

pub(crate) use grid::Grid;
pub(crate) use lanes::{Groups, LANES, Scratch};

/// A group's integers are in the caller's buffer; this is the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Exactly a value of the stored format.
    pub scale: f32,
    /// Σ (w − q·s)².
    pub error: f64,
    /// Σ w².
    pub energy: f64,
    /// Weights beyond the integer range.
    pub saturated: u64,
    /// Whether f32(q) · scale is each weight exactly.
    pub exact: bool,
}

/// What keeps a group from being fitted, and which one it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unfit {
    /// A NaN or an infinity is among the weights.
    NonFinite(usize),
    /// The scale would overflow its format; the group's largest magnitude.
    Overflow(usize, f32),
}

/// Chooses the scales of some groups and writes their integers to `q`, as they lie in `groups`.
pub(crate) fn fit(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(machine) = Avx512::new() {
            // SAFETY: the processor has what the function asks for.
            return unsafe { fit_avx512(machine, groups, grid, format, scratch, q) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, all that the function asks for.
            return unsafe { fit_avx2(groups, grid, format, scratch, q) };
        }
    }
    fit_portable(groups, grid, format, scratch, q)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fit_avx512(
    machine: Avx512,
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    match format {
        ScaleFormat::F16 => fit_in::<_, true>(machine, groups, grid, format, scratch, q),
        ScaleFormat::F32 => fit_in::<_, false>(machine, groups, grid, format, scratch, q),
    }
}

/// The same operations compiled for registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fit_avx2(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    fit_in::<_, false>(Arrays::<true>, groups, grid, format, scratch, q)
}

fn fit_portable(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    fit_in::<_, false>(Arrays::<false>, groups, grid, format, scratch, q)
}

/// `EXACT`: whether integers times a scale are exact in binary32, as a binary16's 11 bits times an integer's 8 are. A
/// fused operation then rounds as the two do.
#[inline(always)]
fn fit_in<M: Machine, const EXACT: bool>(
    m: M,
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    let max = spread(m, groups, &mut scratch.bits);
    check(&max, grid, format)?;
    // max · toward_one is in 1..4, unless max is 0 or subnormal, when any size does.
    let mut toward_one = [0.0; LANES];
    for l in 0..LANES {
        toward_one[l] = f32::from_bits((254 - (max[l].to_bits() >> 23)).clamp(1, 254) << 23);
    }
    shrink(m, &scratch.bits, &toward_one, &mut scratch.w);
    let w = &scratch.w[..];

    let mut scale = best::<M, EXACT>(m, w, &max, &toward_one, grid, format);
    let mut sums = measure::<M, EXACT>(m, w, &times(&scale, &toward_one), grid);
    let mut refined = scale;
    for l in 0..LANES {
        // The closed form is in the scaled group's terms; undoing that is exact but for an extreme scale,
        // where one rounding more does no harm.
        let closed = (sums.wq[l] / sums.qq[l] / f64::from(toward_one[l])) as f32;
        let closed = rounded(if sums.qq[l] > 0.0 { closed } else { scale[l] }, format);
        refined[l] = if closed <= largest(format) { closed } else { scale[l] };
    }
    let again = errors::<M, EXACT>(m, w, &times(&refined, &toward_one), grid);
    for l in 0..LANES {
        let better = again[l] < sums.error[l];
        sums.error[l] = if better { again[l] } else { sums.error[l] };
        scale[l] = if better { refined[l] } else { scale[l] };
    }
    let assigned = assign(m, scratch, groups.len, &scale, &toward_one, grid, q);
    let mut fits = [Fit { scale: 0.0, error: 0.0, energy: 0.0, saturated: 0, exact: true }; LANES];
    for l in 0..LANES {
        let undo = 1.0 / f64::from(toward_one[l]);
        fits[l] = Fit {
            scale: if max[l] > 0.0 { scale[l] } else { 0.0 },
            error: sums.error[l] * undo * undo,
            energy: sums.ww[l] * undo * undo,
            saturated: assigned.clamped[l].into(),
            exact: assigned.differ[l] == 0,
        };
    }
    Ok(fits)
}

/// Whether each group, of largest magnitude `max`, can be fitted.
#[inline(always)]
fn check(max: &Lanes, grid: Grid, format: ScaleFormat) -> Result<(), Unfit> {
    let mut unfit = 0;
    for &max in max {
        let overflows = rounded(max / grid.hi, format) > largest(format);
        unfit |= u32::from(overflows) | u32::from(!max.is_finite());
    }
    if unfit == 0 {
        return Ok(());
    }
    for (lane, &max) in max.iter().enumerate() {
        if !max.is_finite() {
            return Err(Unfit::NonFinite(lane));
        }
        if rounded(max / grid.hi, format) > largest(format) {
            return Err(Unfit::Overflow(lane, max));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
