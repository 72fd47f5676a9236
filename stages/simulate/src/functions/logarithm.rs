//! softplus: ln(1 + e^x).
//!
//! `max(x, 0) + ln(1 + t)` with `t = e^-|x|`. The logarithm is a table of 129 entries (ln c, 1 / c
//! for c = 1 + i/128) and a quartic in `(1 + t - c) / c`; for `t < 2^-30` it is t itself.

use super::exponential::power;
use super::fixed::{ONE, mul, parts, round};
use crate::convert::NAN;

/// `ln(1 + i/128)` in Q62: twice the series of the inverse hyperbolic tangent at `i / (256 + i)`.
const LN: [u64; 129] = {
    let mut table = [0; 129];
    let mut i = 0;
    while i < table.len() {
        let z = ((i as u128) << 62) / (256 + i as u128);
        let square = mul(z as u64, z as u64, 62);
        let (mut sum, mut power, mut k) = (0, z as u64, 1);
        while power > 0 {
            sum += power / k;
            power = mul(power, square, 62);
            k += 2;
        }
        table[i] = 2 * sum;
        i += 1;
    }
    table
};

/// `128 / (128 + i)` in Q62.
const INVERSE: [u64; 129] = {
    let mut table = [0; 129];
    let mut i = 0;
    while i < table.len() {
        table[i] = ((128u128 << 62) / (128 + i as u128)) as u64;
        i += 1;
    }
    table
};

/// `ln(1 + u)` in Q62 for u in Q62 below 2^-7: `u - u²/2 + u³/3 - u⁴/4`.
const fn near_one(u: u64) -> u64 {
    let inner = ONE / 3 - mul(u, ONE / 4, 62);
    let middle = ONE / 2 - mul(u, inner, 62);
    mul(u, ONE - mul(u, middle, 62), 62)
}

/// `ln(1 + t)` in Q62 for t in Q62, at most 1.
fn one_plus(t: u64) -> u64 {
    let i = (t >> 55) as usize;
    let rest = t - ((i as u64) << 55);
    LN[i] + near_one(mul(rest, INVERSE[i], 62))
}

/// `ln(1 + e^x)`: x itself above 20, 0 below -104.
pub fn softplus(x: f32) -> f32 {
    if x.is_nan() {
        return NAN;
    }
    if x > 20.0 {
        return x;
    }
    if x < -104.0 {
        return 0.0;
    }
    let (m, n) = power(-x.abs());
    if n < -30 {
        // only a negative x comes here: -20 gives n = -29
        return round(false, m, n - 62);
    }
    let log = one_plus(m >> -n);
    if x.is_sign_negative() {
        return round(false, log, -62);
    }
    // x is at most 20: 5 integer bits, 57 fraction bits
    let (_, mantissa, exponent) = parts(x);
    let shift = exponent + 57;
    let fixed =
        if shift >= 0 { mantissa << shift } else { mantissa.checked_shr(shift.unsigned_abs()).unwrap_or(0) };
    round(false, fixed + (log >> 5), -57)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_follow_their_rules() {
        for i in 0..129 {
            let c = 1.0 + i as f64 / 128.0;
            assert!((LN[i] as f64 / ONE as f64 - c.ln()).abs() < 1e-15, "{i}");
            assert!((INVERSE[i] as f64 / ONE as f64 - 1.0 / c).abs() < 1e-15);
        }
    }
}
