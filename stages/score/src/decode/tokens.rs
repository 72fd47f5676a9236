//! What the free-running device predicts, token by token.

use super::compare::Comparisons;
use super::{DecodeInputs, Place, gates};
use crate::metrics::{Attainment, Similarity, argmax};
use crate::{ScoreError, Thresholds};
use serde::{Deserialize, Serialize};

/// One position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenScore {
    /// The position.
    pub position: u64,
    /// The id that was fed.
    pub id: i64,
    /// The id that the device predicts, the lowest of equal ones; `None` if its logits are not finite.
    pub predicted: Option<i64>,
    /// Against the float64 chain.
    pub float64: TokenAgainst,
    /// Against the captures, if there are any.
    pub capture: Option<TokenAgainst>,
    /// Whether it passes every gate that judges this token and was run.
    pub pass: bool,
}

/// One position against one reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenAgainst {
    /// Whether the predicted token attains the maximum of the reference's logits, if it has them.
    pub token: Option<Attainment>,
    /// The end of the chain: the post-norm hidden, or the last residual of a shorter stack.
    pub chain: Option<Similarity>,
}

/// Scores all positions.
pub(super) fn score(
    inputs: &DecodeInputs<'_>,
    thresholds: &Thresholds,
    compared: &Comparisons,
) -> Result<Vec<TokenScore>, ScoreError> {
    let end = inputs.chain_end();
    let attainment = |token: usize, reference: &[f64]| {
        let row = token * inputs.vocab..(token + 1) * inputs.vocab;
        Attainment::of(&inputs.free.logits[row.clone()], &reference[row])
    };
    let chain = |compared: &super::compare::Compared, token: usize| compared.at(end).map(|rows| rows[token]);
    let asked = gates::asked_of_tokens(inputs, thresholds);
    let logits = inputs.captured(Place::Logits);
    (0..inputs.tokens)
        .map(|token| {
            let float64 = TokenAgainst {
                token: Some(attainment(token, inputs.reference.logits)?),
                chain: chain(&compared.free_reference, token),
            };
            let against = TokenAgainst {
                token: logits.map(|logits| attainment(token, logits)).transpose()?,
                chain: chain(&compared.free_capture, token),
            };
            let attains = |against: &TokenAgainst| against.token.is_none_or(|token| token.attains);
            let near = |chain: Similarity| asked.chain.is_none_or(|bound| bound.admits(chain.cosine));
            Ok(TokenScore {
                position: token as u64,
                id: inputs.input_ids[token],
                predicted: argmax(&inputs.free.logits[token * inputs.vocab..][..inputs.vocab])
                    .map(|id| id as i64),
                float64,
                capture: inputs.capture.is_some().then_some(against),
                pass: attains(&float64)
                    && (!asked.token || attains(&against))
                    && against.chain.is_none_or(near),
            })
        })
        .collect()
}
