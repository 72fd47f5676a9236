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
//! operation in the order of the columns; sums are folded into binary64 every 32 terms. So neither the
//! width of registers nor a group's neighbours change a bit. Each group is scaled by a power of two to near
//! 1 beforehand, so that squares neither overflow nor vanish.

use crate::recipe::ScaleFormat;
use crate::scale::{largest, rounded};

/// Groups that are fitted side by side.
pub(crate) const LANES: usize = 16;
/// Candidates for a scale.
const CANDIDATES: usize = 12;
/// Terms of a binary32 sum before it is folded into binary64.
const TERMS: usize = 32;
/// 1.5 · 2^23: adding and subtracting it rounds |x| < 2^22 to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// A value of each lane.
type Lanes<T = f32> = [T; LANES];

/// The integers of a format and how far the candidates go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    lo: f32,
    hi: f32,
    step: f32,
}

impl Grid {
    pub const I4: Grid = Grid { lo: -8.0, hi: 7.0, step: 1.0 / 32.0 };
    pub const I8: Grid = Grid { lo: -127.0, hi: 127.0, step: 1.0 / 384.0 };

    /// The integer that an infinity of either sign saturates to.
    pub fn limit(&self, negative: bool) -> i8 {
        (if negative { self.lo } else { self.hi }) as i8
    }

    /// Whether the integers have four bits.
    pub fn is_i4(&self) -> bool {
        self.hi <= 7.0
    }

    /// The first delivered integer that the format has no room for; i8 has room for all.
    pub fn outside(&self, q: &[i8]) -> Option<usize> {
        if !self.is_i4() {
            return None;
        }
        // Adding 8 maps −8..=7 to 0..=15; all bits together first, since nearly all weights are inside.
        let high = |q: i8| q.wrapping_add(8) as u8 & 0xf0;
        let any = q.iter().fold(0, |any, &q| any | high(q));
        if any == 0 { None } else { q.iter().position(|&q| high(q) != 0) }
    }

    #[inline(always)]
    fn nearest<const ROUNDS: bool>(&self, x: f32) -> f32 {
        self.clamp(if ROUNDS { x.round_ties_even() } else { (x + ROUND) - ROUND })
    }

    // Written as two selections, which are one instruction each; `f32::clamp` also orders NaN.
    #[inline(always)]
    fn clamp(&self, x: f32) -> f32 {
        let x = if x > self.hi { self.hi } else { x };
        if x < self.lo { self.lo } else { x }
    }
}

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

/// Buffers that are used again.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Scaled weights, `[column][lane]`.
    w: Vec<Lanes>,
    /// Their integers.
    q: Vec<Lanes<i8>>,
}

/// Groups of `len` weights one after the other, at most [`LANES`] of them.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    pub weights: &'a [f32],
    pub len: usize,
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
        if avx512() {
            // SAFETY: the processor has what the function asks for.
            return unsafe { fit_avx512(groups, grid, format, scratch, q) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, all that the function asks for.
            return unsafe { fit_avx2(groups, grid, format, scratch, q) };
        }
    }
    fit_portable(groups, grid, format, scratch, q)
}

/// Whether the processor has all that `fit_avx512` asks for.
#[cfg(target_arch = "x86_64")]
fn avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
}

/// The same operations compiled for registers of 512 bits: a register a value of all lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fit_avx512(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    fit_in::<true>(groups, grid, format, scratch, q)
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
    fit_in::<true>(groups, grid, format, scratch, q)
}

fn fit_portable(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    fit_in::<false>(groups, grid, format, scratch, q)
}

