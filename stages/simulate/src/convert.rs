//! Conversions between number formats, by the rules of the manual: to nearest, ties to even; FX32
//! saturates; every event is counted.
//!
//! Written on bits, so that no conversion depends on the machine, and without branches in the
//! loops, so that the compiler can vectorise them.

use crate::counters::Counters;
use mica_device::format::Format;

/// The canonical NaN.
pub const NAN: f32 = f32::from_bits(0x7fc0_0000);
const EXPONENT: u32 = 0x7f80_0000;
/// The least magnitude that rounds to infinity in F16: 65520.
const F16_LIMIT: u32 = 0x477f_f000;

/// The value of an F16, exact.
#[inline(always)]
pub const fn f16_to_f32(h: u16) -> f32 {
    let sign = (h as u32 & 0x8000) << 16;
    let magnitude = (h as u32 & 0x7fff) << 13;
    // as f32 bits this is the value times 2^-112, subnormals included
    let value = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if h & 0x7c00 == 0x7c00 { EXPONENT } else { 0 };
    f32::from_bits(value.to_bits() | special | sign)
}

/// An f32 rounded to F16; above the range infinity, of NaN the canonical NaN.
#[inline(always)]
pub const fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let a = x.to_bits() & 0x7fff_ffff;
    let normal = (a.wrapping_add(0xfff + ((a >> 13) & 1))).wrapping_sub(112 << 23) >> 13;
    // 0.5 has the spacing 2^-24 of the F16 subnormals: the sum rounds to it
    let subnormal = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if a < 0x3880_0000 { subnormal } else { normal };
    let wide = if a >= F16_LIMIT { 0x7c00 } else { finite };
    if a > EXPONENT { 0x7e00 } else { (sign | wide) as u16 }
}

/// The value of a bfloat16, exact.
#[inline(always)]
pub const fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// An f32 rounded to bfloat16, of NaN the canonical NaN.
#[inline(always)]
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > EXPONENT {
        0x7fc0
    } else {
        (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }
}

/// `2^n` for n from -126 to 127.
pub const fn exp2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// An f32 in fixed point with `frac` fraction bits; NaN gives 0.
pub fn f32_to_fx(x: f32, frac: u8, counters: &mut Counters) -> i32 {
    if x.is_nan() {
        counters.non_finite += 1;
        return 0;
    }
    // exact in f64; adding 1.5 · 2^52 leaves the nearest integer, ties to even, in the low bits
    let scaled = f64::from(x) * f64::from(exp2(i32::from(frac)));
    if scaled >= 2_147_483_647.5 {
        counters.saturations += 1;
        i32::MAX
    } else if scaled < -2_147_483_648.5 {
        counters.saturations += 1;
        i32::MIN
    } else {
        (scaled + 6_755_399_441_055_744.0).to_bits() as u32 as i32
    }
}

/// Fixed point of `from` fraction bits with `to` fraction bits.
pub fn fx_to_fx(x: i32, from: u8, to: u8, counters: &mut Counters) -> i32 {
    if to >= from {
        saturate(i64::from(x) << (to - from), counters)
    } else {
        let n = from - to;
        let x = i64::from(x);
        let floor = x >> n;
        let rest = x - (floor << n);
        let half = 1i64 << (n - 1);
        let up = rest > half || (rest == half && floor & 1 == 1);
        saturate(floor + i64::from(up), counters)
    }
}

/// A wide fixed-point number, clamped to 32 bits.
pub fn saturate(x: i64, counters: &mut Counters) -> i32 {
    let clamped = x.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
    counters.saturations += u64::from(clamped != x);
    clamped as i32
}

wide! {
/// Whether any value is infinite or NaN.
pub fn any_non_finite(values: &[f32]) -> bool {
    values.iter().fold(false, |any, v| any | (v.to_bits() & EXPONENT == EXPONENT))
}
}

/// A number as it lies in an array.
pub trait Lane<T> {
    /// The number.
    fn get(&self) -> T;
}

impl Lane<f32> for f32 {
    #[inline(always)]
    fn get(&self) -> f32 {
        *self
    }
}

impl Lane<i32> for i32 {
    #[inline(always)]
    fn get(&self) -> i32 {
        *self
    }
}

/// An F32 element as it is stored.
impl Lane<f32> for [u8; 4] {
    #[inline(always)]
    fn get(&self) -> f32 {
        f32::from_le_bytes(*self)
    }
}

#[inline(always)]
fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b))
}

/// The 32-bit integers of a byte string.
#[inline(always)]
pub fn words(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b))
}

