//! Traps that descriptions of this model have fallen into, a test each. `tests/tiny.rs` and
//! `tests/production.rs` show the same by numbers; here it is by what the functions say.

mod common;

use common::store::{Store, hidden, named};
use common::{read, tiny_config};
use mica_models::decode::Carried;
use mica_models::eval::{Data, Options, Tensor};
use mica_models::hir::{Dtype, Function, Op, ParamKind, ReduceKind, ValueId};
use mica_models::{Part, SourceForm, Stack, describe, sources};

fn stack() -> Stack {
    describe("qwen3_5_35b_a3b", &tiny_config()).expect("described")
}

fn kind(stack: &Stack, name: &str) -> Function {
    stack.kinds.iter().find(|k| k.name == name).expect("a kind").function.clone()
}

/// Whether a value is a parameter, seen through casts.
fn is_weight(f: &Function, v: ValueId) -> bool {
    match f.node(v) {
        None => f.param(v).is_some_and(|p| p.kind == ParamKind::Const),
        Some(node) => matches!(node.op, Op::Cast { .. }) && is_weight(f, node.inputs[0]),
    }
}

#[test]
fn norm_weights_are_one_plus_w_except_the_gated_norms() {
    let stack = stack();
    let mut seen = Vec::new();
    for f in [&kind(&stack, "linear_attention"), &kind(&stack, "full_attention"), &stack.head] {
        for node in f.nodes.iter().filter(|n| matches!(n.op, Op::RmsNorm { .. })) {
            let weight = f.node(node.inputs[1]);
            let plus_one = weight.is_some_and(|n| {
                let one = |v: &ValueId| f.node(*v).is_some_and(|n| n.op == Op::FullLike { value: 1.0 });
                n.op == Op::Add && n.inputs.iter().any(one) && n.inputs.iter().any(|v| is_weight(f, *v))
            });
            assert!(plus_one || is_weight(f, node.inputs[1]), "{}", node.label);
            seen.push((node.label.clone(), plus_one));
        }
    }
    let expected = [
        ("input_layernorm", true),
        ("linear_attn.norm", false),
        ("post_attention_layernorm", true),
        ("input_layernorm", true),
        ("self_attn.q_norm", true),
        ("self_attn.k_norm", true),
        ("post_attention_layernorm", true),
        // The final norm too.
        ("norm", true),
    ];
    assert_eq!(seen, expected.map(|(label, plus)| (label.to_string(), plus)));
}

#[test]
fn the_key_norm_divides_by_the_root_of_a_sum() {
    let f = kind(&stack(), "linear_attention");
    let sums: Vec<ReduceKind> = f
        .nodes
        .iter()
        .filter(|n| n.label == "linear_attn")
        .filter_map(|n| match n.op {
            Op::Reduce { kind, .. } => Some(kind),
            _ => None,
        })
        .collect();
    assert_eq!(sums, [ReduceKind::Sum, ReduceKind::Sum]);
}

#[test]
fn what_is_float32() {
    let f = kind(&stack(), "linear_attention");
    let of = |name: &str| f.params.iter().find(|p| p.name == name).expect("a parameter").ty.dtype;
    for (name, dtype) in [
        ("linear_attn.A_log", Dtype::F32),
        ("linear_attn.norm.weight", Dtype::F32),
        ("recurrent_state", Dtype::F32),
        ("conv_state", Dtype::BF16),
        ("linear_attn.dt_bias", Dtype::BF16),
        ("linear_attn.out_proj.weight", Dtype::BF16),
    ] {
        assert_eq!(of(name), dtype, "{name}");
    }
    let state = f.result("recurrent_state").expect("a result");
    assert_eq!(f.ty(state).dtype, Dtype::F32);
    // The shipped checkpoint stores both in float32 as published.
    let bytes = std::fs::read(common::fixture("tiny/model.safetensors")).expect("the delivery");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    for name in ["A_log", "norm.weight"] {
        let tensor =
            file.tensor(&format!("model.language_model.layers.0.linear_attn.{name}")).expect("a tensor");
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    }
    // Softmax, norms and the router run in float32, and cast back.
    for node in
        f.nodes.iter().filter(|n| matches!(n.op, Op::Softmax { .. } | Op::RmsNorm { .. } | Op::TopK { .. }))
    {
        assert_eq!(f.ty(node.inputs[0]).dtype, Dtype::F32, "{} at {}", node.op, node.label);
    }
}

