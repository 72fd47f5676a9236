//! What logits say as probabilities: perplexity, and the divergence between two distributions.

use super::{comparable, finite, finite_or_nan, rows};
use crate::ScoreError;
use serde::{Deserialize, Serialize};

/// `ln Σ exp(row)`, by way of the maximum so that nothing overflows; NaN if an element is not finite.
fn log_sum_exp(row: &[f64]) -> f64 {
    if !finite(row) {
        return f64::NAN;
    }
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + libm::log(row.iter().map(|&v| libm::exp(v - max)).sum())
}

/// The probabilities of a row of logits; all NaN if one of them is not finite.
pub(crate) fn softmax(row: &[f64]) -> Vec<f64> {
    let whole = log_sum_exp(row);
    row.iter().map(|&v| libm::exp(v - whole)).collect()
}

/// How surprised a model is by a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Positions scored.
    pub positions: u64,
    /// Mean over them of `ln Σ exp(logits) − logits[next]`, in nats.
    pub mean_nll: f64,
    /// `exp(mean_nll)`.
    pub value: f64,
}

impl Perplexity {
    /// Scores the first `next_ids.len()` rows of `[T, vocab]` logits on the ids that follow. NaN if one of
    /// these rows is not finite. Errors on no ids, on fewer rows than ids, and on an id outside the vocabulary.
    pub fn of(logits: &[f64], vocab: usize, next_ids: &[i64]) -> Result<Self, ScoreError> {
        if next_ids.is_empty() {
            return Err(ScoreError::Empty { what: "the list of next ids".into() });
        }
        let rows = rows("the logits", logits, vocab)?;
        if rows.len() < next_ids.len() {
            return Err(ScoreError::Mismatch { expected: next_ids.len(), found: rows.len() });
        }
        let mut sum = 0.0;
        for (position, (row, &id)) in rows.zip(next_ids).enumerate() {
            let logit = usize::try_from(id)
                .ok()
                .and_then(|id| row.get(id))
                .ok_or_else(|| ScoreError::Id { what: "next ids".into(), position, id, limit: vocab })?;
            sum += log_sum_exp(row) - logit;
        }
        let mean_nll = finite_or_nan(sum / next_ids.len() as f64);
        Ok(Self { positions: next_ids.len() as u64, mean_nll, value: finite_or_nan(libm::exp(mean_nll)) })
    }
}

/// How far a model's distributions are from the reference's: `KL(r ‖ y) = Σ p_r (ln p_r − ln p_y)`, in nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Positions compared.
    pub positions: u64,
    /// Mean over the positions.
    pub mean: f64,
    /// The largest, or NaN if one is.
    pub worst: f64,
    /// Where that is.
    pub worst_position: u64,
}

impl Divergence {
    /// Compares `[T, vocab]` logits row by row. A row that is not finite makes mean and worst NaN. Errors on
    /// different lengths, on no elements, and on tables that are no whole number of rows.
    pub fn of(y: &[f64], r: &[f64], vocab: usize) -> Result<Self, ScoreError> {
        comparable(y, r)?;
        let pairs = rows("the logits", y, vocab)?.zip(rows("the logits", r, vocab)?);
        let each: Vec<f64> = pairs.map(|(y, r)| divergence(y, r)).collect();
        let worse = |best: usize, i: usize| {
            let replace = !each[best].is_nan() && (each[i].is_nan() || each[i] > each[best]);
            if replace { i } else { best }
        };
        let worst = (0..each.len()).fold(0, worse);
        Ok(Self {
            positions: each.len() as u64,
            mean: finite_or_nan(each.iter().sum::<f64>() / each.len() as f64),
            worst: each[worst],
            worst_position: worst as u64,
        })
    }
}

fn divergence(y: &[f64], r: &[f64]) -> f64 {
    let (of_y, of_r) = (log_sum_exp(y), log_sum_exp(r));
    let terms = y.iter().zip(r).map(|(y, r)| {
        let (ln_y, ln_r) = (y - of_y, r - of_r);
        libm::exp(ln_r) * (ln_r - ln_y)
    });
    let sum = finite_or_nan(terms.sum());
    // The true sum is never negative; that of rounded terms can be.
    if sum < 0.0 { 0.0 } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_of_known_distributions() {
        // logits of one row, next id, perplexity = 1 / p(next)
        let ln = |p: f64| p.ln();
        let cases = [
            (vec![0.0; 4], 2, 4.0),
            (vec![ln(0.5), ln(0.25), ln(0.25)], 0, 2.0),
            (vec![ln(0.5), ln(0.25), ln(0.25)], 1, 4.0),
            (vec![1000.0, 1000.0], 1, 2.0),
            (vec![-1000.0, -1000.0], 1, 2.0),
        ];
        for (logits, next, expected) in cases {
            let p = Perplexity::of(&logits, logits.len(), &[next]).unwrap();
            assert!((p.value / expected - 1.0).abs() < 1e-12, "{logits:?}: {p:?}");
        }
        let two = Perplexity::of(&[ln(0.5), ln(0.5), ln(0.125), ln(0.875)], 2, &[0, 0]).unwrap();
        assert!((two.value - 4.0).abs() < 1e-12 && two.positions == 2);
    }

    #[test]
    fn perplexity_refuses_what_it_cannot_score() {
        assert!(matches!(Perplexity::of(&[0.0; 4], 2, &[]), Err(ScoreError::Empty { .. })));
        assert!(matches!(Perplexity::of(&[0.0; 4], 2, &[0; 3]), Err(ScoreError::Mismatch { .. })));
        for id in [-1, 2] {
            let error = Perplexity::of(&[0.0; 4], 2, &[0, id]).unwrap_err();
            assert_eq!(error, ScoreError::Id { what: "next ids".into(), position: 1, id, limit: 2 });
        }
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Perplexity::of(&[0.0, bad], 2, &[0]).unwrap().value.is_nan());
        }
    }

    #[test]
    fn divergence_of_known_distributions() {
        let (half, skew) = ([0.0, 0.0], [0.75f64.ln(), 0.25f64.ln()]);
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        let d = Divergence::of(&[skew, half].concat(), &[half, half].concat(), 2).unwrap();
        assert!((d.worst - expected).abs() < 1e-15 && (d.mean - expected / 2.0).abs() < 1e-15);
        assert_eq!((d.positions, d.worst_position), (2, 0));
        // A distribution does not change when all its logits move together.
        assert!(Divergence::of(&[5.0, 5.0], &half, 2).unwrap().worst < 1e-15);
    }

    #[test]
    fn a_broken_row_is_the_worst() {
        let d = Divergence::of(&[0.0, 9.0, f64::NAN, 0.0, 0.0, 9.0], &[0.0; 6], 2).unwrap();
        assert!(d.mean.is_nan() && d.worst.is_nan() && d.worst_position == 1);
        assert!(Divergence::of(&[], &[], 2).is_err() && Divergence::of(&[0.0], &[0.0; 2], 2).is_err());
    }
}