wide! {
/// Appends the f32 values of stored elements: exact, but for FX32 and I32, which round.
pub fn decode(format: Format, frac: u8, bytes: &[u8], out: &mut Vec<f32>) {
    match format {
        Format::F32 => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_bits(u32::from_le_bytes(*b)))),
        Format::F16 => out.extend(halves(bytes).map(f16_to_f32)),
        Format::Bf16 => out.extend(halves(bytes).map(bf16_to_f32)),
        Format::Fx32 => {
            let unit = exp2(-i32::from(frac));
            out.extend(words(bytes).map(|v| v as f32 * unit));
        }
        Format::I32 => out.extend(words(bytes).map(|v| v as f32)),
        Format::I8 => out.extend(bytes.iter().map(|&b| f32::from(b as i8))),
    }
}
}

wide! {
/// Stores f32 values as F32, F16, BF16 or FX32 elements. NaN is stored as the canonical NaN of the
/// format and counted; so is a finite value that overflows the format.
///
/// # Panics
/// If the format is I32 or I8, which no f32 result is stored in: callers check the tile first.
pub fn encode(values: &[f32], format: Format, frac: u8, bytes: &mut [u8], counters: &mut Counters) {
    match format {
        Format::F32 => {
            let (out, _) = bytes.as_chunks_mut();
            for (o, v) in out.iter_mut().zip(values) {
                *o = v.to_bits().to_le_bytes();
            }
            if any_non_finite(values) {
                for (o, _) in out.iter_mut().zip(values).filter(|(_, v)| v.is_nan()) {
                    *o = NAN.to_bits().to_le_bytes();
                    counters.non_finite += 1;
                }
            }
        }
        Format::F16 => {
            let (out, _) = bytes.as_chunks_mut();
            let mut large = false;
            for (o, v) in out.iter_mut().zip(values) {
                *o = f32_to_f16(*v).to_le_bytes();
                large |= v.to_bits() & 0x7fff_ffff >= F16_LIMIT;
            }
            if large {
                for v in values {
                    counters.non_finite += u64::from(v.is_nan());
                    let overflow = v.is_finite() && v.to_bits() & 0x7fff_ffff >= F16_LIMIT;
                    counters.f16_overflows += u64::from(overflow);
                }
            }
        }
        Format::Bf16 => {
            let (out, _) = bytes.as_chunks_mut();
            for (o, v) in out.iter_mut().zip(values) {
                let b = f32_to_bf16(*v);
                let overflow = v.is_finite() && b & 0x7f80 == 0x7f80;
                counters.non_finite += u64::from(v.is_nan() || overflow);
                *o = b.to_le_bytes();
            }
        }
        Format::Fx32 => {
            let (out, _) = bytes.as_chunks_mut();
            for (o, v) in out.iter_mut().zip(values) {
                *o = f32_to_fx(*v, frac, counters).to_le_bytes();
            }
        }
        Format::I32 | Format::I8 => unreachable!("no f32 result is stored as an integer"),
    }
}
}

/// Appends elements as fixed point with `to` fraction bits.
pub fn decode_fx(
    format: Format,
    frac: u8,
    bytes: &[u8],
    to: u8,
    out: &mut Vec<i32>,
    scratch: &mut Vec<f32>,
    counters: &mut Counters,
) {
    match format {
        Format::Fx32 if frac == to => out.extend(words(bytes)),
        Format::Fx32 => out.extend(words(bytes).map(|v| fx_to_fx(v, frac, to, counters))),
        _ => {
            scratch.clear();
            decode(format, frac, bytes, scratch);
            out.extend(scratch.iter().map(|&v| f32_to_fx(v, to, counters)));
        }
    }
}

