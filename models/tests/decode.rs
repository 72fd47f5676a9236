//! What is carried between steps, and the cache written in place: its refusals and its traffic.

mod common;

use common::store::{Store, hidden, layer, named, step};
use common::tiny_config;
use mica_models::decode::{Carried, Kept};
use mica_models::eval::{Options, Tensor, evaluate};
use mica_models::hir::{Builder, Dim, DimVar, Dims, Dtype, Function, Op, Type, inline};
use mica_models::qwen3_5_moe::{Config, attention_with_fixed_cache};
use mica_models::{Part, describe};
use std::collections::BTreeMap;

#[test]
fn states_and_caches_are_found_by_name() {
    let stack = describe("qwen3_5_35b_a3b", &tiny_config()).expect("described");
    let linear = Carried::new(stack.function(Part::Layer(0)).expect("a layer"));
    let shapes: Vec<_> = linear.states.iter().map(|(n, t)| (n.as_str(), t.shape.clone())).collect();
    assert_eq!(shapes, [("conv_state", vec![3, 256]), ("recurrent_state", vec![4, 32, 32])]);
    assert!(linear.caches.is_empty() && linear.ctx_len() == 0);
    let full = Carried::new(stack.function(Part::Layer(3)).expect("a layer"));
    assert!(full.states.is_empty());
    let names: Vec<_> = full.caches.keys().map(String::as_str).collect();
    assert_eq!(names, ["k_cache", "v_cache"]);
    // An embedding and a head carry nothing.
    assert_eq!(Carried::new(&stack.embed), Carried::default());
    assert_eq!(Carried::new(&stack.head), Carried::default());
}

#[test]
fn rows_are_appended_and_states_replaced() {
    let flat = inline(&layer(), "full_attention").expect("flattens");
    let mut carried = Carried::new(&flat);
    let row = |n: i32| Tensor::f64(&[2, 64], (0..128).map(|i| f64::from(i + 1000 * n)).collect());
    assert_eq!(carried.keep("k_row", &row(0)), Ok(Kept::Row));
    assert_eq!(carried.keep("k_row", &row(1)), Ok(Kept::Row));
    assert_eq!(carried.keep("expert_ids", &Tensor::i64(&[4], vec![0; 4])), Ok(Kept::No));
    assert_eq!(carried.keep("hidden", &hidden()), Ok(Kept::No));
    let cache = carried.caches["k_cache"].tensor();
    assert_eq!((carried.caches["k_cache"].positions(), cache.shape.as_slice()), (2, &[2, 2, 64][..]));
    // Head 1 of position 1.
    assert_eq!(cache.as_f64().expect("real")[3 * 64], 1064.0);

    let refused = |r: Result<Kept, mica_models::decode::CarryError>| r.expect_err("refused").to_string();
    assert_eq!(
        refused(carried.keep("k_row", &Tensor::zeros(&[2, 63]))),
        "carried `k_cache` is 126 elements, expected rows [2, 64]"
    );
    let unknown = carried.seed("conv_state", Tensor::zeros(&[3])).expect_err("no state").to_string();
    assert_eq!(unknown, "no state `conv_state` is carried, expected one of: none");
    let unknown = carried.append("q_cache", &[]).expect_err("no cache").to_string();
    assert_eq!(unknown, "no cache `q_cache` is carried, expected one of: k_cache, v_cache");
    let stack = describe("qwen3_5_35b_a3b", &tiny_config()).expect("described");
    let mut linear = Carried::new(stack.function(Part::Layer(0)).expect("a layer"));
    let shape = linear.seed("conv_state", Tensor::zeros(&[3])).expect_err("a shape").to_string();
    assert_eq!(shape, "carried `conv_state` is [3], expected [3, 256]");
}

#[test]
fn steps_carried_are_steps_with_the_cache_passed() {
    let flat = inline(&layer(), "full_attention").expect("flattens");
    let store = Store::of(&flat, "");
    let mut carried = Carried::new(&flat);
    let before = step(2);
    for name in ["k_cache", "v_cache"] {
        let rows = common::decode::rows(&before[name]);
        carried.append(name, &rows).expect("a cache");
    }
    let own = named([("hidden", hidden()), ("pos", Tensor::scalar(2))]);
    let got = carried.step(&flat, own, &store, Options::default()).expect("a step");
    assert_eq!(got, evaluate(&flat, &before, &store, Options::default()).expect("runs"));
    assert_eq!(carried.ctx_len(), 3);
}

