//! What a caller of a module and of the evaluator may rely on.

mod common;

use common::tiny_config;
use mica_models::describe;
use mica_models::eval::{Data, EvalError, Options, Resource, Tensor, Weights, evaluate};
use mica_models::hir::{Builder, Dtype, Function, Module, Op, Type, inline};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

type Tensors = BTreeMap<String, Tensor>;

fn named<const N: usize>(pairs: [(&str, Tensor); N]) -> Tensors {
    pairs.into_iter().map(|(n, t)| (n.to_string(), t)).collect()
}

/// Weights of made-up values with their types; remembers what was read.
#[derive(Default)]
struct Store {
    weights: BTreeMap<String, (Type, Vec<f64>)>,
    read: Mutex<Vec<String>>,
}

impl Store {
    /// Everything that a flattened function reads, under a scope.
    fn of(f: &Function, scope: &str) -> Store {
        let mut store = Store::default();
        for (i, w) in f.weights().enumerate() {
            let n: u64 = w.ty.known_shape().expect("closed").iter().product();
            let value = |j: u64| ((j * 37 + i as u64 * 11) % 101) as f64 / 500.0 - 0.1;
            let data = (0..n).map(value).collect();
            store.weights.insert(format!("{scope}{}", w.name), (w.ty.clone(), data));
        }
        store
    }
}

impl Weights for Store {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        self.read.lock().expect("no panic").push(name.to_string());
        match self.weights.get(name) {
            Some((_, data)) => Ok(Cow::Borrowed(data)),
            None => Err(EvalError::MissingWeight { name: name.to_string() }),
        }
    }
}

impl Resource for Store {
    fn ty(&self, name: &str) -> Option<Type> {
        self.weights.get(name).map(|(ty, _)| ty.clone())
    }
}

fn layer() -> Module {
    let stack = describe("qwen3_5_35b_a3b", &tiny_config()).expect("described");
    let kind = stack.kinds.into_iter().find(|k| k.name == "full_attention");
    kind.expect("a kind").module
}

fn hidden() -> Tensor {
    let wave = |i| ((i * 29 % 64) as f64 - 31.0) / 16.0;
    Tensor::f64(&[128], (0..128).map(wave).collect())
}

/// A step with `ctx` cached rows.
fn step(ctx: usize) -> Tensors {
    let cache = |seed: usize| {
        let wave = |i| ((i * seed % 97) as f64 - 48.0) / 48.0;
        Tensor::f64(&[2, ctx, 64], (0..2 * ctx * 64).map(wave).collect())
    };
    named([
        ("hidden", hidden()),
        ("pos", Tensor::scalar(ctx as i64)),
        ("k_cache", cache(31)),
        ("v_cache", cache(53)),
    ])
}

#[test]
fn five_faces() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "layers.3.");
    let plain = Store::of(&flat, "");
    let inputs = step(2);
    // All parameters passed; a loaded module with activations only; both are the flattened function.
    let called = layer.call("full_attention", &inputs, &plain, Options::default());
    let loaded = layer.load_scoped(&store, "layers.3").expect("loads");
    let by_loading = loaded.call("full_attention", &inputs, Options::default());
    assert_eq!(called, by_loading);
    assert_eq!(called, evaluate(&flat, &inputs, &plain, Options::default()));
    // A child, its IR, and the same child loaded.
    let router = layer.child("moe").and_then(|moe| moe.child("router")).expect("a child");
    assert_eq!(router.lookup("router").expect("its IR").weights().count(), 1);
    store.read.lock().expect("no panic").clear();
    let loaded = loaded.child("moe").and_then(|moe| moe.child("router")).expect("a child");
    let routing = loaded.call("router", &named([("hidden", hidden())]), Options::default());
    assert_eq!(routing.expect("routes")["expert_ids"].shape, [4]);
    let read = store.read.lock().expect("no panic").clone();
    assert_eq!(read, ["layers.3.mlp.gate.weight"]);
}

#[test]
fn loading_refuses_what_does_not_fit() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let refused = |edit: &dyn Fn(&mut Store)| {
        let mut store = Store::of(&flat, "");
        edit(&mut store);
        layer.load(&store).err().expect("refused").to_string()
    };
    let name = "self_attn.k_norm.weight";
    let retype = |ty: Type| move |s: &mut Store| s.weights.get_mut(name).expect("a weight").0 = ty.clone();
    assert_eq!(
        refused(&|s| drop(s.weights.remove("mlp.gate.weight"))),
        "weight `mlp.gate.weight` is missing"
    );
    assert_eq!(
        refused(&retype(Type::new(Dtype::BF16, &[32]))),
        "weight `self_attn.k_norm.weight` is bf16[32], expected bf16[64]"
    );
    assert_eq!(
        refused(&retype(Type::new(Dtype::F32, &[64]))),
        "weight `self_attn.k_norm.weight` is f32[64], expected bf16[64]"
    );
}

