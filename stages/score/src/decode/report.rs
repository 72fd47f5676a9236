//! What a scored decode run says, as data.

use super::{
    CaptureLabel, DecodeInputs, Difficulty, FirstDivergence, Place, Routing, Source, Stack, TokenScore,
};
use crate::metrics::{Branching, Divergence, Perplexity};
use crate::{Gate, ScoreError, Verdict};
use serde::{Deserialize, Serialize};

/// The whole report. [`super::render`] makes text of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeReport {
    /// Layers of the run.
    pub layers: u64,
    /// Whether these are all.
    pub stack: Stack,
    /// Who computed what the gates on captures compare with.
    pub oracle: Source,
    /// What the captures are, if there are any.
    pub capture: Option<CaptureLabel>,
    /// One entry a position.
    pub tokens: Vec<TokenScore>,
    /// The gates, in the order in which they are shown.
    pub gates: Vec<Gate>,
    /// Where the run first leaves its references.
    pub divergence: FirstDivergence,
    /// The free-running device's choices of experts against the reference's.
    pub routing: Routing,
    /// How surprised the runs are by the prompt; `None` if no next id is known. Not gated.
    pub perplexity: Option<Perplexities>,
    /// What the shared expert adds, if it was kept. Not gated.
    pub shares: Option<Shares>,
    /// How hard the run is to follow. Not gated.
    pub difficulty: Difficulty,
}

impl DecodeReport {
    /// What came of all gates together.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::of_all(&self.gates)
    }
}

/// How surprised each run is by the same text, and how far the device's distributions are from the others'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexities {
    /// The free-running device.
    pub device: Perplexity,
    /// The float64 chain.
    pub float64: Perplexity,
    /// The capture, if it has logits.
    pub capture: Option<Perplexity>,
    /// The free-running device's divergence from the float64 chain, over all positions.
    pub from_float64: Divergence,
    /// The same from the capture.
    pub from_capture: Option<Divergence>,
}

/// The shared expert's share of the MoE output, a value a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// `|whole − routed| / |whole|` over all tokens, a value a layer.
    pub layers: Vec<f64>,
    /// The smallest; NaN if one is.
    pub min: f64,
    /// The middle one, or the mean of the two in the middle; NaN if one is.
    pub median: f64,
}

pub(super) fn perplexities(inputs: &DecodeInputs<'_>) -> Result<Option<Perplexities>, ScoreError> {
    let DecodeInputs { vocab, next_ids, free, reference, .. } = inputs;
    if next_ids.is_empty() {
        return Ok(None);
    }
    let perplexity = |logits: &[f64]| Perplexity::of(logits, *vocab, next_ids);
    let divergence = |r: &[f64]| Divergence::of(free.logits, r, *vocab);
    let captured = inputs.captured(Place::Logits);
    Ok(Some(Perplexities {
        device: perplexity(free.logits)?,
        float64: perplexity(reference.logits)?,
        capture: captured.map(perplexity).transpose()?,
        from_float64: divergence(reference.logits)?,
        from_capture: captured.map(divergence).transpose()?,
    }))
}

pub(super) fn shares(inputs: &DecodeInputs<'_>) -> Result<Option<Shares>, ScoreError> {
    if inputs.branches.is_empty() {
        return Ok(None);
    }
    let share = |branch: &super::Branch<'_>| Branching::of(branch.whole, branch.routed).map(|b| b.share);
    let layers = inputs.branches.iter().map(share).collect::<Result<Vec<f64>, _>>()?;
    let mut sorted = layers.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    let broken = layers.iter().any(|share| share.is_nan());
    let or_nan = |figure: f64| if broken { f64::NAN } else { figure };
    Ok(Some(Shares { min: or_nan(sorted[0]), median: or_nan(middle), layers }))
}
