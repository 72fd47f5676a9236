//! The workspace file that goes with a synthetic delivery.

use super::{GROUP, Profile};
use crate::cli::CapturesBy;
use crate::error::CliError;
use crate::workspace::{default_capacity, parse};
use mica_quantize::Recipe;
use std::path::Path;

/// What a workspace depends on.
#[derive(Clone, Debug, Default)]
pub struct About<'a> {
    /// The described model.
    pub model: &'a str,
    /// Its layers.
    pub layers: u16,
    /// Whether it is quantized as delivered; bfloat16 is quantized by the build.
    pub quantized: bool,
    /// How its numbers are distributed.
    pub profile: Profile,
    /// Who computed its captures, if anyone did.
    pub captured: Option<CapturesBy>,
    /// Tokens of its prompt.
    pub tokens: u16,
    /// The folder, as it was asked for.
    pub out: &'a str,
    /// The file of captures.
    pub captures: &'a str,
}

/// Layers up to which a plain stack is held to the bounds of a trained model. Every layer of a random one turns the
/// residual into another, so what is lost adds up: of forty at the published dimensions, 2e-2 of the residual.
const SHALLOW: u16 = 4;

/// A workspace whose one model has the delivery in the workspace's own folder.
pub fn workspace(about: &About<'_>) -> String {
    let About { model, layers, quantized, profile, captured, tokens, out, captures } = *about;
    // a line of its own may hold anything but an end of line
    let out: String = out.chars().flat_map(shown).collect();
    // the caches hold the prompt
    let capacity = match u64::from(tokens) {
        n if n > default_capacity() => format!("\ncapacity = {n}"),
        _ => String::new(),
    };
    // a deep or a hard stack is held to what is asked of it, a direction kept over all its layers
    let (cosine, ratio) = match profile {
        Profile::Plain if layers <= SHALLOW => ("0.99999", "0.001"),
        Profile::Plain | Profile::Stress | Profile::Limits => ("0.999", "0.01"),
    };
    // captures of the unquantized model show what quantization costs, which on random weights is much: at the
    // published dimensions 0.95 is read after four layers, 0.31 after forty
    let unquantized = match (captured, quantized) {
        (Some(CapturesBy::Own), false) if layers <= SHALLOW => "chain_cosine_unquantized = 0.9\n",
        (Some(CapturesBy::Own), false) => "chain_cosine_unquantized = 0.2\n",
        _ => "",
    };
    let (said, oracle) = match captured {
        None => (
            "# The file of captures has a made-up prompt and nothing else, so that gates on captures are not run.",
            "",
        ),
        Some(CapturesBy::Own) => (
            "# The captures are our own evaluator's and labelled so: they satisfy no gate that asks for the published\n\
             # implementation, and `oracle` says that none is asked for.",
            "\noracle = \"self\"",
        ),
    };
    format!(
        r#"# A synthetic delivery of {model}: `mica -C {out} build`.
{said}
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
whole_tokens = 4{capacity}{oracle}

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
{unquantized}
# A random router's logits are large, and so is what rounding its input to float16 moves them by: 1.1e-4 was read.
[gates.router]
tight_score_error = 2e-4
"#
    )
}

/// A character of a comment.
fn shown(c: char) -> Vec<char> {
    match c.is_control() {
        true => c.escape_default().collect(),
        false => vec![c],
    }
}

/// The recipe of that workspace: the published formats of a W4A16 delivery.
pub fn recipe() -> Result<Recipe, CliError> {
    let config = parse(Path::new("the synthetic workspace"), &workspace(&About::default()))?;
    let named = config.recipe.into_values().next();
    named.ok_or_else(|| CliError::Usage("the synthetic workspace has no recipe".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Maker;

    #[test]
    fn it_parses_and_says_what_is_asked_for() {
        for (layers, captured, oracle, cosine) in
            [(4, None, Maker::Published, 0.99999), (40, Some(CapturesBy::Own), Maker::Own, 0.999)]
        {
            let about = About { model: "qwen3_5_35b_a3b", layers, captured, ..About::default() };
            let parsed = parse(Path::new("w"), &workspace(&about)).unwrap();
            let model = &parsed.model["full"];
            assert_eq!((model.description.as_str(), model.oracle), ("qwen3_5_35b_a3b", oracle));
            assert_eq!(parsed.delivery["full"].captures.as_ref().unwrap().made_by, Maker::Own);
            assert_eq!(parsed.gates.decode.layer_cosine, cosine);
        }
    }

    #[test]
    fn the_caches_hold_the_prompt() {
        for (tokens, capacity) in [(4, 256), (256, 256), (257, 257), (u16::MAX, 65535)] {
            let parsed = parse(Path::new("w"), &workspace(&About { tokens, ..About::default() })).unwrap();
            assert_eq!(parsed.model["full"].capacity, capacity);
        }
    }

    #[test]
    fn no_name_of_a_folder_ends_the_comment() {
        let text = workspace(&About { out: "a\nb\r\u{7f}é c", ..About::default() });
        assert!(
            text.starts_with("# A synthetic delivery of : `mica -C a\\nb\\r\\u{7f}é c build`.\n#"),
            "{text}"
        );
        parse(Path::new("w"), &text).unwrap();
    }
}
