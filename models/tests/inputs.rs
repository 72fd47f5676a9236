//! Random inputs and weights, and open dimensions given values.

mod common;

use common::{published_config, tiny_config};
use mica_models::dims::{Pin, pinned};
use mica_models::eval::{EvalError, Options, Resource, Weights, evaluate};
use mica_models::hir::{Builder, Dims, Dtype, Function, Type};
use mica_models::inputs::{RandomWeights, random_inputs, ranges};
use mica_models::qwen3_5_moe::{Config, attention_with_fixed_cache};
use mica_models::{Stack, describe, select};

fn tiny() -> Stack {
    describe("qwen3_5_35b_a3b", &tiny_config()).expect("described")
}

fn function(path: &str) -> Function {
    select(&format!("qwen3_5_35b_a3b:{path}"), &tiny()).expect(path).function
}

fn ctx(n: u64) -> Dims {
    Dims::from([("ctx_len".to_string(), n)])
}

#[test]
fn ranges_are_found_from_the_uses() {
    let config = Config::from_json(&tiny_config()).expect("a config");
    let fixed = attention_with_fixed_cache(&config, 9).expect("a function");
    let table = [
        (function("embed"), Dims::new(), "token 0..2048"),
        (function("layer0.moe.router"), Dims::new(), "hidden [-1, 1)"),
        (
            function("layer0.moe.routed_experts"),
            Dims::new(),
            "hidden [-1, 1), weights [-1, 1), expert_ids 0..16",
        ),
        (function("layer3"), ctx(7), "hidden [-1, 1), pos 7, k_cache [-1, 1), v_cache [-1, 1)"),
        (function("layer3.mixer"), ctx(0), "hidden [-1, 1), pos 0, k_cache [-1, 1), v_cache [-1, 1)"),
        (fixed, Dims::new(), "hidden [-1, 1), pos 0, s 1, mask [-1, 1), k_cache [-1, 1), v_cache [-1, 1)"),
    ];
    for (f, dims, expected) in table {
        let found = ranges(&f, &dims).expect("known");
        let found: Vec<String> = found.iter().map(|(name, range)| format!("{name} {range}")).collect();
        assert_eq!(found.join(", "), expected);
    }
}

#[test]
fn a_draw_is_in_range_in_the_stored_dtype_and_the_same_again() {
    let f = function("layer0.moe.routed_experts");
    let draw = |seed| random_inputs(&f, &Dims::new(), seed).expect("drawn");
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    for seed in 0..50 {
        let inputs = draw(seed);
        let mut ids = inputs["expert_ids"].as_i64().expect("ids").to_vec();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == 4 && (0..16).contains(&ids[0]) && ids[3] < 16, "{ids:?}");
        for v in inputs["hidden"].as_f64().expect("real") {
            assert!((-1.0..=1.0).contains(v) && half::bf16::from_f64(*v).to_f64() == *v);
        }
    }
    // The first numbers, so that another machine's are known to be these.
    assert_eq!(draw(1)["expert_ids"].as_i64().expect("ids"), [15, 2, 6, 5]);
}

#[test]
fn every_function_runs_on_a_draw() {
    for path in [
        "embed",
        "head",
        "layer0",
        "layer3",
        "layer0.mixer",
        "layer3.mixer",
        "layer0.moe",
        "layer0.moe.routed",
        "layer0.moe.shared_expert",
        "layer0.moe.routed_experts",
        "layer0.moe.router",
    ] {
        let f = function(path);
        let sizes: &[u64] = if f.open_dims().is_empty() { &[0] } else { &[0, 1, 33] };
        for &n in sizes {
            let dims = if f.open_dims().is_empty() { Dims::new() } else { ctx(n) };
            let inputs = random_inputs(&f, &dims, 3).expect("drawn");
            let weights = RandomWeights::new(&f, 3);
            let results = evaluate(&f, &inputs, &weights, Options::default()).expect(path);
            for (name, t) in results {
                let finite = t.as_f64().is_none_or(|v| v.iter().all(|x| x.is_finite() && x.abs() < 1e3));
                assert!(finite, "{path}: {name}");
            }
        }
    }
}

#[test]
fn random_weights_are_of_the_declared_types_and_read_in_parts() {
    let stack = describe("qwen3_5_35b_a3b", &published_config()).expect("described");
    let kind = &stack.kinds[0];
    let weights = RandomWeights::new(&kind.function, 1);
    kind.module.load(&weights).expect("of the declared types");
    assert_eq!(weights.ty("norm"), None);
    let name = "linear_attn.A_log";
    let all = weights.tensor(name).expect("a weight");
    assert_eq!(weights.rows(name, &[3, 1], 2).expect("rows")[..], [all[6], all[7], all[2], all[3]]);
    let error = weights.rows(name, &[32], 1).expect_err("past the end").to_string();
    assert_eq!(error, "weight `linear_attn.A_log` has 32 elements, expected 33");
    let error: EvalError = weights.tensor("norm").expect_err("no weight");
    assert_eq!(error.to_string(), "weight `norm` is missing");
}

#[test]
fn pins() {
    let f = function("layer3.mixer");
    let pin = |text: &str| text.parse::<Pin>();
    let runs = pinned(&f, &[pin("ctx_len=0,1,1024").expect("a pin")]).expect("in range");
    assert_eq!(runs, [ctx(0), ctx(1), ctx(1024)]);
    assert_eq!(pinned(&f, &[]), Ok(vec![Dims::new()]));
    let refused = |f: &Function, pins: &[&str]| {
        let pins: Vec<Pin> = pins.iter().map(|t| pin(t).expect("a pin")).collect();
        pinned(f, &pins).expect_err("refused").to_string()
    };
    let table = [
        (refused(&f, &["ctx_len=4096"]), "dimension `ctx_len` is 4096, expected a value in 0..4096"),
        (refused(&f, &["len=1"]), "full_attention has no open dimension `len`, expected one of: ctx_len"),
        (
            refused(&function("embed"), &["ctx_len=1"]),
            "embed has no open dimension `ctx_len`, expected one of: none",
        ),
        (
            refused(&f, &["ctx_len=1", "ctx_len=2"]),
            "dimension `ctx_len` is pinned twice, expected its values in one list",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
    for text in ["ctx_len", "=1", "ctx_len=", "ctx_len=1,,2", "ctx_len=-1", "ctx_len=x"] {
        let error = pin(text).expect_err(text).to_string();
        assert_eq!(error, format!("`{text}` pins no dimension, expected NAME=NUMBER or NAME=NUMBER,NUMBER"));
    }
}

#[test]
fn draws_that_are_refused() {
    let open = random_inputs(&function("layer3"), &Dims::new(), 0).expect_err("open").to_string();
    assert_eq!(open, "full_attention: dimension `ctx_len` is open, expected a value in 0..4096");
    let mut b = Builder::new("f");
    let n = b.param("n", Type::new(Dtype::I64, &[]));
    b.result("n", n);
    let f = b.finish().expect("a function");
    let error = random_inputs(&f, &Dims::new(), 0).expect_err("anything").to_string();
    assert_eq!(error, "f: no range is known for `n`, expected it to be a position or an index");
}
