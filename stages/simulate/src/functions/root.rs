//! The reciprocal square root.
//!
//! The argument is brought to Q30 from 1 to 4 with an even exponent; a table of 192 entries seeds
//! two Newton steps, `y ← y · (3 − a·y²) / 2`, in Q30.

use super::fixed::{parts, round};
use crate::convert::NAN;

/// `2^30 / sqrt((i + 0.5) / 64)` for i from 64 to 255, rounded to nearest.
const SEED: [u64; 192] = {
    let mut table = [0; 192];
    let mut n = 0;
    while n < 192 {
        let i = n as u128 + 64;
        // the root of 2^60 · 128 / (2i + 1), with two more fraction bits to round by
        let root = ((1u128 << 71) / (2 * i + 1)).isqrt();
        table[n] = ((root + 2) >> 2) as u64;
        n += 1;
    }
    table
};

const fn shift_round(v: u64, n: u32) -> u64 {
    (v + (1 << (n - 1))) >> n
}

/// `1 / √x`: infinity for ±0, 0 for infinity, NaN for what is negative.
pub fn rsqrt(x: f32) -> f32 {
    if x == 0.0 {
        return f32::INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return NAN;
    }
    if x == f32::INFINITY {
        return 0.0;
    }
    let (_, mantissa, exponent) = parts(x);
    // a · 2^(e - 30), a from 2^30 to 2^32 and e even
    let up = mantissa.leading_zeros() as i32 - 33;
    let e = exponent - up + 30;
    let odd = e & 1;
    let a = mantissa << (up + odd);
    let half = (e - odd) / 2;
    let mut y = SEED[(a >> 24) as usize - 64];
    for _ in 0..2 {
        let square = shift_round(y * y, 30);
        let t = shift_round(a * square, 30);
        y = shift_round(y * ((3 << 30) - t), 31);
    }
    round(false, y, -30 - half)
}

#[cfg(test)]
mod tests {
    use super::SEED;

    #[test]
    fn the_seeds_follow_their_rule() {
        for (n, &seed) in SEED.iter().enumerate() {
            let exact = 2f64.powi(30) / ((n as f64 + 64.5) / 64.0).sqrt();
            assert!((seed as f64 - exact).abs() <= 0.75, "{n}");
        }
    }
}
