//! The authored model's parts as text, and what is found from them.

mod common;

use common::tiny_config;
use mica_models::analysis::{WeightUse, fused_groups, weight_uses};
use mica_models::eval::{Options, Tensor, evaluate};
use mica_models::hir::{Dims, Function, Op};
use mica_models::{
    ModelError, Part, SourceForm, Stack, describe, described, expert_name, model_for, sources,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn tiny() -> Stack {
    describe("qwen3_5_35b_a3b", &tiny_config()).expect("the tiny config is described")
}

fn kind(stack: &Stack, name: &str) -> Function {
    stack.kinds.iter().find(|k| k.name == name).expect("a kind").function.clone()
}

#[test]
fn parts_as_text() {
    let stack = tiny();
    insta::assert_snapshot!("embed", stack.embed);
    insta::assert_snapshot!("linear_attention", kind(&stack, "linear_attention"));
    insta::assert_snapshot!("full_attention", kind(&stack, "full_attention"));
    insta::assert_snapshot!("head", stack.head);
}

#[test]
fn a_layer_is_the_kind_that_the_config_states() {
    let mut text = tiny_config();
    let words = ["full_attention", "linear_attention", "full_attention", "full_attention"];
    text.insert("layer_types".to_string(), json!(words));
    text.insert("num_hidden_layers".to_string(), json!(4));
    let stack = describe("qwen3_5_35b_a3b", &text).expect("an irregular cycle");
    let names: Vec<&str> = (0..4).map(|i| stack.kind(i).expect("a layer").name.as_str()).collect();
    assert_eq!(names, words);
    let no_layer = ModelError::NoLayer { layer: 4, layers: 4 };
    assert_eq!(stack.function(Part::Layer(4)), Err(no_layer));
}

#[test]
fn one_function_a_kind_named_by_what_it_computes() {
    let (a, b) = (tiny(), tiny());
    assert_eq!(a.kinds.len(), 2);
    assert_eq!(a.kinds[0].function.digest(), b.kinds[0].function.digest());
    assert_ne!(a.kinds[0].function.digest(), a.kinds[1].function.digest());
    let mut text = tiny_config();
    text.insert("rms_norm_eps".to_string(), json!(1e-5));
    let other = describe("qwen3_5_35b_a3b", &text).expect("described");
    assert_ne!(a.kinds[0].function.digest(), other.kinds[0].function.digest());
    // A figure that a part does not read does not name it.
    let mut text = tiny_config();
    text.insert("vocab_size".to_string(), json!(4096));
    let other = describe("qwen3_5_35b_a3b", &text).expect("described");
    assert_eq!(a.kinds[0].function.digest(), other.kinds[0].function.digest());
    assert_ne!(a.head.digest(), other.head.digest());
}

#[test]
fn matrices_of_one_activation_are_grouped_in_order_of_use() {
    let stack = tiny();
    assert_eq!(
        fused_groups(&kind(&stack, "linear_attention")),
        [
            vec![
                "linear_attn.in_proj_qkv.weight",
                "linear_attn.in_proj_z.weight",
                "linear_attn.in_proj_b.weight",
                "linear_attn.in_proj_a.weight",
            ],
            vec!["linear_attn.out_proj.weight"],
            vec![
                "mlp.shared_expert.gate_proj.weight",
                "mlp.shared_expert.up_proj.weight",
                "mlp.shared_expert_gate.weight",
                "mlp.gate.weight",
            ],
            vec!["mlp.shared_expert.down_proj.weight"],
        ]
    );
    let full = fused_groups(&kind(&stack, "full_attention"));
    let qkv = ["q_proj", "k_proj", "v_proj"].map(|n| format!("self_attn.{n}.weight"));
    assert_eq!(full[0], qkv);
    assert_eq!(fused_groups(&stack.head), [["lm_head.weight"]]);
}

#[test]
fn uses_of_weights() {
    let stack = tiny();
    let uses = weight_uses(&kind(&stack, "linear_attention"));
    let of = |wanted: WeightUse| -> Vec<&str> {
        uses.iter().filter(|(_, u)| **u == wanted).map(|(n, _)| n.as_str()).collect()
    };
    assert_eq!(of(WeightUse::Experts), ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]);
    assert_eq!(
        of(WeightUse::Vector),
        [
            "input_layernorm.weight",
            "linear_attn.A_log",
            "linear_attn.conv1d.weight",
            "linear_attn.dt_bias",
            "linear_attn.norm.weight",
            "post_attention_layernorm.weight",
        ]
    );
    assert_eq!(of(WeightUse::Matrix).len(), 10);
    assert_eq!(weight_uses(&stack.embed)["embed_tokens.weight"], WeightUse::Table);
}

