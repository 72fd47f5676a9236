//! The search against the documented rule done plainly, at every register width, and at the extremes.

use super::*;
use half::f16;

/// What the rule says in numbers, in its own words: `TERMS` and `CANDIDATES`, then a format's `lo`, `hi` and `step`.
const TERMS: usize = 32;
const CANDIDATES: usize = 12;

fn documented(grid: Grid) -> (f32, f32, f32) {
    if grid.is_i4() { (-8.0, 7.0, 1.0 / 32.0) } else { (-127.0, 127.0, 1.0 / 384.0) }
}

fn weights(n: usize, seed: u64, size: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // a sum of four is bell-shaped enough
    (0..n).map(|_| (next() + next() + next() + next()) * size).collect()
}

fn one(w: &[f32], grid: Grid, format: ScaleFormat, q: &mut [i8]) -> Result<Fit, Unfit> {
    let groups = Groups { weights: w, len: w.len() };
    fit(groups, grid, format, &mut Scratch::default(), q).map(|fits| fits[0])
}

/// The documented operations on one group, one at a time and in their order.
fn in_order(w: &[f32], grid: Grid, format: ScaleFormat) -> (Fit, Vec<i8>) {
    let (lo, hi, step) = documented(grid);
    let max = w.iter().fold(0f32, |m, w| m.max(w.abs()));
    let toward_one = f32::from_bits((254 - (max.to_bits() >> 23)).clamp(1, 254) << 23);
    let near: Vec<f32> = w.iter().map(|w| w * toward_one).collect();
    let free = |w: f32, scale: f32| (w * (1.0 / (scale * toward_one))).round_ties_even();
    let integer = |w: f32, scale: f32| free(w, scale).clamp(lo, hi);
    let sum = |term: &dyn Fn(f32) -> f32| {
        let block = |block: &[f32]| block.iter().fold(0f32, |sum, &w| sum + term(w));
        near.chunks(TERMS).fold(0f64, |total, terms| total + f64::from(block(terms)))
    };
    let error = |scale: f32| {
        sum(&|w| {
            let r = w - integer(w, scale) * (scale * toward_one);
            r * r
        })
    };
    let candidates = (0..CANDIDATES).map(|k| rounded(max / hi * (1.0 - k as f32 * step), format));
    let mut scale = candidates.min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap();
    let (wq, qq) = (sum(&|w| w * integer(w, scale)), sum(&|w| integer(w, scale) * integer(w, scale)));
    if qq > 0.0 {
        let refined = rounded((wq / qq / f64::from(toward_one)) as f32, format);
        if refined <= largest(format) && error(refined) < error(scale) {
            scale = refined;
        }
    }
    let q: Vec<i8> = near.iter().map(|&w| integer(w, scale) as i8).collect();
    let beyond = near.iter().filter(|&&w| integer(w, scale) != free(w, scale)).count();
    let undo = 1.0 / f64::from(toward_one);
    let fit = Fit {
        scale: if max > 0.0 { scale } else { 0.0 },
        error: error(scale) * undo * undo,
        energy: sum(&|w| w * w) * undo * undo,
        saturated: beyond as u64,
        exact: w.iter().zip(&q).all(|(&w, &q)| f32::from(q) * scale == w),
    };
    (fit, q)
}

/// What a search comes to, and the integers.
type Found = (Result<Lanes<Fit>, Unfit>, Vec<i8>);

/// What each kind of processor makes of some groups: all of this one's, and the portable way.
fn all_widths(groups: Groups<'_>, grid: Grid, format: ScaleFormat) -> Vec<Found> {
    type Width =
        unsafe fn(Groups<'_>, Grid, ScaleFormat, &mut Scratch, &mut [i8]) -> Result<Lanes<Fit>, Unfit>;
    let mut widths: Vec<Width> = vec![fit, fit_portable];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        widths.push(fit_avx2);
    }
    // Of a longer group before, so that what is left in the buffers would show.
    let before = weights(70 * LANES, 9, 1.0);
    let run = |width: Width| {
        let (mut scratch, mut q) = (Scratch::default(), vec![0; before.len()]);
        let _ = fit_portable(Groups { weights: &before, len: 70 }, grid, format, &mut scratch, &mut q);
        let mut q = vec![99; groups.weights.len()];
        // SAFETY: the processor has what each of the functions asks for.
        (unsafe { width(groups, grid, format, &mut scratch, &mut q) }, q)
    };
    widths.into_iter().map(run).collect()
}

