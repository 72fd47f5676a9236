//! Which name in a capture file means what.
//!
//! The default is the naming of the shipped delivery; a workspace replaces any line of it.

use serde::{Deserialize, Serialize};

use crate::error::FetchError;

/// What stands for the layer's number in a [`LayerName`].
const LAYER: &str = "{layer}";

/// The name of a capture that exists once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// The names of a capture that each layer has: a pattern with `{layer}` where the number stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerName(String);

impl Name {
    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LayerName {
    /// The capture's name for one layer.
    pub fn of(&self, layer: usize) -> String {
        self.0.replace(LAYER, &layer.to_string())
    }

    /// The pattern itself.
    pub fn pattern(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = FetchError;

    fn try_from(pattern: String) -> Result<Self, FetchError> {
        if pattern.is_empty() {
            Err(FetchError::CapturePattern { pattern, message: "a name is not empty" })
        } else if pattern.contains(LAYER) {
            Err(FetchError::CapturePattern {
                pattern,
                message: "this capture exists once and has no {layer}",
            })
        } else {
            Ok(Name(pattern))
        }
    }
}

impl TryFrom<String> for LayerName {
    type Error = FetchError;

    fn try_from(pattern: String) -> Result<Self, FetchError> {
        if pattern.contains(LAYER) {
            Ok(LayerName(pattern))
        } else {
            Err(FetchError::CapturePattern {
                pattern,
                message: "every layer has this capture: write {layer} in it",
            })
        }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl From<LayerName> for String {
    fn from(name: LayerName) -> String {
        name.0
    }
}

/// Declares the map once: field, kind, default name, meaning.
macro_rules! capture_map {
    ($($field:ident: $kind:ident = $default:literal, $meaning:literal;)*) => {
        /// What each capture is called. A name says nothing about whether a delivery has the capture.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct CaptureMap {
            $(#[doc = $meaning] pub $field: $kind,)*
        }

        impl Default for CaptureMap {
            fn default() -> Self {
                CaptureMap { $($field: $kind($default.to_owned()),)* }
            }
        }

        #[cfg(test)]
        impl CaptureMap {
            /// Every name, those of a layer written out for `layer`.
            pub(super) fn names(&self, layer: usize) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), String::from(self.$field.clone()).replace(LAYER, &layer.to_string())),)*]
            }
        }
    };
}