#[test]
fn every_published_tensor_has_one_reader() {
    // The names of both shipped forms: each is read by one weight of one part, and none is left.
    for (file, scales) in [("tiny/model.safetensors", false), ("tiny-w4a16/full_model.safetensors", true)] {
        let stack = tiny();
        let tensors = common::read(file);
        let mut left: BTreeSet<&str> = tensors.keys().map(String::as_str).collect();
        if scales {
            left.retain(|n| !n.ends_with(".w_scale"));
        }
        for part in stack.parts() {
            for source in sources(&stack, part).expect("a part") {
                let SourceForm::Whole { names } = &source.forms[0] else {
                    panic!("the published form is whole")
                };
                let found: Vec<&String> = names.iter().filter(|n| left.remove(n.as_str())).collect();
                let [name] = found[..] else { panic!("{part} {}: {found:?} of {names:?}", source.role) };
                let shape: Vec<u64> = tensors[name].shape.iter().map(|&n| n as u64).collect();
                assert_eq!(shape, source.published_shape, "{name}");
            }
        }
        assert!(left.is_empty(), "{file}: nobody reads {left:?}");
        assert!(stack.naming.ignored("model.visual.patch_embed.proj.weight"));
        assert!(stack.naming.ignored("mtp.layers.0.mlp.gate.weight"));
        assert!(!stack.naming.ignored("model.language_model.norm.weight"));
    }
}

#[test]
fn experts_may_come_one_by_one() {
    let stack = tiny();
    let sources = sources(&stack, Part::Layer(3)).expect("a layer");
    let of = |role: &str| sources.iter().find(|s| s.role == role).expect("a source");
    let gate_up = of("mlp.experts.gate_up_proj");
    let SourceForm::Whole { names } = &gate_up.forms[0] else { panic!("whole first") };
    assert_eq!(names[3], "model.layers.3.mlp.experts.gate_up_proj.weight");
    let SourceForm::PerExpert { experts, piece_shape, templates } = &gate_up.forms[1] else {
        panic!("then one by one")
    };
    assert_eq!((*experts, piece_shape.as_slice()), (16, &[64, 128][..]));
    assert_eq!(expert_name(&templates[1][1], 7), "model.layers.3.mlp.experts.7.up_proj.weight");
    let down = of("mlp.experts.down_proj");
    let SourceForm::PerExpert { piece_shape, .. } = &down.forms[1] else { panic!("then one by one") };
    assert_eq!(piece_shape, &[128, 64]);
    assert_eq!(of("mlp.gate.weight").forms.len(), 1);
}

#[test]
fn the_convolution_is_converted_to_time_major() {
    let stack = tiny();
    let sources = sources(&stack, Part::Layer(0)).expect("a layer");
    let conv = sources.iter().find(|s| s.role == "linear_attn.conv1d.weight").expect("conv");
    assert_eq!((&conv.published_shape, &conv.shape), (&vec![256, 1, 4], &vec![4, 256]));
    let numbers: Vec<f64> = (0..1024).map(f64::from).collect();
    let published = BTreeMap::from([("published".to_string(), Tensor::f64(&[256, 1, 4], numbers))]);
    let converter = conv.converter.as_ref().expect("a converter");
    let none = BTreeMap::<String, Vec<f64>>::new();
    let weight = &evaluate(converter, &published, &none, Options::default()).expect("converts")["weight"];
    assert_eq!(weight.shape, [4, 256]);
    assert_eq!(weight.as_f64().expect("real")[..3], [0.0, 4.0, 8.0]);
    assert!(sources.iter().filter(|s| s.converter.is_some()).count() == 1);
}

#[test]
fn the_published_dimensions_have_the_published_number_of_parameters() {
    let stack = describe("qwen3_5_35b_a3b", &common::published_config()).expect("described");
    let count = |f: &Function| -> u64 {
        f.weights().map(|w| w.ty.known_shape().expect("closed").iter().product::<u64>()).sum()
    };
    let parts: Vec<u64> = stack.parts().iter().map(|p| count(stack.function(*p).expect("a part"))).collect();
    assert_eq!((parts[1], parts[4]), (842_700_992, 836_246_016));
    assert_eq!(parts.iter().sum::<u64>(), 34_660_610_688);
    let tensors: usize =
        stack.parts().iter().map(|p| stack.function(*p).expect("a part").weights().count()).sum();
    assert_eq!(tensors, 693);
}

#[test]
fn a_gather_costs_the_rows_that_it_reads() {
    let stack = describe("qwen3_5_35b_a3b", &common::published_config()).expect("described");
    let f = kind(&stack, "linear_attention");
    let costs = f.node_costs(&Dims::new());
    let gathers: Vec<u64> =
        f.nodes.iter().zip(&costs).filter(|(n, _)| n.op == Op::IndexSelect).map(|(_, c)| c.read).collect();
    let ids = 8 * 8;
    assert_eq!(gathers, [8 * 1024 * 2048 * 2 + ids, 8 * 2048 * 512 * 2 + ids]);
    let full = kind(&stack, "full_attention");
    let at = |n: u64| full.cost(&Dims::from([("ctx_len".to_string(), n)]));
    assert!(at(1024).read > at(0).read && at(1024).flops > at(0).flops);
}

