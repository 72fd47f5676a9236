//! Which element wins, and which are among the best k.

use super::{comparable, finite, finite_or_nan};
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// Index of the largest element, the lowest of equal ones; `None` if there is none or if an element is not
/// finite, for then nothing is chosen on purpose.
#[must_use]
pub fn argmax(row: &[f64]) -> Option<usize> {
    if !finite(row) {
        return None;
    }
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best })
}

/// Whether the element that one row chooses is a maximum of another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attainment {
    /// Elements compared.
    pub elements: u64,
    /// What the row chooses, by [`argmax`].
    pub chosen: Option<u64>,
    /// What the reference chooses.
    pub best: Option<u64>,
    /// Whether the reference is as large at `chosen` as anywhere: a tie counts, for where two elements are
    /// equal neither is "the" choice.
    pub attains: bool,
    /// How many elements of the reference are its maximum.
    pub ties: u64,
    /// How far the reference at `chosen` is below its maximum; 0 if it attains it, NaN if nothing is chosen.
    pub shortfall: f64,
}

impl Attainment {
    /// Compares a row with its reference. Errors on different lengths and on no elements.
    pub fn of(y: &[f64], r: &[f64]) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let (chosen, best) = (argmax(y), argmax(r));
        let shortfall = match (chosen, best) {
            (Some(chosen), Some(best)) => r[best] - r[chosen],
            _ => f64::NAN,
        };
        Ok(Self {
            elements: r.len() as u64,
            chosen: chosen.map(|i| i as u64),
            best: best.map(|i| i as u64),
            attains: shortfall == 0.0,
            ties: best.map_or(0, |best| r.iter().filter(|&&v| v == r[best]).count() as u64),
            shortfall: finite_or_nan(shortfall),
        })
    }
}

/// Whether two lists of the best k name the same elements, and in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Elements compared.
    pub elements: u64,
    /// What the reference chose and the other did not, in the reference's order.
    pub lost: Vec<i64>,
    /// What the other chose and the reference did not, in its own order.
    pub gained: Vec<i64>,
    /// Whether the two lists are equal, element by element.
    pub same_order: bool,
}

impl Choice {
    /// Compares a choice with the reference's. Errors on different lengths and on no elements.
    pub fn of(y: &[i64], r: &[i64]) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let missing = |of: &[i64], from: &[i64]| of.iter().copied().filter(|id| !from.contains(id)).collect();
        Ok(Self { elements: r.len() as u64, lost: missing(r, y), gained: missing(y, r), same_order: y == r })
    }

    /// Whether both name the same elements, in whatever order. A list that names one element twice is short
    /// of another, so it is not the same set as one without repetitions.
    #[must_use]
    pub fn same_set(&self) -> bool {
        self.lost.is_empty() && self.gained.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_maximum_is_chosen_and_a_tie_attains_it() {
        const NAN: f64 = f64::NAN;
        // y, r, chosen, best, attains, ties, shortfall
        type Case = (&'static [f64], &'static [f64], Option<u64>, Option<u64>, bool, u64, f64);
        let cases: [Case; 7] = [
            (&[1.0, 3.0, 2.0], &[0.0, 5.0, 1.0], Some(1), Some(1), true, 1, 0.0),
            (&[1.0, 3.0, 2.0], &[5.0, 5.0, 1.0], Some(1), Some(0), true, 2, 0.0),
            (&[3.0, 3.0, 2.0], &[5.0, 4.0, 1.0], Some(0), Some(0), true, 1, 0.0),
            (&[1.0, 3.0, 9.0], &[5.0, 5.0, 1.0], Some(2), Some(0), false, 2, 4.0),
            (&[1.0, NAN, 2.0], &[0.0, 5.0, 1.0], None, Some(1), false, 1, NAN),
            (&[1.0, 3.0, 2.0], &[0.0, 5.0, NAN], Some(1), None, false, 0, NAN),
            (&[1.0, f64::INFINITY], &[0.0, 5.0], None, Some(1), false, 1, NAN),
        ];
        for (y, r, chosen, best, attains, ties, shortfall) in cases {
            let a = Attainment::of(y, r).unwrap();
            assert_eq!((a.chosen, a.best, a.attains, a.ties), (chosen, best, attains, ties), "{y:?} {r:?}");
            assert_eq!(a.shortfall.to_bits(), shortfall.to_bits(), "{y:?} {r:?}");
        }
        assert!(Attainment::of(&[], &[]).is_err() && Attainment::of(&[1.0], &[1.0, 2.0]).is_err());
    }

    #[test]
    fn a_choice_is_a_set_and_an_order() {
        // y, r, lost, gained, same order
        type Case = (&'static [i64], &'static [i64], &'static [i64], &'static [i64], bool);
        let cases: [Case; 4] = [
            (&[7, 2, 5], &[7, 2, 5], &[], &[], true),
            (&[2, 7, 5], &[7, 2, 5], &[], &[], false),
            (&[7, 9, 1], &[7, 2, 5], &[2, 5], &[9, 1], false),
            (&[7, 7, 5], &[7, 2, 5], &[2], &[], false),
        ];
        for (y, r, lost, gained, same_order) in cases {
            let c = Choice::of(y, r).unwrap();
            assert_eq!((&*c.lost, &*c.gained, c.same_order), (lost, gained, same_order), "{y:?} {r:?}");
            assert_eq!(c.same_set(), lost.is_empty() && gained.is_empty());
        }
        assert!(Choice::of(&[], &[]).is_err() && Choice::of(&[1], &[1, 2]).is_err());
    }
}