capture_map! {
    input_ids: Name = "input_ids", "The prompt's ids, one a step: `[token]`.";
    next_ids: Name = "next_ids", "The id that follows each position in the text; perplexity is scored on it.";
    greedy_ids: Name = "greedy_ids", "The id with the largest logit at each position.";
    continuation_ids: Name = "continuation_ids", "What greedy decoding gives after the prompt.";
    embedding: Name = "model.embed_tokens:float_output", "Embedding rows: `[token, hidden]`.";
    final_norm_input: Name = "model.norm:float_input", "Residuals after the last layer: `[token, hidden]`.";
    head_input: Name = "lm_head:float_input", "The hidden after the final norm: `[token, hidden]`.";
    logits: Name = "lm_head:float_output", "`[token, vocabulary]`.";

    layer_input: LayerName = "model.layers.{layer}:float_input", "Residuals into the layer: `[token, hidden]`.";
    layer_output: LayerName = "model.layers.{layer}:float_output", "Residuals out of the layer: `[token, hidden]`.";
    mixer_input: LayerName = "model.layers.{layer}.input_layernorm:float_output",
        "What the mixer reads: `[token, hidden]`.";
    moe_residual: LayerName = "model.layers.{layer}.post_attention_layernorm:float_input",
        "Residuals after the mixer: `[token, hidden]`.";
    moe_input: LayerName = "model.layers.{layer}.post_attention_layernorm:float_output",
        "What the experts read: `[token, hidden]`.";

    linear_attn_output: LayerName = "model.layers.{layer}.linear_attn:float_output",
        "Gated DeltaNet before the residual add: `[token, hidden]`.";
    in_proj_qkv: LayerName = "model.layers.{layer}.linear_attn.in_proj_qkv:float_output", "`[token, 2K + V]`.";
    in_proj_z: LayerName = "model.layers.{layer}.linear_attn.in_proj_z:float_output", "`[token, V]`.";
    in_proj_a: LayerName = "model.layers.{layer}.linear_attn.in_proj_a:float_output", "`[token, value head]`.";
    in_proj_b: LayerName = "model.layers.{layer}.linear_attn.in_proj_b:float_output", "`[token, value head]`.";
    conv_output: LayerName = "model.layers.{layer}.linear_attn.conv1d:silu_output",
        "q, k and v after convolution and SiLU: `[token, 2K + V]`.";
    decay: LayerName = "model.layers.{layer}.linear_attn:g", "The logarithm of the decay: `[token, value head]`.";
    beta: LayerName = "model.layers.{layer}.linear_attn:beta", "`[token, value head]`.";
    delta_output: LayerName = "model.layers.{layer}.linear_attn.norm:float_input",
        "The delta rule's output: `[token, value head, value dim]`.";
    delta_normed: LayerName = "model.layers.{layer}.linear_attn.norm:float_output",
        "The same, normed and gated: `[token, value head, value dim]`.";
    conv_state: LayerName = "model.layers.{layer}.linear_attn:conv_state",
        "The last four columns before the convolution, newest last, after the last token: `[2K + V, 4]`.";
    recurrent_state: LayerName = "model.layers.{layer}.linear_attn:recurrent_state",
        "After the last token: `[value head, key dim, value dim]`.";
    conv_state_steps: LayerName = "model.layers.{layer}.linear_attn:conv_state_steps",
        "The convolution state after every token, where captured.";
    recurrent_state_steps: LayerName = "model.layers.{layer}.linear_attn:recurrent_state_steps",
        "The recurrent state after every token, where captured.";

    self_attn_output: LayerName = "model.layers.{layer}.self_attn:float_output",
        "Attention before the residual add: `[token, hidden]`.";
    q_proj: LayerName = "model.layers.{layer}.self_attn.q_proj:float_output",
        "Per head the query, then the gate: `[token, 2 · heads · head dim]`.";
    k_proj: LayerName = "model.layers.{layer}.self_attn.k_proj:float_output", "`[token, kv heads · head dim]`.";
    v_proj: LayerName = "model.layers.{layer}.self_attn.v_proj:float_output", "`[token, kv heads · head dim]`.";
    q_norm: LayerName = "model.layers.{layer}.self_attn.q_norm:float_output",
        "Normed queries before RoPE: `[token, head, head dim]`.";
    k_norm: LayerName = "model.layers.{layer}.self_attn.k_norm:float_output",
        "Normed keys before RoPE: `[token, kv head, head dim]`.";
    o_proj_input: LayerName = "model.layers.{layer}.self_attn.o_proj:float_input",
        "The heads' output times the gate: `[token, heads · head dim]`.";
    key_cache: LayerName = "model.layers.{layer}.self_attn:key_cache",
        "Keys after norm and RoPE: `[kv head, token, head dim]`.";
    value_cache: LayerName = "model.layers.{layer}.self_attn:value_cache", "`[kv head, token, head dim]`.";

    router_logits: LayerName = "model.layers.{layer}.mlp.gate:logits", "`[token, expert]`.";
    topk_indices: LayerName = "model.layers.{layer}.mlp.gate:topk_indices",
        "The chosen experts, heaviest first: `[token, k]`.";
    topk_weights: LayerName = "model.layers.{layer}.mlp.gate:topk_weights",
        "Their weights, which sum to one: `[token, k]`.";
    routed_output: LayerName = "model.layers.{layer}.mlp.experts:float_output",
        "The weighted sum of the chosen experts: `[token, hidden]`.";
    shared_output: LayerName = "model.layers.{layer}.mlp.shared_expert:float_output",
        "The shared expert before its gate: `[token, hidden]`.";
    shared_gate_logit: LayerName = "model.layers.{layer}.mlp.shared_expert_gate:float_output", "`[token, 1]`.";
    shared_gate: LayerName = "model.layers.{layer}.mlp.shared_expert_gate:sigmoid", "`[token, 1]`.";
    moe_output: LayerName = "model.layers.{layer}.mlp:float_output",
        "Routed plus gated shared, before the residual add: `[token, hidden]`.";
}
