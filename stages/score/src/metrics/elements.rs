//! How far single elements are off: relative to themselves, in units of the last place, and how many are
//! no numbers.

use super::comparable;
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// A binary format that units of the last place are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Stored bits of the mantissa.
    pub mantissa: u32,
    /// Smallest exponent of a normal number.
    pub least: i32,
}

impl Places {
    /// IEEE binary64.
    pub const F64: Places = Places { mantissa: 52, least: -1022 };
    /// IEEE binary32.
    pub const F32: Places = Places { mantissa: 23, least: -126 };
    /// IEEE binary16.
    pub const F16: Places = Places { mantissa: 10, least: -14 };
    /// bfloat16.
    pub const BF16: Places = Places { mantissa: 7, least: -126 };

    /// The distance between two neighbours of the format at the size of `x`, which is finite.
    fn unit(self, x: f64) -> f64 {
        let exponent = if x == 0.0 { self.least } else { libm::ilogb(x).max(self.least) };
        libm::scalbn(1.0, exponent - self.mantissa as i32)
    }
}

/// The worst elements of `y` beside its reference `r`, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elements {
    /// Elements compared.
    pub elements: u64,
    /// `max |y − r| / |r|`: 0 where both are zero, NaN where only `r` is.
    pub max_rel: f64,
    /// Which element that is.
    pub max_rel_at: u64,
    /// `max |y − r|` in units of the last place of `r` in the given format.
    pub ulp: f64,
    /// Which element that is.
    pub ulp_at: u64,
    /// Elements of `y` and of `r` that are NaN or infinite.
    pub not_finite: [u64; 2],
}

impl Elements {
    /// Compares element by element. The two distances are NaN if an element of either list is not finite.
    /// Errors on different lengths and on no elements.
    pub fn of(y: &[f64], r: &[f64], places: Places) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let count = |values: &[f64]| values.iter().filter(|v| !v.is_finite()).count() as u64;
        let not_finite = [count(y), count(r)];
        let (max_rel, max_rel_at) = worst(y, r, |y, r| match y == r {
            true => 0.0,
            false if r == 0.0 => f64::NAN,
            false => (y - r).abs() / r.abs(),
        });
        let (ulp, ulp_at) = worst(y, r, |y, r| (y - r).abs() / places.unit(r));
        Ok(Self { elements: r.len() as u64, max_rel, max_rel_at, ulp, ulp_at, not_finite })
    }
}

/// The largest distance and the first place that has it; a NaN is larger than any.
fn worst(y: &[f64], r: &[f64], distance: impl Fn(f64, f64) -> f64) -> (f64, u64) {
    let mut worst = (0.0, 0);
    for (i, (&y, &r)) in y.iter().zip(r).enumerate() {
        let d = if y.is_finite() && r.is_finite() { distance(y, r) } else { f64::NAN };
        if !d.is_finite() {
            return (f64::NAN, i as u64);
        }
        if d > worst.0 {
            worst = (d, i as u64);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_element_is_found_in_each_measure() {
        const NAN: f64 = f64::NAN;
        // y, r, largest relative difference and where, units of the last place of binary32 and where
        type Case = (&'static [f64], &'static [f64], (f64, u64), (f64, u64));
        const UNIT: f64 = f32::EPSILON as f64;
        const NEAR: &[f64] = &[1.0 + UNIT, 8.0];
        let cases: [Case; 6] = [
            (&[1.0, 2.0], &[1.0, 2.0], (0.0, 0), (0.0, 0)),
            (NEAR, &[1.0, 8.0], (UNIT, 0), (1.0, 0)),
            (&[0.0, 3.0], &[0.0, 2.0], (0.5, 1), (f64::from(1u32 << 22), 1)),
            (&[1.0, 1e-9], &[1.0, 0.0], (NAN, 1), (1e-9 / 2f64.powi(-149), 1)),
            (&[NAN, 1.0], &[1.0, 1.0], (NAN, 0), (NAN, 0)),
            (&[1.0, f64::INFINITY], &[1.0, f64::INFINITY], (NAN, 1), (NAN, 1)),
        ];
        for (y, r, rel, ulp) in cases {
            let e = Elements::of(y, r, Places::F32).unwrap();
            for (found, expected) in [((e.max_rel, e.max_rel_at), rel), ((e.ulp, e.ulp_at), ulp)] {
                assert_eq!((found.0.to_bits(), found.1), (expected.0.to_bits(), expected.1), "{y:?} {r:?}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_counted_on_both_sides() {
        let e = Elements::of(&[f64::NAN, 1.0, 2.0], &[1.0, f64::INFINITY, f64::NAN], Places::F64).unwrap();
        assert_eq!(e.not_finite, [1, 2]);
        assert!(Elements::of(&[], &[], Places::F64).is_err());
        assert!(Elements::of(&[1.0], &[1.0, 2.0], Places::F64).is_err());
    }
}
