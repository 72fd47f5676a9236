//! The scale of one group, searched for least squared error. Weights alone decide, no activation data.
//!
//! For a group w with largest magnitude m, integers q in `lo..=hi` and a scale s:
//! - candidates are s_k = (m / hi) · (1 − k · step), k = 0..16, each rounded to its stored format first
//!   and not below the format's least normal (binary16: least subnormal) value;
//! - q = clamp(round(w · (1/s)), lo, hi), to nearest, ties to even; the error is Σ (w − q·s)²;
//! - the best candidate (the first of equals) is refined once in closed form: s' = Σwq / Σqq, rounded to
//!   the stored format, taken if its error is smaller.
//!
//! i4 uses −8..=7 and steps of 1/40 (down to 0.625; k = 5 is the full range on the negative side), i8 uses
//! −127..=127 and steps of 1/256. The rounding of a scale comes first, so what is measured is what the
//! device will compute.
//!
//! Sixteen groups are worked on side by side, each in a lane of its own. Every operation is one IEEE binary32
//! operation in the order of the columns; sums are folded into binary64 every 32 terms. So neither the
//! width of registers nor a group's neighbours change a bit. Each group is scaled by a power of two to near
//! 1 beforehand, so that squares neither overflow nor vanish.

use crate::recipe::ScaleFormat;

/// Groups that are fitted side by side.
pub(crate) const LANES: usize = 16;
/// Candidates for a scale.
const CANDIDATES: usize = 16;
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
    pub const I4: Grid = Grid { lo: -8.0, hi: 7.0, step: 1.0 / 40.0 };
    pub const I8: Grid = Grid { lo: -127.0, hi: 127.0, step: 1.0 / 256.0 };

    /// The integer that an infinity of either sign saturates to.
    pub fn limit(&self, negative: bool) -> i8 {
        (if negative { self.lo } else { self.hi }) as i8
    }

    /// The first delivered integer that the format has no room for; i8 has room for all.
    pub fn outside(&self, q: &[i8]) -> Option<usize> {
        if self.hi > 7.0 {
            return None;
        }
        // Adding 8 maps −8..=7 to 0..=15; all bits together first, since nearly all weights are inside.
        let high = |q: i8| q.wrapping_add(8) as u8 & 0xf0;
        let any = q.iter().fold(0, |any, &q| any | high(q));
        if any == 0 { None } else { q.iter().position(|&q| high(q) != 0) }
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        self.clamp((x + ROUND) - ROUND)
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
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, all that the function asks for.
        return unsafe { fit_avx2(groups, grid, format, scratch, q) };
    }
    fit_portable(groups, grid, format, scratch, q)
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
    fit_portable(groups, grid, format, scratch, q)
}

