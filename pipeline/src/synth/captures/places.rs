//! Where in a part's function each capture stands, under the names of the shipped delivery. The names are those
//! of the published implementation's modules, and the description's labels are the same ones; what a model's
//! function does not have (attention in a layer of another kind) is not captured.
//!
//! The shipped delivery also has states after every token and a greedy continuation. Here they are left out: the
//! first are two megabytes a token and layer at the published dimensions, the second needs the whole model a token.

use super::super::files::Entry;
use mica_fetch::{CaptureMap, LayerName};
use mica_models::Part;
use mica_models::hir::{Function, ParamKind, ValueId};

/// A tensor of the file and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub place: Place,
    /// Whether it holds integers.
    pub integers: bool,
    /// Its shape, without the axis of tokens where it has one.
    pub shape: Vec<u64>,
}

/// Where a capture stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A value of every token.
    Each(ValueId),
    /// The index of the largest element of a vector of every token.
    Largest(ValueId),
    /// The last vectors of the prompt, `[channels, taps]`.
    Window {
        /// The vector.
        of: ValueId,
        /// How many.
        taps: usize,
    },
    /// A state after the last token.
    State(String),
    /// A cache after the last token, `[heads, tokens, dim]`.
    Cache(String),
}

impl Captured {
    /// Its line in the header.
    pub fn entry(&self, tokens: usize) -> Entry {
        let tokens = tokens as u64;
        let shape = match &self.place {
            Place::Each(_) | Place::Largest(_) => [&[tokens], &self.shape[..]].concat(),
            Place::Window { .. } | Place::State(_) => self.shape.clone(),
            Place::Cache(_) => [&self.shape[..1], &[tokens], &self.shape[1..]].concat(),
        };
        let dtype = if self.integers { "I64" } else { "F32" };
        Entry { name: self.name.clone(), dtype, shape }
    }
}

