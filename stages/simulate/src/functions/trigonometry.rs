//! Sine and cosine of an angle in radians.
//!
//! The angle times 1/2π (96 bits of it) is exact enough modulo one turn for every f32 below 2^31.
//! The turn, in Q64, is split into the nearest quarter and a rest of at most an eighth; the rest in
//! radians, in Q62, goes through the series of sine (to the 13th power) and cosine (to the 12th).

use super::fixed::{ONE, parts, round};
use crate::convert::NAN;

/// Angles of this magnitude and above have no sine: NaN.
pub const ANGLE_LIMIT: f32 = 2_147_483_648.0;
/// Below 2^-13 the sine rounds to the angle (within 0.05 ulp) and the cosine to 1.
const SMALL: f32 = 1.0 / 8192.0;

/// 1/2π in Q98: the first 96 bits of 2/π.
const INVERSE_TURN: u128 = 0xa2f9_836e_4e44_1529_fc27_57d1;
/// 2π in Q60.
const TURN: i128 = 0x6487_ed51_10b4_611a;

/// `1 / n!` in Q62.
const fn inverse_factorial(n: u64) -> i128 {
    let mut f = 1;
    let mut k = 2;
    while k <= n {
        f *= k;
        k += 1;
    }
    ((ONE + f / 2) / f) as i128
}

/// The coefficients of the series in the square of the angle, last first, without the signs.
const SINE: [i128; 7] = coefficients(13);
const COSINE: [i128; 7] = coefficients(12);

const fn coefficients(last: u64) -> [i128; 7] {
    let mut c = [0; 7];
    let mut k = 0;
    while k < 7 {
        c[k] = inverse_factorial(last - 2 * k as u64);
        k += 1;
    }
    c
}

/// `c6 − z·(c5 − z·(…))` in Q62, z the square in Q62.
fn series(c: &[i128; 7], z: i128) -> i128 {
    c.iter().copied().reduce(|sum, next| next - ((sum * z) >> 62)).unwrap_or(0)
}

fn from_fixed(v: i128) -> f32 {
    // |v| is at most 1 in Q62
    round(v < 0, v.unsigned_abs() as u64, -62)
}

/// (sine, cosine) of an angle in radians; NaN for infinities and from `ANGLE_LIMIT` on.
pub fn sincos(angle: f32) -> (f32, f32) {
    if angle.is_nan() || angle.abs() >= ANGLE_LIMIT {
        return (NAN, NAN);
    }
    if angle.abs() < SMALL {
        return (angle, 1.0);
    }
    let (negative, mantissa, exponent) = parts(angle);
    let product = u128::from(mantissa) * INVERSE_TURN;
    // the exponent is at most 7 and, above `SMALL`, at least -37: whole turns fall off the top
    let turn = (product >> (34 - exponent)) as u64;
    let turn = if negative { turn.wrapping_neg() } else { turn };
    let quarter = turn.wrapping_add(1 << 61) >> 62;
    let rest = turn.wrapping_sub(quarter << 62) as i64;
    let x = (i128::from(rest) * TURN) >> 62;
    let z = (x * x) >> 62;
    let sine = (x * series(&SINE, z)) >> 62;
    let cosine = series(&COSINE, z);
    let (s, c) = match quarter {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    };
    (from_fixed(s), from_fixed(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_agree() {
        assert!((TURN as f64 / 2f64.powi(60) - std::f64::consts::TAU).abs() < 1e-15);
        // their product is one turn in Q158, within the last bit of each
        let product = (INVERSE_TURN >> 32) as f64 / 2f64.powi(66) * (TURN as f64 / 2f64.powi(60));
        assert!((product - 1.0).abs() < 1e-15);
    }
}
