//! What the weights of a synthetic delivery are like, by profile: uniform within `offset ± scale`, some rows
//! of some weights otherwise.
//!
//! A weight matrix of `Plain` has no direction of its own: its mean is zero. Experts of four bits need care there.
//! Codes drawn from −8 to 7 have the mean −½, a ninth of their size, so every expert answers every token with a
//! share that is alike in all channels; the next layer's experts see that share in each of their inputs and square
//! it, and after two layers nothing else is left. At the published dimensions it adds 47 a layer, whatever the
//! prompt, and leaves ±2048 before the fortieth. So codes are drawn with mean zero, as symmetric quantizers have
//! them. The residual then grows with the square root of the layers where they differ (10 after forty), and in
//! proportion to them where a few are repeated (21), since the same matrices send the same token the same way.

use super::Codes;
use mica_models::Part;

/// What a delivery's numbers are made to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// No matrix has a direction of its own: at the published dimensions the residual of forty layers stays
    /// below 30 over a prompt of 16 tokens, also where a few layers are repeated.
    #[default]
    Plain,
    /// A stack that is not easy, at any dimensions: branches turn the residual away from the embedding, one
    /// of its channels is two hundred times the others, decays reach from 0 to 1, attention is sharp.
    Stress,
    /// The same, and layer by layer values near the limits of every format and function.
    Limits,
}

/// The distribution of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// Half the width of the values.
    pub scale: f32,
    /// Their middle.
    pub offset: f32,
    /// Rows that are distributed otherwise.
    pub rows: Vec<RowsApart>,
    /// The role of the same shape whose numbers it has, where they are not its own.
    pub numbers_of: Option<&'static str>,
    /// Whether it is stored as floats where weights of its kind are integers, because signs matter.
    pub floats: bool,
}

/// Rows of a weight (elements of a vector) with a distribution of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsApart {
    /// Rows after which they come again.
    pub every: u64,
    /// The row, in each run of `every`.
    pub row: u64,
    /// Half the width.
    pub scale: f32,
    /// The middle.
    pub offset: f32,
}

/// The channel of the residual that is far larger than the others.
pub const MASSIVE: u64 = 77;
/// About how large.
const SIZE: f32 = 300.0;
/// The layer whose shared expert makes it so.
const SOURCE: usize = 1;

/// How a role's values are stated.
#[derive(Clone, Copy)]
enum Like {
    /// Scale and offset themselves; exact in float32.
    Span(f32, f32),
    /// So that a row times a vector of root mean square 1 has this root mean square.
    Gain(f32),
}

use Like::{Gain, Span};

impl Like {
    /// Scale and offset of a weight with so many inputs.
    fn of(self, inputs: u64) -> (f32, f32) {
        match self {
            Span(scale, offset) => (scale, offset),
            // a uniform value's variance is a third of its scale's square
            Gain(gain) => (gain * (3.0 / inputs as f32).sqrt(), 0.0),
        }
    }
}

const PLAIN: &[(&str, Like)] = &[
    ("embed_tokens.weight", Span(0.031_25, 0.0)),
    ("lm_head.weight", Span(0.039_062_5, 0.0)),
    ("norm.weight", Span(0.25, 0.5)),
    ("input_layernorm.weight", Span(0.25, 0.125)),
    ("post_attention_layernorm.weight", Span(0.25, -0.125)),
    ("linear_attn.A_log", Span(1.5, -0.5)),
    ("linear_attn.dt_bias", Span(1.5, -2.0)),
    ("linear_attn.conv1d.weight", Span(0.75, 0.0)),
    ("linear_attn.norm.weight", Span(0.25, 1.0)),
    ("linear_attn.in_proj_a.weight", Span(0.019_531_25, 0.0)),
    ("linear_attn.in_proj_b.weight", Span(0.039_062_5, 0.0)),
    ("linear_attn.in_proj_qkv.weight", Span(0.039_062_5, 0.0)),
    ("linear_attn.in_proj_z.weight", Span(0.039_062_5, 0.0)),
    ("linear_attn.out_proj.weight", Span(0.011_718_75, 0.0)),
    ("self_attn.q_proj.weight", Span(0.039_062_5, 0.0)),
    ("self_attn.k_proj.weight", Span(0.039_062_5, 0.0)),
    ("self_attn.v_proj.weight", Span(0.039_062_5, 0.0)),
    ("self_attn.o_proj.weight", Span(0.011_718_75, 0.0)),
    ("self_attn.q_norm.weight", Span(0.25, 0.5)),
    ("self_attn.k_norm.weight", Span(0.25, 0.25)),
    ("mlp.gate.weight", Span(0.078_125, 0.0)),
    ("mlp.experts.gate_up_proj", Span(0.039_062_5, 0.0)),
    ("mlp.experts.down_proj", Span(0.078_125, 0.0)),
    ("mlp.shared_expert.gate_proj.weight", Span(0.039_062_5, 0.0)),
    ("mlp.shared_expert.up_proj.weight", Span(0.039_062_5, 0.0)),
    ("mlp.shared_expert.down_proj.weight", Span(0.039_062_5, 0.0)),
    ("mlp.shared_expert_gate.weight", Span(0.039_062_5, 0.0)),
];

