//! Exact equality, counted.

use super::comparable;
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// How many elements of two lists differ. To compare floating-point values bit by bit, compare their bits:
/// as values `0.0 == -0.0`, and a NaN differs from itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Equality {
    /// Elements compared.
    pub elements: u64,
    /// Elements that differ.
    pub differing: u64,
    /// Index of the first that does.
    pub first: Option<u64>,
}

impl Equality {
    /// Compares element by element. Errors on different lengths and on no elements.
    pub fn of<T: PartialEq>(y: &[T], r: &[T]) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let differing = || y.iter().zip(r).enumerate().filter(|(_, (a, b))| a != b);
        Ok(Self {
            elements: r.len() as u64,
            differing: differing().count() as u64,
            first: differing().next().map(|(index, _)| index as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_counted_and_the_first_is_named() {
        let of = |y: &[f64], r: &[f64]| Equality::of(y, r).map(|e| (e.elements, e.differing, e.first));
        assert_eq!(of(&[1.0, 2.0], &[1.0, 2.0]), Ok((2, 0, None)));
        assert_eq!(of(&[1.0, 2.0, 3.0], &[1.0, 0.0, 0.0]), Ok((3, 2, Some(1))));
        assert_eq!(of(&[f64::NAN], &[f64::NAN]), Ok((1, 1, Some(0))));
        assert!(matches!(of(&[], &[]), Err(ScoreError::Empty { .. })));
        assert!(matches!(of(&[1.0], &[]), Err(ScoreError::Mismatch { .. })));
        assert_eq!(Equality::of(&[0.0f64.to_bits()], &[(-0.0f64).to_bits()]).unwrap().differing, 1);
    }
}