fn cache_update(new: Type) -> Function {
    let mut b = Builder::new("write");
    let scalar = Type::new(Dtype::I64, &[]);
    let cache = b.param("cache", Type::new(Dtype::F32, &[5, 8]));
    let new = b.param("new", new);
    let (at, s) = (b.param("cur_pos", scalar.clone()), b.param("s", scalar));
    let cache = b.op(Op::CacheUpdate, &[cache, new, at, s]).expect("writes");
    b.result("cache", cache);
    b.finish().expect("a function")
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let write = cache_update(Type::new(Dtype::F32, &[2, 8]));
    let none = BTreeMap::<String, Vec<f64>>::new();
    let run = |at: i64, s: i64| {
        let inputs = named([
            ("cache", Tensor::zeros(&[5, 8])),
            ("new", Tensor::f64(&[2, 8], vec![1.0; 16])),
            ("cur_pos", Tensor::scalar(at)),
            ("s", Tensor::scalar(s)),
        ]);
        evaluate(&write, &inputs, &none, Options::default())
    };
    for (at, s) in [(0, 1), (0, 2), (3, 2), (4, 1)] {
        let cache = &run(at, s).expect("fits")["cache"];
        let written: Vec<i64> =
            (0..5).filter(|i| cache.as_f64().expect("real")[*i as usize * 8] == 1.0).collect();
        assert_eq!(written, (at..at + s).collect::<Vec<_>>());
    }
    for (at, s, expected) in [
        (-1, 1, "cur_pos of 0 or more, not -1"),
        (0, 0, "s in 1..=2 (the rows of `new`), not 0"),
        (0, -1, "s in 1..=2 (the rows of `new`), not -1"),
        (0, 3, "s in 1..=2 (the rows of `new`), not 3"),
        (4, 2, "cur_pos + s of at most 5 (the capacity), not 4 + 2"),
        (5, 1, "cur_pos + s of at most 5 (the capacity), not 5 + 1"),
        (i64::MAX, 1, "cur_pos + s of at most 5 (the capacity), not 9223372036854775807 + 1"),
    ] {
        let expected = format!("write: cache_update at ``: expected {expected}");
        assert_eq!(run(at, s).expect_err("refused").to_string(), expected);
    }
}

#[test]
fn traffic_is_the_rows_written_or_the_whole_where_nothing_bounds_them() {
    let (row, whole) = (8 * 4, 5 * 8 * 4);
    let open = |lo, hi| {
        let n = Dim::open(DimVar { name: "n".to_string(), lo, hi });
        Type { dtype: Dtype::F32, shape: vec![n, 8.into()] }
    };
    let at = |n| Dims::from([("n".to_string(), n)]);
    let closed = |n| Type::new(Dtype::F32, &[n, 8]);
    // Type of `new`, dimensions, bytes read and bytes written.
    let table = [
        (closed(1), Dims::new(), row),
        (closed(2), Dims::new(), 2 * row),
        (closed(9), Dims::new(), whole),
        (open(0, 6), at(3), 3 * row),
        (open(0, 6), Dims::new(), whole),
        (open(1, 6), Dims::new(), whole),
    ];
    for (new, dims, bytes) in table {
        let cost = cache_update(new.clone()).node_costs(&dims)[0];
        assert_eq!((cost.read, cost.written), (bytes, bytes), "{new} {dims:?}");
    }
    // In the authored form: one row of Hkv · D bfloat16, whatever the capacity.
    let config = Config::from_json(&tiny_config()).expect("a config");
    let f = attention_with_fixed_cache(&config, 1024).expect("a function");
    let costs = f.node_costs(&Dims::new());
    let writes = f.nodes.iter().zip(costs).filter(|(n, _)| n.op == Op::CacheUpdate);
    assert_eq!(writes.map(|(_, c)| c.written).collect::<Vec<_>>(), [2 * 64 * 2; 2]);
}