#[inline(always)]
fn fit_portable(
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
    let mut scale = best(w, &scales, &toward_one, grid);
    let mut sums = measure(w, &times(&scale, &toward_one), grid);
    let mut refined = scale;
    for l in 0..LANES {
        // The closed form is in the scaled group's terms; undoing that is exact but for an extreme scale,
        // where one rounding more does no harm.
        let closed = (sums.wq[l] / sums.qq[l] / f64::from(toward_one[l])) as f32;
        let closed = rounded(if sums.qq[l] > 0.0 { closed } else { scale[l] }, format);
        refined[l] = if closed <= largest(format) { closed } else { scale[l] };
    }
    let again = measure(w, &times(&refined, &toward_one), grid);
    for l in 0..LANES {
        let better = again.error[l] < sums.error[l];
        sums.error[l] = if better { again.error[l] } else { sums.error[l] };
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
fn best(w: &[Lanes], scales: &[Lanes; CANDIDATES], toward_one: &Lanes, grid: Grid) -> Lanes {
    let mut errors = [[0.0f64; LANES]; CANDIDATES];
    for block in w.chunks(TERMS) {
        // Kept apart from the folding, which has half as many lanes a register.
        let mut sums = [[0.0f32; LANES]; CANDIDATES];
        for (scales, sums) in scales.iter().zip(&mut sums) {
            let s = times(scales, toward_one);
            *sums = errors_of(block, &s, &inverse(&s), grid);
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
fn errors_of(block: &[Lanes], s: &Lanes, inverse: &Lanes, grid: Grid) -> Lanes {
    let mut sum = [0.0; LANES];
    for w in block {
        for l in 0..LANES {
            let r = w[l] - grid.nearest(w[l] * inverse[l]) * s[l];
            sum[l] += r * r;
        }
    }
    sum
}

struct Sums {
    error: Lanes<f64>,
    wq: Lanes<f64>,
    qq: Lanes<f64>,
    ww: Lanes<f64>,
}

/// The sums at one scale a lane, in the scaled groups' terms.
#[inline(always)]
fn measure(w: &[Lanes], s: &Lanes, grid: Grid) -> Sums {
    let inverse = inverse(s);
    let zero = [0.0; LANES];
    let mut total = Sums { error: zero, wq: zero, qq: zero, ww: zero };
    for block in w.chunks(TERMS) {
        let [mut error, mut wq, mut qq, mut ww] = [[0.0; LANES]; 4];
        for w in block {
            for l in 0..LANES {
                let q = grid.nearest(w[l] * inverse[l]);
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

/// The largest scale of a format whose products with the integers are finite.
const fn largest(format: ScaleFormat) -> f32 {
    match format {
        ScaleFormat::F16 => 65504.0,
        ScaleFormat::F32 => f32::MAX / 256.0,
    }
}

/// A positive scale as its format stores it, never zero. Beyond the format's range, more than
/// [`largest`]. Arithmetic that compiles to vector instructions, which the library's conversion does not.
#[inline(always)]
fn rounded(scale: f32, format: ScaleFormat) -> f32 {
    match format {
        ScaleFormat::F32 => select_max(scale, f32::MIN_POSITIVE),
        ScaleFormat::F16 => {
            const LEAST_NORMAL: f32 = 6.103_515_6e-5; // 2^-14
            const LEAST: f32 = 5.960_464_5e-8; // 2^-24
            // Ties to even at bit 13; a carry into the exponent is right.
            let bits = scale.to_bits();
            let normal = f32::from_bits((bits + 0xfff + ((bits >> 13) & 1)) & !0x1fff);
            // In 0.5..1 a binary32 counts multiples of 2^-24, as subnormal binary16 does.
            let subnormal = (scale + 0.75) - 0.75;
            select_max(if scale < LEAST_NORMAL { subnormal } else { normal }, LEAST)
        }
    }
}

#[inline(always)]
fn select_max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn weights(n: usize, seed: u64, size: f32) -> Vec<f32> {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        // a sum of four is bell-shaped enough
        (0..n).map(|_| (next() + next() + next() + next()) * size).collect()
    }

    #[test]
    fn scales_round_as_binary16_does() {
        let above = f16::MAX.to_bits() + 1;
        for bits in 1..above {
            let (here, next) = (f16::from_bits(bits), f16::from_bits(bits + 1));
            let exact = here.to_f32();
            let next = if next.is_infinite() { 65536.0 } else { next.to_f32() };
            let half_way = (exact + next) / 2.0;
            for x in [exact, half_way, half_way.next_down(), half_way.next_up()] {
                let expected = f16::from_f32(x).to_f32();
                let got = rounded(x, ScaleFormat::F16);
                assert!(got == expected || got > 65504.0 && expected.is_infinite(), "{x}");
            }
        }
        for tiny in [1e-38, 1e-10, 2.9e-8] {
            assert_eq!(rounded(tiny, ScaleFormat::F16), f16::from_bits(1).to_f32());
            assert!(f16::from_f32(tiny).to_f32() == 0.0);
        }
    }

    fn one(w: &[f32], grid: Grid, format: ScaleFormat, q: &mut [i8]) -> Result<Fit, Unfit> {
        let groups = Groups { weights: w, len: w.len() };
        fit(groups, grid, format, &mut Scratch::default(), q).map(|fits| fits[0])
    }

    #[test]
    fn every_register_width_gives_the_same_bits() {
        for n in [1, 3, 16, 17, 32, 100, 512, 2048, 2049] {
            for (seed, size) in [(1, 0.05f32), (2, 1e-30), (3, 3e34), (4, 1e-41)] {
                for (grid, format) in
                    [(Grid::I4, ScaleFormat::F16), (Grid::I4, ScaleFormat::F32), (Grid::I8, ScaleFormat::F32)]
                {
                    let w = weights(n * 5, seed, size);
                    let groups = Groups { weights: &w, len: n };
                    let (mut a, mut b) = (vec![0; n * 5], vec![0; n * 5]);
                    let wide = fit(groups, grid, format, &mut Scratch::default(), &mut a);
                    let narrow = fit_portable(groups, grid, format, &mut Scratch::default(), &mut b);
                    assert_eq!(wide, narrow);
                    assert_eq!(a, b);
                    // Nor do neighbours.
                    for lane in 0..if wide.is_ok() { 5 } else { 0 } {
                        let mine = lane * n..(lane + 1) * n;
                        assert_eq!(one(&w[mine.clone()], grid, format, &mut b[..n]), wide.map(|f| f[lane]));
                        assert_eq!(a[mine], b[..n]);
                    }
                }
            }
        }
    }

    /// The documented rule in binary64, the plainest way.
    fn plain(w: &[f32], lo: f64, hi: f64, step: f64, format: ScaleFormat) -> f64 {
        let store = |s: f64| match format {
            ScaleFormat::F16 => f16::from_f64(s).to_f64(),
            ScaleFormat::F32 => f64::from(s as f32),
        };
        let integers = |s: f64| w.iter().map(move |&w| (f64::from(w) / s).round_ties_even().clamp(lo, hi));
        let error = |s: f64| {
            let each = w.iter().zip(integers(s)).map(|(&w, q)| (f64::from(w) - q * s).powi(2));
            each.sum::<f64>()
        };
        let max = w.iter().fold(0f64, |m, &w| m.max(f64::from(w).abs()));
        let best = (0..16).map(|k| store(max / hi * (1.0 - f64::from(k) * step)));
        let best = best.min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap();
        let wq: f64 = w.iter().zip(integers(best)).map(|(&w, q)| f64::from(w) * q).sum();
        let qq: f64 = integers(best).map(|q| q * q).sum();
        error(best).min(error(store(wq / qq)))
    }

    #[test]
    fn the_search_finds_what_the_rule_says() {
        for (grid, lo, hi, format) in [
            (Grid::I4, -8.0, 7.0, ScaleFormat::F16),
            (Grid::I4, -8.0, 7.0, ScaleFormat::F32),
            (Grid::I8, -127.0, 127.0, ScaleFormat::F16),
            (Grid::I8, -127.0, 127.0, ScaleFormat::F32),
        ] {
            for (n, seed) in [(16, 1), (32, 2), (33, 3), (128, 4), (512, 5), (2048, 6)] {
                let w = weights(n, seed, 0.03);
                let mut q = vec![0; n];
                let got = one(&w, grid, format, &mut q).unwrap();
                let expected = plain(&w, lo, hi, grid.step.into(), format);
                assert!((got.error / expected - 1.0).abs() < 1e-3, "{n}: {} {expected}", got.error);
                let error: f64 =
                    w.iter().zip(&q).map(|(w, &q)| f64::from(w - f32::from(q) * got.scale).powi(2)).sum();
                assert!((got.error / error - 1.0).abs() < 1e-5);
                let energy: f64 = w.iter().map(|&w| f64::from(w).powi(2)).sum();
                assert!((got.energy / energy - 1.0).abs() < 1e-5);
                assert!(q.iter().all(|&q| (lo..=hi).contains(&f64::from(q))));
            }
        }
    }

    #[test]
    fn what_is_representable_stays_exact() {
        for (grid, scale) in [(Grid::I4, 0.25), (Grid::I8, 3.0 / 4096.0)] {
            let top = grid.hi as i8;
            let w: Vec<f32> = (-top..=top).map(|q| f32::from(q) * scale).collect();
            let mut q = vec![0; w.len()];
            let got = one(&w, grid, ScaleFormat::F16, &mut q).unwrap();
            assert!(got.exact && got.error == 0.0 && got.saturated == 0, "{got:?}");
        }
    }

    #[test]
    fn extremes() {
        let run = |w: &[f32], format| {
            let mut q = vec![9; w.len()];
            one(w, Grid::I4, format, &mut q).map(|fit| (fit, q))
        };
        let (zero, q) = run(&[0.0, -0.0], ScaleFormat::F16).unwrap();
        assert!(zero.exact && zero.scale == 0.0 && q == [0, 0]);
        assert_eq!(run(&[1.0, f32::NAN], ScaleFormat::F32), Err(Unfit::NonFinite(0)));
        assert_eq!(run(&[f32::NEG_INFINITY], ScaleFormat::F32), Err(Unfit::NonFinite(0)));
        assert_eq!(run(&[-1e6, 0.0], ScaleFormat::F16), Err(Unfit::Overflow(0, 1e6)));
        assert_eq!(run(&[f32::MAX], ScaleFormat::F32), Err(Unfit::Overflow(0, f32::MAX)));
        for w in [1e36, f32::MIN_POSITIVE, 1e-45] {
            let (fit, _) = run(&[w, -w, w / 3.0], ScaleFormat::F32).unwrap();
            assert!(fit.scale > 0.0 && fit.error.is_finite() && fit.error <= fit.energy, "{fit:?}");
        }
        let (fit, _) = run(&[1e-9, -1e-9], ScaleFormat::F16).unwrap();
        assert!(fit.scale > 0.0 && fit.error <= fit.energy);
    }
}
