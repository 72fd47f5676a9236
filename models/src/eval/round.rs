//! Rounding of a float64 through a smaller dtype, to nearest, ties to even, in one step.

use crate::hir::Dtype;

/// `x` as the nearest value of `dtype`; beyond the largest, infinity. Integers are left as they are.
pub fn round_through(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(x as f32),
        Dtype::BF16 => round(x, 7, -126, f64::from(half::bf16::MAX)),
        Dtype::F16 => round(x, 10, -14, f64::from(half::f16::MAX)),
        Dtype::I64 => x,
    }
}

/// Rounds to `mantissa` stored bits, exponents from `least`.
fn round(x: f64, mantissa: i32, least: i32, max: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Powers of two scale exactly, so the only rounding is rint's.
    let exponent = libm::ilogb(x).max(least);
    let unit = libm::scalbn(1.0, exponent - mantissa);
    let y = libm::rint(x / unit) * unit;
    match y.abs() > max {
        true => f64::INFINITY.copysign(x),
        false => y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half_on_every_value_and_tie() {
        for bits in 0..0x7f80u16 {
            let (a, b) = (half::bf16::from_bits(bits).to_f64(), half::bf16::from_bits(bits + 1).to_f64());
            assert_eq!(round_through(Dtype::BF16, a), a);
            if b.is_finite() {
                let tie = (a + b) / 2.0;
                let even = if bits % 2 == 0 { a } else { b };
                assert_eq!(round_through(Dtype::BF16, tie), even);
                assert_eq!(round_through(Dtype::BF16, tie * (1.0 + f64::EPSILON)), b);
                assert_eq!(round_through(Dtype::BF16, -tie * (1.0 - f64::EPSILON)), -a);
            }
        }
        for bits in 0..0x7c00u16 {
            let a = half::f16::from_bits(bits).to_f64();
            assert_eq!(round_through(Dtype::F16, a), a);
        }
        assert_eq!(round_through(Dtype::F16, 65519.0), 65504.0);
        assert_eq!(round_through(Dtype::F16, 65520.0), f64::INFINITY);
    }
}
