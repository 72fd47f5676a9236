//! Loops compiled for the widest vectors that the machine has.
//!
//! The same Rust code, hence the same operations in the same order: nothing is contracted or reordered, and
//! every width gives the same bits. What a closure calls must be inlined into it to gain anything.

/// Runs `f`, compiled for the machine's vectors.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the machine has the features, as was just seen.
            return unsafe { avx512(f) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(f) };
        }
    }
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Elements from which on a function of each is worth a second thread.
const SHARE: usize = 1024;

/// Calls `f` on parts of both slices side by side, over `threads` threads where they are long enough.
pub fn shares<A: Sync, B: Send>(threads: usize, a: &[A], b: &mut [B], f: impl Fn(&[A], &mut [B]) + Sync) {
    use rayon::prelude::*;
    let share = a.len().div_ceil(threads.max(1)).next_multiple_of(64);
    if share < SHARE || share >= a.len() {
        return f(a, b);
    }
    a.par_chunks(share).zip(b.par_chunks_mut(share)).for_each(|(a, b)| f(a, b));
}

#[cfg(test)]
mod tests {
    use super::{avx2, avx512, shares, wide};
    use crate::convert::{f16_to_f32, f32_to_f16};
    use proptest::prelude::*;

    /// What the loops of this crate are made of: conversions, products, sums in lanes.
    #[inline(always)]
    fn work(bits: &[u32]) -> Vec<u32> {
        let mut lanes = [0.0f32; 16];
        let mut out = Vec::new();
        for chunk in bits.as_chunks::<16>().0 {
            for (lane, b) in lanes.iter_mut().zip(chunk) {
                *lane += f32::from_bits(*b) * f16_to_f32(f32_to_f16(f32::from_bits(b.rotate_left(7))));
            }
            // a NaN's payload is the one thing that machines choose
            out.extend(lanes.map(|l| if l.is_nan() { 0x7fc0_0000 } else { l.to_bits() }));
        }
        out
    }

    proptest! {
        #[test]
        fn every_width_gives_the_same_bits(bits in prop::collection::vec(any::<u32>(), 64..400)) {
            let plain = work(&bits);
            prop_assert_eq!(&wide(|| work(&bits)), &plain);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the machine has the feature, as was just seen.
                prop_assert_eq!(&unsafe { avx2(|| work(&bits)) }, &plain);
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
                // SAFETY: as above.
                prop_assert_eq!(&unsafe { avx512(|| work(&bits)) }, &plain);
            }
        }
    }

    #[test]
    fn shares_cover_everything_once() {
        for n in [0, 1, 63, 64, 1024, 2048, 5000] {
            let a: Vec<usize> = (0..n).collect();
            for threads in [1, 2, 3] {
                let mut b = vec![0; n];
                shares(threads, &a, &mut b, |a, b| {
                    for (a, b) in a.iter().zip(b) {
                        *b += a + 1;
                    }
                });
                assert!(b.iter().enumerate().all(|(i, b)| *b == i + 1), "{n} {threads}");
            }
        }
    }
}