/// Norms store their weight less one, except the DeltaNet's.
const STRESS: &[(&str, Like)] = &[
    ("embed_tokens.weight", Span(0.25, 0.0)),
    ("lm_head.weight", Gain(2.0)),
    ("norm.weight", Span(0.25, 1.0)),
    ("input_layernorm.weight", Span(0.25, 0.0)),
    ("post_attention_layernorm.weight", Span(0.25, 0.0)),
    ("linear_attn.A_log", Span(3.0, -0.5)),
    ("linear_attn.dt_bias", Span(4.0, -2.0)),
    ("linear_attn.conv1d.weight", Gain(1.5)),
    ("linear_attn.norm.weight", Span(0.25, 1.0)),
    ("linear_attn.in_proj_a.weight", Gain(1.0)),
    ("linear_attn.in_proj_b.weight", Gain(2.0)),
    ("linear_attn.in_proj_qkv.weight", Gain(1.0)),
    ("linear_attn.in_proj_z.weight", Gain(1.0)),
    ("linear_attn.out_proj.weight", Gain(0.8)),
    ("self_attn.q_proj.weight", Gain(1.0)),
    ("self_attn.k_proj.weight", Gain(1.0)),
    ("self_attn.v_proj.weight", Gain(1.0)),
    ("self_attn.o_proj.weight", Gain(1.5)),
    ("self_attn.q_norm.weight", Span(0.5, 1.0)),
    ("self_attn.k_norm.weight", Span(0.5, 1.0)),
    ("mlp.gate.weight", Gain(1.5)),
    ("mlp.experts.gate_up_proj", Gain(1.0)),
    ("mlp.experts.down_proj", Gain(0.6)),
    ("mlp.shared_expert.gate_proj.weight", Gain(1.0)),
    ("mlp.shared_expert.up_proj.weight", Gain(1.0)),
    ("mlp.shared_expert.down_proj.weight", Gain(0.6)),
    ("mlp.shared_expert_gate.weight", Gain(1.0)),
];

/// What a layer of `Limits` has otherwise than `Stress`: the layer, a role, its values.
const LIMITS: &[(usize, &str, Like)] = &[
    // the ends of sigmoid, softplus and exp: decays of 0 and of 1
    (0, "linear_attn.in_proj_b.weight", Gain(40.0)),
    (0, "linear_attn.in_proj_a.weight", Gain(8.0)),
    (0, "linear_attn.A_log", Span(8.0, 0.0)),
    (0, "linear_attn.dt_bias", Span(48.0, 0.0)),
    // the ends of silu
    (1, "linear_attn.conv1d.weight", Gain(60.0)),
    (1, "linear_attn.in_proj_z.weight", Gain(60.0)),
    // a router that can hardly tell its experts apart
    (2, "mlp.gate.weight", Gain(5e-4)),
    // a softmax that takes one position and leaves e^-100 of others
    (3, "self_attn.q_norm.weight", Span(4.0, 8.0)),
    (3, "self_attn.k_norm.weight", Span(4.0, 8.0)),
    // vectors that a norm finds smaller than its epsilon
    (4, "linear_attn.in_proj_qkv.weight", Gain(6.1e-5)),
    (7, "self_attn.q_proj.weight", Gain(6.1e-5)),
    (7, "self_attn.k_proj.weight", Gain(6.1e-5)),
    // vectors that only just fit float16
    (6, "mlp.shared_expert.gate_proj.weight", Gain(24.0)),
    (6, "mlp.shared_expert.up_proj.weight", Gain(24.0)),
    (6, "mlp.shared_expert.down_proj.weight", Gain(5e-4)),
];

