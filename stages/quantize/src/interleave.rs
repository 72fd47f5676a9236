//! Rows of dwords into the device's vectors: sixteen rows at a time, transposed. What a dword holds is not known here.
//!
//! The order is moved, no value: the processor's registers transpose eight rows of eight dwords at once where it has
//! AVX2, and the same goes dword by dword elsewhere.

/// Rows of a sub-block, and dwords of a vector.
pub(crate) const LANES: usize = mica_device::layout::LANES as usize;

/// A vector of the segment.
type Vector = [u8; 64];

/// Writes a sub-block of sixteen rows of `steps` dwords, one row after the other, into the vectors of a tile,
/// `[step][sub-block]`. Rows that are missing at the end are zero.
pub(crate) fn sub_block(rows: &[u32], steps: usize, number: usize, count: usize, out: &mut [u8]) {
    debug_assert!(rows.len() == LANES * steps && out.len() == steps * count * size_of::<Vector>());
    let vectors: &mut [Vector] = out.as_chunks_mut().0;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, all that the function asks for.
        unsafe { avx2::sub_block(rows, steps, number, count, vectors) };
        return;
    }
    portable(rows, steps, 0, number, count, vectors);
}

/// Steps from `first` on, dword by dword.
fn portable(rows: &[u32], steps: usize, first: usize, number: usize, count: usize, out: &mut [Vector]) {
    for step in first..steps {
        let vector: &mut [[u8; 4]] = out[step * count + number].as_chunks_mut().0;
        for (row, dword) in vector.iter_mut().enumerate() {
            *dword = rows[row * steps + step].to_le_bytes();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{LANES, Vector, portable};
    use std::arch::x86_64::*;

    /// Rows, and dwords of each, that the registers transpose at once.
    const SIDE: usize = 8;

    #[target_feature(enable = "avx2")]
    pub(super) fn sub_block(rows: &[u32], steps: usize, number: usize, count: usize, out: &mut [Vector]) {
        assert!(rows.len() >= LANES * steps && out.len() >= steps * count && number < count);
        let whole = steps / SIDE * SIDE;
        for step in (0..whole).step_by(SIDE) {
            for half in 0..LANES / SIDE {
                let mut block = [_mm256_setzero_si256(); SIDE];
                for (at, block) in block.iter_mut().enumerate() {
                    let from = &rows[(half * SIDE + at) * steps + step..][..SIDE];
                    // SAFETY: eight dwords are there to be read; the load needs no alignment.
                    *block = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
                }
                for (at, column) in transposed(block).into_iter().enumerate() {
                    let to = &mut out[(step + at) * count + number][half * 32..][..32];
                    // SAFETY: 32 bytes are there to be written; the store needs no alignment.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), column) };
                }
            }
        }
        portable(rows, steps, whole, number, count, out);
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
        let fours = |a: [__m256i; 2], b: [__m256i; 2]| {
            [lo(a[0], b[0]), hi(a[0], b[0]), lo(a[1], b[1]), hi(a[1], b[1])]
        };
        let (top, bottom) = (fours(pairs[0], pairs[1]), fours(pairs[2], pairs[3]));
        let mut columns = [_mm256_setzero_si256(); SIDE];
        for column in 0..4 {
            columns[column] = _mm256_permute2x128_si256::<0x20>(top[column], bottom[column]);
            columns[column + 4] = _mm256_permute2x128_si256::<0x31>(top[column], bottom[column]);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dword_of_every_row_in_its_place() {
        for (steps, count) in [(1, 1), (7, 2), (8, 1), (16, 4), (37, 3)] {
            let mut out = vec![0; steps * count * 64];
            let mut again = out.clone();
            for number in 0..count {
                let dword = |row: usize, step: usize| (number * 16 + row) as u32 * 1000 + step as u32;
                let rows: Vec<u32> =
                    (0..16).flat_map(|row| (0..steps).map(move |step| dword(row, step))).collect();
                sub_block(&rows, steps, number, count, &mut out);
                portable(&rows, steps, 0, number, count, again.as_chunks_mut().0);
            }
            assert_eq!(out, again);
            for (at, found) in out.as_chunks().0.iter().enumerate() {
                let (vector, lane) = (at / 16, at % 16);
                let (step, number) = (vector / count, vector % count);
                let expected = (number * 16 + lane) as u32 * 1000 + step as u32;
                assert_eq!(u32::from_le_bytes(*found), expected, "{steps} steps, {count} sub-blocks");
            }
        }
    }
}