/// `ROUNDS`: whether rounding to an integer is one instruction. Without it two additions do the same, but for the sign
/// of a zero, which changes no sum, error nor integer.
#[inline(always)]
fn fit_in<const ROUNDS: bool>(
    groups: Groups<'_>,
    grid: Grid,
    format: ScaleFormat,
    scratch: &mut Scratch,
    q: &mut [i8],
) -> Result<Lanes<Fit>, Unfit> {
    let mut max = [0.0; LANES];
    for (lane, group) in groups.weights.chunks_exact(groups.len).enumerate() {
        max[lane] = f32::from_bits(group.iter().fold(0, |m, w| m.max(w.to_bits() & 0x7fff_ffff)));
        if !max[lane].is_finite() {
            return Err(Unfit::NonFinite(lane));
        }
        if rounded(max[lane] / grid.hi, format) > largest(format) {
            return Err(Unfit::Overflow(lane, max[lane]));
        }
    }
    // max · toward_one is in 1..4, unless max is 0 or subnormal, when any size does.
    let mut toward_one = [0.0; LANES];
    for l in 0..LANES {
        toward_one[l] = f32::from_bits((254 - (max[l].to_bits() >> 23)).clamp(1, 254) << 23);
    }
    spread(groups, &toward_one, &mut scratch.w);
    let w = &scratch.w[..];

    let mut scales = [[0.0; LANES]; CANDIDATES];
    for (k, scales) in scales.iter_mut().enumerate() {
        let shrink = 1.0 - k as f32 * grid.step;
        for l in 0..LANES {
            scales[l] = rounded(max[l] / grid.hi * shrink, format);
        }
    }
    let mut scale = best::<ROUNDS>(w, &scales, &toward_one, grid);
    let mut sums = measure::<ROUNDS>(w, &times(&scale, &toward_one), grid);
    let mut refined = scale;
    for l in 0..LANES {
        // The closed form is in the scaled group's terms; undoing that is exact but for an extreme scale,
        // where one rounding more does no harm.
        let closed = (sums.wq[l] / sums.qq[l] / f64::from(toward_one[l])) as f32;
        let closed = rounded(if sums.qq[l] > 0.0 { closed } else { scale[l] }, format);
        refined[l] = if closed <= largest(format) { closed } else { scale[l] };
    }
    let again = errors::<ROUNDS>(w, &times(&refined, &toward_one), grid);
    for l in 0..LANES {
        let better = again[l] < sums.error[l];
        sums.error[l] = if better { again[l] } else { sums.error[l] };
        scale[l] = if better { refined[l] } else { scale[l] };
    }
    let clamped = assign(w, &times(&scale, &toward_one), grid, &mut scratch.q);
    let mut fits = [Fit { scale: 0.0, error: 0.0, energy: 0.0, saturated: 0, exact: true }; LANES];
    let lanes = groups.weights.chunks_exact(groups.len).zip(q.chunks_exact_mut(groups.len));
    for (l, (group, q)) in lanes.enumerate() {
        let undo = 1.0 / f64::from(toward_one[l]);
        fits[l] = Fit {
            scale: if max[l] > 0.0 { scale[l] } else { 0.0 },
            error: sums.error[l] * undo * undo,
            energy: sums.ww[l] * undo * undo,
            saturated: clamped[l].into(),
            exact: collect(&scratch.q, l, group, scale[l], q),
        };
    }
    Ok(fits)
}

/// The groups, scaled, a group a lane; lanes without a group are zero, which adds nothing to any sum.
#[inline(always)]
fn spread(groups: Groups<'_>, toward_one: &Lanes, w: &mut Vec<Lanes>) {
    w.clear();
    w.resize(groups.len, [0.0; LANES]);
    for (lane, group) in groups.weights.chunks_exact(groups.len).enumerate() {
        for (w, &weight) in w.iter_mut().zip(group) {
            w[lane] = weight * toward_one[lane];
        }
    }
}

/// One lane's integers, and whether they give the group's weights back exactly.
#[inline(always)]
fn collect(from: &[Lanes<i8>], lane: usize, group: &[f32], scale: f32, q: &mut [i8]) -> bool {
    for (q, from) in q.iter_mut().zip(from) {
        *q = from[lane];
    }
    let differs = |(&q, &w): (&i8, &f32)| u32::from(f32::from(q) * scale != w);
    q.iter().zip(group).map(differs).fold(0, |any, one| any | one) == 0
}

#[inline(always)]
fn times(a: &Lanes, b: &Lanes) -> Lanes {
    let mut product = [0.0; LANES];
    for l in 0..LANES {
        product[l] = a[l] * b[l];
    }
    product
}

#[inline(always)]
fn inverse(s: &Lanes) -> Lanes {
    let mut inverse = [0.0; LANES];
    for l in 0..LANES {
        inverse[l] = 1.0 / s[l];
    }
    inverse
}

