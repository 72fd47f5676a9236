//! Loops compiled for the widest vectors that the machine has.
//!
//! The same Rust code, hence the same operations in the same order: nothing is contracted or reordered, and
//! every width gives the same bits. What a closure calls must be inlined into it to gain anything.

/// A function whose body is compiled for each width that machines have; the widest that this one has runs.
macro_rules! wide {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }
            match $crate::simd::width() {
                // SAFETY: `width` has seen that the machine has the features.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Width::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Width::Avx2 => unsafe { avx2($($arg),*) },
                $crate::simd::Width::Plain => plain($($arg),*),
            }
        }
    };
}

/// The vectors that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// What every machine of the target has.
    Plain,
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The widest of this machine.
#[inline]
pub fn width() -> Width {
    #[cfg(test)]
    if let Some(asked) = testing::asked() {
        return asked;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if avx512 {
            return Width::Avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return Width::Avx2;
        }
    }
    Width::Plain
}

/// Every width in turn, for tests that compare them.
#[cfg(test)]
pub mod testing {
    use super::{Width, width};
    use std::cell::Cell;

    thread_local! {
        static ASKED: Cell<Option<Width>> = const { Cell::new(None) };
    }

    pub fn asked() -> Option<Width> {
        ASKED.get()
    }

    /// What `f` gives on this thread at every width that the machine has.
    pub fn at_each_width<R>(f: impl Fn() -> R) -> Vec<R> {
        let widest = width();
        let mut all = vec![Width::Plain];
        #[cfg(target_arch = "x86_64")]
        if widest != Width::Plain {
            all.push(Width::Avx2);
        }
        if !all.contains(&widest) {
            all.push(widest);
        }
        let results = all.into_iter().map(|w| {
            ASKED.set(Some(w));
            f()
        });
        let results = results.collect();
        ASKED.set(None);
        results
    }

    /// The bits of floats; a NaN's payload is the one thing that machines choose.
    pub fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{at_each_width, bits};
    use crate::convert::{f16_to_f32, f32_to_f16};
    use proptest::prelude::*;

    wide! {
    /// What the loops of this crate are made of: conversions, products, sums in lanes.
    fn lanes(values: &[f32]) -> Vec<f32> {
        let mut lanes = [0.0f32; 16];
        let mut out = Vec::new();
        for chunk in values.as_chunks::<16>().0 {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane += v * f16_to_f32(f32_to_f16(f32::from_bits(v.to_bits().rotate_left(7))));
            }
            out.extend(lanes);
        }
        out
    }
    }

    proptest! {
        #[test]
        fn every_width_gives_the_same_bits(words in prop::collection::vec(any::<u32>(), 64..400)) {
            let values: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
            let all = at_each_width(|| bits(&lanes(&values)));
            prop_assert!(all.iter().all(|r| *r == all[0]));
        }
    }
}
