//! The matrix–vector rule: a plain restatement of it on unpacked numbers, and every implementation
//! against that, bit for bit, over random and extreme inputs.

use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixFormat, MatrixLayout, Scaling, WeightFormat};
use mica_simulate::convert::{f16_to_f32, f32_to_f16};
use mica_simulate::matv::{Activation, Isa, Piece, matv};
use proptest::prelude::*;

/// A matrix before it is packed; F16 weights are bits in `q`.
struct Plain {
    layout: MatrixLayout,
    q: Vec<i32>,
    /// Bits, `[row][group]`.
    scales: Vec<u32>,
    zeros: Vec<i8>,
}

impl Plain {
    fn scale(&self, row: usize, group: usize) -> f32 {
        let bits = self.scales[row * self.layout.groups() as usize + group];
        match self.layout.format.scaling {
            Some(s) if s.scale == Format::F32 => f32::from_bits(bits),
            _ => f16_to_f32(bits as u16),
        }
    }

    /// The bytes in the device's tile order.
    fn pack(&self) -> Vec<u8> {
        let l = &self.layout;
        let (rows, cols, groups) = (l.rows as usize, l.cols as usize, l.groups() as usize);
        let mut bytes = vec![0; l.bytes() as usize];
        for t in 0..l.tiles() {
            let padded = l.tile_rows(t);
            let start = l.tile_offset(t) as usize;
            let zeros = start + l.scale_bytes(padded) as usize;
            let vectors = zeros + l.zero_bytes(padded) as usize;
            let n = padded as usize;
            for r in 0..n.min(rows - 64 * t as usize) {
                let row = 64 * t as usize + r;
                for g in 0..groups {
                    let bits = self.scales[row * groups + g].to_le_bytes();
                    let size = l.format.scaling.map_or(0, |s| s.scale.bytes()) as usize;
                    let at = start + (g * n + r) * size;
                    bytes[at..at + size].copy_from_slice(&bits[..size]);
                    if l.format.scaling.is_some_and(|s| s.zero) {
                        bytes[zeros + g * n + r] = self.zeros[row * groups + g] as u8;
                    }
                }
                for c in 0..cols {
                    let step = l.format.weight.step() as usize;
                    let lanes = LANES as usize;
                    let vector = (c / step) * (n / lanes) + r / lanes;
                    let dword = vectors + vector * 64 + (r % lanes) * 4;
                    let (q, j) = (self.q[row * cols + c], c % step);
                    match l.format.weight {
                        WeightFormat::I4 => {
                            bytes[dword + j % 4] |= ((q & 15) as u8) << (4 * (j / 4));
                        }
                        WeightFormat::I8 => bytes[dword + j] = q as u8,
                        WeightFormat::F16 => {
                            let at = dword + 2 * j;
                            bytes[at..at + 2].copy_from_slice(&(q as u16).to_le_bytes());
                        }
                    }
                }
            }
        }
        bytes
    }

    /// One row by the words of the manual.
    fn row(&self, row: usize, x: &[u16]) -> f32 {
        let cols = x.len();
        let q = &self.q[row * cols..(row + 1) * cols];
        let x: Vec<f32> = x.iter().map(|&h| f16_to_f32(h)).collect();
        let mut acc = 0.0;
        let Some(s) = self.layout.format.scaling else {
            for first in (0..cols).step_by(128) {
                let mut sum = 0.0f32;
                for k in first..(first + 128).min(cols) {
                    sum += f16_to_f32(q[k] as u16) * x[k];
                }
                acc += sum;
            }
            return acc;
        };
        let group = s.group as usize;
        for first in (0..cols).step_by(group) {
            let last = (first + group).min(cols);
            let length = if group.min(cols) <= 512 { group } else { 128 };
            for start in (first..last).step_by(length) {
                let block = start..(start + length).min(last);
                let largest = x[block.clone()].iter().fold(0f32, |m, v| m.max(v.abs()));
                if largest.is_nan() || largest.is_infinite() || x[block.clone()].iter().any(|v| v.is_nan()) {
                    return f32::NAN;
                }
                let e = if largest == 0.0 { 0 } else { f64::from(largest).log2().floor() as i32 };
                let (mut dot, mut sum) = (0i64, 0i64);
                for k in block {
                    let a = (f64::from(x[k]) * 2f64.powi(13 - e)).round_ties_even() as i64;
                    assert!(a.abs() <= 16376);
                    dot += i64::from(q[k]) * a;
                    sum += a;
                }
                if s.zero {
                    let groups = self.layout.groups() as usize;
                    dot -= i64::from(self.zeros[row * groups + first / group]) * sum;
                }
                let dot = i32::try_from(dot).expect("the rule keeps sums in 32 bits");
                let factor = if largest == 0.0 { 0.0 } else { 2f32.powi(e - 13) };
                acc += dot as f32 * (self.scale(row, first / group) * factor);
            }
        }
        acc
    }
}