/// How a value is found.
#[derive(Clone, Copy)]
enum At {
    /// What the part is given.
    Given(&'static str),
    /// What the part gives.
    Result(&'static str),
    /// The last value that stands at a label itself.
    Last(&'static str),
    /// What a module is applied to: the operand of the first operation at its label that is no weight.
    Into(&'static str),
    /// The first value of an operation at a label.
    Op(&'static str, &'static str),
}

use At::{Given, Into, Last, Op, Result};

impl At {
    fn find(self, f: &Function) -> Option<ValueId> {
        let mut at = f.values().filter(|(_, n)| match self {
            Last(label) | Into(label) | Op(label, _) => n.label == label,
            Given(_) | Result(_) => false,
        });
        match self {
            Given(name) => f.params.iter().position(|p| p.name == name).map(|i| ValueId(i as u32)),
            Result(name) => f.result(name),
            Last(_) => at.last().map(|(v, _)| v),
            Into(_) => at.next().and_then(|(_, n)| n.inputs.iter().copied().find(|&v| !is_weight(f, v))),
            Op(_, op) => at.find(|(_, n)| n.op.name() == op).map(|(v, _)| v),
        }
    }
}

fn is_weight(f: &Function, v: ValueId) -> bool {
    f.params.get(v.0 as usize).is_some_and(|p| p.kind == ParamKind::Const)
}

/// The captures of a part, in the order of the file.
pub fn places(part: Part, f: &Function, names: &CaptureMap) -> Vec<Captured> {
    match part {
        Part::Embed => each(f, &[(names.embedding.as_str().into(), Result("hidden"))]),
        Part::Head => head(f, names),
        Part::Layer(i) => layer(f, names, i),
    }
}

/// Those of the values that the function has.
fn each(f: &Function, all: &[(String, At)]) -> Vec<Captured> {
    let one = |(name, at): &(String, At)| {
        let v = at.find(f)?;
        let ty = f.ty(v);
        Some(Captured {
            name: name.clone(),
            place: Place::Each(v),
            integers: !ty.dtype.is_float(),
            shape: ty.known_shape()?,
        })
    };
    all.iter().filter_map(one).collect()
}

fn head(f: &Function, names: &CaptureMap) -> Vec<Captured> {
    let mut all = each(
        f,
        &[
            (names.final_norm_input.as_str().into(), Given("hidden")),
            ("model.norm:float_output".into(), Result("normed")),
            (names.head_input.as_str().into(), Result("normed")),
            (names.logits.as_str().into(), Result("logits")),
        ],
    );
    all.extend(Result("logits").find(f).map(|v| Captured {
        name: names.greedy_ids.as_str().into(),
        place: Place::Largest(v),
        integers: true,
        shape: Vec::new(),
    }));
    all
}

fn layer(f: &Function, n: &CaptureMap, i: usize) -> Vec<Captured> {
    let here = |name: &LayerName| name.of(i);
    let module = |name: &str| format!("model.layers.{i}.{name}");
    let mut all = each(
        f,
        &[
            (here(&n.layer_input), Given("hidden")),
            (here(&n.layer_output), Result("hidden")),
            (here(&n.mixer_input), Last("input_layernorm")),
            (here(&n.moe_residual), Into("post_attention_layernorm")),
            (here(&n.moe_input), Last("post_attention_layernorm")),
            (here(&n.linear_attn_output), Last("linear_attn.out_proj")),
            (here(&n.in_proj_qkv), Last("linear_attn.in_proj_qkv")),
            (here(&n.in_proj_z), Last("linear_attn.in_proj_z")),
            (here(&n.in_proj_a), Last("linear_attn.in_proj_a")),
            (here(&n.in_proj_b), Last("linear_attn.in_proj_b")),
            (here(&n.conv_output), Last("linear_attn.conv1d")),
            (here(&n.decay), Last("linear_attn.g")),
            (here(&n.beta), Last("linear_attn.beta")),
            (here(&n.delta_output), Into("linear_attn.norm")),
            (here(&n.delta_normed), Last("linear_attn.norm")),
            (module("linear_attn.out_proj:float_input"), Into("linear_attn.out_proj")),
            (module("linear_attn.out_proj:float_output"), Last("linear_attn.out_proj")),
            (here(&n.self_attn_output), Last("self_attn.o_proj")),
            (here(&n.q_proj), Last("self_attn.q_proj")),
            (here(&n.k_proj), Last("self_attn.k_proj")),
            (here(&n.v_proj), Last("self_attn.v_proj")),
            (here(&n.q_norm), Last("self_attn.q_norm")),
            (here(&n.k_norm), Last("self_attn.k_norm")),
            (here(&n.o_proj_input), Into("self_attn.o_proj")),
            (module("self_attn.o_proj:float_output"), Last("self_attn.o_proj")),
            (here(&n.router_logits), Result("router_logits")),
            (here(&n.topk_indices), Result("expert_ids")),
            (here(&n.topk_weights), Last("mlp.gate")),
            (here(&n.routed_output), Last("mlp.experts")),
            (here(&n.shared_output), Last("mlp.shared_expert.down_proj")),
            (here(&n.shared_gate_logit), Last("mlp.shared_expert_gate")),
            (here(&n.shared_gate), Op("mlp", "sigmoid")),
            (here(&n.moe_output), Last("mlp")),
        ],
    );
    let shape = |name: &str| {
        let p = f.activations().find(|p| p.name == name)?;
        Some(p.ty.shape.iter().map(|d| d.known()).collect::<Vec<Option<u64>>>())
    };
    // the published state has one column more than the next step reads
    if let (Some([Some(columns), Some(channels)]), Some(of)) =
        (shape("conv_state").as_deref(), Last("linear_attn.in_proj_qkv").find(f))
    {
        let taps = *columns as usize + 1;
        let (place, shape) = (Place::Window { of, taps }, vec![*channels, taps as u64]);
        all.push(Captured { name: here(&n.conv_state), place, integers: false, shape });
    }
    if let Some(shape) = shape("recurrent_state").and_then(|s| s.into_iter().collect::<Option<Vec<u64>>>()) {
        let place = Place::State("recurrent_state".into());
        all.push(Captured { name: here(&n.recurrent_state), place, integers: false, shape });
    }
    for (cache, name) in [("k_cache", &n.key_cache), ("v_cache", &n.value_cache)] {
        if let Some([Some(heads), _, Some(dim)]) = shape(cache).as_deref() {
            let (place, shape) = (Place::Cache(cache.into()), vec![*heads, *dim]);
            all.push(Captured { name: here(name), place, integers: false, shape });
        }
    }
    all
}
