//! What one branch adds to the sum that it is part of.

use super::{comparable, finite, finite_or_nan, norm};
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// How far a branch moves an output: the shared expert beside the routed ones, say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branching {
    /// Elements compared.
    pub elements: u64,
    /// `|whole − without|`, in the values' unit.
    pub moved: f64,
    /// `|whole − without| / |without|`; NaN where the output without the branch is zero.
    pub contribution: f64,
    /// `|whole − without| / |whole|`; NaN where the whole output is zero.
    pub share: f64,
}

impl Branching {
    /// Compares an output with what it would be `without` the branch. The three figures are NaN if an
    /// element is not finite. Errors on different lengths and on no elements.
    pub fn of(whole: &[f64], without: &[f64]) -> Result<Self, ScoreError> {
        comparable(whole, without)?;
        let moved = if finite(whole) && finite(without) {
            norm(whole.iter().zip(without).map(|(a, b)| a - b))
        } else {
            f64::NAN
        };
        let against = |operand: &[f64]| finite_or_nan(moved / norm(operand.iter().copied()));
        Ok(Self {
            elements: whole.len() as u64,
            moved: finite_or_nan(moved),
            contribution: against(without),
            share: against(whole),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_measured_against_the_rest_and_against_the_whole() {
        let b = Branching::of(&[3.0, 4.0], &[3.0, 0.0]).unwrap();
        assert_eq!((b.moved, b.contribution, b.share, b.elements), (4.0, 4.0 / 3.0, 0.8, 2));
        let alone = Branching::of(&[3.0, 4.0], &[0.0, 0.0]).unwrap();
        assert!(alone.contribution.is_nan() && alone.share == 1.0 && alone.moved == 5.0);
        let broken = Branching::of(&[3.0, f64::INFINITY], &[3.0, f64::INFINITY]).unwrap();
        assert!(broken.moved.is_nan() && broken.contribution.is_nan() && broken.share.is_nan());
        assert!(Branching::of(&[], &[]).is_err() && Branching::of(&[1.0], &[1.0; 2]).is_err());
    }
}
