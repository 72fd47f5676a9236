//! The published config's fields that shape the model. Every field is read; none is derived from others.

use crate::error::ModelError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The kind of a layer, as `layer_types` states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mixer {
    /// `linear_attention`: Gated DeltaNet.
    Linear,
    /// `full_attention`: gated attention with a KV cache.
    Full,
}

impl Mixer {
    /// The config's word.
    pub fn word(self) -> &'static str {
        match self {
            Mixer::Linear => "linear_attention",
            Mixer::Full => "full_attention",
        }
    }
}

/// The text config. Field names are the published ones, except where a word says more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Rows of the embedding and of the head.
    pub vocab_size: u64,
    /// Length of the residual vector, H.
    pub hidden_size: u64,
    /// The kind of each layer.
    pub layer_types: Vec<Mixer>,
    /// Query heads, Hq.
    pub num_attention_heads: u64,
    /// Key and value heads, Hkv.
    pub num_key_value_heads: u64,
    /// Length of an attention head, D. It is not H / Hq.
    pub head_dim: u64,
    /// Elements of a head that rotate: D · `partial_rotary_factor`.
    pub rotary_dim: u64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Longest context.
    pub max_position_embeddings: u64,
    /// Key heads of the DeltaNet, Hk.
    pub linear_num_key_heads: u64,
    /// Value heads of the DeltaNet, Hv.
    pub linear_num_value_heads: u64,
    /// Length of a key, Dk.
    pub linear_key_head_dim: u64,
    /// Length of a value, Dv.
    pub linear_value_head_dim: u64,
    /// Taps of the causal convolution, K.
    pub linear_conv_kernel_dim: u64,
    /// Routed experts, E.
    pub num_experts: u64,
    /// Experts chosen for a token, k.
    pub num_experts_per_tok: u64,
    /// Inner length of a routed expert, I.
    pub moe_intermediate_size: u64,
    /// Inner length of the shared expert.
    pub shared_expert_intermediate_size: u64,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
}

impl Config {
    /// Reads the text config's fields.
    ///
    /// # Errors
    /// `MissingField`, `WrongField`: the field, its value, what was expected.
    pub fn from_json(text: &Map<String, Value>) -> Result<Config, ModelError> {
        let count = |field: &str| count(text, field);
        let rope =
            get(text, "rope_parameters", "an object with rope_theta, partial_rotary_factor, rope_type")?;
        let Some(rope) = rope.as_object() else {
            return Err(wrong("rope_parameters", rope, "an object"));
        };
        let rope_theta = positive(rope, "rope_parameters.", "rope_theta")?;
        let rotary_factor = positive(rope, "rope_parameters.", "partial_rotary_factor")?;
        let head_dim = count("head_dim")?;
        // The product is exact for the published quarters and halves; anything else is refused.
        let rotary = head_dim as f64 * rotary_factor;
        if libm::trunc(rotary) != rotary || !(rotary as u64).is_multiple_of(2) || rotary as u64 > head_dim {
            let found = &rope["partial_rotary_factor"];
            let expected =
                format!("a factor that takes an even number of head_dim {head_dim}, at most all of it");
            return Err(wrong("rope_parameters.partial_rotary_factor", found, &expected));
        }
        must_be(rope, "rope_parameters.", "rope_type", Value::from("default"))?;
        must_be(text, "", "hidden_act", Value::from("silu"))?;
        must_be(text, "", "attention_bias", Value::from(false))?;
        must_be(text, "", "attn_output_gate", Value::from(true))?;
        must_be(text, "", "tie_word_embeddings", Value::from(false))?;
        if let Some(only) = text.get("mlp_only_layers").filter(|v| v.as_array().is_none_or(|a| !a.is_empty()))
        {
            return Err(wrong("mlp_only_layers", only, "an empty list"));
        }
        let config = Config {
            vocab_size: count("vocab_size")?,
            hidden_size: count("hidden_size")?,
            layer_types: layer_types(text, count("num_hidden_layers")?)?,
            num_attention_heads: count("num_attention_heads")?,
            num_key_value_heads: count("num_key_value_heads")?,
            head_dim,
            rotary_dim: rotary as u64,
            rope_theta,
            max_position_embeddings: count("max_position_embeddings")?,
            linear_num_key_heads: count("linear_num_key_heads")?,
            linear_num_value_heads: count("linear_num_value_heads")?,
            linear_key_head_dim: count("linear_key_head_dim")?,
            linear_value_head_dim: count("linear_value_head_dim")?,
            linear_conv_kernel_dim: count("linear_conv_kernel_dim")?,
            num_experts: count("num_experts")?,
            num_experts_per_tok: count("num_experts_per_tok")?,
            moe_intermediate_size: count("moe_intermediate_size")?,
            shared_expert_intermediate_size: count("shared_expert_intermediate_size")?,
            rms_norm_eps: positive(text, "", "rms_norm_eps")?,
        };
        config.check(text)?;
        Ok(config)
    }

