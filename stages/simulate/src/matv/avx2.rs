//! The rule with AVX2: a vector is 8 rows, two vectors (a sub-block) advance together.
//!
//! Weights are widened to 16 bits and multiplied in pairs of columns, which cannot overflow; the
//! byte product of this instruction set saturates and is not used.

use super::{Activation, TileView};
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixLayout, Scaling, WeightFormat};
use std::arch::x86_64::*;

const N: usize = LANES as usize;

/// All rows of a tile.
#[target_feature(enable = "avx2,f16c")]
pub fn tile(m: &MatrixLayout, t: &TileView<'_>, x: &Activation, out: &mut [f32]) {
    for (sub, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let acc = match (m.format.weight, m.format.scaling) {
            (WeightFormat::I4, Some(s)) => integer::<true>(t, &s, x, sub),
            (WeightFormat::I8, Some(s)) => integer::<false>(t, &s, x, sub),
            // a matrix of F16 has no scaling, and the others have one
            _ => halves(t, x, sub),
        };
        for (out, acc) in out.as_chunks_mut::<8>().0.iter_mut().zip(acc) {
            // SAFETY: `out` is 8 f32 long, the width of the store.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
        }
    }
}

/// The two halves of vector `n` of the tile.
#[target_feature(enable = "avx2")]
fn load(vectors: &[[[u8; 32]; 2]], n: usize) -> [__m256i; 2] {
    let [a, b] = &vectors[n];
    // SAFETY: both are 32 bytes long, the width of the loads.
    unsafe { [_mm256_loadu_si256(a.as_ptr().cast()), _mm256_loadu_si256(b.as_ptr().cast())] }
}

/// Each of two dwords in all lanes. No closure: it would stay a call, which has no vectors to return.
#[target_feature(enable = "avx2")]
fn both(d: [i32; 2]) -> [__m256i; 2] {
    [_mm256_set1_epi32(d[0]), _mm256_set1_epi32(d[1])]
}

fn halves_of<'t>(t: &TileView<'t>) -> &'t [[[u8; 32]; 2]] {
    t.vectors.as_chunks::<32>().0.as_chunks::<2>().0
}

#[target_feature(enable = "avx2,f16c")]
fn integer<const NIBBLES: bool>(t: &TileView<'_>, s: &Scaling, x: &Activation, sub: usize) -> [__m256; 2] {
    let vectors = halves_of(t);
    let subs = t.subs();
    let mut acc = [_mm256_setzero_ps(); 2];
    for b in &x.blocks {
        let mut dot = [_mm256_setzero_si256(); 2];
        if NIBBLES {
            let pairs = x.pairs.as_chunks::<2>().0;
            for (step, pairs) in b.steps(8).zip(&pairs[b.steps(8)]) {
                let [near, far] = [both(pairs[0]), both(pairs[1])];
                let v = load(vectors, step * subs + sub);
                for i in 0..2 {
                    // a 16-bit lane holds, from its low end, columns 0 4 1 5 (or 2 6 3 7): bring
                    // each to the top and shift it down with its sign
                    let c0 = _mm256_srai_epi16::<12>(_mm256_slli_epi16::<12>(v[i]));
                    let c4 = _mm256_srai_epi16::<12>(_mm256_slli_epi16::<8>(v[i]));
                    let c1 = _mm256_srai_epi16::<12>(_mm256_slli_epi16::<4>(v[i]));
                    let c5 = _mm256_srai_epi16::<12>(v[i]);
                    for (q, a) in [(c0, near[0]), (c1, near[1]), (c4, far[0]), (c5, far[1])] {
                        dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(q, a));
                    }
                }
            }
        } else {
            for (step, pairs) in b.steps(4).zip(&x.pairs[b.steps(4)]) {
                let a = both(*pairs);
                let v = load(vectors, step * subs + sub);
                for i in 0..2 {
                    let c0 = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v[i]));
                    let c1 = _mm256_srai_epi16::<8>(v[i]);
                    for (q, a) in [(c0, a[0]), (c1, a[1])] {
                        dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(q, a));
                    }
                }
            }
        }
        for i in 0..2 {
            let row = b.group * t.rows + sub * N + i * 8;
            let zero = _mm256_mullo_epi32(zeros(t, s, row), _mm256_set1_epi32(b.sum));
            let exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(dot[i], zero));
            let scale = _mm256_mul_ps(scales(t, s, row), _mm256_set1_ps(b.factor));
            acc[i] = _mm256_add_ps(acc[i], _mm256_mul_ps(exact, scale));
        }
    }
    acc
}

#[target_feature(enable = "avx2")]
fn zeros(t: &TileView<'_>, s: &Scaling, row: usize) -> __m256i {
    if !s.zero {
        return _mm256_setzero_si256();
    }
    let bytes = &t.zeros[row..row + 8];
    // SAFETY: `bytes` is 8 bytes long, the width of the load.
    _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2,f16c")]
fn scales(t: &TileView<'_>, s: &Scaling, row: usize) -> __m256 {
    if s.scale == Format::F32 {
        let bytes = &t.scales[4 * row..4 * (row + 8)];
        // SAFETY: `bytes` is 32 bytes long, the width of the load.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    } else {
        let bytes = &t.scales[2 * row..2 * (row + 8)];
        // SAFETY: `bytes` is 16 bytes long, the width of the load.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }
}

/// The f32 values of the low 16 bits of each dword.
#[target_feature(enable = "avx2,f16c")]
fn low_halves(v: __m256i) -> __m256 {
    let masked = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    // packing works within 128-bit lanes: bring the two useful quarters together
    let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(masked, masked));
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}

#[target_feature(enable = "avx2,f16c")]
fn halves(t: &TileView<'_>, x: &Activation, sub: usize) -> [__m256; 2] {
    let vectors = halves_of(t);
    let subs = t.subs();
    let values = x.x.as_chunks::<2>().0;
    let mut acc = [_mm256_setzero_ps(); 2];
    for b in &x.blocks {
        let mut sum = [_mm256_setzero_ps(); 2];
        for (step, x) in b.steps(2).zip(&values[b.steps(2)]) {
            let x = [_mm256_set1_ps(x[0]), _mm256_set1_ps(x[1])];
            let v = load(vectors, step * subs + sub);
            for i in 0..2 {
                let odd = low_halves(_mm256_srli_epi32::<16>(v[i]));
                sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(low_halves(v[i]), x[0]));
                sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(odd, x[1]));
            }
        }
        for i in 0..2 {
            acc[i] = _mm256_add_ps(acc[i], sum[i]);
        }
    }
    acc
}