#[test]
fn activations_are_checked() {
    let layer = layer();
    let flat = inline(&layer, "full_attention").expect("flattens");
    let store = Store::of(&flat, "");
    let refused = |edit: &dyn Fn(&mut Tensors)| {
        let mut inputs = step(1);
        edit(&mut inputs);
        let error = evaluate(&flat, &inputs, &store, Options::default()).expect_err("refused");
        error.to_string()
    };
    let put =
        |name: &'static str, t: Tensor| move |i: &mut Tensors| drop(i.insert(name.to_string(), t.clone()));
    let table = [
        (refused(&|i| drop(i.remove("pos"))), "full_attention: activation `pos` is missing, expected i64[]"),
        (
            refused(&put("position", Tensor::scalar(0))),
            "full_attention: there is no activation `position`, expected hidden, pos, k_cache, v_cache",
        ),
        (
            refused(&put("hidden", Tensor::zeros(&[127]))),
            "full_attention: activation `hidden` is real[127], expected bf16[128]",
        ),
        (
            refused(&put("pos", Tensor::zeros(&[]))),
            "full_attention: activation `pos` is real[], expected i64[]",
        ),
        (
            refused(&put("v_cache", Tensor::zeros(&[2, 2, 64]))),
            "full_attention: activation `v_cache` is real[2, 2, 64], expected bf16[2, ctx_len, 64] with ctx_len = 1 as in an input before it",
        ),
        (
            refused(&put("k_cache", Tensor::zeros(&[2, 4096, 64]))),
            "full_attention: activation `k_cache` is real[2, 4096, 64], expected bf16[2, ctx_len, 64] with ctx_len in 0..4096",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
    evaluate(&flat, &step(0), &store, Options::default()).expect("the first step has no cache");
}

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

#[test]
fn both_cache_forms_give_the_same_bits() {
    let (n, d) = (5u64, 8u64);
    let f32s = |shape: &[u64]| Type::new(Dtype::F32, shape);
    // Attention of one head over rows [n, d] of which the last is this step's.
    let attend = |b: &mut Builder, q, rows| {
        let keys = b.transpose(rows, &[1, 0]).expect("transposes");
        let scores = b.matmul(q, keys).expect("scores");
        let weights = b.op(Op::Softmax { axis: 0 }, &[scores]).expect("softmax");
        let o = b.matmul(weights, rows).expect("output");
        b.result("o", o);
    };
    let mut b = Builder::new("concat");
    let q = b.param("q", f32s(&[d]));
    let new = b.param("new", f32s(&[1, d]));
    let cache = b.param("cache", f32s(&[n - 1, d]));
    let rows = b.concat(cache, new, 0).expect("appends");
    attend(&mut b, q, rows);
    let concat = b.finish().expect("a function");
    let mut b = Builder::new("update");
    let q = b.param("q", f32s(&[d]));
    let new = b.param("new", f32s(&[1, d]));
    let cache = b.param("cache", f32s(&[n, d]));
    let scalar = Type::new(Dtype::I64, &[]);
    let (at, s) = (b.param("cur_pos", scalar.clone()), b.param("s", scalar));
    let rows = b.op(Op::CacheUpdate, &[cache, new, at, s]).expect("writes");
    attend(&mut b, q, rows);
    let update = b.finish().expect("a function");

    let wave = |len: u64, seed: u64| (0..len).map(|i| (i * seed % 23) as f64 / 7.0 - 1.5).collect::<Vec<_>>();
    let q = Tensor::f64(&[8], wave(d, 5));
    let new = Tensor::f64(&[1, 8], wave(d, 7));
    let old = wave((n - 1) * d, 3);
    let none = BTreeMap::<String, Vec<f64>>::new();
    let a = named([("q", q.clone()), ("new", new.clone()), ("cache", Tensor::f64(&[4, 8], old.clone()))]);
    let a = evaluate(&concat, &a, &none, Options::default()).expect("runs");
    let with = |at: i64, s: i64| {
        let mut full = old.clone();
        // What stands in the window before does not matter.
        full.extend([f64::NAN; 8]);
        let cache = Tensor::f64(&[5, 8], full);
        let inputs = named([
            ("q", q.clone()),
            ("new", new.clone()),
            ("cache", cache),
            ("cur_pos", Tensor::scalar(at)),
            ("s", Tensor::scalar(s)),
        ]);
        evaluate(&update, &inputs, &none, Options::default())
    };
    assert_eq!(a, with(4, 1).expect("runs"));
    for (at, s, expected) in [
        (-1, 1, "update: cache_update at ``: expected cur_pos of 0 or more, not -1"),
        (4, 0, "update: cache_update at ``: expected s in 1..=1 (the rows of `new`), not 0"),
        (3, 2, "update: cache_update at ``: expected s in 1..=1 (the rows of `new`), not 2"),
        (5, 1, "update: cache_update at ``: expected cur_pos + s of at most 5 (the capacity), not 5 + 1"),
    ] {
        assert_eq!(with(at, s).expect_err("refused").to_string(), expected);
    }
    // The window bounds the traffic: one row of eight float32.
    let cost = update.node_costs(&BTreeMap::new())[0];
    assert_eq!((cost.read, cost.written), (32, 32));
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
    let mut trace = |label: &str, t: &Tensor| seen.push((label.to_string(), t.shape.clone()));
    let forced =
        run(Options { forced_ids: Some(&[5, 1, 2]), round: true, trace: Some(&mut trace) }).expect("runs");
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
