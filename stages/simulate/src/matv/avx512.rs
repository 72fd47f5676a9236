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

/// A dword in all lanes, from memory: from a register it would take a place among the dot products.
#[inline]
#[target_feature(enable = "avx512f")]
fn everywhere(dword: &i32) -> __m512i {
    let all;
    // SAFETY: four bytes are there to be read, which is all that the instruction reads.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {all}, dword ptr [{dword}]",
            all = out(zmm_reg) all,
            dword = in(reg) dword,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    all
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
        let mut sums = [_mm512_setzero_si512(); S];
        if NIBBLES {
            nibbles(&vectors[b.steps(8)], &x.digits.as_chunks::<2>().0[b.steps(8)], &mut sums);
        } else {
            bytes(&vectors[b.steps(4)], &x.digits[b.steps(4)], &mut sums);
        }
        let offset = if NIBBLES { 8 } else { 128 };
        let row = b.group * t.rows;
        let scales = scales::<S>(t, s, row);
        let taken = taken::<S>(t, s, row, offset, b.sum);
        for i in 0..S {
            acc[i] = add_scaled(acc[i], _mm512_sub_epi32(sums[i], taken[i]), scales[i], b);
        }
    }
    acc
}

/// Sums of q + 8 times the activations; they may wrap on the way, their total fits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn nibbles<const S: usize>(steps: &[[[u8; 64]; S]], digits: &[[[i32; 2]; 2]], sums: &mut [__m512i; S]) {
    let flip = _mm512_set1_epi8(0x88u8 as i8);
    let (low, high) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0xf0u8 as i8));
    let zero = [_mm512_setzero_si512(); S];
    // by column's nibble and activation's digit; those of high nibbles are 16 times too large
    let [mut near0, mut near1, mut far0, mut far1] = [zero; 4];
    for (step, [near, far]) in steps.iter().zip(digits) {
        let (n0, n1) = (everywhere(&near[0]), everywhere(&near[1]));
        let (f0, f1) = (everywhere(&far[0]), everywhere(&far[1]));
        for i in 0..S {
            let v = load::<S, 1>(step, i);
            // two's complement plus 8 is the nibble with its sign bit flipped: (v ^ flip) & mask
            let near = _mm512_ternarylogic_epi32::<0x28>(v, flip, low);
            let far = _mm512_ternarylogic_epi32::<0x28>(v, flip, high);
            near0[i] = _mm512_dpbusd_epi32(near0[i], near, n0);
            near1[i] = _mm512_dpbusd_epi32(near1[i], near, n1);
            far0[i] = _mm512_dpbusd_epi32(far0[i], far, f0);
            far1[i] = _mm512_dpbusd_epi32(far1[i], far, f1);
        }
    }
    for i in 0..S {
        let near = _mm512_add_epi32(near0[i], _mm512_slli_epi32::<8>(near1[i]));
        // exact: both are multiples of 16
        let far = _mm512_add_epi32(_mm512_srai_epi32::<4>(far0[i]), _mm512_slli_epi32::<4>(far1[i]));
        sums[i] = _mm512_add_epi32(near, far);
    }
}

/// The same of q + 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn bytes<const S: usize>(steps: &[[[u8; 64]; S]], digits: &[[i32; 2]], sums: &mut [__m512i; S]) {
    let flip = _mm512_set1_epi8(0x80u8 as i8);
    let (mut low, mut high) = ([_mm512_setzero_si512(); S], [_mm512_setzero_si512(); S]);
    for (step, digits) in steps.iter().zip(digits) {
        let (d0, d1) = (everywhere(&digits[0]), everywhere(&digits[1]));
        for i in 0..S {
            let byte = _mm512_xor_si512(load::<S, 2>(step, i), flip);
            low[i] = _mm512_dpbusd_epi32(low[i], byte, d0);
            high[i] = _mm512_dpbusd_epi32(high[i], byte, d1);
        }
    }
    for i in 0..S {
        sums[i] = _mm512_add_epi32(low[i], _mm512_slli_epi32::<8>(high[i]));
    }
}

#[target_feature(enable = "avx512f")]
fn add_scaled(acc: __m512, dot: __m512i, scale: __m512, b: &Block) -> __m512 {
    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(b.factor));
    _mm512_add_ps(acc, _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale))
}

/// What the sums of a block hold too much of: the offset that makes weights unsigned, and zero points, times the sum of
/// the activations.
#[inline]
#[target_feature(enable = "avx512f")]
fn taken<const S: usize>(t: &TileView<'_>, s: &Scaling, row: usize, offset: i32, sum: i32) -> [__m512i; S] {
    let mut taken = [_mm512_set1_epi32(offset.wrapping_mul(sum)); S];
    if s.zero {
        let lanes = LANES as usize;
        for (taken, bytes) in taken.iter_mut().zip(t.zeros[row..][..S * lanes].chunks_exact(lanes)) {
            // SAFETY: `bytes` is 16 bytes long, the width of the load.
            let zeros = _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
            *taken = _mm512_add_epi32(*taken, _mm512_mullo_epi32(zeros, _mm512_set1_epi32(sum)));
        }
    }
    taken
}

/// The scales of a group's rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales<const S: usize>(t: &TileView<'_>, s: &Scaling, row: usize) -> [__m512; S] {
    let lanes = LANES as usize;
    let mut scales = [_mm512_setzero_ps(); S];
    if s.scale == Format::F32 {
        let all = &t.scales[4 * row..][..4 * S * lanes];
        for (scales, bytes) in scales.iter_mut().zip(all.chunks_exact(4 * lanes)) {
            // SAFETY: `bytes` is 64 bytes long, the width of the load.
            *scales = unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) };
        }
    } else {
        let all = &t.scales[2 * row..][..2 * S * lanes];
        for (scales, bytes) in scales.iter_mut().zip(all.chunks_exact(2 * lanes)) {
            // SAFETY: `bytes` is 32 bytes long, the width of the load.
            *scales = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) });
        }
    }
    scales
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
