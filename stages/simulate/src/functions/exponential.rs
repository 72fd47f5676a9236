//! exp, and what is made of it: sigmoid and silu.
//!
//! `e^x = 2^n · 2^(i/64) · 2^d` with `y = x · log2 e` in Q40, n its integer part, i the next 6 bits
//! and d the last 34: a table of 64 entries in Q62 times a cubic.

use super::fixed::{LN2, ONE, mul, parts, round};
use crate::convert::NAN;

/// log2 e in Q62.
const LOG2E: u64 = ((1u128 << 124) / LN2 as u128) as u64;
/// The coefficients of `2^d - 1 = d·C1 + d²·C2 + d³·C3`, in Q62: `ln2^k / k!`.
const C1: u64 = LN2;
const C2: u64 = mul(LN2, LN2, 62) / 2;
const C3: u64 = mul(mul(LN2, LN2, 62), LN2, 62) / 6;

/// `2^(i/64)` in Q62: the exponential series of `i · ln2 / 64`.
const TABLE: [u64; 64] = {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        let x = mul(LN2, i as u64, 6);
        let (mut sum, mut term, mut k) = (ONE, ONE, 1);
        while term > 0 {
            term = mul(term, x, 62) / k;
            sum += term;
            k += 1;
        }
        table[i] = sum;
        i += 1;
    }
    table
};

/// `e^x` as `m · 2^n` with m in Q62 from 1 to 2, for |x| < 128.
pub(super) fn power(x: f32) -> (u64, i32) {
    let (negative, mantissa, exponent) = parts(x);
    let shift = exponent + 40;
    let fixed =
        if shift >= 0 { mantissa << shift } else { mantissa.checked_shr(shift.unsigned_abs()).unwrap_or(0) };
    let y = mul(fixed, LOG2E, 62) as i64;
    // an arithmetic shift rounds down, so d is never negative
    let y = if negative { -y } else { y };
    let n = (y >> 40) as i32;
    let i = (y >> 34 & 63) as usize;
    let d = (y & ((1 << 34) - 1)) as u64;
    let p = mul(d, C1 + mul(d, C2 + mul(d, C3, 40), 40), 40);
    (TABLE[i] + mul(TABLE[i], p, 62), n)
}

/// `e^x`: infinity above 89, 0 below -104.
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        NAN
    } else if x > 89.0 {
        f32::INFINITY
    } else if x < -104.0 {
        0.0
    } else {
        let (m, n) = power(x);
        round(false, m, n - 62)
    }
}

/// `1 / (1 + e^-x)` as `q · 2^e`, q of at most 32 bits, for |x| < 128.
///
/// With `t = e^-|x|` in Q31: `1 / (1 + t)`, or `t / (1 + t)` for a negative x; one integer division.
fn logistic(x: f32) -> (u64, i32) {
    let (m, n) = power(-x.abs());
    let m = m >> 31;
    let t = m.checked_shr(n.unsigned_abs()).unwrap_or(0);
    let below = (1 << 31) + t;
    // signs are as good as random: chosen without a jump
    let negative = x.is_sign_negative();
    let above = if negative { m << 31 } else { 1 << 62 };
    ((above + below / 2) / below, if negative { n - 31 } else { -31 })
}

/// `1 / (1 + e^-x)`: 1 above 104, 0 below -104.
pub fn sigmoid(x: f32) -> f32 {
    if x.is_nan() {
        NAN
    } else if x > 104.0 {
        1.0
    } else if x < -104.0 {
        0.0
    } else {
        let (q, e) = logistic(x);
        round(false, q, e)
    }
}

/// `x / (1 + e^-x)`, the product rounded once: x above 104, -0 below -110.
pub fn silu(x: f32) -> f32 {
    if x.is_nan() {
        NAN
    } else if x > 104.0 {
        x
    } else if x < -110.0 {
        -0.0
    } else {
        let (q, e) = logistic(x);
        let (negative, mantissa, exponent) = parts(x);
        round(negative, mantissa * q, exponent + e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_its_rule() {
        for (i, &entry) in TABLE.iter().enumerate() {
            let expected = (i as f64 / 64.0).exp2();
            assert!((entry as f64 / ONE as f64 - expected).abs() < 1e-15, "{i}");
        }
    }
}
