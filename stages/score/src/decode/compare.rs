//! Every chain against every other, at every place and token, once: gates, token lines and the divergence
//! table all read these figures.

use super::{DecodeInputs, Place};
use crate::metrics::Similarity;
use crate::{Reading, ScoreError};

/// The pairs that are scored.
pub(super) struct Comparisons {
    /// The free-running device against the float64 chain, at the chain's end only.
    pub free_reference: Compared,
    /// The free-running device against the capture, at the chain's end only.
    pub free_capture: Compared,
    /// The device with forced routing against the float64 chain.
    pub forced_reference: Compared,
    /// The device with forced routing against the capture.
    pub forced_capture: Compared,
    /// The float64 chain against the capture.
    pub reference_capture: Compared,
}

impl Comparisons {
    pub fn of(inputs: &DecodeInputs<'_>, near_zero: f64) -> Result<Self, ScoreError> {
        let DecodeInputs { free, forced, reference, .. } = inputs;
        let all: Vec<Place> = Place::all(reference.layers.len()).collect();
        let end = [inputs.chain_end()];
        let to_reference = |places: &[Place], chain: &super::Chain<'_>| {
            Compared::of(places, |place| {
                let r = reference.at(place);
                Similarity::by_row(chain.at(place), r, inputs.width(place), near_zero).map(Some)
            })
        };
        let to_capture = |places: &[Place], chain: &super::Chain<'_>| {
            Compared::of(places, |place| {
                let r = inputs.captured(place);
                r.map(|r| Similarity::by_row(chain.at(place), r, inputs.width(place), near_zero)).transpose()
            })
        };
        Ok(Self {
            free_reference: to_reference(&end, free)?,
            free_capture: to_capture(&end, free)?,
            forced_reference: to_reference(&all, forced)?,
            forced_capture: to_capture(&all, forced)?,
            reference_capture: to_capture(&all, reference)?,
        })
    }
}

/// One pair: its similarities, one a token, at each place that both chains have.
pub(super) struct Compared(Vec<(Place, Vec<Similarity>)>);

impl Compared {
    fn of(
        places: &[Place],
        rows: impl Fn(Place) -> Result<Option<Vec<Similarity>>, ScoreError>,
    ) -> Result<Self, ScoreError> {
        let mut compared = Vec::new();
        for &place in places {
            if let Some(rows) = rows(place)? {
                compared.push((place, rows));
            }
        }
        Ok(Self(compared))
    }

    /// The tokens at a place, if both chains have it.
    pub fn at(&self, place: Place) -> Option<&[Similarity]> {
        self.0.iter().find(|(p, _)| *p == place).map(|(_, rows)| rows.as_slice())
    }

    /// How many layers both chains have.
    pub fn layers(&self) -> usize {
        self.0.iter().filter(|(place, _)| matches!(place, Place::Layer(_))).count()
    }

    /// The worst figure of all tokens at the wanted places, with its place; `None` if neither chain is there.
    pub fn worst(&self, measure: Measure, wanted: impl Fn(Place) -> bool) -> Option<Reading> {
        let mut elements = 0;
        let mut worst: Option<(f64, Place, usize)> = None;
        for (place, rows) in self.0.iter().filter(|(place, _)| wanted(*place)) {
            elements += rows.iter().map(|row| row.elements).sum::<u64>();
            let token = measure.worst(rows);
            let value = measure.of(&rows[token]);
            if worst.is_none_or(|(best, ..)| measure.badness(value) > measure.badness(best)) {
                worst = Some((value, *place, token));
            }
        }
        let (value, place, token) = worst?;
        Some(Reading { value, elements, at: Some(format!("{place}, token {token}")) })
    }
}

/// One of the figures of a [`Similarity`].
#[derive(Clone, Copy)]
pub(super) enum Measure {
    Cosine,
    NormRatio,
    Error,
}

impl Measure {
    fn of(self, similarity: &Similarity) -> f64 {
        match self {
            Self::Cosine => similarity.cosine,
            Self::NormRatio => similarity.norm_ratio,
            Self::Error => similarity.error,
        }
    }

    /// Index of the worst of the rows, the first of equal ones. There is at least one: a run has tokens.
    pub fn worst(self, rows: &[Similarity]) -> usize {
        let badness = |token: usize| self.badness(self.of(&rows[token]));
        (1..rows.len()).fold(0, |worst, token| if badness(token) > badness(worst) { token } else { worst })
    }

    /// Larger is worse, and NaN the worst.
    fn badness(self, value: f64) -> f64 {
        let badness = match self {
            Self::Cosine => -value,
            Self::NormRatio => (value - 1.0).abs(),
            Self::Error => value,
        };
        if badness.is_nan() { f64::INFINITY } else { badness }
    }
}