/// Stores 32-bit integers.
pub fn encode_words(values: &[i32], bytes: &mut [u8]) {
    let (out, _) = bytes.as_chunks_mut();
    for (o, v) in out.iter_mut().zip(values) {
        *o = v.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{at_each_width, bits};
    use half::{bf16, f16};
    use proptest::prelude::*;

    proptest! {
        /// Any bits, between every pair of formats that convert, at every width, as an element alone is converted.
        #[test]
        fn every_width_converts_alike(
            words in prop::collection::vec(any::<u32>(), 1..150),
            frac in 0u8..32,
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let values: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            for &format in Format::ALL {
                let size = format.bytes() as usize;
                let mut one_by_one = Vec::new();
                bytes.chunks(size).for_each(|b| decode(format, frac, b, &mut one_by_one));
                let found = at_each_width(|| {
                    let mut out = Vec::new();
                    decode(format, frac, &bytes, &mut out);
                    bits(&out)
                });
                prop_assert!(found.iter().all(|v| *v == bits(&one_by_one)), "from {format:?}");
                if matches!(format, Format::I32 | Format::I8) {
                    continue;
                }
                let (mut counted, mut stored) = (Counters::default(), vec![0; values.len() * size]);
                for (v, b) in values.iter().zip(stored.chunks_mut(size)) {
                    encode(&[*v], format, frac, b, &mut counted);
                }
                let found = at_each_width(|| {
                    let (mut counters, mut out) = (Counters::default(), vec![0; stored.len()]);
                    encode(&values, format, frac, &mut out, &mut counters);
                    (out, counters, any_non_finite(&values))
                });
                let any = values.iter().any(|v| !v.is_finite());
                let same = found.iter().all(|f| (&f.0, f.1, f.2) == (&stored, counted, any));
                prop_assert!(same, "to {format:?}");
            }
        }
    }

    #[test]
    fn f16_is_exact_both_ways() {
        for h in 0..=u16::MAX {
            let value = f16_to_f32(h);
            let expected = f16::from_bits(h).to_f32();
            assert!(value == expected || (value.is_nan() && expected.is_nan()));
            assert_eq!(value.is_sign_negative(), expected.is_sign_negative());
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), h);
            }
        }
    }

    #[test]
    fn rounding_to_halves_agrees_with_another_implementation() {
        // every exponent, and mantissas around the ties of both formats
        for top in 0..=0xffffu32 {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff] {
                let x = f32::from_bits(top << 16 | low);
                if x.is_nan() {
                    assert_eq!((f32_to_f16(x), f32_to_bf16(x)), (0x7e00, 0x7fc0));
                } else {
                    assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
                    assert_eq!(f32_to_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
                }
            }
        }
    }

    #[test]
    fn fixed_point_rounds_and_saturates() {
        let mut c = Counters::default();
        for (x, frac, expected) in [
            (0.5, 0, 0),
            (1.5, 0, 2),
            (2.5, 0, 2),
            (-0.5, 0, 0),
            (-1.5, 0, -2),
            (1.0, 20, 1 << 20),
            (-2048.0, 20, i32::MIN),
            (2_147_483_520.0, 0, 2_147_483_520),
        ] {
            assert_eq!(f32_to_fx(x, frac, &mut c), expected, "{x}");
        }
        assert_eq!(c, Counters::default());
        assert_eq!(f32_to_fx(2048.0, 20, &mut c), i32::MAX);
        assert_eq!(f32_to_fx(f32::NEG_INFINITY, 20, &mut c), i32::MIN);
        assert_eq!(c.saturations, 2);
        assert_eq!(f32_to_fx(f32::NAN, 20, &mut c), 0);
        assert_eq!(c.non_finite, 1);
    }

    #[test]
    fn fixed_point_changes_its_fraction() {
        let mut c = Counters::default();
        for (x, from, to, expected) in [
            (3, 1, 0, 2),
            (1, 1, 0, 0),
            (-1, 1, 0, 0),
            (-3, 1, 0, -2),
            (5, 2, 0, 1),
            (6, 2, 0, 2),
            (-7, 0, 4, -112),
            (i32::MAX, 31, 0, 1),
        ] {
            assert_eq!(fx_to_fx(x, from, to, &mut c), expected, "{x}");
        }
        assert_eq!(c.saturations, 0);
        assert_eq!(fx_to_fx(i32::MIN, 0, 1, &mut c), i32::MIN);
        assert_eq!(c.saturations, 1);
    }

    #[test]
    fn storing_counts_its_events() {
        let mut c = Counters::default();
        let mut bytes = [0; 8];
        encode(&[65519.0, 65520.0, f32::INFINITY, f32::NAN], Format::F16, 0, &mut bytes, &mut c);
        let stored: Vec<u16> = halves(&bytes).collect();
        assert_eq!(stored, [0x7bff, 0x7c00, 0x7c00, 0x7e00]);
        assert_eq!((c.f16_overflows, c.non_finite), (1, 1));
        let mut bytes = [0; 8];
        let other_nan = f32::from_bits(0xffff_ffff);
        encode(&[other_nan, f32::INFINITY], Format::F32, 0, &mut bytes, &mut c);
        assert_eq!(bytes[..4], 0x7fc0_0000u32.to_le_bytes());
        assert_eq!(c.non_finite, 2);
    }
}
