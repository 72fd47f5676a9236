//! Every op vector of the delivery: mixers, router, experts and layers with float16 weights against the
//! published implementation in float64.

mod common;

use common::decode::{inner, rows, step};
use common::{Delivered, Score, Tensors, conv_state, json, read, row, tiny_config};
use mica_models::decode::Carried;
use mica_models::eval::Tensor;
use mica_models::{Part, Stack, describe};
use serde_json::{Map, Value};

const BOUND: f64 = 1e-12;

/// The stack of a vector's config, which states only the fields of its block.
fn stack(config: &Map<String, Value>) -> Stack {
    let mut text = tiny_config();
    text.extend(config.clone());
    let layers = text["layer_types"].as_array().expect("layer_types").len();
    text.insert("num_hidden_layers".to_string(), layers.into());
    describe("qwen3_5_35b_a3b", &text).expect("the config is described")
}

fn vectors() -> Vec<(String, Map<String, Value>, Tensors)> {
    let index = json("ops/ops.json");
    index
        .iter()
        .map(|(name, entry)| {
            let config = entry["config"].as_object().expect("config").clone();
            (name.clone(), config, read(&format!("ops/{name}.safetensors")))
        })
        .collect()
}

fn kind(name: &str) -> &'static str {
    match name {
        "router" => "router",
        "moe_block" => "moe",
        _ if name.starts_with("deltanet") => "linear mixer",
        _ if name.starts_with("attention_") && name.contains("token") => "full mixer",
        _ => "layers",
    }
}

fn tokens(t: &Tensors) -> usize {
    t["input.hidden"].shape[0]
}

fn at(t: &Tensors, name: &str, i: usize) -> Option<Tensor> {
    t.get(name).map(|t| row(t, i))
}

fn each(wanted: &str, mut body: impl FnMut(&str, &Stack, &Tensors, &mut Score)) {
    let mut some = false;
    for (name, config, tensors) in vectors().iter().filter(|(name, ..)| kind(name) == wanted) {
        let mut score = Score::default();
        body(name, &stack(config), tensors, &mut score);
        score.judge(name, BOUND);
        some = true;
    }
    assert!(some, "no vectors of kind {wanted}");
}

fn weights(tensors: &Tensors) -> Delivered<'_> {
    let prefix = "weight.".to_string();
    Delivered { tensors, prefix }
}

fn any_kind(stack: &Stack) -> &str {
    &stack.kinds[0].name
}

#[test]
fn router() {
    each("router", |_, stack, t, score| {
        let f = inner(stack, any_kind(stack), &["moe", "router"], "router");
        for i in 0..tokens(t) {
            let got = step(&f, &weights(t), row(&t["input.hidden"], i), 0, &mut Carried::default()).results;
            score.check("logits", &got["router_logits"], &row(&t["output.logits"], i));
            score.check("indices", &got["expert_ids"], &row(&t["output.topk_indices"], i));
            score.check("weights", &got["weights"], &row(&t["output.topk_weights"], i));
        }
    });
}

#[test]
fn moe() {
    each("moe", |_, stack, t, score| {
        let block = inner(stack, any_kind(stack), &["moe"], "moe");
        let routed = inner(stack, any_kind(stack), &["moe"], "routed");
        let shared = inner(stack, any_kind(stack), &["moe"], "shared_expert");
        for i in 0..tokens(t) {
            let run = |f| step(f, &weights(t), row(&t["input.hidden"], i), 0, &mut Carried::default());
            let got = run(&block);
            let parts = [
                ("mlp", &got.results["hidden"], "mlp:float_output"),
                ("logits", &got.results["router_logits"], "mlp.gate:logits"),
                ("indices", &got.results["expert_ids"], "mlp.gate:topk_indices"),
                ("weights", &got.labels["gate"], "mlp.gate:topk_weights"),
                ("gate", &got.labels["shared_expert_gate"], "mlp.shared_expert_gate:float_output"),
                ("routed", &run(&routed).results["hidden"], "mlp.experts:float_output"),
                ("shared", &run(&shared).results["hidden"], "mlp.shared_expert:float_output"),
            ];
            for (name, got, want) in parts {
                score.check(name, got, &row(&t[&format!("output.{want}")], i));
            }
        }
    });
}

