//! The model contract, a row a test:
//!
//! | contract | test |
//! |---|---|
//! | a weight is a `ConstTensor` parameter: listed, bound by `load`, read by name; a tensor parameter is not | `a_weight_is_a_const_parameter` |
//! | five access faces | `call`, `child`, `lookup`, `loaded_call`, `loaded_child` |
//! | loading is recursive, scoped, changes nothing, refuses what does not fit | `load_…` |
//! | activations are checked | `activations_are_checked` |
//! | decode: one token, the cache before it, this step's own entry; `ctx_len` from 0 | `ctx_len_starts_at_0…` |
//! | two cache forms give the same bits | `both_cache_forms_give_the_same_bits`; `tests/decode.rs` has the rest |
//! | dimensions come from the config, `head_dim` among them | `dimensions_come_from_the_config` |
//! | `layer_types` is read, not inferred | `an_irregular_list_builds_that_stack` |
//! | finished = agrees with the published implementation at production dimensions | `production_layers_agree` |

mod common;

use common::production::{LAYERS, Production};
use common::store::{Store, hidden, layer, named, step};
use common::{Tensors, published_config, tiny_config};
use mica_models::decode::Carried;
use mica_models::eval::{Options, Tensor, evaluate};
use mica_models::hir::{Builder, Dtype, Module, Type, inline};
use mica_models::qwen3_5_moe::{Config, attention_with_fixed_cache};
use mica_models::{Part, Stack, describe};
use serde_json::json;

