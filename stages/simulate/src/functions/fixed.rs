//! What the functions share: an f32 taken apart, an integer rounded to f32, products of fixed-point
//! numbers, and ln 2.

/// Sign, mantissa and exponent of a finite f32: its magnitude is `mantissa · 2^exponent`.
pub const fn parts(x: f32) -> (bool, u64, i32) {
    let bits = x.to_bits();
    let field = (bits >> 23 & 0xff) as i32;
    let fraction = (bits & 0x7f_ffff) as u64;
    let (mantissa, exponent) = if field == 0 { (fraction, -149) } else { (fraction | 1 << 23, field - 150) };
    (bits >> 31 == 1, mantissa, exponent)
}

/// `± mantissa · 2^exponent` rounded to f32, to nearest, ties to even; subnormals are kept and
/// overflow gives infinity.
pub const fn round(negative: bool, mantissa: u64, exponent: i32) -> f32 {
    let sign = (negative as u32) << 31;
    if mantissa == 0 {
        return f32::from_bits(sign);
    }
    let top = 63 - mantissa.leading_zeros() as i32 + exponent;
    // the weight of the result's last bit
    let last = if top < -126 { -149 } else { top - 23 };
    let drop = last - exponent;
    let kept = if drop <= 0 {
        mantissa << -drop
    } else if drop < 64 {
        let floor = mantissa >> drop;
        let rest = mantissa & ((1 << drop) - 1);
        let half = 1 << (drop - 1);
        floor + (rest > half || (rest == half && floor & 1 == 1)) as u64
    } else {
        // a tie goes to the even 0
        (drop == 64 && mantissa > 1 << 63) as u64
    };
    // a carry out of the mantissa lands in the exponent, where it belongs
    let bits = (((last + 149) as u64) << 23) + kept;
    if bits >= 0x7f80_0000 { f32::from_bits(sign | 0x7f80_0000) } else { f32::from_bits(sign | bits as u32) }
}

/// The product of two numbers, `a · b / 2^n`, rounded down.
pub const fn mul(a: u64, b: u64, n: u32) -> u64 {
    ((a as u128 * b as u128) >> n) as u64
}

/// One in Q62.
pub const ONE: u64 = 1 << 62;

/// ln 2 in Q62: the sum of `1 / (k · 2^k)`.
pub const LN2: u64 = {
    let mut sum: u128 = 0;
    let mut k = 1;
    while k <= 100 {
        sum += (1u128 << (100 - k)) / k;
        k += 1;
    }
    ((sum + (1 << 37)) >> 38) as u64
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ln2_is_ln2() {
        assert!((LN2 as f64 / ONE as f64 - std::f64::consts::LN_2).abs() < 1e-16);
    }

    proptest! {
        #[test]
        fn rounding_agrees_with_the_machine(m in 1u64..1 << 53, exponent in -250i32..120) {
            // exact in f64, whose conversion to f32 rounds once
            let x = m as f64 * 2f64.powi(exponent);
            prop_assert_eq!(round(false, m, exponent).to_bits(), (x as f32).to_bits());
            prop_assert_eq!(round(true, m, exponent).to_bits(), (-x as f32).to_bits());
        }

        #[test]
        fn parts_put_together_again(bits: u32) {
            let x = f32::from_bits(bits);
            if x.is_finite() {
                let (negative, m, e) = parts(x);
                prop_assert_eq!(round(negative, m, e).to_bits(), bits);
            }
        }
    }
}