#[test]
fn linear_mixer() {
    each("linear mixer", |_, stack, t, score| {
        let f = inner(stack, "linear_attention", &["mixer"], "linear_attention");
        let mut state = Carried::new(&f);
        if let (Some(conv), Some(s)) = (t.get("state_in.conv_state"), t.get("state_in.recurrent_state")) {
            state.seed("conv_state", conv_state(conv)).expect("a state");
            state.seed("recurrent_state", s.clone()).expect("a state");
        }
        let labels = [
            ("linear_attn.in_proj_qkv:float_output", "in_proj_qkv"),
            ("linear_attn.conv1d:silu_output", "conv1d"),
            ("linear_attn:beta", "beta"),
            ("linear_attn:g", "g"),
            ("linear_attn.norm:float_output", "norm"),
        ];
        for i in 0..tokens(t) {
            let got = step(&f, &weights(t), row(&t["input.hidden"], i), i as i64, &mut state);
            let r = &got.results;
            score.check("output", &r["hidden"], &row(&t["output.linear_attn:float_output"], i));
            score.check("state", &r["recurrent_state"], &row(&t["state_out.recurrent_state_steps"], i));
            score.check(
                "conv state",
                &r["conv_state"],
                &conv_state(&row(&t["state_out.conv_state_steps"], i)),
            );
            for (capture, label) in labels {
                if let Some(want) = at(t, &format!("output.{capture}"), i) {
                    score.check(capture, &got.labels[label], &want);
                }
            }
        }
    });
}

#[test]
fn full_mixer() {
    each("full mixer", |_, stack, t, score| {
        let f = inner(stack, "full_attention", &["mixer"], "full_attention");
        let mut state = Carried::new(&f);
        if let (Some(k), Some(v)) = (t.get("state_in.key_cache"), t.get("state_in.value_cache")) {
            state.append("k_cache", &rows(k)).expect("a cache");
            state.append("v_cache", &rows(v)).expect("a cache");
        }
        for i in 0..tokens(t) {
            let pos = t["input.positions"].as_i64().expect("positions")[i];
            let got = step(&f, &weights(t), row(&t["input.hidden"], i), pos, &mut state);
            for (capture, label) in [
                ("self_attn:float_output", "o_proj"),
                ("self_attn.q_norm:float_output", "q_norm"),
                ("self_attn.k_norm:float_output", "k_norm"),
                ("self_attn.q_proj:float_output", "q_proj"),
            ] {
                score.check(capture, &got.labels[label], &row(&t[&format!("output.{capture}")], i));
            }
        }
        caches(t, "", &state, score);
    });
}

#[test]
fn layers() {
    each("layers", |_, stack, t, score| {
        let layers = stack.layers.len();
        let functions: Vec<_> =
            (0..layers).map(|l| stack.function(Part::Layer(l)).expect("a layer")).collect();
        let mut states: Vec<Carried> = functions.iter().map(|f| Carried::new(f)).collect();
        for i in 0..tokens(t) {
            let mut h = row(&t["input.hidden"], i);
            for (l, f) in functions.iter().enumerate() {
                let weights = Delivered { tensors: t, prefix: format!("weight.layers.{l}.") };
                let got = step(f, &weights, h, i as i64, &mut states[l]).results;
                let p = format!("output.layers.{l}");
                score.check(&format!("layer {l}"), &got["hidden"], &row(&t[&format!("{p}:float_output")], i));
                let logits = &t[&format!("{p}.mlp.gate:logits")];
                score.check(&format!("layer {l} logits"), &got["router_logits"], &row(logits, i));
                let ids = &t[&format!("{p}.mlp.gate:topk_indices")];
                score.check(&format!("layer {l} ids"), &got["expert_ids"], &row(ids, i));
                h = got["hidden"].clone();
            }
        }
        for (l, state) in states.iter().enumerate() {
            let p = format!("layers.{l}.");
            if let Some(want) = t.get(&format!("state_out.{p}recurrent_state")) {
                score.check("state", &state.states["recurrent_state"], want);
                let conv = conv_state(&t[&format!("state_out.{p}conv_state")]);
                score.check("conv state", &state.states["conv_state"], &conv);
            }
            caches(t, &p, state, score);
        }
    });
}

fn caches(t: &Tensors, prefix: &str, carried: &Carried, score: &mut Score) {
    for (name, cache) in [("key_cache", "k_cache"), ("value_cache", "v_cache")] {
        if let Some(want) = t.get(&format!("state_out.{prefix}{name}")) {
            score.check(name, &carried.caches[cache].tensor(), want);
        }
    }
}
