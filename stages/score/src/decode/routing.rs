//! Where the free-running device takes other experts than the reference, and how close the decision was.

use super::DecodeInputs;
use crate::metrics::{Choice, finite_or_nan, softmax};
use crate::{Reading, ScoreError};
use serde::{Deserialize, Serialize};

/// The free-running device's choices against the reference's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// Choices compared: tokens times layers.
    pub choices: u64,
    /// Those with other experts, layer by layer and token by token.
    pub flips: Vec<Flip>,
    /// Those with the same experts in another order.
    pub reordered: u64,
}

/// One choice of other experts.
///
/// The first flip of a token says that two experts were close. Those after it, in later layers and tokens,
/// start from another residual and may be its consequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// The layer.
    pub layer: u64,
    /// The token.
    pub token: u64,
    /// Experts that the reference took and the device did not.
    pub lost: Vec<i64>,
    /// Experts that the device took and the reference did not.
    pub gained: Vec<i64>,
    /// How far the reference's logits would have to move for this: the largest of the lost less the smallest
    /// of the gained. NaN if the device took one that does not exist.
    pub logit_margin: f64,
    /// The same in the reference's probabilities.
    pub probability_margin: f64,
}

/// Compares all choices.
pub(super) fn compare(inputs: &DecodeInputs<'_>) -> Result<Routing, ScoreError> {
    let mut routing = Routing { choices: 0, flips: Vec::new(), reordered: 0 };
    for (layer, router) in inputs.reference_router.iter().enumerate() {
        let choices = choices(inputs, inputs.free.routing[layer], inputs.reference.routing[layer]);
        let experts = router.len() / inputs.tokens;
        for (token, (choice, logits)) in choices.zip(router.chunks_exact(experts)).enumerate() {
            let choice = choice?;
            routing.choices += 1;
            if !choice.same_set() {
                routing.flips.push(flip(layer, token, choice, logits));
            } else if !choice.same_order {
                routing.reordered += 1;
            }
        }
    }
    Ok(routing)
}

/// How many choices differ in their experts, over the layers that both have; `None` if there is none.
pub(super) fn differing<'a>(
    inputs: &DecodeInputs<'_>,
    pairs: impl Iterator<Item = (usize, &'a [i64], &'a [i64])>,
) -> Result<Option<Reading>, ScoreError> {
    let mut reading = Reading { value: 0.0, elements: 0, at: None };
    for (layer, y, r) in pairs {
        for (token, choice) in choices(inputs, y, r).enumerate() {
            let choice = choice?;
            reading.elements += choice.elements;
            if !choice.same_set() {
                reading.value += 1.0;
                reading.at.get_or_insert_with(|| format!("first in layer {layer}, token {token}"));
            }
        }
    }
    Ok((reading.elements > 0).then_some(reading))
}

fn choices<'a>(
    inputs: &DecodeInputs<'_>,
    y: &'a [i64],
    r: &'a [i64],
) -> impl Iterator<Item = Result<Choice, ScoreError>> + use<'a> {
    let k = r.len() / inputs.tokens;
    y.chunks_exact(k).zip(r.chunks_exact(k)).map(|(y, r)| Choice::of(y, r))
}

fn flip(layer: usize, token: usize, choice: Choice, logits: &[f64]) -> Flip {
    let margin = |values: &[f64]| {
        let at = |id: &i64| usize::try_from(*id).ok().and_then(|id| values.get(id)).copied();
        let of = |ids: &[i64], fold: fn(f64, f64) -> f64| {
            let values: Option<Vec<f64>> = ids.iter().map(at).collect();
            values.and_then(|values| values.into_iter().reduce(fold)).unwrap_or(f64::NAN)
        };
        finite_or_nan(of(&choice.lost, f64::max) - of(&choice.gained, f64::min))
    };
    let (logit_margin, probability_margin) = (margin(logits), margin(&softmax(logits)));
    Flip {
        layer: layer as u64,
        token: token as u64,
        lost: choice.lost,
        gained: choice.gained,
        logit_margin,
        probability_margin,
    }
}