/// The scale of least error in each lane, the first of equals.
#[inline(always)]
fn best<const ROUNDS: bool>(
    w: &[Lanes],
    scales: &[Lanes; CANDIDATES],
    toward_one: &Lanes,
    grid: Grid,
) -> Lanes {
    let mut errors = [[0.0f64; LANES]; CANDIDATES];
    for block in w.chunks(TERMS) {
        // Kept apart from the folding, which has half as many lanes a register.
        let mut sums = [[0.0f32; LANES]; CANDIDATES];
        for (scales, sums) in scales.iter().zip(&mut sums) {
            let s = times(scales, toward_one);
            *sums = errors_of::<ROUNDS>(block, &s, &inverse(&s), grid);
        }
        for (errors, sums) in errors.iter_mut().zip(&sums) {
            for l in 0..LANES {
                errors[l] += f64::from(sums[l]);
            }
        }
    }
    let (mut at, mut least) = ([0.0; LANES], errors[0]);
    for (k, errors) in errors.iter().enumerate().skip(1) {
        for l in 0..LANES {
            let better = errors[l] < least[l];
            at[l] = if better { k as f64 } else { at[l] };
            least[l] = if better { errors[l] } else { least[l] };
        }
    }
    let mut scale = [0.0; LANES];
    for l in 0..LANES {
        scale[l] = scales[at[l] as usize][l];
    }
    scale
}

/// Σ (w − q·s)² over a block.
#[inline(always)]
fn errors_of<const ROUNDS: bool>(block: &[Lanes], s: &Lanes, inverse: &Lanes, grid: Grid) -> Lanes {
    let mut sum = [0.0; LANES];
    for w in block {
        for l in 0..LANES {
            let r = w[l] - grid.nearest::<ROUNDS>(w[l] * inverse[l]) * s[l];
            sum[l] += r * r;
        }
    }
    sum
}

/// Σ (w − q·s)².
#[inline(always)]
fn errors<const ROUNDS: bool>(w: &[Lanes], s: &Lanes, grid: Grid) -> Lanes<f64> {
    let inverse = inverse(s);
    let mut total = [0.0; LANES];
    for block in w.chunks(TERMS) {
        let sum = errors_of::<ROUNDS>(block, s, &inverse, grid);
        for l in 0..LANES {
            total[l] += f64::from(sum[l]);
        }
    }
    total
}

struct Sums {
    error: Lanes<f64>,
    wq: Lanes<f64>,
    qq: Lanes<f64>,
    ww: Lanes<f64>,
}

/// The sums at one scale a lane, in the scaled groups' terms.
#[inline(always)]
fn measure<const ROUNDS: bool>(w: &[Lanes], s: &Lanes, grid: Grid) -> Sums {
    let inverse = inverse(s);
    let zero = [0.0; LANES];
    let mut total = Sums { error: zero, wq: zero, qq: zero, ww: zero };
    for block in w.chunks(TERMS) {
        let [mut error, mut wq, mut qq, mut ww] = [[0.0; LANES]; 4];
        for w in block {
            for l in 0..LANES {
                let q = grid.nearest::<ROUNDS>(w[l] * inverse[l]);
                let r = w[l] - q * s[l];
                error[l] += r * r;
                wq[l] += w[l] * q;
                qq[l] += q * q;
                ww[l] += w[l] * w[l];
            }
        }
        for l in 0..LANES {
            total.error[l] += f64::from(error[l]);
            total.wq[l] += f64::from(wq[l]);
            total.qq[l] += f64::from(qq[l]);
            total.ww[l] += f64::from(ww[l]);
        }
    }
    total
}

/// Writes the integers, and how many of each lane were clamped.
#[inline(always)]
fn assign(w: &[Lanes], s: &Lanes, grid: Grid, q: &mut Vec<Lanes<i8>>) -> Lanes<u32> {
    let inverse = inverse(s);
    let mut clamped = [0; LANES];
    q.clear();
    q.resize(w.len(), [0; LANES]);
    for (w, q) in w.iter().zip(q) {
        for l in 0..LANES {
            let free = (w[l] * inverse[l] + ROUND) - ROUND;
            let x = grid.clamp(free);
            clamped[l] += u32::from(x != free);
            // The low bits of x + ROUND are the integer in two's complement.
            q[l] = (x + ROUND).to_bits() as i8;
        }
    }
    clamped
}

#[cfg(test)]
mod tests;
