//! A register of 512 bits for the values of all lanes: the compiler breaks loops over arrays of sixteen into narrower
//! registers, or none, as soon as binary32 and binary64 meet.

use super::lanes::{LANES, Lanes};
use super::machine::Machine;
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

/// A processor with AVX-512.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// If this processor is one.
    pub fn new() -> Option<Avx512> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        all.then_some(Avx512(()))
    }
}

// SAFETY, of every block below: `self` proves that the processor has AVX-512F, all that the instructions ask for; what is
// loaded or stored is an array of the registers' width.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, stated above")]
impl Machine for Avx512 {
    type Float = __m512;
    type Double = [__m512d; 2];
    type Word = __m512i;

    const MANY: bool = true;

    #[inline(always)]
    fn floats(self, lanes: &Lanes) -> __m512 {
        unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
    }

    #[inline(always)]
    fn lanes(self, x: __m512) -> Lanes {
        let mut lanes = [0.0; LANES];
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), x) };
        lanes
    }

    #[inline(always)]
    fn doubles(self, lanes: &Lanes<f64>) -> [__m512d; 2] {
        let (low, high) = lanes.split_at(LANES / 2);
        unsafe { [_mm512_loadu_pd(low.as_ptr()), _mm512_loadu_pd(high.as_ptr())] }
    }

    #[inline(always)]
    fn double_lanes(self, x: [__m512d; 2]) -> Lanes<f64> {
        let mut lanes = [0.0; LANES];
        let (low, high) = lanes.split_at_mut(LANES / 2);
        unsafe { _mm512_storeu_pd(low.as_mut_ptr(), x[0]) };
        unsafe { _mm512_storeu_pd(high.as_mut_ptr(), x[1]) };
        lanes
    }

    #[inline(always)]
    fn words(self, lanes: &Lanes<u32>) -> __m512i {
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn word_lanes(self, x: __m512i) -> Lanes<u32> {
        let mut lanes = [0; LANES];
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), x) };
        lanes
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn sub_exact(self, w: __m512, q: __m512, s: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(q, s, w) }
    }

    #[inline(always)]
    fn nearest(self, x: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(x) }
    }

    #[inline(always)]
    fn at_most(self, limit: __m512, x: __m512) -> __m512 {
        unsafe { _mm512_min_ps(limit, x) }
    }

    #[inline(always)]
    fn at_least(self, limit: __m512, x: __m512) -> __m512 {
        unsafe { _mm512_max_ps(limit, x) }
    }

    #[inline(always)]
    fn most(self, x: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    fn fold(self, total: [__m512d; 2], x: __m512) -> [__m512d; 2] {
        unsafe {
            let bits = _mm512_castps_si512(x);
            let low = _mm256_castsi256_ps(_mm512_castsi512_si256(bits));
            let high = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(bits));
            [_mm512_add_pd(total[0], _mm512_cvtps_pd(low)), _mm512_add_pd(total[1], _mm512_cvtps_pd(high))]
        }
    }

    #[inline(always)]
    fn choose(self, a: [__m512d; 2], b: [__m512d; 2], x: [__m512d; 2], y: [__m512d; 2]) -> [__m512d; 2] {
        let mut chosen = y;
        for half in 0..2 {
            unsafe {
                let less = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(a[half], b[half]);
                chosen[half] = _mm512_mask_blend_pd(less, y[half], x[half]);
            }
        }
        chosen
    }

    #[inline(always)]
    fn magnitude(self, most: __m512i, bits: __m512i) -> __m512i {
        unsafe { _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff))) }
    }

    #[inline(always)]
    fn count(self, count: __m512i, a: __m512, b: __m512) -> __m512i {
        unsafe {
            let differ = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b);
            _mm512_mask_add_epi32(count, differ, count, _mm512_set1_epi32(1))
        }
    }

    #[inline(always)]
    fn place(self, words: __m512i, at: usize, x: __m512) -> __m512i {
        unsafe {
            let byte = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0xff));
            _mm512_or_si512(words, _mm512_sllv_epi32(byte, _mm512_set1_epi32(8 * at as i32)))
        }
    }

    /// Blocks on either side of the diagonal change places, of 8 × 8 words first, then of 4 × 4 within each quarter, and
    /// so on.
    #[inline(always)]
    fn turn(self, rows: [__m512i; LANES]) -> [__m512i; LANES] {
        unsafe { exchange::<1>(exchange::<2>(exchange::<4>(exchange::<8>(rows)))) }
    }
}

/// Exchanges blocks of `N` × `N` words across the diagonals of blocks of twice the side.
#[inline]
#[target_feature(enable = "avx512f")]
fn exchange<const N: usize>(mut rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // Words of the upper row are 0..16, those of the lower one 16..32.
    let (mut upper, mut lower) = ([0; LANES], [0; LANES]);
    for at in 0..LANES {
        let left = at & N == 0;
        upper[at] = if left { at } else { LANES + at - N } as i32;
        lower[at] = if left { at + N } else { LANES + at } as i32;
    }
    // SAFETY: each holds 64 bytes, the width of the load.
    let upper = unsafe { _mm512_loadu_si512(upper.as_ptr().cast()) };
    // SAFETY: as above.
    let lower = unsafe { _mm512_loadu_si512(lower.as_ptr().cast()) };
    for pair in 0..LANES / 2 {
        let row = pair / N * 2 * N + pair % N;
        let (a, b) = (rows[row], rows[row + N]);
        rows[row] = _mm512_permutex2var_epi32(a, upper, b);
        rows[row + N] = _mm512_permutex2var_epi32(a, lower, b);
    }
    rows
}