#[test]
fn models_by_name_and_by_config() {
    assert_eq!(described()[0].name, "qwen3_5_35b_a3b");
    assert_eq!(model_for(&common::json("tiny/config.json")), Some("qwen3_5_35b_a3b"));
    // The whole file and its text fields describe the same stack.
    assert_eq!(describe("qwen3_5_35b_a3b", &common::json("tiny/config.json")), Ok(tiny()));
    let unknown = describe("gpt2", &tiny_config()).expect_err("not described");
    assert_eq!(unknown.to_string(), "no model `gpt2` is described, expected one of: qwen3_5_35b_a3b");
}

#[test]
fn configs_that_are_refused() {
    type Edit = fn(&mut serde_json::Map<String, Value>);
    let table: &[(Edit, &str)] = &[
        (
            |c| drop(c.remove("head_dim")),
            "config field `head_dim` is missing, expected a whole number from 1 to 2097151",
        ),
        (
            |c| drop(c.insert("head_dim".into(), json!("64"))),
            "config field `head_dim` is \"64\", expected a whole number from 1 to 2097151",
        ),
        (
            |c| drop(c.insert("hidden_size".into(), json!(0))),
            "config field `hidden_size` is 0, expected a whole number from 1 to 2097151",
        ),
        (
            |c| drop(c.remove("layer_types")),
            "config field `layer_types` is missing, expected a list of 8 words (num_hidden_layers), linear_attention or full_attention",
        ),
        (
            |c| drop(c.insert("layer_types".into(), json!(["full_attention"]))),
            "config field `layer_types` is [\"full_attention\"], expected a list of 8 words (num_hidden_layers), linear_attention or full_attention",
        ),
        (
            |c| c["layer_types"][2] = json!("mamba"),
            "config field `layer_types` is [\"linear_attention\",\"linear_attention\",\"mamba\",\"full_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"], expected a list of 8 words (num_hidden_layers), linear_attention or full_attention",
        ),
        (
            |c| drop(c.insert("num_experts_per_tok".into(), json!(17))),
            "config field `num_experts_per_tok` is 17, expected at most num_experts, 16",
        ),
        (
            |c| drop(c.insert("num_key_value_heads".into(), json!(3))),
            "config field `num_attention_heads` is 4, expected a multiple of num_key_value_heads, 3",
        ),
        (
            |c| drop(c.insert("linear_num_key_heads".into(), json!(3))),
            "config field `linear_num_value_heads` is 4, expected a multiple of linear_num_key_heads, 3",
        ),
        (
            |c| drop(c.remove("rope_parameters")),
            "config field `rope_parameters` is missing, expected an object with rope_theta, partial_rotary_factor, rope_type",
        ),
        (
            |c| drop(c["rope_parameters"].as_object_mut().unwrap().remove("rope_theta")),
            "config field `rope_parameters.rope_theta` is missing, expected a finite number above 0",
        ),
        // JSON has no number for infinity; files write it as a word or as null.
        (
            |c| c["rope_parameters"]["rope_theta"] = json!("Infinity"),
            "config field `rope_parameters.rope_theta` is \"Infinity\", expected a finite number above 0",
        ),
        (
            |c| c["rope_parameters"]["rope_theta"] = json!(f64::INFINITY),
            "config field `rope_parameters.rope_theta` is null, expected a finite number above 0",
        ),
        (
            |c| c["rope_parameters"]["partial_rotary_factor"] = json!(0.3),
            "config field `rope_parameters.partial_rotary_factor` is 0.3, expected a factor that takes an even number of head_dim 64, at most all of it",
        ),
        (
            |c| c["rope_parameters"]["rope_type"] = json!("yarn"),
            "config field `rope_parameters.rope_type` is \"yarn\", expected \"default\"",
        ),
        (|c| c["hidden_act"] = json!("gelu"), "config field `hidden_act` is \"gelu\", expected \"silu\""),
        (
            |c| c["tie_word_embeddings"] = json!(true),
            "config field `tie_word_embeddings` is true, expected false",
        ),
        (|c| c["attention_bias"] = json!(true), "config field `attention_bias` is true, expected false"),
    ];
    for (edit, expected) in table {
        let mut text = tiny_config();
        edit(&mut text);
        let error = describe("qwen3_5_35b_a3b", &text).expect_err(expected);
        assert_eq!(error.to_string(), *expected);
    }
    for field in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "rms_norm_eps",
    ] {
        let mut text = tiny_config();
        text.remove(field);
        let error = describe("qwen3_5_35b_a3b", &text).expect_err(field).to_string();
        assert!(error.starts_with(&format!("config field `{field}` is missing")), "{error}");
    }
}