fn check(p: &Plain, x: &[u16]) {
    let bytes = p.pack();
    let expected: Vec<f32> = (0..p.layout.rows as usize).map(|r| p.row(r, x)).collect();
    for isa in Isa::available() {
        let mut activation = Activation::default();
        activation.prepare(isa, &p.layout, x.iter().copied());
        let mut whole = vec![f32::NAN; p.layout.rows.next_multiple_of(LANES) as usize];
        matv(isa, &p.layout, &bytes, &activation, &mut whole);
        // a tile at a time, as threads would take it
        let mut pieces = vec![f32::NAN; whole.len()];
        for (piece, first, rows) in Piece::of(p.layout, &bytes, 1) {
            piece.run(isa, &activation, &mut pieces[first..first + rows]);
        }
        for out in [whole, pieces] {
            for (row, (got, expected)) in out.iter().zip(&expected).enumerate() {
                let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                assert!(same, "{isa:?}, row {row}: {got:e}, expected {expected:e}");
            }
        }
    }
}

/// Numbers from a seed, enough and cheap.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn plain(&mut self, layout: MatrixLayout, extreme: bool) -> Plain {
        let n = (layout.rows * layout.cols) as usize;
        let q = (0..n).map(|_| {
            let r = self.next();
            match layout.format.weight {
                WeightFormat::I4 if extreme => {
                    if r & 1 == 0 {
                        -8
                    } else {
                        7
                    }
                }
                WeightFormat::I8 if extreme => {
                    if r & 3 == 0 {
                        127
                    } else {
                        -128
                    }
                }
                WeightFormat::I4 => (r & 15) as i32 - 8,
                WeightFormat::I8 => i32::from(r as u8 as i8),
                WeightFormat::F16 if extreme => (r & 0xffff) as i32,
                WeightFormat::F16 => i32::from(f32_to_f16((r & 0xffff) as f32 / 16384.0 - 2.0)),
            }
        });
        let q = q.collect();
        let groups = (layout.rows * layout.groups()) as usize;
        let f32_scales = layout.format.scaling.is_some_and(|s| s.scale == Format::F32);
        let scales = (0..groups).map(|_| {
            let v = (self.next() & 0xffff) as f32 / 65536.0 * 0.01;
            let bits = if extreme {
                self.next() as u32 & 0xff
            } else if f32_scales {
                v.to_bits()
            } else {
                u32::from(f32_to_f16(v))
            };
            if f32_scales && extreme { bits << 23 } else { bits }
        });
        let scales = scales.collect();
        let zeros = (0..groups).map(|_| self.next() as i8).collect();
        Plain { layout, q, scales, zeros }
    }

    fn activation(&mut self, cols: u64, kind: u8) -> Vec<u16> {
        (0..cols)
            .map(|c| {
                let r = self.next();
                match kind {
                    0 => f32_to_f16((r & 0xffff) as f32 / 8192.0 - 4.0),
                    // the largest mantissa everywhere: a = 16376
                    1 => 0x4bff | (r as u16 & 0x8000),
                    2 => 0x4bff,
                    // subnormals
                    3 => r as u16 & 0x83ff,
                    // any finite number
                    4 => {
                        let h = r as u16;
                        if h & 0x7c00 == 0x7c00 { h & 0x83ff } else { h }
                    }
                    // whole groups of zeros
                    _ if c / 64 % 2 == 0 => (r as u16) & 0x8000,
                    _ => f32_to_f16((r & 0xff) as f32),
                }
            })
            .collect()
    }
}

