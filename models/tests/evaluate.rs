//! The evaluator: bits, choices, rounding, what a run shows of its inside.

mod common;

use common::store::{Store, layer, named, step};
use mica_models::eval::{Data, EvalError, Labelled, Options, Tensor, calls, evaluate, values};
use mica_models::hir::{Builder, Dtype, Function, Node, Op, Type, inline};
use std::collections::BTreeMap;

#[test]
fn the_same_bits_on_any_number_of_threads() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "");
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| evaluate(&flat, &step(300), &store, Options::default()).expect("runs"))
    };
    assert_eq!(run(1), run(5));
}

/// Top-k of a vector, then its rows of a table, rounded.
fn pick() -> Function {
    let mut b = Builder::new("pick");
    let x = b.param("x", Type::new(Dtype::F32, &[6]));
    let table = b.weight("table", Type::new(Dtype::F32, &[6, 2]));
    let top = b.op(Op::TopK { k: 3 }, &[x]).expect("chooses");
    let values = b.op(Op::TupleGet { index: 0 }, &[top]).expect("values");
    let ids = b.op(Op::TupleGet { index: 1 }, &[top]).expect("ids");
    let rows = b.op(Op::IndexSelect, &[table, ids]).expect("gathers");
    let rows = b.label("rows", |b| b.op(Op::Round { dtype: Dtype::BF16 }, &[rows]));
    b.result("values", values);
    b.result("ids", ids);
    b.result("rows", rows.expect("rounds"));
    b.finish().expect("a function")
}

#[test]
fn choices_ties_forcing_rounding_and_tracing() {
    let weights =
        BTreeMap::from([("table".to_string(), (0..12).map(|i| 1.0 + f64::from(i) / 1024.0).collect())]);
    let inputs = named([("x", Tensor::f64(&[6], vec![0.5, -0.0, 2.0, 0.5, 0.0, -1.0]))]);
    let run = |options: Options<'_>| evaluate(&pick(), &inputs, &weights, options);
    let free = run(Options::default()).expect("runs");
    assert_eq!(free["ids"].data, Data::I64(vec![2, 0, 3]));
    assert_eq!(free["values"].data, Data::F64(vec![2.0, 0.5, 0.5]));
    assert_eq!(free["rows"].as_f64().expect("real")[0], 1.0 + 4.0 / 1024.0);

    let mut seen = Vec::new();
    let mut trace = |node: &Node, t: &Tensor| seen.push((node.label.clone(), t.shape.clone()));
    let forced = run(Options {
        forced_ids: Some(&[5, 1, 2]),
        round: true,
        trace: Some(&mut trace),
        ..Options::default()
    })
    .expect("runs");
    assert_eq!(forced["ids"].data, Data::I64(vec![5, 1, 2]));
    assert_eq!(forced["values"].data, Data::F64(vec![-1.0, -0.0, 2.0]));
    // 1 + 4/1024 is a tie of bfloat16's 1 and 1 + 1/128: to even.
    assert_eq!(forced["rows"].as_f64().expect("real")[4], 1.0);
    assert_eq!(seen.last(), Some(&("rows".to_string(), vec![3, 2])));

    let bad = |ids| {
        let options = Options { forced_ids: Some(ids), ..Options::default() };
        run(options).expect_err("refused").to_string()
    };
    assert_eq!(bad(&[1, 2]), "pick: topk at ``: expected 3 forced ids, not 2");
    assert_eq!(bad(&[1, 2, 6]), "pick: topk at ``: expected indices in 0..6, not 6");
    let short = BTreeMap::from([("table".to_string(), vec![0.0; 3])]);
    let error = evaluate(&pick(), &inputs, &short, Options::default()).expect_err("too short");
    assert_eq!(error.to_string(), "weight `table` has 3 elements, expected 8");
}

#[test]
fn values_of_operations_and_of_calls() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "");
    let plain = evaluate(&flat, &step(2), &store, Options::default()).expect("runs");
    let (results, seen) = values(&flat, &step(2), &store, Options::default()).expect("runs");
    assert_eq!(results, plain);
    let of = |label: &str| -> &Labelled { seen.iter().rev().find(|v| v.label == label).expect("a value") };
    assert_eq!(of("self_attn.o_proj").op, "matmul");
    assert_eq!(of("self_attn.q_norm").value.shape, [4, 64]);

    let (results, called) =
        calls(&layer, "full_attention", &step(2), &store, Options::default()).expect("runs");
    assert_eq!(results, plain);
    let order: Vec<String> =
        called.iter().map(|c| format!("{}.{} [{}]", c.path.join("."), c.function, c.scope)).collect();
    assert_eq!(
        order,
        [
            "mixer.full_attention [self_attn]",
            "moe.shared_expert [mlp]",
            "moe.router.router [mlp.gate]",
            "moe.routed_experts [mlp]",
            "moe.moe [mlp]",
        ]
    );
    // What a call was given and gave is what its function makes of it.
    let loaded = layer.load(&store).expect("loads");
    for c in &called {
        let module = c.path.iter().fold(loaded.clone(), |m, name| m.child(name).expect("a child"));
        assert_eq!(module.call(&c.function, &c.inputs, Options::default()).as_ref(), Ok(&c.results));
    }
    let error: EvalError =
        calls(&layer, "attention", &step(2), &store, Options::default()).expect_err("no such function");
    assert_eq!(
        error.to_string(),
        "module `full_attention_layer` has no function `attention`, expected one of: full_attention"
    );
}
