//! The workspace file that goes with a synthetic delivery.

use super::{GROUP, Profile};
use crate::error::CliError;
use crate::workspace::parse;
use mica_quantize::Recipe;
use std::path::Path;

/// A workspace whose one model is `model`, with the delivery in the workspace's own folder.
pub fn workspace(model: &str, profile: Profile, out: &str, captures: &str) -> String {
    // a hard stack is held to what it is made for, a direction kept over all its layers
    let (cosine, ratio) = match profile {
        Profile::Plain => ("0.99999", "0.001"),
        Profile::Stress | Profile::Limits => ("0.999", "0.01"),
    };
    format!(
        r#"# A synthetic delivery of {model}: `mica -C {out} build`.
# The captures are made up and labelled so: they satisfy no gate that asks for the published implementation.
default = "decode"

[targets]
decode = ["score:full.decode", "timing:full.kernel"]

[delivery.full]
source = "."
captures = {{ file = "{captures}", precision = "f64", made_by = "self" }}

[model.full]
description = "{model}"
delivery = "full"
recipe = "w4a16"
device = "sim"
whole_tokens = 4

[recipe.w4a16]
rules = [
  {{ pattern = "mlp.experts.*", format = "i4", group = {GROUP}, scale = "f16" }},
  {{ pattern = "mlp.shared_expert.*_proj.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "self_attn.*_proj.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "linear_attn.in_proj_qkv.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "linear_attn.in_proj_z.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "linear_attn.out_proj.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "embed_tokens.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "lm_head.weight", format = "i8", group = "row", scale = "f32" }},
  {{ pattern = "mlp.gate.weight", format = "f16" }},
  {{ pattern = "mlp.shared_expert_gate.weight", format = "f16" }},
  {{ pattern = "linear_attn.in_proj_?.weight", format = "f16" }},
  {{ pattern = "*", format = "f32" }},
]

[device.sim]
product = "qb16"
bus_bytes = 32
clock_mhz = 1000
frac = 20

[gates.decode]
chain_cosine = 0.95
layer_cosine = {cosine}
layer_norm_ratio = {ratio}
"#
    )
}

/// The recipe of that workspace: the published formats of a W4A16 delivery.
pub fn recipe() -> Result<Recipe, CliError> {
    let config = parse(Path::new("the synthetic workspace"), &workspace("", Profile::Plain, "", ""))?;
    let named = config.recipe.into_values().next();
    named.ok_or_else(|| CliError::Usage("the synthetic workspace has no recipe".into()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_parses() {
        let profile = crate::synth::Profile::Plain;
        let text = super::workspace("qwen3_5_35b_a3b", profile, "out", "captures.safetensors");
        let parsed = crate::workspace::parse(std::path::Path::new("w"), &text).unwrap();
        assert_eq!(parsed.model["full"].description, "qwen3_5_35b_a3b");
    }
}
