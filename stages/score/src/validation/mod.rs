//! The walkthrough's validations: one op, one layer or one end of a model at a time.
//!
//! The device is judged against the published implementation's values where they are of the same weights,
//! else against the float64 evaluator's; the evaluator is judged against the published ones. Each has the
//! published bound and a tight one. It knows no model, no file and no function: what was run comes as
//! [`Evidence`].

mod ends;
mod evidence;
mod gates;
mod layers;
mod moe;
mod perplexity;
#[cfg(test)]
mod tests;
mod thresholds;

pub use evidence::{Choices, Evidence, Item, Layer, Published, Twice, What};
pub use thresholds::{Bounds, Embed, Layers, LmHead, Mixer, Moe, MoeRouted, Perplexity, Reference, Router};

use crate::{Gate, ScoreError, Verdict};
use serde::{Deserialize, Serialize};

/// A validation of the walkthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The router alone.
    Router,
    /// Router and routed experts.
    MoeRouted,
    /// The whole block on synthetic weights.
    MoeBlock,
    /// The whole block on a delivery's weights.
    MoeBlockReal,
    /// The evaluator against the published implementation; nothing runs on the device.
    Reference,
    /// The Gated DeltaNet mixer.
    Deltanet,
    /// Linear decoder layers.
    LinearLayer,
    /// State read back between calls.
    Resume,
    /// The gated attention mixer.
    Attention,
    /// The full-attention decoder layer.
    AttentionLayer,
    /// A stack of both.
    Hybrid,
    /// The embedding table.
    Embed,
    /// The vocabulary projection.
    LmHead,
    /// The whole model on a held-out text.
    Perplexity,
}

/// What came of a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The validation.
    pub kind: Kind,
    /// What the walkthrough prints, with our figures.
    pub lines: Vec<String>,
    /// Its gates.
    pub gates: Vec<Gate>,
}

impl Report {
    /// The report as a person reads it: its lines, and every gate that did not pass.
    #[must_use]
    pub fn render(&self) -> String {
        let lines = self.lines.iter().cloned();
        let missed = self.gates.iter().filter(|g| !g.passed()).map(|g| format!("  {g}"));
        lines.chain(missed).map(|l| l + "\n").collect()
    }
}

/// Judges a validation. Errors where lists differ in length or are empty; bad figures are failed gates.
pub fn judge(kind: Kind, bounds: &Bounds, evidence: &Evidence) -> Result<Report, ScoreError> {
    if evidence.layers.is_empty() {
        return Err(ScoreError::Empty { what: "the evidence".into() });
    }
    let (lines, gates) = match kind {
        Kind::Router => moe::router(evidence, &bounds.router)?,
        Kind::MoeRouted => moe::routed(evidence, &bounds.moe_routed)?,
        Kind::MoeBlock => moe::block(evidence, &bounds.moe_block, false)?,
        Kind::MoeBlockReal => moe::block(evidence, &bounds.moe_block_real, true)?,
        Kind::Reference => ends::reference(evidence, &bounds.reference)?,
        Kind::Deltanet => layers::mixer("deltanet", evidence, &bounds.deltanet.into())?,
        Kind::Attention => layers::mixer("attention", evidence, &bounds.attention.into())?,
        Kind::LinearLayer => layers::stack("layer", "decoder_layer", evidence, &bounds.linear_layer)?,
        Kind::AttentionLayer => {
            layers::stack("attn layer", "attention_layer", evidence, &bounds.attention_layer)?
        }
        Kind::Hybrid => layers::hybrid(evidence, &bounds.hybrid)?,
        Kind::Resume => layers::resume(evidence, &bounds.resume.into())?,
        Kind::Embed => ends::embed(evidence, &bounds.embed)?,
        Kind::LmHead => ends::lm_head(evidence, &bounds.lm_head)?,
        Kind::Perplexity => perplexity::perplexity(evidence, &bounds.perplexity)?,
    };
    Ok(Report { kind, lines, gates })
}

/// Lines and gates of a validation.
type Judged = (Vec<String>, Vec<Gate>);

/// `NAME (SETTING): PASS (FIGURES)`.
fn line(name: &str, evidence: &Evidence, gates: &[Gate], figures: &str) -> String {
    format!("{name} ({}): {} ({figures})", evidence.setting, Verdict::of_all(gates))
}
