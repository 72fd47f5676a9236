//! How like one vector is to another: cosine, norm ratio, relative and largest error.

use super::{comparable, finite, finite_or_nan, norm, rows};
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// What an error is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// In norms of the reference.
    Relative,
    /// In the values' own unit, because the reference is too near zero to divide by.
    Absolute,
}

/// How like a vector `y` is to its reference `r`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Similarity {
    /// Elements compared.
    pub elements: u64,
    /// `y·r / (|y||r|)`. Against a near-zero reference 1 if `y` is near zero too, else NaN.
    pub cosine: f64,
    /// `|y| / |r|`. Against a near-zero reference 1 if `y` is near zero too, else NaN.
    pub norm_ratio: f64,
    /// Relative: `|y − r| / |r|`. Absolute: the root mean square of `y − r`.
    pub error: f64,
    /// `max |y − r|`, in the values' unit.
    pub max_abs: f64,
    /// What `error` is measured in.
    pub scale: Scale,
}

impl Similarity {
    /// Compares `y` with `r`, whose root mean square counts as zero up to `near_zero`. All four figures
    /// are NaN if an element of either is not finite. Errors on different lengths and on no elements.
    pub fn of(y: &[f64], r: &[f64], near_zero: f64) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let elements = r.len() as u64;
        if !finite(y) || !finite(r) {
            let nan = f64::NAN;
            return Ok(Self {
                elements,
                cosine: nan,
                norm_ratio: nan,
                error: nan,
                max_abs: nan,
                scale: Scale::Relative,
            });
        }
        let pairs = || y.iter().zip(r);
        let dot: f64 = pairs().map(|(a, b)| a * b).sum();
        let (y_norm, r_norm) = (norm(y.iter().copied()), norm(r.iter().copied()));
        let off = norm(pairs().map(|(a, b)| a - b));
        let max_abs = finite_or_nan(pairs().fold(0.0, |max: f64, (a, b)| max.max((a - b).abs())));
        // A root mean square; the square root of the count is exact enough and the same everywhere.
        let root = (elements as f64).sqrt();
        if r_norm / root <= near_zero {
            let error = finite_or_nan(off / root);
            let same = if error <= near_zero { 1.0 } else { f64::NAN };
            return Ok(Self {
                elements,
                cosine: same,
                norm_ratio: same,
                error,
                max_abs,
                scale: Scale::Absolute,
            });
        }
        Ok(Self {
            elements,
            // Rounding can carry the quotient of two equal vectors past 1. Dividing twice keeps the
            // product of two large norms from overflowing.
            cosine: finite_or_nan((dot / y_norm / r_norm).clamp(-1.0, 1.0)),
            norm_ratio: finite_or_nan(y_norm / r_norm),
            error: finite_or_nan(off / r_norm),
            max_abs,
            scale: Scale::Relative,
        })
    }

    /// Compares row by row two flattened tables of rows of `width` elements. Errors as [`Self::of`] does,
    /// and on a table that is no whole number of rows.
    pub fn by_row(y: &[f64], r: &[f64], width: usize, near_zero: f64) -> Result<Vec<Self>, ScoreError> {
        comparable(y, r)?;
        rows("a table", y, width)?
            .zip(rows("a table", r, width)?)
            .map(|(y, r)| Self::of(y, r, near_zero))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: f64 = 1e-9;

    #[test]
    fn figures_of_small_vectors() {
        // y, r, cosine, norm ratio, error, largest error
        type Case = (&'static [f64], &'static [f64], [f64; 4]);
        let cases: [Case; 5] = [
            (&[3.0, 4.0], &[3.0, 4.0], [1.0, 1.0, 0.0, 0.0]),
            (&[6.0, 8.0], &[3.0, 4.0], [1.0, 2.0, 1.0, 4.0]),
            (&[-3.0, -4.0], &[3.0, 4.0], [-1.0, 1.0, 2.0, 8.0]),
            (&[0.0, 5.0], &[3.0, 4.0], [0.8, 1.0, 10f64.sqrt() / 5.0, 3.0]),
            (&[4.0, -3.0], &[3.0, 4.0], [0.0, 1.0, 2f64.sqrt(), 7.0]),
        ];
        for (y, r, expected) in cases {
            let s = Similarity::of(y, r, ZERO).unwrap();
            for (found, expected) in [s.cosine, s.norm_ratio, s.error, s.max_abs].into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-15, "{y:?} {r:?}: {s:?}");
            }
            assert_eq!((s.elements, s.scale), (2, Scale::Relative));
        }
    }

    #[test]
    fn equal_vectors_never_exceed_one() {
        let v: Vec<f64> = (1..100).map(|i| 1.0 / f64::from(i)).collect();
        assert!(Similarity::of(&v, &v, ZERO).unwrap().cosine <= 1.0);
    }

    #[test]
    fn what_is_not_finite_or_overflows_is_nan() {
        let cases: [(&[f64], &[f64]); 5] = [
            (&[f64::NAN, 1.0], &[1.0, 1.0]),
            (&[1.0, 1.0], &[1.0, f64::NAN]),
            (&[f64::INFINITY, 1.0], &[f64::INFINITY, 1.0]),
            (&[1.0, 1.0], &[f64::NEG_INFINITY, 1.0]),
            (&[1e308, -1e308], &[-1e308, 1e308]),
        ];
        for (y, r) in cases {
            let s = Similarity::of(y, r, ZERO).unwrap();
            for figure in [s.cosine, s.norm_ratio, s.error, s.max_abs] {
                assert_eq!(figure.to_bits(), f64::NAN.to_bits(), "{y:?} {r:?}: {s:?}");
            }
        }
    }

    #[test]
    fn a_near_zero_reference_is_compared_absolutely() {
        let near = Similarity::of(&[0.0, 1e-10], &[0.0, 0.0], ZERO).unwrap();
        assert_eq!((near.scale, near.cosine, near.norm_ratio), (Scale::Absolute, 1.0, 1.0));
        let far = Similarity::of(&[0.0, 1e-3], &[0.0, 0.0], ZERO).unwrap();
        assert!(far.cosine.is_nan() && far.norm_ratio.is_nan());
        assert!((far.error - 1e-3 / 2f64.sqrt()).abs() < 1e-18);
        assert_eq!(far.max_abs, 1e-3);
        // The other way round nothing is near zero to divide by, and the cosine is undefined.
        assert!(Similarity::of(&[0.0], &[1.0], ZERO).unwrap().cosine.is_nan());
    }

    #[test]
    fn nothing_and_unequal_lengths_are_errors() {
        assert!(matches!(Similarity::of(&[], &[], ZERO), Err(ScoreError::Empty { .. })));
        assert_eq!(
            Similarity::of(&[1.0], &[1.0, 2.0], ZERO),
            Err(ScoreError::Mismatch { expected: 2, found: 1 })
        );
        assert!(matches!(Similarity::by_row(&[1.0; 3], &[1.0; 3], 2, ZERO), Err(ScoreError::Rows { .. })));
        assert!(matches!(Similarity::by_row(&[1.0], &[1.0], 0, ZERO), Err(ScoreError::Empty { .. })));
    }
}
