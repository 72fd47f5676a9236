//! Registers of 512 bits: a sub-block's sixteen rows, sixteen dwords of each at once. A register is then a vector.

use super::{Column, LANES, Vector, portable};
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

/// Whether this processor has what [`sub_block`] needs.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vbmi")
}

/// As [`super::sub_block`], which has checked the lengths.
#[target_feature(enable = "avx512f,avx512vbmi")]
pub(super) fn sub_block<const WORDS: bool>(rows: &[u8], steps: usize, column: Column, out: &mut [Vector]) {
    let whole = steps / LANES * LANES;
    for step in (0..whole).step_by(LANES) {
        let mut block = [_mm512_setzero_si512(); LANES];
        for (row, block) in block.iter_mut().enumerate() {
            let from = &rows[(row * steps + step) * 4..][..size_of::<Vector>()];
            // The next sub-block mostly follows; it is asked for in its own order, line by line, since memory is slow
            // for sixteen streams at once. Asking for what is not there is no access.
            let line = rows.len() + (step + row) * size_of::<Vector>();
            _mm_prefetch::<_MM_HINT_T0>(rows.as_ptr().wrapping_add(line).cast());
            // SAFETY: sixteen dwords are there to be read; the load needs no alignment.
            *block = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        }
        for (at, dwords) in transposed(block).into_iter().enumerate() {
            let dwords = if WORDS { of_words(dwords) } else { dwords };
            let to = &mut out[column.at(step + at)];
            // SAFETY: 64 bytes are there to be written; the store needs no alignment.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), dwords) };
        }
    }
    portable::<WORDS>(rows, steps, whole, column, out);
}

/// [`super::of_word`] of sixteen words.
#[target_feature(enable = "avx512f,avx512vbmi")]
fn of_words(words: __m512i) -> __m512i {
    let words = _mm512_xor_si512(words, _mm512_set1_epi32(0x8888_8888u32 as i32));
    // Byte j of a dword from bit 4j of its word on, whose low nibble is column j, and from bit 12 + 4j on, whose high
    // nibble is column 4 + j; the second dword of each 64 bits starts at bit 32.
    let low = _mm512_set1_epi64(0x2c28_2420_0c08_0400);
    let high = _mm512_set1_epi64(0x3834_302c_1814_100c);
    let low = _mm512_multishift_epi64_epi8(low, words);
    let high = _mm512_multishift_epi64_epi8(high, words);
    // where the mask has ones the first, else the second
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(0x0f0f_0f0f), low, high)
}

/// Sixteen rows of sixteen dwords as sixteen columns.
#[target_feature(enable = "avx512f")]
fn transposed(r: [__m512i; LANES]) -> [__m512i; LANES] {
    // Pairs of rows, then fours: each quarter of a register has one column of four rows, quarter q column 4q + c.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (r, fours) in r.as_chunks::<4>().0.iter().zip(&mut fours) {
        let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
        let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
        *fours = [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ];
    }
    // then the quarters as a matrix of their own, transposed
    let mut columns = [_mm512_setzero_si512(); LANES];
    for c in 0..4 {
        let [r0, r4, r8, r12] = [fours[0][c], fours[1][c], fours[2][c], fours[3][c]];
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(r0, r4), _mm512_shuffle_i32x4::<0xdd>(r0, r4));
        let (even8, odd8) = (_mm512_shuffle_i32x4::<0x88>(r8, r12), _mm512_shuffle_i32x4::<0xdd>(r8, r12));
        columns[c] = _mm512_shuffle_i32x4::<0x88>(even, even8);
        columns[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd, odd8);
        columns[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even, even8);
        columns[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd, odd8);
    }
    columns
}
