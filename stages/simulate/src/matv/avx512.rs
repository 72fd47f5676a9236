//! The rule with AVX-512 VNNI: a vector is 16 rows, up to four vectors (a tile) advance together.
//!
//! Weights become unsigned bytes (q + 8, q + 128) and activations two signed digits, which is what
//! the byte dot product takes; the offset comes off the exact sum again.

use super::{Activation, Block, TileView};
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixLayout, Scaling, WeightFormat};
use std::arch::x86_64::*;

/// How far ahead of the loads to ask for bytes, into the second cache: asking for the first would take the few
/// places that it has for what is on the way.
const AHEAD: usize = 6144;

/// All rows of a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub fn tile(m: &MatrixLayout, t: &TileView<'_>, x: &Activation, out: &mut [f32]) {
    match t.subs() {
        1 => subs::<1>(m, t, x, out),
        2 => subs::<2>(m, t, x, out),
        3 => subs::<3>(m, t, x, out),
        _ => subs::<4>(m, t, x, out),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn subs<const S: usize>(m: &MatrixLayout, t: &TileView<'_>, x: &Activation, out: &mut [f32]) {
    let acc = match (m.format.weight, m.format.scaling) {
        (WeightFormat::I4, Some(s)) => integer::<S, true>(t, &s, x),
        (WeightFormat::I8, Some(s)) => integer::<S, false>(t, &s, x),
        // a matrix of F16 has no scaling, and the others have one
        _ => halves::<S>(t, x),
    };
    for (out, acc) in out.as_chunks_mut::<{ LANES as usize }>().0.iter_mut().zip(acc) {
        // SAFETY: `out` is 16 f32 long, the width of the store.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), acc) };
    }
}

/// The vector of sub-block `i` in a step, as it lies in the tile; asks for every `EVERY`th of those further on:
/// where there is little to do with each, the machine asks for the rest early enough by itself.
#[inline]
#[target_feature(enable = "avx512f")]
fn load<const S: usize, const EVERY: usize>(step: &[[u8; 64]; S], i: usize) -> __m512i {
    let bytes = step[i].as_ptr();
    if i.is_multiple_of(EVERY) {
        _mm_prefetch::<_MM_HINT_T1>(bytes.wrapping_add(AHEAD).cast());
    }
    // SAFETY: a sub-block's vector is 64 bytes long, the width of the load.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// Each of two dwords in all lanes. No closure: it would stay a call, which has no vectors to return.
#[target_feature(enable = "avx512f")]
fn both(d: [i32; 2]) -> [__m512i; 2] {
    [_mm512_set1_epi32(d[0]), _mm512_set1_epi32(d[1])]
}

fn steps<'t, const S: usize>(t: &TileView<'t>) -> &'t [[[u8; 64]; S]] {
    t.vectors.as_chunks::<64>().0.as_chunks::<S>().0
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn integer<const S: usize, const NIBBLES: bool>(
    t: &TileView<'_>,
    s: &Scaling,
    x: &Activation,
) -> [__m512; S] {
    let vectors = steps::<S>(t);
    let mut acc = [_mm512_setzero_ps(); S];
    for b in &x.blocks {
        let (mut low, mut high) = ([_mm512_setzero_si512(); S], [_mm512_setzero_si512(); S]);
        if NIBBLES {
            let (flip, mask) = (_mm512_set1_epi8(0x88u8 as i8), _mm512_set1_epi8(0x0f));
            let digits = x.digits.as_chunks::<2>().0;
            for (step, digits) in vectors[b.steps(8)].iter().zip(&digits[b.steps(8)]) {
                let [first, second] = [both(digits[0]), both(digits[1])];
                for i in 0..S {
                    let v = load::<S, 1>(step, i);
                    // two's complement plus 8 is the nibble with its sign bit flipped: (v ^ flip) & mask
                    let near = _mm512_ternarylogic_epi32::<0x28>(v, flip, mask);
                    let shifted = _mm512_srli_epi32::<4>(v);
                    let far = _mm512_ternarylogic_epi32::<0x28>(shifted, flip, mask);
                    low[i] = _mm512_dpbusd_epi32(low[i], near, first[0]);
                    high[i] = _mm512_dpbusd_epi32(high[i], near, first[1]);
                    low[i] = _mm512_dpbusd_epi32(low[i], far, second[0]);
                    high[i] = _mm512_dpbusd_epi32(high[i], far, second[1]);
                }
            }
        } else {
            let flip = _mm512_set1_epi8(0x80u8 as i8);
            for (step, digits) in vectors[b.steps(4)].iter().zip(&x.digits[b.steps(4)]) {
                let d = both(*digits);
                for i in 0..S {
                    let byte = _mm512_xor_si512(load::<S, 2>(step, i), flip);
                    low[i] = _mm512_dpbusd_epi32(low[i], byte, d[0]);
                    high[i] = _mm512_dpbusd_epi32(high[i], byte, d[1]);
                }
            }
        }
        let offset = if NIBBLES { 8 } else { 128 };
        for i in 0..S {
            let row = b.group * t.rows + i * LANES as usize;
            // the sums may wrap on the way; their total fits
            let sum = _mm512_add_epi32(low[i], _mm512_slli_epi32::<8>(high[i]));
            let zero = _mm512_add_epi32(_mm512_set1_epi32(offset), zeros(t, s, row));
            let dot = _mm512_sub_epi32(sum, _mm512_mullo_epi32(zero, _mm512_set1_epi32(b.sum)));
            acc[i] = add_scaled(acc[i], dot, scales(t, s, row), b);
        }
    }
    acc
}

#[target_feature(enable = "avx512f")]
fn add_scaled(acc: __m512, dot: __m512i, scale: __m512, b: &Block) -> __m512 {
    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(b.factor));
    _mm512_add_ps(acc, _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale))
}

#[target_feature(enable = "avx512f")]
fn zeros(t: &TileView<'_>, s: &Scaling, row: usize) -> __m512i {
    if !s.zero {
        return _mm512_setzero_si512();
    }
    let bytes = &t.zeros[row..row + LANES as usize];
    // SAFETY: `bytes` is 16 bytes long, the width of the load.
    _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx512f")]
fn scales(t: &TileView<'_>, s: &Scaling, row: usize) -> __m512 {
    let lanes = LANES as usize;
    if s.scale == Format::F32 {
        let bytes = &t.scales[4 * row..4 * (row + lanes)];
        // SAFETY: `bytes` is 64 bytes long, the width of the load.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    } else {
        let bytes = &t.scales[2 * row..2 * (row + lanes)];
        // SAFETY: `bytes` is 32 bytes long, the width of the load.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn halves<const S: usize>(t: &TileView<'_>, x: &Activation) -> [__m512; S] {
    let vectors = steps::<S>(t);
    let values = x.x.as_chunks::<2>().0;
    let mut acc = [_mm512_setzero_ps(); S];
    for b in &x.blocks {
        let mut sum = [_mm512_setzero_ps(); S];
        for (step, x) in vectors[b.steps(2)].iter().zip(&values[b.steps(2)]) {
            let x = [_mm512_set1_ps(x[0]), _mm512_set1_ps(x[1])];
            #[expect(clippy::needless_range_loop, reason = "an iterator's own calls may stay calls here")]
            for i in 0..S {
                let v = load::<S, 2>(step, i);
                let even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
                let odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v)));
                sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(even, x[0]));
                sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(odd, x[1]));
            }
        }
        for i in 0..S {
            acc[i] = _mm512_add_ps(acc[i], sum[i]);
        }
    }
    acc
}