    /// What must hold between fields.
    fn check(&self, text: &Map<String, Value>) -> Result<(), ModelError> {
        let relation = |holds: bool, field: &str, expected: String| match holds {
            true => Ok(()),
            false => Err(wrong(field, &text[field], &expected)),
        };
        relation(
            self.num_experts_per_tok <= self.num_experts,
            "num_experts_per_tok",
            format!("at most num_experts, {}", self.num_experts),
        )?;
        relation(
            self.num_attention_heads.is_multiple_of(self.num_key_value_heads),
            "num_attention_heads",
            format!("a multiple of num_key_value_heads, {}", self.num_key_value_heads),
        )?;
        relation(
            self.linear_num_value_heads.is_multiple_of(self.linear_num_key_heads),
            "linear_num_value_heads",
            format!("a multiple of linear_num_key_heads, {}", self.linear_num_key_heads),
        )?;
        relation(self.linear_conv_kernel_dim >= 2, "linear_conv_kernel_dim", "at least 2 taps".to_string())
    }

    /// Channels of the convolution: all keys and queries, and all values.
    pub fn conv_channels(&self) -> u64 {
        2 * self.key_size() + self.value_size()
    }
    /// All keys of the DeltaNet, Hk · Dk.
    pub fn key_size(&self) -> u64 {
        self.linear_num_key_heads * self.linear_key_head_dim
    }
    /// All values of the DeltaNet, Hv · Dv.
    pub fn value_size(&self) -> u64 {
        self.linear_num_value_heads * self.linear_value_head_dim
    }
}

fn get<'a>(map: &'a Map<String, Value>, field: &str, expected: &str) -> Result<&'a Value, ModelError> {
    map.get(field)
        .ok_or_else(|| ModelError::MissingField { field: field.to_string(), expected: expected.to_string() })
}

fn wrong(field: &str, found: &Value, expected: &str) -> ModelError {
    ModelError::WrongField {
        field: field.to_string(),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

fn count(text: &Map<String, Value>, field: &str) -> Result<u64, ModelError> {
    // The bound keeps every product of three dimensions within 64 bits.
    let expected = "a whole number from 1 to 2097151";
    let value = get(text, field, expected)?;
    let number = value.as_u64().filter(|n| (1..1 << 21).contains(n));
    number.ok_or_else(|| wrong(field, value, expected))
}

fn positive(map: &Map<String, Value>, path: &str, field: &str) -> Result<f64, ModelError> {
    let expected = "a finite number above 0";
    let field_path = format!("{path}{field}");
    let value = map.get(field).ok_or_else(|| ModelError::MissingField {
        field: field_path.clone(),
        expected: expected.to_string(),
    })?;
    let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| wrong(&field_path, value, expected))
}

/// A switch between implementations: where the config has it, it has to be the one that is authored here.
fn must_be(map: &Map<String, Value>, path: &str, field: &str, authored: Value) -> Result<(), ModelError> {
    match map.get(field) {
        Some(value) if *value != authored => {
            Err(wrong(&format!("{path}{field}"), value, &authored.to_string()))
        }
        _ => Ok(()),
    }
}

fn layer_types(text: &Map<String, Value>, layers: u64) -> Result<Vec<Mixer>, ModelError> {
    let expected =
        format!("a list of {layers} words (num_hidden_layers), linear_attention or full_attention");
    let value = get(text, "layer_types", &expected)?;
    let word = |v: &Value| match v.as_str() {
        Some("linear_attention") => Some(Mixer::Linear),
        Some("full_attention") => Some(Mixer::Full),
        _ => None,
    };
    value
        .as_array()
        .filter(|list| list.len() as u64 == layers)
        .and_then(|list| list.iter().map(word).collect())
        .ok_or_else(|| wrong("layer_types", value, &expected))
}
