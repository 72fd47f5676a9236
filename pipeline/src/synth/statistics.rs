//! What the weights of a synthetic delivery are like: uniform within `offset ± scale`, so chosen that a
//! layer's branches add about a quarter of the residual's size and no router decides by rounding.

/// A role, half the width of its values and their middle; both are exact in float32.
const STATED: &[(&str, f32, f32)] = &[
    ("embed_tokens.weight", 0.031_25, 0.0),
    ("lm_head.weight", 0.039_062_5, 0.0),
    ("norm.weight", 0.25, 0.5),
    ("input_layernorm.weight", 0.25, 0.125),
    ("post_attention_layernorm.weight", 0.25, -0.125),
    ("linear_attn.A_log", 1.5, -0.5),
    ("linear_attn.dt_bias", 1.5, -2.0),
    ("linear_attn.conv1d.weight", 0.75, 0.0),
    ("linear_attn.norm.weight", 0.25, 1.0),
    ("linear_attn.in_proj_a.weight", 0.019_531_25, 0.0),
    ("linear_attn.in_proj_b.weight", 0.039_062_5, 0.0),
    ("linear_attn.in_proj_qkv.weight", 0.039_062_5, 0.0),
    ("linear_attn.in_proj_z.weight", 0.039_062_5, 0.0),
    ("linear_attn.out_proj.weight", 0.011_718_75, 0.0),
    ("self_attn.q_proj.weight", 0.039_062_5, 0.0),
    ("self_attn.k_proj.weight", 0.039_062_5, 0.0),
    ("self_attn.v_proj.weight", 0.039_062_5, 0.0),
    ("self_attn.o_proj.weight", 0.011_718_75, 0.0),
    ("self_attn.q_norm.weight", 0.25, 0.5),
    ("self_attn.k_norm.weight", 0.25, 0.25),
    ("mlp.gate.weight", 0.078_125, 0.0),
    ("mlp.experts.gate_up_proj", 0.039_062_5, 0.0),
    ("mlp.experts.down_proj", 0.078_125, 0.0),
    ("mlp.shared_expert.gate_proj.weight", 0.039_062_5, 0.0),
    ("mlp.shared_expert.up_proj.weight", 0.039_062_5, 0.0),
    ("mlp.shared_expert.down_proj.weight", 0.039_062_5, 0.0),
    ("mlp.shared_expert_gate.weight", 0.039_062_5, 0.0),
];

/// Scale and offset of a role's values.
pub fn of(role: &str) -> Option<(f32, f32)> {
    STATED.iter().find(|s| s.0 == role).map(|s| (s.1, s.2))
}
