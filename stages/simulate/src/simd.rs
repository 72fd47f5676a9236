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

#[cfg(test)]
mod tests {
    use crate::convert::{f16_to_f32, f32_to_f16};
    use proptest::prelude::*;

    /// What the loops of this crate are made of: conversions, products, sums in lanes.
    #[inline(always)]
    fn lanes(bits: &[u32]) -> Vec<u32> {
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

    wide! {
        fn widest(bits: &[u32]) -> Vec<u32> {
            lanes(bits)
        }
    }

    proptest! {
        #[test]
        fn every_width_gives_the_same_bits(bits in prop::collection::vec(any::<u32>(), 64..400)) {
            prop_assert_eq!(widest(&bits), lanes(&bits));
        }
    }
}
