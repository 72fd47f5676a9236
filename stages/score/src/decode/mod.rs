//! Scoring a decode run: the whole model, token by token, against a float64 chain and captures.
//!
//! Two runs of the device come in. The free-running one chooses experts itself and is what a user gets: it
//! is asked for its tokens. The forced one takes the reference's experts, so that one close router decision
//! does not hide what the arithmetic does: it is asked for closeness, at every layer.
//!
//! Which gates there are depends on what the captures are. Captures of the same weights in float32 or better
//! are held to the tight bounds, and check the reference too; bfloat16 ones to the published bounds; captures
//! of the unquantized model, where the checkpoint is quantized here, to one loose bound. The float64 chain on
//! the device's own weights is held to the tight bounds always.
//!
//! Captures of our own evaluator are put to gates of their own names (`…-vs-self`), which say nothing of the
//! published implementation: what asks for that (`…-vs-capture`) is not run on them. A run whose model has no
//! published captures can be judged by its own alone (`DecodeInputs::oracle`); its report says so.

mod compare;
mod difficulty;
mod divergence;
mod gates;
mod inputs;
mod place;
mod render;
mod report;
mod routing;
mod tokens;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;

pub use difficulty::{Difficulty, Margins, Peak};
pub use divergence::{Cell, DivergenceRow, FirstDivergence};
pub use inputs::{
    Branch, CaptureChain, CaptureLabel, Chain, Counters, DecodeInputs, Precision, Source, Stack,
};
pub use place::Place;
pub use render::{Texts, render};
pub use report::{DecodeReport, Perplexities, Shares};
pub use routing::{Flip, Routing};
pub use tokens::{TokenAgainst, TokenScore};

use crate::{ScoreError, Thresholds};
use compare::Comparisons;

/// Scores a run. Errors where an input is empty, has not the length that the dimensions give it, or names an
/// id that does not exist; bad figures are failed gates, not errors.
pub fn score_decode(inputs: &DecodeInputs<'_>, thresholds: &Thresholds) -> Result<DecodeReport, ScoreError> {
    inputs.validate()?;
    let compared = Comparisons::of(inputs, thresholds.near_zero)?;
    let routing = routing::compare(inputs)?;
    let tokens = tokens::score(inputs, thresholds, &compared)?;
    Ok(DecodeReport {
        layers: inputs.reference.layers.len() as u64,
        stack: inputs.stack,
        oracle: gates::oracle(inputs),
        capture: inputs.capture.as_ref().map(|_| inputs.capture_label),
        gates: gates::judge(inputs, thresholds, &compared, &tokens)?,
        divergence: divergence::first(inputs, thresholds, &compared),
        perplexity: report::perplexities(inputs)?,
        shares: report::shares(inputs)?,
        difficulty: difficulty::of(inputs, thresholds.near_zero)?,
        routing,
        tokens,
    })
}
