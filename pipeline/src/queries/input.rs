//! What a build starts from, as inputs of the database: deliveries as scanned, models as the workspace
//! states them, field by field, so that a changed field asks only what reads it.

// salsa's input macro makes functions that carry no docs of their own
#![allow(missing_docs)]

use super::Db;
use crate::validations::Trial;
use mica_cache::{Digest, Stamp};
use mica_device::object::Constants;
use mica_device::product::{Product, Rates};
use mica_fetch::{CaptureMap, TensorIndex};
use mica_pack::Scheme;
use mica_quantize::Recipe;
use mica_score::Thresholds;
use mica_score::decode::Source;
use mica_score::validation::Bounds;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Bumped to ask every action again.
#[salsa::input(singleton)]
pub struct Retry {
    /// How often.
    #[returns(copy)]
    pub round: u32,
}

/// A configuration. Deliveries that state the same one have one input, so that what follows from it alone is
/// made once.
#[salsa::input]
pub struct ConfigInput {
    /// The text model's fields.
    #[returns(ref)]
    pub text: Map<String, Value>,
}

/// A delivery as scanned.
#[salsa::input]
pub struct DeliveryInput {
    /// Its name in the workspace.
    #[returns(ref)]
    pub name: String,
    /// Its tensors.
    #[returns(ref)]
    pub index: Arc<TensorIndex>,
    /// Its files' stamps.
    #[returns(ref)]
    pub stamps: Arc<[Stamp]>,
    /// Its configuration.
    #[returns(copy)]
    pub config: ConfigInput,
    /// How its integers are packed, where it says so.
    #[returns(ref)]
    pub scheme: Option<Arc<Scheme>>,
    /// Its captures' tensors.
    #[returns(ref)]
    pub captures: Option<Arc<TensorIndex>>,
    /// Digest of its tokenizer's file.
    #[returns(copy)]
    pub tokenizer: Option<Digest>,
}

/// What is known of a delivery's captures.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptureFacts {
    /// Who made them and how; `same_weights` is for the plan to say.
    pub source: Source,
    /// What the run computed in.
    pub precision: mica_score::decode::Precision,
    /// Which name means what.
    pub names: CaptureMap,
}

/// How a model is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// Teacher-forced tokens; 0 where the captures have none.
    pub tokens: u64,
    /// Tokens of a block.
    pub block: u64,
    /// Rows of a K/V cache.
    pub capacity: u64,
    /// Tokens that the whole kernel runs.
    pub whole_tokens: u64,
    /// Tokens of each of its calls, at least 1.
    pub per_call: u64,
    /// Whether values are rounded where a bfloat16 run of the published model stores them (the embedding
    /// row), on the device and in the reference alike.
    pub stored_rounding: bool,
}

impl RunSettings {
    /// First token and number of tokens of a block.
    pub fn span(&self, block: usize) -> (u64, u64) {
        let first = block as u64 * self.block;
        (first, self.block.min(self.tokens - first))
    }
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.tokens.div_ceil(self.block) as usize
    }
}

/// A held-out text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Its words, in UTF-8.
    pub text: String,
    /// What a report calls it.
    pub name: String,
    /// Bounds of the perplexity's gates.
    pub bounds: Bounds,
}

/// A model of the workspace.
#[salsa::input]
pub struct ModelInput {
    /// Its name.
    #[returns(ref)]
    pub name: String,
    /// Name of the authored description.
    #[returns(ref)]
    pub description: String,
    /// Its delivery.
    #[returns(copy)]
    pub delivery: DeliveryInput,
    /// Formats of its components.
    #[returns(ref)]
    pub recipe: Arc<Recipe>,
    /// Whether NaN and infinity may pass.
    #[returns(copy)]
    pub allow_non_finite: bool,
    /// What programs depend on.
    #[returns(ref)]
    pub product: Arc<Product>,
    /// What only timing reads.
    #[returns(ref)]
    pub rates: Arc<Rates>,
    /// Fraction bits of the residual stream.
    #[returns(copy)]
    pub frac: u8,
    /// Where kernels get their constants from.
    #[returns(copy)]
    pub constants: Constants,
    /// How it is run.
    #[returns(ref)]
    pub run: Arc<RunSettings>,
    /// Only the first layers.
    #[returns(copy)]
    pub layers: Option<usize>,
    /// The held-out text that it is run on in place of the captured tokens, and the model whose weights and
    /// programs are run.
    #[returns(ref)]
    pub text: Option<(Arc<Text>, ModelInput)>,
    /// What is known of its captures.
    #[returns(ref)]
    pub captures: Option<Arc<CaptureFacts>>,
    /// Whose captures its gates ask for.
    #[returns(copy)]
    pub oracle: Source,
    /// Bounds of its gates.
    #[returns(ref)]
    pub thresholds: Arc<Thresholds>,
    /// The validation that is all that is asked of it; `None` of a model of the workspace.
    #[returns(ref)]
    pub trial: Option<Arc<Trial>>,
}

impl ModelInput {
    /// The same model run otherwise, under a name of its own: on a text, or for one validation.
    pub fn run_as(
        self,
        db: &dyn Db,
        name: String,
        run: RunSettings,
        text: Option<Text>,
        trial: Option<Trial>,
    ) -> ModelInput {
        ModelInput::new(
            db,
            name,
            self.description(db).clone(),
            self.delivery(db),
            self.recipe(db).clone(),
            self.allow_non_finite(db),
            self.product(db).clone(),
            self.rates(db).clone(),
            self.frac(db),
            self.constants(db),
            Arc::new(run),
            self.layers(db),
            text.map(|t| (Arc::new(t), self)),
            self.captures(db).clone(),
            self.oracle(db),
            self.thresholds(db).clone(),
            trial.map(Arc::new),
        )
    }
}
