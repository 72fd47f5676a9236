//! The rule in safe Rust: 16 rows side by side in arrays, which the compiler turns into vectors.

use super::{Activation, Block, TileView};
use crate::convert::f16_to_f32;
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixLayout, Scaling, WeightFormat};

const N: usize = LANES as usize;

/// All rows of a tile.
pub fn tile(m: &MatrixLayout, t: &TileView<'_>, x: &Activation, out: &mut [f32]) {
    for (sub, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *out = match (m.format.weight, m.format.scaling) {
            (WeightFormat::I4, Some(s)) => integer(t, &s, x, sub, nibbles),
            (WeightFormat::I8, Some(s)) => integer(t, &s, x, sub, bytes),
            // a matrix of F16 has no scaling, and the others have one
            _ => halves(t, x, sub),
        };
    }
}

/// The vectors of a sub-block for a range of steps.
fn vectors<'t>(
    t: &TileView<'t>,
    sub: usize,
    steps: std::ops::Range<usize>,
) -> impl Iterator<Item = &'t [[u8; 4]; N]> {
    let subs = t.subs();
    let (all, _) = t.vectors.as_chunks::<4>();
    let (all, _) = all.as_chunks::<N>();
    steps.map(move |s| &all[s * subs + sub])
}

fn nibbles(t: &TileView<'_>, sub: usize, a: &[i16], b: &Block) -> [i32; N] {
    let mut dot = [0; N];
    let (a, _) = a[b.start..].as_chunks::<8>();
    for (v, a) in vectors(t, sub, b.steps(8)).zip(a) {
        for (j, &a) in a.iter().enumerate() {
            // byte j holds column j low and column 4 + j high; shift the sign bit to the top
            let up = 28 - 8 * (j as u32 & 3) - 4 * (j as u32 >> 2);
            for (dot, word) in dot.iter_mut().zip(v) {
                let q = (i32::from_le_bytes(*word) << up) >> 28;
                *dot += q * i32::from(a);
            }
        }
    }
    dot
}

fn bytes(t: &TileView<'_>, sub: usize, a: &[i16], b: &Block) -> [i32; N] {
    let mut dot = [0; N];
    let (a, _) = a[b.start..].as_chunks::<4>();
    for (v, a) in vectors(t, sub, b.steps(4)).zip(a) {
        for (j, &a) in a.iter().enumerate() {
            for (dot, word) in dot.iter_mut().zip(v) {
                let q = (i32::from_le_bytes(*word) << (24 - 8 * j as u32)) >> 24;
                *dot += q * i32::from(a);
            }
        }
    }
    dot
}

fn integer(
    t: &TileView<'_>,
    s: &Scaling,
    x: &Activation,
    sub: usize,
    dots: impl Fn(&TileView<'_>, usize, &[i16], &Block) -> [i32; N],
) -> [f32; N] {
    let mut acc = [0.0; N];
    for b in &x.blocks {
        let mut dot = dots(t, sub, &x.a, b);
        let row = b.group * t.rows + sub * N;
        if s.zero {
            for (dot, &z) in dot.iter_mut().zip(&t.zeros[row..row + N]) {
                *dot -= i32::from(z as i8) * b.sum;
            }
        }
        let scale = scales(t, s, row);
        for l in 0..N {
            acc[l] += dot[l] as f32 * (scale[l] * b.factor);
        }
    }
    acc
}

fn scales(t: &TileView<'_>, s: &Scaling, row: usize) -> [f32; N] {
    let mut scale = [0.0; N];
    if s.scale == Format::F32 {
        let (all, _) = t.scales.as_chunks();
        for (scale, bytes) in scale.iter_mut().zip(&all[row..row + N]) {
            *scale = f32::from_le_bytes(*bytes);
        }
    } else {
        let (all, _) = t.scales.as_chunks();
        for (scale, bytes) in scale.iter_mut().zip(&all[row..row + N]) {
            *scale = f16_to_f32(u16::from_le_bytes(*bytes));
        }
    }
    scale
}

fn halves(t: &TileView<'_>, x: &Activation, sub: usize) -> [f32; N] {
    let mut acc = [0.0; N];
    for b in &x.blocks {
        let mut sum = [0.0; N];
        let (x, _) = x.x[b.start..].as_chunks::<2>();
        for (v, &[x0, x1]) in vectors(t, sub, b.steps(2)).zip(x) {
            for (sum, w) in sum.iter_mut().zip(v) {
                let w = u32::from_le_bytes(*w);
                *sum += f16_to_f32(w as u16) * x0;
                *sum += f16_to_f32((w >> 16) as u16) * x1;
            }
        }
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc += sum;
        }
    }
    acc
}