/// Steps from zero to the end of four bits.
const INT4: f32 = 8.0;
/// The layer of `Limits` whose experts have scales at both ends of float16.
const SCALES: usize = 5;

/// How a role of a part is distributed. `shape` is the weight's, as published; `hidden` the residual's length.
pub fn of(profile: Profile, part: Part, role: &str, shape: &[u64], hidden: u64) -> Option<Stated> {
    let table = match profile {
        Profile::Plain => PLAIN,
        Profile::Stress | Profile::Limits => STRESS,
    };
    let like = table.iter().find(|s| s.0 == role)?.1;
    let limit = LIMITS.iter().find(|l| profile == Profile::Limits && Part::Layer(l.0) == part && l.1 == role);
    let inputs = shape.last().copied().unwrap_or(1);
    let (scale, offset) = limit.map_or(like, |l| l.2).of(inputs);
    let mut stated = Stated { scale, offset, rows: Vec::new(), numbers_of: None, floats: false };
    if profile != Profile::Plain {
        stated.massive(part, role, inputs, hidden);
    }
    if profile == Profile::Limits && part == Part::Layer(SCALES) && role == "mlp.experts.gate_up_proj" {
        stated.extreme_scales(shape);
    }
    Some(stated)
}

impl Stated {
    /// What makes one channel massive, and what keeps it from drowning the others.
    fn massive(&mut self, part: Part, role: &str, inputs: u64, hidden: u64) {
        let channel = |offset| RowsApart { every: hidden, row: MASSIVE % hidden, scale: 0.0, offset };
        let source = part == Part::Layer(SOURCE);
        match role {
            // with equal numbers the gated values are squares, so a row of positive weights gives every token
            // about the same: a third of its weight an input on average
            "mlp.shared_expert.up_proj.weight" if source => {
                self.numbers_of = Some("mlp.shared_expert.gate_proj.weight");
            }
            "mlp.shared_expert.down_proj.weight" if source => {
                self.floats = true;
                self.rows.push(channel(SIZE / (0.33 * inputs as f32)));
            }
            "mlp.shared_expert_gate.weight" if source => (self.scale, self.offset) = Gain(0.125).of(inputs),
            // it makes the root mean square large: the norms bring the others back, to 1 where they are 6, and
            // it down
            "input_layernorm.weight" | "post_attention_layernorm.weight" if matches!(part, Part::Layer(i) if i > SOURCE) =>
            {
                self.offset = SIZE / (hidden as f32).sqrt() / 6.0 - 1.0;
                self.rows.push(channel(-0.75));
            }
            "norm.weight" => self.rows.push(channel(-0.9375)),
            _ => {}
        }
    }

    /// In each expert a gate with float16's smallest scale beside a value with about its largest: their product
    /// is of a usual size.
    fn extreme_scales(&mut self, shape: &[u64]) {
        let both = shape.get(1).copied().unwrap_or(2);
        let row = |row, scale| RowsApart { every: both, row, scale: INT4 * scale, offset: 0.0 };
        self.rows = vec![row(0, half::f16::from_bits(1).to_f32()), row(both / 2, 52_000.0)];
    }
}

/// The codes of experts of four bits. The profiles that are made to be hard keep those that reach both ends.
pub fn codes(profile: Profile) -> Codes {
    match profile {
        Profile::Plain => Codes::Centred,
        Profile::Stress | Profile::Limits => Codes::All,
    }
}

/// Whether a matrix decides or gates, and so is never quantized.
pub fn decides(role: &str) -> bool {
    let names = ["mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_a", "linear_attn.in_proj_b"];
    role.strip_suffix(".weight").is_some_and(|r| names.contains(&r))
}
