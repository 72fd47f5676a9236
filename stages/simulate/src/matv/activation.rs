//! The input vector of a matrix product, prepared once for all rows.

use super::Isa;
use crate::convert::{exp2, f16_to_f32};
use mica_device::layout::{MatrixLayout, WeightFormat};

/// The longest group that is one block; a longer one is walked in blocks of `BLOCK`.
pub const LONGEST: usize = 512;
/// Columns of a block of a longer group, and of F16 weights.
pub const BLOCK: usize = 128;

/// Columns whose products are summed before anything is rounded with other blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// First column, a multiple of the columns in a dword.
    pub start: usize,
    /// One past the last column.
    pub end: usize,
    /// The scale group it belongs to.
    pub group: usize,
    /// `2^(e − 13)`, e the largest exponent of the block; 0 for a block of zeros.
    pub factor: f32,
    /// `Σ a`, for zero points.
    pub sum: i32,
}

impl Block {
    /// The steps of the block: dwords of `columns` columns each.
    pub fn steps(&self, columns: usize) -> std::ops::Range<usize> {
        self.start / columns..self.end.div_ceil(columns)
    }
}

/// The vector in the forms that the kernels read; reused from call to call.
#[derive(Clone, Debug, Default)]
pub struct Activation {
    /// The blocks, ascending.
    pub blocks: Vec<Block>,
    /// Integer weights: `a = round(x · 2^(13 − e))`, |a| ≤ 16376; padded with zeros to 8 columns.
    pub a: Vec<i16>,
    /// Four columns each, for kernels that multiply bytes: the low digits of a, then the high ones,
    /// with `a = low + 256 · high` and both signed bytes.
    pub digits: Vec<[i32; 2]>,
    /// Four columns each, for kernels that multiply 16-bit pairs: columns 0 and 2, then 1 and 3.
    pub pairs: Vec<[i32; 2]>,
    /// F16 weights: x itself, exact; padded with zeros to 8 columns.
    pub x: Vec<f32>,
    finite: bool,
}

impl Activation {
    /// Prepares F16 elements (their bits) for a matrix of as many columns, and for `isa`.
    pub fn prepare(&mut self, isa: Isa, m: &MatrixLayout, elements: impl Iterator<Item = u16>) {
        self.x.clear();
        self.x.extend(elements.map(f16_to_f32));
        debug_assert_eq!(self.x.len() as u64, m.cols);
        self.finite = true;
        self.cut(m);
        let padded = self.x.len().next_multiple_of(8);
        self.x.resize(padded, 0.0);
        self.a.clear();
        if m.format.weight != WeightFormat::F16 {
            self.align(padded);
            let (quads, _) = self.a.as_chunks::<4>();
            match isa {
                Isa::Portable => {}
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => {
                    self.pairs.clear();
                    self.pairs.extend(quads.iter().map(pairs));
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => {
                    self.digits.clear();
                    self.digits.extend(quads.iter().map(digits));
                }
            }
        }
    }

    /// Whether the kernels may read it: integer weights need finite activations.
    pub fn usable(&self) -> bool {
        self.finite
    }

    fn cut(&mut self, m: &MatrixLayout) {
        self.blocks.clear();
        let cols = self.x.len();
        let group = m.format.scaling.map_or(cols, |s| s.group as usize).min(cols);
        let long = m.format.scaling.is_none() || group > LONGEST;
        let length = if long { BLOCK } else { group };
        for (g, first) in (0..cols).step_by(group.max(1)).enumerate() {
            let last = (first + group).min(cols);
            for start in (first..last).step_by(length.max(1)) {
                self.blocks.push(Block {
                    start,
                    end: (start + length).min(last),
                    group: g,
                    factor: 0.0,
                    sum: 0,
                });
            }
        }
    }

    fn align(&mut self, padded: usize) {
        self.a.resize(padded, 0);
        for b in &mut self.blocks {
            let x = &self.x[b.start..b.end];
            let top = x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
            if top >= 0x7f80_0000 {
                self.finite = false;
                return;
            }
            if top == 0 {
                continue;
            }
            // every F16, subnormal or not, is a normal f32: its exponent field is exact
            let e = (top >> 23) as i32 - 127;
            let up = exp2(13 - e);
            let mut sum = 0;
            for (a, v) in self.a[b.start..b.end].iter_mut().zip(x) {
                // exact product below 2^14; adding 1.5 · 2^23 leaves the nearest integer, ties to
                // even, in the low bits
                *a = (v * up + 12_582_912.0).to_bits() as i16;
                sum += i32::from(*a);
            }
            b.factor = exp2(e - 13);
            b.sum = sum;
        }
    }
}

/// Columns 0 and 2, and 1 and 3, each pair in one dword.
#[cfg(target_arch = "x86_64")]
fn pairs(a: &[i16; 4]) -> [i32; 2] {
    let pair = |low: i16, high: i16| i32::from(low) & 0xffff | i32::from(high) << 16;
    [pair(a[0], a[2]), pair(a[1], a[3])]
}

/// The balanced signed bytes of four values: |a| is at most 16376, so the high one is at most 64.
#[cfg(target_arch = "x86_64")]
fn digits(a: &[i16; 4]) -> [i32; 2] {
    let low = a.map(|a| a as i8);
    let high = a.map(|a| ((a - i16::from(a as i8)) >> 8) as i8);
    [low, high].map(|d| i32::from_le_bytes(d.map(|d| d as u8)))
}
