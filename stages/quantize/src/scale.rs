//! Scales in their stored format: rounding that compiles to vector instructions, and the format's ends.

use crate::recipe::ScaleFormat;

/// The largest scale of a format whose products with the integers are finite.
pub(crate) const fn largest(format: ScaleFormat) -> f32 {
    match format {
        ScaleFormat::F16 => 65504.0,
        ScaleFormat::F32 => f32::MAX / 256.0,
    }
}

/// A positive scale as its format stores it, never zero. Beyond the format's range, more than
/// [`largest`]. Arithmetic that compiles to vector instructions, which the library's conversion does not.
#[inline(always)]
pub(crate) fn rounded(scale: f32, format: ScaleFormat) -> f32 {
    match format {
        ScaleFormat::F32 => select_max(scale, f32::MIN_POSITIVE),
        ScaleFormat::F16 => {
            const LEAST_NORMAL: f32 = 6.103_515_6e-5; // 2^-14
            const LEAST: f32 = 5.960_464_5e-8; // 2^-24
            // Ties to even at bit 13; a carry into the exponent is right.
            let bits = scale.to_bits();
            let normal = f32::from_bits((bits + 0xfff + ((bits >> 13) & 1)) & !0x1fff);
            // In 0.5..1 a binary32 counts multiples of 2^-24, as subnormal binary16 does.
            let subnormal = (scale + 0.75) - 0.75;
            select_max(if scale < LEAST_NORMAL { subnormal } else { normal }, LEAST)
        }
    }
}

#[inline(always)]
fn select_max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn scales_round_as_binary16_does() {
        let above = f16::MAX.to_bits() + 1;
        for bits in 1..above {
            let (here, next) = (f16::from_bits(bits), f16::from_bits(bits + 1));
            let exact = here.to_f32();
            let next = if next.is_infinite() { 65536.0 } else { next.to_f32() };
            let half_way = (exact + next) / 2.0;
            for x in [exact, half_way, half_way.next_down(), half_way.next_up()] {
                let expected = f16::from_f32(x).to_f32();
                let got = rounded(x, ScaleFormat::F16);
                assert!(got == expected || got > 65504.0 && expected.is_infinite(), "{x}");
            }
        }
        for tiny in [1e-38, 1e-10, 2.9e-8] {
            assert_eq!(rounded(tiny, ScaleFormat::F16), f16::from_bits(1).to_f32());
            assert!(f16::from_f32(tiny).to_f32() == 0.0);
        }
    }
}