fn message<T>(result: Result<T, impl ToString>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn a_weight_is_a_const_parameter() {
    let matrix = Type::new(Dtype::F32, &[2, 2]);
    let mut b = Builder::new("f");
    let x = b.param("x", Type::new(Dtype::F32, &[2]));
    let plain = b.param("plain", matrix.clone());
    let weight = b.weight("weight", matrix);
    let y = b.matmul(plain, x).and_then(|y| b.matmul(weight, y)).expect("multiplies");
    b.result("y", y);
    let module = Module::new("m", vec![b.finish().expect("a function")], Vec::new()).expect("a module");
    let listed: Vec<&str> = module.weights().expect("one type").iter().map(|w| w.name.as_str()).collect();
    assert_eq!(listed, ["weight"]);
    // Loading binds the weight, and the tensor stays to be passed.
    let store = Store::of(module.lookup("f").expect("f"), "");
    let loaded = module.load(&store).expect("loads");
    let x = ("x", Tensor::f64(&[2], vec![1.0, 2.0]));
    let without = loaded.call("f", &named([x.clone()]), Options::default());
    assert_eq!(message(without), "f: activation `plain` is missing, expected f32[2, 2]");
    let plain = ("plain", Tensor::f64(&[2, 2], vec![1.0, 0.0, 0.0, 1.0]));
    loaded.call("f", &named([x, plain]), Options::default()).expect("runs");
    assert_eq!(*store.read.lock().expect("no panic"), ["weight"]);
}

#[test]
fn call() {
    let moe = layer().child("moe").expect("a child").clone();
    let store = Store::of(&inline(&moe, "moe").expect("flattens"), "");
    let mut parameters = store.parameters();
    parameters.insert("hidden".to_string(), hidden());
    let run = |edit: &dyn Fn(&mut Tensors)| {
        let mut parameters = parameters.clone();
        edit(&mut parameters);
        moe.call("moe", &parameters, Options::default())
    };
    assert_eq!(run(&|_| ()).expect("runs")["expert_ids"].shape, [4]);
    let put = |name: &'static str, t: Tensor| move |p: &mut Tensors| drop(p.insert(name.into(), t.clone()));
    let table = [
        (
            message(run(&|p| drop(p.remove("gate.weight")))),
            "module `moe`: weight `gate.weight` is missing, expected bf16[16, 128]",
        ),
        (
            message(run(&put("gate.weight", Tensor::zeros(&[16, 127])))),
            "weight `gate.weight` is real[16, 127], expected bf16[16, 128]",
        ),
        (
            message(run(&put("gate.weight", Tensor::i64(&[1], vec![0])))),
            "weight `gate.weight` is integer[1], expected bf16[16, 128]",
        ),
        (
            message(run(&|p| drop(p.remove("hidden")))),
            "moe: activation `hidden` is missing, expected bf16[128]",
        ),
        (message(run(&put("gate", hidden()))), "moe: there is no activation `gate`, expected hidden"),
        (
            message(moe.call("mlp", &parameters, Options::default())),
            "module `moe` has no function `mlp`, expected one of: shared_expert, routed_experts, routed, moe",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
}

#[test]
fn child() {
    let layer = layer();
    assert_eq!(layer.child("moe").and_then(|m| m.child("router")).expect("a child").name, "router");
    let refused = message(layer.child("router"));
    assert_eq!(refused, "module `full_attention_layer` has no child `router`, expected one of: mixer, moe");
    let leaf = message(layer.child("mixer").and_then(|m| m.child("router")));
    assert_eq!(leaf, "module `mixer` has no child `router`, expected one of: none");
}

#[test]
fn lookup() {
    let layer = layer();
    let f = layer.lookup("full_attention").expect("its IR");
    assert_eq!(f.calls(), ["mixer.full_attention", "moe.moe"]);
    assert_eq!(layer.forward(), Ok(f));
    assert_eq!(
        message(layer.lookup("forward")),
        "module `full_attention_layer` has no function `forward`, expected one of: full_attention"
    );
    let stack = describe("qwen3_5_35b_a3b", &tiny_config()).expect("described");
    assert_eq!(
        message(stack.module().expect("a module").forward()),
        "module `qwen3_5_35b_a3b` has no entry, expected the name of one of its functions: embed, head"
    );
}

#[test]
fn loaded_call() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "layers.3.");
    let loaded = layer.load_scoped(&store, "layers.3").expect("loads");
    let got = loaded.call("full_attention", &step(2), Options::default());
    // The same as all parameters passed, as the entry, and as the flattened function.
    let plain = Store::of(&flat, "");
    let all: Tensors = plain.parameters().into_iter().chain(step(2)).collect();
    assert_eq!(got, layer.call("full_attention", &all, Options::default()));
    assert_eq!(got, loaded.forward(&step(2), Options::default()));
    assert_eq!(got, evaluate(&flat, &step(2), &plain, Options::default()));
    let mut with_weight = step(2);
    with_weight.insert("mlp.gate.weight".to_string(), Tensor::zeros(&[16, 128]));
    assert_eq!(
        message(loaded.call("full_attention", &with_weight, Options::default())),
        "full_attention: there is no activation `mlp.gate.weight`, expected hidden, pos, k_cache, v_cache"
    );
    assert_eq!(
        message(loaded.call("attention", &step(2), Options::default())),
        "module `full_attention_layer` has no function `attention`, expected one of: full_attention"
    );
}

#[test]
fn loaded_child() {
    let layer = layer();
    let store = Store::of(&inline(&layer, "full_attention").expect("flattens"), "layers.3.");
    let loaded = layer.load_scoped(&store, "layers.3").expect("loads");
    let router = loaded.child("moe").and_then(|m| m.child("router")).expect("a child");
    let routing = router.call("router", &named([("hidden", hidden())]), Options::default());
    assert_eq!(routing.expect("routes")["expert_ids"].shape, [4]);
    assert_eq!(*store.read.lock().expect("no panic"), ["layers.3.mlp.gate.weight"]);
    let refused = loaded.child("attn").map(|_| ());
    assert_eq!(
        message(refused),
        "module `full_attention_layer` has no child `attn`, expected one of: mixer, moe"
    );
}

#[test]
fn load_changes_nothing_and_reads_only_the_types_below() {
    let layer = layer();
    let before = layer.clone();
    let store = Store::of(&inline(&layer, "full_attention").expect("flattens"), "layers.3.");
    layer.load_scoped(&store, "layers.3").expect("loads");
    assert_eq!(layer, before);
    assert!(store.read.lock().expect("no panic").is_empty(), "loading reads no element");
    let all = std::mem::take(&mut *store.typed.lock().expect("no panic"));
    assert_eq!(all.len(), store.weights.len());
    // A child loaded alone asks for its own subtree only.
    layer.child("moe").expect("a child").load_scoped(&store, "layers.3.mlp").expect("loads");
    let typed = store.typed.lock().expect("no panic").clone();
    assert_eq!(typed.len(), 7);
    assert!(typed.iter().all(|name| name.starts_with("layers.3.mlp.")), "{typed:?}");
}

#[test]
fn load_refuses_what_does_not_fit() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let refused = |edit: &dyn Fn(&mut Store)| {
        let mut store = Store::of(&flat, "");
        edit(&mut store);
        message(layer.load(&store).map(|_| ()))
    };
    let name = "self_attn.k_norm.weight";
    let retype = |ty: Type| move |s: &mut Store| s.weights.get_mut(name).expect("a weight").0 = ty.clone();
    let table = [
        (
            refused(&|s| drop(s.weights.remove("mlp.gate.weight"))),
            "module `router`: weight `mlp.gate.weight` is missing, expected bf16[16, 128]",
        ),
        (
            refused(&retype(Type::new(Dtype::BF16, &[32]))),
            "weight `self_attn.k_norm.weight` is bf16[32], expected bf16[64]",
        ),
        (
            refused(&retype(Type::new(Dtype::F32, &[64]))),
            "weight `self_attn.k_norm.weight` is f32[64], expected bf16[64]",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
}

#[test]
fn activations_are_checked() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "");
    let loaded = layer.load(&store).expect("loads");
    let refused = |edit: &dyn Fn(&mut Tensors)| {
        let mut inputs = step(1);
        edit(&mut inputs);
        message(loaded.call("full_attention", &inputs, Options::default()))
    };
    let put = |name: &'static str, t: Tensor| move |i: &mut Tensors| drop(i.insert(name.into(), t.clone()));
    let table = [
        (refused(&|i| drop(i.remove("pos"))), "full_attention: activation `pos` is missing, expected i64[]"),
        (
            refused(&put("position", Tensor::scalar(0))),
            "full_attention: there is no activation `position`, expected hidden, pos, k_cache, v_cache",
        ),
        // The last dimension too.
        (
            refused(&put("hidden", Tensor::zeros(&[127]))),
            "full_attention: activation `hidden` is real[127], expected bf16[128]",
        ),
        (
            refused(&put("k_cache", Tensor::zeros(&[2, 1, 63]))),
            "full_attention: activation `k_cache` is real[2, 1, 63], expected bf16[2, ctx_len, 64]",
        ),
        (
            refused(&put("hidden", Tensor::zeros(&[1, 128]))),
            "full_attention: activation `hidden` is real[1, 128], expected bf16[128]",
        ),
        (
            refused(&put("pos", Tensor::zeros(&[]))),
            "full_attention: activation `pos` is real[], expected i64[]",
        ),
        (
            refused(&put("hidden", Tensor::i64(&[128], vec![0; 128]))),
            "full_attention: activation `hidden` is integer[128], expected bf16[128]",
        ),
        (
            refused(&put("v_cache", Tensor::zeros(&[2, 2, 64]))),
            "full_attention: activation `v_cache` is real[2, 2, 64], expected bf16[2, ctx_len, 64] with ctx_len = 1 as in an input before it",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
}

/// The tiny model with room for four positions.
fn short() -> (Config, Stack) {
    let mut text = tiny_config();
    text.insert("max_position_embeddings".to_string(), json!(4));
    let config = Config::from_json(&text).expect("a config");
    (config, describe("qwen3_5_35b_a3b", &text).expect("described"))
}

#[test]
fn ctx_len_starts_at_0_and_ends_where_this_token_is_the_last() {
    let (_, stack) = short();
    let layer = stack.function(Part::Layer(3)).expect("a layer");
    let store = Store::of(layer, "");
    let mut carried = Carried::new(layer);
    for pos in 0..4 {
        assert_eq!(carried.ctx_len(), pos as usize);
        let own = named([("hidden", hidden()), ("pos", Tensor::scalar(pos))]);
        carried.step(layer, own, &store, Options::default()).expect("a step");
    }
    let own = named([("hidden", hidden()), ("pos", Tensor::scalar(4))]);
    assert_eq!(
        message(carried.step(layer, own, &store, Options::default())),
        "full_attention: activation `k_cache` is real[2, 4, 64], expected bf16[2, ctx_len, 64] with ctx_len in 0..4"
    );
}

#[test]
fn both_cache_forms_give_the_same_bits() {
    let (config, stack) = short();
    let kind = stack.kinds.iter().find(|k| k.name == "full_attention").expect("a kind");
    let concat = inline(kind.module.child("mixer").expect("a child"), "full_attention").expect("flattens");
    let update = attention_with_fixed_cache(&config, 4).expect("a function");
    let store = Store::of(&concat, "");
    let (mut grown, mut fixed) = (Carried::new(&concat), Carried::new(&update));
    for pos in 0..4usize {
        let own = named([("hidden", hidden()), ("pos", Tensor::scalar(pos as i64))]);
        let a = grown.step(&concat, own.clone(), &store, Options::default()).expect("a step");
        let mask = (0..4).map(|i| if i <= pos { 0.0 } else { f64::NEG_INFINITY }).collect();
        let window = named([("s", Tensor::scalar(1)), ("mask", Tensor::f64(&[4], mask))]);
        let own = own.into_iter().chain(window).collect();
        let b = fixed.step(&update, own, &store, Options::default()).expect("a step");
        assert_eq!(a["hidden"], b["hidden"], "the same bits at position {pos}");
    }
    // The caches hold the same rows, one grown and one written in place.
    assert_eq!(grown.caches["k_cache"].rows, fixed.states["k_cache"].as_f64().expect("real"));
    let full = named([
        ("hidden", hidden()),
        ("pos", Tensor::scalar(4)),
        ("s", Tensor::scalar(1)),
        ("mask", Tensor::zeros(&[4])),
    ]);
    assert_eq!(
        message(fixed.step(&update, full, &store, Options::default())),
        "full_attention_fixed_cache: cache_update at ``: expected cur_pos + s of at most 4 (the capacity), not 4 + 1"
    );
}

#[test]
fn dimensions_come_from_the_config() {
    let published = describe("qwen3_5_35b_a3b", &published_config()).expect("described");
    let full = &published.kinds.iter().find(|k| k.name == "full_attention").expect("a kind").function;
    let of = |name: &str| full.weights().find(|w| w.name == name).expect("a weight").ty.known_shape();
    // head_dim 256 where hidden / heads is 128; rotary 64; the vocabulary's rows.
    assert_eq!(of("self_attn.q_proj.weight"), Some(vec![16 * 2 * 256, 2048]));
    assert!(full.to_string().contains("rope<rotary=64 theta=10000000.0>"));
    assert_eq!(
        published.head.result("logits").map(|v| published.head.ty(v).to_string()).as_deref(),
        Some("bf16[248320]")
    );
    // Another one runs as well, and a config without it is refused, not completed.
    let mut text = tiny_config();
    text.insert("head_dim".to_string(), json!(32));
    let stack = describe("qwen3_5_35b_a3b", &text).expect("described");
    let f = stack.function(Part::Layer(3)).expect("a layer");
    let own = named([("hidden", hidden()), ("pos", Tensor::scalar(0))]);
    let results = Carried::new(f).step(f, own, &Store::of(f, ""), Options::default()).expect("runs");
    assert_eq!(results["k_row"].shape, [2, 32]);
    text.remove("head_dim");
    assert_eq!(
        message(describe("qwen3_5_35b_a3b", &text)),
        "config field `head_dim` is missing, expected a whole number from 1 to 2097151"
    );
}

#[test]
fn an_irregular_list_builds_that_stack() {
    let mut text = tiny_config();
    let words =
        ["full_attention", "linear_attention", "full_attention", "full_attention", "linear_attention"];
    text.insert("layer_types".to_string(), json!(words));
    text.insert("num_hidden_layers".to_string(), json!(5));
    // An interval that says otherwise is not what counts.
    text.insert("full_attention_interval".to_string(), json!(4));
    let stack = describe("qwen3_5_35b_a3b", &text).expect("an irregular list");
    let names: Vec<&str> = (0..5).map(|i| stack.kind(i).expect("a layer").name.as_str()).collect();
    assert_eq!(names, words);
    assert_eq!(stack.kinds.len(), 2);
}

#[test]
fn production_layers_agree() {
    let production = Production::read();
    for layer in LAYERS {
        let all = production.run(&production.stack, layer);
        println!("layer {layer}: a step with weights at hand takes {:.3} s", all.seconds);
        all.f64s.judge(&format!("layer {layer}, float64"), 1e-12);
        all.outputs.judge(&format!("layer {layer}, float32 outputs"), 1e-6);
        all.components.judge(&format!("layer {layer}, float32 components"), 2.5e-6);
        assert!(
            all.f64s.worst.len() >= 8 && all.components.worst.len() >= 15,
            "what was captured is compared"
        );
    }
    production.embedding().judge("embedding", 0.0);
}
