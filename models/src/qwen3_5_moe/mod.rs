//! Qwen3.5-MoE, text: `qwen3_5_35b_a3b` and every model of its config's fields.
//!
//! Authored from the published implementation (transformers 5.14.1, `qwen3_5_moe`). It knows no dimension
//! but the config's.

pub mod config;
mod full_attention;
mod linear_attention;
mod moe;
mod names;
mod norm;

pub use config::{Config, Mixer};

use crate::error::ModelError;
use crate::hir::{Builder, Child, Dtype, Function, HirError, Module, Op, Type, inline};
use crate::registry::Shipped;
use crate::stack::{Facts, LayerKind, Stack};
use norm::{ACTIVATION, linear, rms_norm};

/// The described model's name.
pub const NAME: &str = "qwen3_5_35b_a3b";

/// The published `config.json`: the text decoder's fields and the ids around them.
pub const CONFIG: &str = include_str!("config.json");

/// The shipped source.
pub const FILES: &[Shipped] = &[
    Shipped { path: "mod.rs", text: include_str!("mod.rs") },
    Shipped { path: "config.json", text: CONFIG },
    Shipped { path: "config.rs", text: include_str!("config.rs") },
    Shipped { path: "full_attention.rs", text: include_str!("full_attention.rs") },
    Shipped { path: "linear_attention.rs", text: include_str!("linear_attention.rs") },
    Shipped { path: "moe.rs", text: include_str!("moe.rs") },
    Shipped { path: "names.rs", text: include_str!("names.rs") },
    Shipped { path: "norm.rs", text: include_str!("norm.rs") },
];

/// The stack that a config describes.
///
/// # Errors
/// Dimensions at which the parts do not fit together.
pub fn stack(c: &Config) -> Result<Stack, ModelError> {
    let mut mixers: Vec<Mixer> = Vec::new();
    for m in &c.layer_types {
        if !mixers.contains(m) {
            mixers.push(*m);
        }
    }
    let place = |m: &Mixer| mixers.iter().position(|k| k == m).unwrap_or(0);
    Ok(Stack {
        name: NAME.to_string(),
        embed: embed(c)?,
        kinds: mixers.iter().map(|m| kind(c, *m)).collect::<Result<_, _>>()?,
        layers: c.layer_types.iter().map(place).collect(),
        head: head(c)?,
        facts: Facts {
            hidden: c.hidden_size,
            vocab: c.vocab_size,
            max_positions: c.max_position_embeddings,
            experts: c.num_experts,
            experts_per_token: c.num_experts_per_tok,
        },
        naming: names::naming(c)?,
    })
}

/// The full-attention mixer on a cache of fixed capacity, written in place by `cache_update`; the stack has the
/// form whose caller appends. Both give the same bits.
///
/// # Errors
/// Dimensions at which the parts do not fit together.
pub fn attention_with_fixed_cache(c: &Config, capacity: u64) -> Result<Function, ModelError> {
    Ok(full_attention::fixed_cache(c, capacity)?)
}

/// A token's row of the table; no scaling. The published run stores it in bfloat16.
fn embed(c: &Config) -> Result<Function, HirError> {
    let mut b = Builder::new("embed");
    let token = b.param("token", Type::new(Dtype::I64, &[]));
    let table = Type::new(ACTIVATION, &[c.vocab_size, c.hidden_size]);
    let table = b.weight("embed_tokens.weight", table);
    let row = b.label("embed_tokens", |b| {
        let row = b.op(Op::IndexSelect, &[table, token])?;
        let row = b.reshape(row, &[c.hidden_size])?;
        b.op(Op::Round { dtype: ACTIVATION }, &[row])
    })?;
    b.result("hidden", row);
    b.finish()
}

/// Final norm and head, which is not tied to the embedding.
fn head(c: &Config) -> Result<Function, HirError> {
    let mut b = Builder::new("head");
    let x = b.param("hidden", Type::new(ACTIVATION, &[c.hidden_size]));
    let normed = rms_norm(&mut b, c, "norm", x)?;
    let logits = linear(&mut b, "lm_head", c.vocab_size, normed)?;
    b.result("normed", normed);
    b.result("logits", logits);
    b.finish()
}

fn kind(c: &Config, mixer: Mixer) -> Result<LayerKind, HirError> {
    let module = layer_module(c, mixer)?;
    Ok(LayerKind {
        name: mixer.word().to_string(),
        function: inline(&module, mixer.word())?,
        module: module.into(),
    })
}

/// A layer with its children `mixer` and `moe`. The entry has the mixer's name.
fn layer_module(c: &Config, mixer: Mixer) -> Result<Module, HirError> {
    let (mix, scope) = match mixer {
        Mixer::Linear => (linear_attention::mixer(c)?, "linear_attn"),
        Mixer::Full => (full_attention::mixer(c)?, "self_attn"),
    };
    let moe = moe::module(c)?;
    let layer = layer(c, mixer, &mix, moe.lookup("moe")?)?;
    let child =
        |name: &str, scope: &str, module| Child { name: name.to_string(), scope: scope.to_string(), module };
    let mix = Module::new("mixer", vec![mix], Vec::new())?;
    let children = vec![child("mixer", scope, mix), child("moe", "mlp", moe)];
    Module::new(format!("{}_layer", mixer.word()), vec![layer], children)
}

/// `h += mixer(norm(h)); h += moe(norm(h))`. Its activations are the mixer's, its results the mixer's and then
/// the routing.
fn layer(c: &Config, mixer: Mixer, mix: &Function, moe: &Function) -> Result<Function, HirError> {
    let mut b = Builder::new(mixer.word());
    let mut args: Vec<_> = mix.activations().map(|p| b.param(p.name.clone(), p.ty.clone())).collect();
    let h = args[0];
    args[0] = rms_norm(&mut b, c, "input_layernorm", h)?;
    let mixed = b.call(&["mixer"], mix, &args)?;
    let h = b.add(h, mixed[0])?;
    let x = rms_norm(&mut b, c, "post_attention_layernorm", h)?;
    let experts = b.call(&["moe"], moe, &[x])?;
    let h = b.add(h, experts[0])?;
    b.result("hidden", h);
    for ((name, _), v) in mix.results.iter().zip(&mixed).skip(1) {
        b.result(name.clone(), *v);
    }
    b.result("expert_ids", experts[1]);
    b.result("router_logits", experts[2]);
    b.finish()
}
