//! The search against the documented rule done plainly, at every register width, and at the extremes.

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
                #[cfg(target_arch = "x86_64")]
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has AVX2.
                    let middle = unsafe { fit_avx2(groups, grid, format, &mut Scratch::default(), &mut b) };
                    assert_eq!(middle, narrow);
                    assert_eq!(a, b);
                }
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
    let (fit, _) = run(&[1e-9, -1e-9], ScaleFormat::F16).unwrap();
    assert!(fit.scale > 0.0 && fit.error <= fit.energy);
}
