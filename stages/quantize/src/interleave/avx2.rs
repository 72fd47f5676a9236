//! Registers of 256 bits: eight rows of eight dwords at once.

use super::{Column, LANES, Vector, portable};
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

/// Rows, and dwords of each, that the registers transpose at once.
const SIDE: usize = 8;

/// Whether this processor has what [`sub_block`] needs.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx2")
}

/// As [`super::sub_block`], which has checked the lengths.
#[target_feature(enable = "avx2")]
pub(super) fn sub_block<const WORDS: bool>(rows: &[u8], steps: usize, column: Column, out: &mut [Vector]) {
    let whole = steps / SIDE * SIDE;
    for step in (0..whole).step_by(SIDE) {
        for half in 0..LANES / SIDE {
            let mut block = [_mm256_setzero_si256(); SIDE];
            for (at, block) in block.iter_mut().enumerate() {
                let from = &rows[((half * SIDE + at) * steps + step) * 4..][..SIDE * 4];
                // SAFETY: eight dwords are there to be read; the load needs no alignment.
                *block = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            }
            for (at, dwords) in transposed(block).into_iter().enumerate() {
                let dwords = if WORDS { of_words(dwords) } else { dwords };
                let to = &mut out[column.at(step + at)][half * 32..][..32];
                // SAFETY: 32 bytes are there to be written; the store needs no alignment.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), dwords) };
            }
        }
    }
    portable::<WORDS>(rows, steps, whole, column, out);
}

/// [`super::of_word`] of eight words.
#[target_feature(enable = "avx2")]
fn of_words(words: __m256i) -> __m256i {
    let words = _mm256_xor_si256(words, _mm256_set1_epi32(0x8888_8888u32 as i32));
    let mask = _mm256_set1_epi32(0x0f0f_0f0f);
    let low = spread(_mm256_and_si256(words, _mm256_set1_epi32(0xffff)), mask);
    let high = spread(_mm256_srli_epi32::<16>(words), mask);
    _mm256_or_si256(low, _mm256_slli_epi32::<4>(high))
}

/// Four nibbles of each dword to the low halves of its bytes.
#[target_feature(enable = "avx2")]
fn spread(four: __m256i, mask: __m256i) -> __m256i {
    let pairs = _mm256_or_si256(four, _mm256_slli_epi32::<8>(four));
    let pairs = _mm256_and_si256(pairs, _mm256_set1_epi32(0x00ff_00ff));
    _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi32::<4>(pairs)), mask)
}

/// Eight rows of eight dwords as eight columns.
#[target_feature(enable = "avx2")]
fn transposed(r: [__m256i; SIDE]) -> [__m256i; SIDE] {
    // pairs of rows, then fours, then eights; each step brings together what the registers' halves allow
    let lo = |a, b| _mm256_unpacklo_epi32(a, b);
    let hi = |a, b| _mm256_unpackhi_epi32(a, b);
    let pairs = [
        [lo(r[0], r[1]), hi(r[0], r[1])],
        [lo(r[2], r[3]), hi(r[2], r[3])],
        [lo(r[4], r[5]), hi(r[4], r[5])],
        [lo(r[6], r[7]), hi(r[6], r[7])],
    ];
    let lo = |a, b| _mm256_unpacklo_epi64(a, b);
    let hi = |a, b| _mm256_unpackhi_epi64(a, b);
    let fours =
        |a: [__m256i; 2], b: [__m256i; 2]| [lo(a[0], b[0]), hi(a[0], b[0]), lo(a[1], b[1]), hi(a[1], b[1])];
    let (top, bottom) = (fours(pairs[0], pairs[1]), fours(pairs[2], pairs[3]));
    let mut columns = [_mm256_setzero_si256(); SIDE];
    for column in 0..4 {
        columns[column] = _mm256_permute2x128_si256::<0x20>(top[column], bottom[column]);
        columns[column + 4] = _mm256_permute2x128_si256::<0x31>(top[column], bottom[column]);
    }
    columns
}