fn layout(
    weight: WeightFormat,
    rows: u64,
    cols: u64,
    group: u32,
    f32_scale: bool,
    zero: bool,
) -> MatrixLayout {
    let scale = if f32_scale { Format::F32 } else { Format::F16 };
    let scaling = (weight != WeightFormat::F16).then_some(Scaling { group, scale, zero });
    MatrixLayout { rows, cols, format: MatrixFormat { weight, scaling } }
}

const WEIGHTS: [WeightFormat; 3] = [WeightFormat::I4, WeightFormat::I8, WeightFormat::F16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn all_implementations_follow_the_rule(
        seed in 1u64.., weight in 0usize..3, rows in 1u64..150, size in 0usize..10,
        f32_scale: bool, zero: bool, extreme: bool, kind in 0u8..6,
    ) {
        // (columns, group): one group with a tail, several, long ones walked in blocks
        let (cols, group) = [
            (1, 1), (7, 7), (36, 36), (64, 32), (96, 8), (300, 300), (512, 512), (520, 520), (1152, 576), (256, 1024),
        ][size];
        let l = layout(WEIGHTS[weight], rows, cols, group, f32_scale, zero);
        let mut r = Random(seed);
        check(&r.plain(l, extreme), &r.activation(cols, kind));
    }
}

#[test]
fn the_extremes_of_a_block() {
    // the largest sums that the rule allows: q = -128, a = ±16376, G = 512, z = ±128
    for weight in [WeightFormat::I4, WeightFormat::I8] {
        for kind in [1, 2] {
            let l = layout(weight, 16, 1024, 512, true, true);
            let mut r = Random(7);
            let mut p = r.plain(l, true);
            let q = if weight == WeightFormat::I4 { -8 } else { -128 };
            p.q.fill(q);
            for (n, z) in p.zeros.iter_mut().enumerate() {
                *z = if n % 2 == 0 { 127 } else { -128 };
            }
            p.scales.fill(1f32.to_bits());
            check(&p, &r.activation(1024, kind));
        }
    }
}

#[test]
fn large_matrices_are_split_and_stay_the_same() {
    for weight in WEIGHTS {
        let l = layout(weight, 1000, 640, 128, false, false);
        let mut r = Random(11);
        check(&r.plain(l, false), &r.activation(640, 0));
    }
}

#[test]
fn activations_that_are_not_finite() {
    for weight in WEIGHTS {
        for special in [0x7c00, 0xfc00, 0x7e00] {
            let l = layout(weight, 33, 64, 32, false, false);
            let mut r = Random(13);
            let mut x = r.activation(64, 0);
            x[40] = special;
            check(&r.plain(l, false), &x);
        }
    }
}

#[test]
fn broken_rules_are_noticed() {
    // the same numbers in another order of blocks, or with a wrong exponent, are not the same bits
    let l = layout(WeightFormat::I8, 16, 256, 64, false, false);
    let mut r = Random(17);
    let p = r.plain(l, false);
    let x = r.activation(256, 0);
    let mut swapped = x.clone();
    swapped.rotate_left(64);
    assert_ne!(p.row(0, &x).to_bits(), p.row(0, &swapped).to_bits());
    let mut bytes = p.pack();
    bytes[0] ^= 1;
    let mut a = Activation::default();
    a.prepare(Isa::Portable, &l, x.iter().copied());
    let mut out = vec![0.0; 16];
    matv(Isa::Portable, &l, &bytes, &a, &mut out);
    assert_ne!(out[0].to_bits(), p.row(0, &x).to_bits());
}
