//! How deliveries of this model name their tensors.

use super::config::Config;
use super::norm::ACTIVATION;
use crate::hir::{Builder, Function, HirError, Type};
use crate::naming::{NameRule, Naming};

/// The published multimodal class writes `model.language_model.`, the text-only class `model.`; the head has
/// no prefix. Experts come fused (with `.weight` where they are quantized) or one by one.
pub(super) fn naming(c: &Config) -> Result<Naming, HirError> {
    let strings = |s: &[&str]| s.iter().map(ToString::to_string).collect::<Vec<_>>();
    let experts = |role: &str, each: &[&str]| NameRule {
        role: role.to_string(),
        endings: strings(&["", ".weight"]),
        per_expert: each.iter().map(|p| format!("mlp.experts.{{e}}.{p}.weight")).collect(),
        converter: None,
    };
    Ok(Naming {
        prefixes: strings(&["model.language_model.", "model."]),
        bare: strings(&["lm_head.weight"]),
        layers: "layers.".to_string(),
        rules: vec![
            experts("mlp.experts.gate_up_proj", &["gate_proj", "up_proj"]),
            experts("mlp.experts.down_proj", &["down_proj"]),
            NameRule {
                role: "linear_attn.conv1d.weight".to_string(),
                endings: strings(&[""]),
                per_expert: Vec::new(),
                converter: Some(time_major(c)?),
            },
        ],
        // Vision tower and multi-token prediction: not a part of the text decoder.
        ignored: strings(&["model.visual.", "mtp."]),
    })
}

/// `[C, 1, K]` to `[K, C]`.
fn time_major(c: &Config) -> Result<Function, HirError> {
    let (channels, taps) = (c.conv_channels(), c.linear_conv_kernel_dim);
    let mut b = Builder::new("conv1d_time_major");
    let published = b.param("published", Type::new(ACTIVATION, &[channels, 1, taps]));
    let flat = b.reshape(published, &[channels, taps])?;
    let weight = b.transpose(flat, &[1, 0])?;
    b.result("weight", weight);
    b.finish()
}
