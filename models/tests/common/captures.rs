//! The captures' keys and what they are in the authored functions.

/// Captures of a layer by the label whose last value they are.
pub const LABELLED: &[(&str, &str)] = &[
    ("input_layernorm:float_output", "input_layernorm"),
    ("post_attention_layernorm:float_output", "post_attention_layernorm"),
    ("linear_attn.in_proj_qkv:float_output", "linear_attn.in_proj_qkv"),
    ("linear_attn.in_proj_z:float_output", "linear_attn.in_proj_z"),
    ("linear_attn.in_proj_b:float_output", "linear_attn.in_proj_b"),
    ("linear_attn.in_proj_a:float_output", "linear_attn.in_proj_a"),
    ("linear_attn.conv1d:silu_output", "linear_attn.conv1d"),
    ("linear_attn:beta", "linear_attn.beta"),
    ("linear_attn:g", "linear_attn.g"),
    ("linear_attn.norm:float_output", "linear_attn.norm"),
    ("linear_attn.out_proj:float_output", "linear_attn.out_proj"),
    ("linear_attn:float_output", "linear_attn.out_proj"),
    ("self_attn.q_proj:float_output", "self_attn.q_proj"),
    ("self_attn.k_proj:float_output", "self_attn.k_proj"),
    ("self_attn.v_proj:float_output", "self_attn.v_proj"),
    ("self_attn.q_norm:float_output", "self_attn.q_norm"),
    ("self_attn.k_norm:float_output", "self_attn.k_norm"),
    ("self_attn.o_proj:float_input", "self_attn"),
    ("self_attn.o_proj:float_output", "self_attn.o_proj"),
    ("self_attn:float_output", "self_attn.o_proj"),
    ("mlp.gate:topk_weights", "mlp.gate"),
    ("mlp.experts:float_output", "mlp.experts"),
    ("mlp.shared_expert:float_output", "mlp.shared_expert.down_proj"),
    ("mlp.shared_expert_gate:float_output", "mlp.shared_expert_gate"),
    ("mlp:float_output", "mlp"),
];

/// Captures of a layer by the result that they are.
pub const RESULTS: &[(&str, &str)] = &[
    (":float_output", "hidden"),
    (".mlp.gate:logits", "router_logits"),
    (".mlp.gate:topk_indices", "expert_ids"),
    (".linear_attn:recurrent_state_steps", "recurrent_state"),
];

/// Captures of the shared expert's gate after its sigmoid stand under the label of the block, as the value of
/// this operation.
pub const SHARED_GATE: (&str, &str, &str) = ("mlp.shared_expert_gate:sigmoid", "mlp", "sigmoid");