#[test]
fn tensors_stand_under_either_prefix() {
    let stack = stack();
    let names = |part, role: &str| -> Vec<String> {
        let all = sources(&stack, part).expect("a part");
        match &all.iter().find(|s| s.role == role).expect("a source").forms[0] {
            SourceForm::Whole { names } => names.clone(),
            SourceForm::PerExpert { .. } => panic!("whole first"),
        }
    };
    assert_eq!(
        names(Part::Layer(3), "self_attn.q_proj.weight"),
        ["model.language_model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.q_proj.weight"]
    );
    assert_eq!(names(Part::Head, "norm.weight"), ["model.language_model.norm.weight", "model.norm.weight"]);
    assert_eq!(names(Part::Head, "lm_head.weight"), ["lm_head.weight"]);
}

#[test]
fn experts_come_fused_or_one_by_one() {
    let all = sources(&stack(), Part::Layer(0)).expect("a part");
    for (role, pieces) in [("mlp.experts.gate_up_proj", 2), ("mlp.experts.down_proj", 1)] {
        let forms = &all.iter().find(|s| s.role == role).expect("a source").forms;
        assert!(matches!(&forms[0], SourceForm::Whole { .. }));
        let SourceForm::PerExpert { experts, templates, .. } = &forms[1] else { panic!("one by one") };
        assert_eq!((*experts, templates.len(), templates[0].len()), (16, 2, pieces));
    }
}

#[test]
fn q_proj_interleaves_query_and_gate_per_head() {
    let stack = stack();
    let mixer = stack.kinds.iter().find(|k| k.name == "full_attention").expect("a kind");
    let f = common::decode::inner(&stack, &mixer.name, &["mixer"], "full_attention");
    let mut store = Store::of(&f, "");
    // Head 1's gate rows alone are large and negative on this input; o_proj is the identity on 128 of 256.
    let (h, d) = (128, 64);
    let set = |store: &mut Store, name: &str, value: &dyn Fn(usize, usize) -> f64| {
        let (ty, data) = store.weights.get_mut(name).expect("a weight");
        let columns = ty.known_shape().expect("closed")[1] as usize;
        data.iter_mut().enumerate().for_each(|(i, v)| *v = value(i / columns, i % columns));
    };
    let gate_of_head_1 = 2 * d + d..2 * d + 2 * d;
    set(&mut store, "q_proj.weight", &|r, _| if gate_of_head_1.contains(&r) { -100.0 } else { 0.0 });
    set(&mut store, "v_proj.weight", &|_, _| 1.0 / h as f64);
    set(&mut store, "o_proj.weight", &|r, c| f64::from(u8::from(r == c)));
    let own = named([("hidden", Tensor::f64(&[h], vec![1.0; h])), ("pos", Tensor::scalar(0))]);
    let results = Carried::new(&f).step(&f, own, &store, Options::default()).expect("runs");
    let Data::F64(y) = &results["hidden"].data else { panic!("real") };
    // Head 0 passes half of v (gate sigmoid(0)), head 1 is shut.
    assert!(y[..d].iter().all(|v| (v - 0.5).abs() < 1e-12), "{:?}", &y[..2]);
    assert!(y[d..].iter().all(|v| v.abs() < 1e-12), "{:?}", &y[d..d + 2]);
}

#[test]
fn the_router_always_renormalizes_and_orders_by_weight() {
    let stack = stack();
    let f = common::decode::inner(&stack, "full_attention", &["moe", "router"], "router");
    let results = Carried::new(&f)
        .step(&f, named([("hidden", hidden())]), &Store::of(&f, ""), Options::default())
        .expect("routes");
    let weights = results["weights"].as_f64().expect("real");
    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!(weights.windows(2).all(|w| w[0] >= w[1]));
}

#[test]
fn every_tensor_has_one_reader_or_is_knowingly_left() {
    // Missing, unread and unused tensors are the packing stage's errors; the names they go by come from here.
    let stack = stack();
    let mut read_by = std::collections::BTreeMap::<String, usize>::new();
    for part in stack.parts() {
        for source in sources(&stack, part).expect("a part") {
            let SourceForm::Whole { names } = &source.forms[0] else { panic!("whole first") };
            names.iter().for_each(|n| *read_by.entry(n.clone()).or_default() += 1);
        }
    }
    assert!(read_by.values().all(|n| *n == 1), "a name is read once");
    let delivered = read("tiny/model.safetensors");
    let unread: Vec<&String> = delivered.keys().filter(|n| !read_by.contains_key(*n)).collect();
    assert!(unread.is_empty(), "{unread:?}");
    assert!(!stack.naming.ignored("model.language_model.layers.0.extra.weight"));
}
