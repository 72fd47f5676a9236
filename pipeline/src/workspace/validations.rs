//! What the file says of validations: `[vectors.…]`, folders of op vectors, and `[gates.…]`, the bounds of
//! each validation's gates.

use mica_score::Thresholds;
use mica_score::validation::{
    Bounds, Embed, Layers, LmHead, Mixer, Moe, MoeRouted, Perplexity, Reference, Router,
};
use serde::Deserialize;
use std::path::PathBuf;

/// A folder of op vectors: single operations of the published implementation, which the walkthrough's
/// validations run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// Folder with `ops.json` and a file an operation.
    pub source: PathBuf,
    /// Name of the authored description.
    pub description: String,
    /// Name of the recipe; one that keeps float16 lets the published results be gates.
    pub recipe: String,
    /// Name of the device.
    pub device: String,
    /// Tokens that a call takes, where a validation has as many steps.
    #[serde(default = "super::model::one_token")]
    pub tokens_per_call: u64,
}

/// Bounds of the gates, by validation. They stand here one by one, and not flattened, so that a mistake in
/// one is shown at its line.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Gates {
    /// Of `decode`.
    pub decode: Thresholds,
    router: Router,
    moe_routed: MoeRouted,
    moe_block: Moe,
    moe_block_real: Moe,
    reference: Reference,
    deltanet: Mixer,
    linear_layer: Layers,
    resume: Mixer,
    attention: Mixer,
    attention_layer: Layers,
    hybrid: Layers,
    embed: Embed,
    lm_head: LmHead,
    perplexity: Perplexity,
}

impl Gates {
    /// Those of the validations.
    pub fn validations(&self) -> Bounds {
        let g = *self;
        Bounds {
            router: g.router,
            moe_routed: g.moe_routed,
            moe_block: g.moe_block,
            moe_block_real: g.moe_block_real,
            reference: g.reference,
            deltanet: g.deltanet,
            linear_layer: g.linear_layer,
            resume: g.resume,
            attention: g.attention,
            attention_layer: g.attention_layer,
            hybrid: g.hybrid,
            embed: g.embed,
            lm_head: g.lm_head,
            perplexity: g.perplexity,
        }
    }
}
