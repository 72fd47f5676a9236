//! What the file says of models: `[model.…]`, a description applied to a delivery, and how much of it is run.
//!
//! It names a description, a delivery, a recipe and a device, and knows nothing of any of them.

use super::Maker;
use serde::Deserialize;
use std::path::PathBuf;

/// A model: a description applied to a delivery.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name of the authored description.
    pub description: String,
    /// Name of the delivery.
    pub delivery: String,
    /// Name of the recipe.
    pub recipe: String,
    /// Name of the device.
    pub device: String,
    /// Only the first layers, and the head after them; all where absent.
    #[serde(default)]
    pub layers: Option<usize>,
    /// A text that the model was not trained on, for its perplexity on the device.
    #[serde(default)]
    pub perplexity: Option<HeldOut>,
    /// Teacher-forced tokens of a decode run; all that the captures have where absent.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Tokens of a block, the grain at which segments are kept.
    #[serde(default = "default_block")]
    pub block: u64,
    /// Positions that the compiled K/V caches hold.
    #[serde(default = "default_capacity")]
    pub capacity: u64,
    /// Tokens that the whole linked kernel runs beside the segments.
    #[serde(default = "default_whole")]
    pub whole_tokens: u64,
    /// Tokens that each call of the linked kernel takes; its outputs have the same bits whatever they are.
    #[serde(default = "one_token")]
    pub tokens_per_call: u64,
    /// Whether values are rounded where a bfloat16 run of the published model stores them (the embedding
    /// row). Where absent, they are if the captures are of a bfloat16 run.
    #[serde(default)]
    pub stored_rounding: Option<bool>,
    /// Lets weights that are NaN or infinite pass.
    #[serde(default)]
    pub allow_non_finite: bool,
    /// Whose captures the gates ask for.
    #[serde(default)]
    pub oracle: Maker,
}

/// A held-out text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// A UTF-8 file.
    pub text: PathBuf,
    /// How many of its positions are scored, from its beginning; at most as many as the caches hold.
    #[serde(default = "default_positions")]
    pub tokens: u64,
}

/// One token a call, where nothing is said.
pub(super) fn one_token() -> u64 {
    1
}
fn default_positions() -> u64 {
    200
}
fn default_block() -> u64 {
    32
}
/// Rows of a K/V cache where a model says nothing.
pub fn default_capacity() -> u64 {
    256
}
fn default_whole() -> u64 {
    4
}
