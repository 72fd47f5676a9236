//! The published dimensions of described models, as the fields of their `config.json`.

use super::SynthError;
use serde_json::{Map, Value, json};

/// The models whose published dimensions are known.
pub fn names() -> &'static [&'static str] {
    &["qwen3_5_35b_a3b"]
}

/// The published configuration of a model, with so many layers and so many rows of vocabulary (the
/// published number where `None`). `packed` adds what says how packed experts are to be read.
pub fn config(
    model: &str,
    layers: u64,
    vocab: Option<u64>,
    packed: Option<u32>,
) -> Result<Map<String, Value>, SynthError> {
    if !names().contains(&model) {
        return Err(SynthError::Model { name: model.into(), known: names().join(", ") });
    }
    let kinds: Vec<&str> = (1..=layers)
        .map(|n| if n.is_multiple_of(4) { "full_attention" } else { "linear_attention" })
        .collect();
    let mut config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "vocab_size": vocab.unwrap_or(248_320),
            "hidden_size": 2048,
            "num_hidden_layers": layers,
            "layer_types": kinds,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "attn_output_gate": true,
            "attention_bias": false,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "router_aux_loss_coef": 0.001,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "tie_word_embeddings": false,
            "max_position_embeddings": 262_144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": true,
            },
        },
        "tie_word_embeddings": false,
    });
    if let Some(group) = packed {
        config["quantization_config"] = json!({
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": { "group_0": {
                "targets": ["re:.*mlp\\.experts\\..*_proj$"],
                "format": "pack-quantized",
                "weights": {
                    "num_bits": 4, "type": "int", "symmetric": true,
                    "strategy": "group", "group_size": group, "dynamic": false,
                },
            }},
        });
    }
    match config {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}
