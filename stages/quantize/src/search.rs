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
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
use machine::{Arrays, Machine};

#[cfg(target_arch = "x86_64")]
mod avx512;
mod machine;

/// Groups that are fitted side by side.
pub(crate) const LANES: usize = 16;
/// Candidates for a scale.
const CANDIDATES: usize = 12;
/// Candidates whose errors are summed side by side.
const TOGETHER: usize = 3;
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

    /// The clamps that integers of magnitudes up to `most` need.
    fn clamps(&self, most: f32) -> Clamps {
        if most > -self.lo {
            Clamps::Both
        } else if most > self.hi {
            Clamps::High
        } else {
            Clamps::Neither
        }
    }
}

/// Which clamps may change an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clamps {
    Neither,
    High,
    Both,
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

/// Buffers that are used again, `[column][lane]`, with columns of zeros up to a multiple of [`LANES`]: they add nothing to
/// any sum.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The weights' bits.
    bits: Vec<Column<u32>>,
    /// The weights, scaled.
    w: Vec<Column>,
}

/// A column's value of each lane, where a register of 512 bits crosses no cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Column<T = f32>(Lanes<T>);

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

/// The bits of the groups' weights, a group a lane, and each group's largest magnitude. Lanes without a group are
/// zero, which adds nothing to any sum.
#[inline(always)]
fn spread<M: Machine>(m: M, groups: Groups<'_>, bits: &mut Vec<Column<u32>>) -> Lanes {
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
fn shrink<M: Machine>(m: M, bits: &[Column<u32>], toward_one: &Lanes, w: &mut Vec<Column>) {
    w.resize(bits.len(), Column([0.0; LANES]));
    let toward_one = m.floats(toward_one);
    for (Column(w), Column(bits)) in w.iter_mut().zip(bits) {
        *w = m.lanes(m.mul(m.floats(bytemuck::cast_ref(bits)), toward_one));
    }
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
fn best<M: Machine, const EXACT: bool>(
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

/// Σ (w − q·s)² over a block, at some scales; `HIGH` and `LOW`: whether to clamp.
#[inline(always)]
fn errors_of<M: Machine, const N: usize, const EXACT: bool, const HIGH: bool, const LOW: bool>(
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
fn errors<M: Machine, const EXACT: bool>(m: M, w: &[Column], s: &Lanes, grid: Grid) -> Lanes<f64> {
    let inverse = inverse(s);
    let mut total = m.doubles(&[0.0; LANES]);
    for block in w.chunks(TERMS) {
        let [sum] = errors_of::<M, 1, EXACT, true, true>(m, block, &[*s], &[inverse], grid);
        total = m.fold(total, sum);
    }
    m.double_lanes(total)
}

struct Sums {
    error: Lanes<f64>,
    wq: Lanes<f64>,
    qq: Lanes<f64>,
    ww: Lanes<f64>,
}

/// The sums at one scale a lane, in the scaled groups' terms.
#[inline(always)]
fn measure<M: Machine, const EXACT: bool>(m: M, w: &[Column], s: &Lanes, grid: Grid) -> Sums {
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

struct Assigned {
    /// Weights beyond the integer range.
    clamped: Lanes<u32>,
    /// Weights that f32(q) · scale is not exactly.
    differ: Lanes<u32>,
}

/// Writes the integers as the groups, of `len` weights each, lie.
#[inline(always)]
fn assign<M: Machine>(
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

#[cfg(test)]
mod tests;
