//! What a validation is judged by: the device's values beside two references.

use crate::decode::Counters;
use crate::metrics::Similarity;
use crate::{NonFiniteWeights, Reading, ScoreError};

/// What a list of values is in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The result that the validation is about.
    Output,
    /// The mixer's output before the residual add.
    Mixer,
    /// The routed experts' weighted sum.
    Routed,
    /// The shared expert's output before its gate.
    Shared,
    /// The gate of the shared expert, after the sigmoid.
    Gate,
    /// The weights of the chosen experts.
    Scores,
    /// The last inputs of the convolution.
    ConvState,
    /// The delta rule's state.
    RecurrentState,
    /// Rows that the key cache got.
    KeyRows,
    /// Rows that the value cache got.
    ValueRows,
}

impl What {
    /// As a gate and a line name it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Mixer => "mixer",
            Self::Routed => "routed",
            Self::Shared => "shared",
            Self::Gate => "gate",
            Self::Scores => "scores",
            Self::ConvState => "conv state",
            Self::RecurrentState => "state",
            Self::KeyRows => "keys",
            Self::ValueRows => "values",
        }
    }
}

/// One list of values, rows of `width` a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// What it is.
    pub what: What,
    /// Elements of a row.
    pub width: usize,
    /// On the device; empty where the device is not asked.
    pub device: Vec<f64>,
    /// By the float64 evaluator on the same weights.
    pub evaluator: Vec<f64>,
    /// By the published implementation in float64, where it was captured.
    pub published: Option<Vec<f64>>,
}

/// Expert ids, `[steps, k]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Experts of a step.
    pub k: usize,
    /// On the device; empty where the device is not asked.
    pub device: Vec<i64>,
    /// By the evaluator.
    pub evaluator: Vec<i64>,
    /// By the published implementation.
    pub published: Option<Vec<i64>>,
}

/// One layer, or the one op that is validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Number.
    pub index: usize,
    /// Whether its mixer is full attention (a B layer).
    pub full: bool,
    /// Values, the output first.
    pub items: Vec<Item>,
    /// Expert choices, where there is a router.
    pub choices: Option<Choices>,
}

/// Bytes of two runs that must be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twice {
    /// What they are.
    pub what: String,
    /// Of the run in pieces.
    pub pieces: Vec<u8>,
    /// Of the run in one.
    pub whole: Vec<u8>,
}

/// What is known of the published values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// They are of the very weights that the device ran on, in float32 or better.
    SameWeights,
    /// They are of the weights before they were quantized here, or of less precision: printed, not gated.
    Other,
    /// There are none, for this reason: what asks for them is not run.
    Absent(String),
    /// There are none and nobody asks for them, for this reason: what would ask for them is left out.
    NotAsked(String),
}

/// Everything that one validation is judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// What stands behind the name in the printed line: `hidden=256, steps=4`.
    pub setting: String,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// What is known of the published values.
    pub published: Published,
    /// Events that the device counted; `None` where it is not asked.
    pub counters: Option<Counters>,
    /// Weights that are not finite; none where they are refused.
    pub non_finite_weights: NonFiniteWeights,
    /// Runs that must agree bit by bit.
    pub twice: Vec<Twice>,
    /// The ids that follow the positions of a text; empty where none is scored.
    pub next_ids: Vec<i64>,
    /// The distance of two neighbours in the residual's format.
    pub residual_unit: f64,
}

impl Item {
    /// The reference of the device: the published values where they are of the same weights, so that a bug
    /// that evaluator and compiler share can't hide, else the evaluator's.
    pub(super) fn reference(&self, published: &Published) -> &[f64] {
        match (&self.published, published) {
            (Some(p), Published::SameWeights) => p,
            _ => &self.evaluator,
        }
    }

    /// The device beside its reference, a row each.
    pub(super) fn rows(&self, published: &Published) -> Result<Vec<Similarity>, ScoreError> {
        Similarity::by_row(&self.device, self.reference(published), self.width, NEAR_ZERO)
    }

    /// All of the device's values beside all of the reference's.
    pub(super) fn whole(&self, published: &Published) -> Result<Similarity, ScoreError> {
        Similarity::of(&self.device, self.reference(published), NEAR_ZERO)
    }
}

impl Layer {
    /// The values of a kind.
    pub(super) fn item(&self, what: What) -> Option<&Item> {
        self.items.iter().find(|i| i.what == what)
    }

    /// The values that the validation is about. Errors where the layer has none.
    pub(super) fn output(&self) -> Result<&Item, ScoreError> {
        self.item(What::Output)
            .ok_or_else(|| ScoreError::Empty { what: format!("layer {}'s output", self.index) })
    }
}

/// Root mean square up to which a reference counts as zero.
pub(super) const NEAR_ZERO: f64 = 1e-9;

/// The worst of several readings, by how far each is from what is wanted; a NaN is worst.
pub(super) fn worst(
    readings: impl IntoIterator<Item = (f64, u64, String)>,
    distance: fn(f64) -> f64,
) -> Option<Reading> {
    let mut worst: Option<Reading> = None;
    let mut all = 0;
    for (value, elements, at) in readings {
        all += elements;
        let farther =
            |w: &Reading| w.value.is_finite() && (!value.is_finite() || distance(value) > distance(w.value));
        if worst.as_ref().is_none_or(farther) {
            worst = Some(Reading { value, elements, at: Some(at) });
        }
    }
    worst.map(|w| Reading { elements: all, ..w })
}
