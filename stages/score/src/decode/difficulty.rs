//! How hard a run is to follow: figures of the float64 chain that say what an agreement with it is worth.
//!
//! A residual that stays the embedding, routers whose experts are far apart, or one channel so large that it
//! alone makes a cosine, are easy to agree with. Nothing here is gated.

use super::{DecodeInputs, Place};
use crate::ScoreError;
use crate::metrics::Similarity;
use serde::{Deserialize, Serialize};

/// Figures of the float64 chain, and the forced device's worst cosine where they make it harder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difficulty {
    /// The residual's element of the largest magnitude.
    pub peak: Peak,
    /// Root mean square of the last residual without the peak's channel, over all tokens.
    pub rest: f64,
    /// Largest cosine, over the tokens, of the embedding row and the last residual, both without the peak's
    /// channel.
    pub embed_to_last: f64,
    /// Largest cosine, over the tokens, of the embedding row and the post-norm hidden.
    pub embed_to_hidden: f64,
    /// Router decisions, layers times tokens, and the distance in logits from the last expert taken to the
    /// first not taken: the smallest and the middle one. `None` where all experts are taken.
    pub margins: Option<Margins>,
    /// Worst cosine of the forced device to the float64 chain over all layers and tokens, without the peak's
    /// channel, and where.
    pub forced_without_peak: f64,
    /// The layer of that.
    pub forced_layer: u64,
}

/// Where a residual is largest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// The value.
    pub value: f64,
    /// The channel.
    pub channel: u64,
    /// The place.
    pub place: Place,
    /// The token.
    pub token: u64,
}

/// How near router decisions are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Margins {
    /// Decisions.
    pub choices: u64,
    /// The nearest.
    pub least: f64,
    /// The middle one.
    pub median: f64,
}

pub(super) fn of(inputs: &DecodeInputs<'_>, near_zero: f64) -> Result<Difficulty, ScoreError> {
    let DecodeInputs { reference, forced, hidden, .. } = inputs;
    let layers = reference.layers.len();
    let peak = peak(inputs);
    let without = |row: &[f64]| -> Vec<f64> {
        let mut row = row.to_vec();
        row.remove(peak.channel as usize);
        row
    };
    let largest = |a: &[f64], b: &[f64], whole: bool| -> Result<f64, ScoreError> {
        let mut most = f64::NEG_INFINITY;
        for (a, b) in a.chunks_exact(*hidden).zip(b.chunks_exact(*hidden)) {
            let similar = match whole || *hidden == 1 {
                true => Similarity::of(a, b, near_zero)?,
                false => Similarity::of(&without(a), &without(b), near_zero)?,
            };
            // NaN is the most, and stays
            if similar.cosine > most || similar.cosine.is_nan() {
                most = similar.cosine;
            }
        }
        Ok(most)
    };
    let last = reference.at(Place::Layer(layers - 1));
    let (mut worst, mut at) = (f64::INFINITY, 0);
    for layer in 0..layers {
        let (y, r) = (forced.at(Place::Layer(layer)), reference.at(Place::Layer(layer)));
        for (y, r) in y.chunks_exact(*hidden).zip(r.chunks_exact(*hidden)) {
            let cosine = match *hidden {
                1 => Similarity::of(y, r, near_zero)?.cosine,
                _ => Similarity::of(&without(y), &without(r), near_zero)?.cosine,
            };
            // NaN is the worst, and stays
            if cosine < worst || cosine.is_nan() {
                (worst, at) = (cosine, layer as u64);
            }
        }
    }
    let rest: Vec<f64> = last.chunks_exact(*hidden).flat_map(without).collect();
    Ok(Difficulty {
        peak,
        rest: (rest.iter().map(|v| v * v).sum::<f64>() / rest.len().max(1) as f64).sqrt(),
        embed_to_last: largest(reference.embed, last, false)?,
        embed_to_hidden: largest(reference.embed, reference.normed, true)?,
        margins: margins(inputs),
        forced_without_peak: worst,
        forced_layer: at,
    })
}

/// The first element of the largest magnitude on the residual stream.
fn peak(inputs: &DecodeInputs<'_>) -> Peak {
    let mut peak = Peak { value: 0.0, channel: 0, place: Place::Embed, token: 0 };
    for place in Place::all(inputs.reference.layers.len()).filter(|p| p.is_residual()) {
        for (i, &value) in inputs.reference.at(place).iter().enumerate() {
            if value.abs() > peak.value.abs() {
                let (token, channel) = ((i / inputs.hidden) as u64, (i % inputs.hidden) as u64);
                peak = Peak { value, channel, place, token };
            }
        }
    }
    peak
}

fn margins(inputs: &DecodeInputs<'_>) -> Option<Margins> {
    let mut all = Vec::new();
    for (router, taken) in inputs.reference_router.iter().zip(&inputs.reference.routing) {
        let (experts, k) = (router.len() / inputs.tokens, taken.len() / inputs.tokens);
        for logits in router.chunks_exact(experts) {
            let mut sorted = logits.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            all.push(sorted.get(k - 1)? - sorted.get(k)?);
        }
    }
    all.sort_by(f64::total_cmp);
    Some(Margins { choices: all.len() as u64, least: *all.first()?, median: all[all.len() / 2] })
}