const KINDS: [(Grid, ScaleFormat); 4] = [
    (Grid::I4, ScaleFormat::F16),
    (Grid::I4, ScaleFormat::F32),
    (Grid::I8, ScaleFormat::F16),
    (Grid::I8, ScaleFormat::F32),
];

#[test]
fn every_register_width_gives_the_bits_of_the_documented_operations() {
    let bits = |keep: u32| move |w: &f32| f32::from_bits(w.to_bits() & keep);
    for n in [1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 130, 513] {
        let count = [1, 2, 5, 15, 16][n % 5];
        let bell = weights(n * count, n as u64, 0.05);
        let mut spiky = bell.clone();
        spiky.iter_mut().step_by(7).for_each(|w| *w *= 30.0);
        let mut mostly_zero = vec![0.0; n * count];
        mostly_zero.iter_mut().zip(&bell).skip(n).step_by(11).for_each(|(w, &x)| *w = x);
        // From the largest, whose scaling down loses the smallest, to subnormal ones.
        let mut ranging = bell.clone();
        ranging.iter_mut().enumerate().for_each(|(at, w)| *w *= 2f32.powi(40 * (at % 6) as i32 - 140));
        let step = |at: usize, of: f32| ((at * 7919) % 31) as f32 * of - 15.0 * of;
        let cases: [(&str, Vec<f32>); 12] = [
            ("binary32", bell.clone()),
            ("bfloat16", bell.iter().map(bits(0xffff_0000)).collect()),
            ("binary16", bell.iter().map(bits(0xffff_e000)).collect()),
            ("spiky", spiky.iter().map(bits(0xffff_0000)).collect()),
            ("mostly zero", mostly_zero),
            ("ranging", ranging),
            ("ties", (0..n * count).map(|at| step(at, 0.5) / 1024.0).collect()),
            ("integers", (0..n * count).map(|at| (step(at, 1.0) / 2.0).trunc()).collect()),
            ("large", bell.iter().map(|w| w * 1e36).collect()),
            ("small", bell.iter().map(|w| w * 1e-5).collect()),
            ("tiny", bell.iter().map(|w| w * 1e-29).collect()),
            ("subnormal", bell.iter().map(|w| w * 1e-38).collect()),
        ];
        for (what, w) in &cases {
            for (grid, format) in KINDS {
                let all = all_widths(Groups { weights: w, len: n }, grid, format);
                assert!(all.iter().all(|one| *one == all[0]), "{what}, {n}");
                let (Ok(fits), q) = &all[0] else { continue };
                for (lane, w) in w.chunks(n).enumerate() {
                    let (fit, integers) = in_order(w, grid, format);
                    assert_eq!(fits[lane], fit, "{what}, {n}, {grid:?} {format:?}");
                    assert_eq!(q[lane * n..][..n], integers, "{what}, {n}, {grid:?} {format:?}");
                }
            }
        }
    }
}

#[test]
fn every_register_width_names_the_same_group() {
    let bell = weights(16 * 20, 1, 0.05);
    for (lane, value) in [(0, f32::NAN), (7, f32::INFINITY), (15, -1e7), (3, f32::MAX)] {
        let mut w = bell.clone();
        w[lane * 20 + 19] = value;
        let expected =
            if value.is_finite() { Unfit::Overflow(lane, value.abs()) } else { Unfit::NonFinite(lane) };
        for (fits, _) in all_widths(Groups { weights: &w, len: 20 }, Grid::I4, ScaleFormat::F16) {
            assert_eq!(fits, Err(expected));
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
    let best = (0..12).map(|k| store(max / hi * (1.0 - f64::from(k) * step)));
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
    // the refined scale may be the largest that the format has, but not beyond
    let top = 65504.0;
    assert_eq!(run(&[7.0 * top], ScaleFormat::F16).unwrap().0.scale, top);
    for (scale, ones, refined) in [(64000.0, 1.035_015, top), (top, 1.2, top)] {
        let w = [vec![7.0 * scale], vec![ones * scale; 100]].concat();
        let (fit, _) = run(&w, ScaleFormat::F16).unwrap();
        assert_eq!(fit.scale, refined);
    }
    let (fit, _) = run(&[1e-9, -1e-9], ScaleFormat::F16).unwrap();
    assert!(fit.scale > 0.0 && fit.error <= fit.energy);
}
