//! The compiled parts of the shipped model, on the simulator, against the float64 evaluator on the
//! same weights.

mod support;

use mica_models::eval::{self, Tensor, evaluate};
use mica_models::hir::Function;
use mica_models::testing::{Broken, broken};
use std::collections::BTreeMap;
use support::{CAPACITY, Lcg, call, cosine, error, object, product, reals, tiny, weights};

/// What goes into a step: by edge for the device, by parameter for the evaluator.
type Step = (BTreeMap<String, Vec<f64>>, BTreeMap<String, Tensor>);

const PRODUCTS: [&str; 3] = ["qb1", "qb4", "qb16"];

/// Rounds values to what an edge holds.
fn held(values: &[f64], bits: fn(f64) -> f64) -> Vec<f64> {
    values.iter().map(|v| bits(*v)).collect()
}

fn f16(v: f64) -> f64 {
    half::f16::from_f64(v).to_f64()
}

fn f32(v: f64) -> f64 {
    f64::from(v as f32)
}

fn fx(v: f64) -> f64 {
    let unit = f64::from(1u32 << support::FRAC);
    (v * unit).round() / unit
}

/// Runs a part on every product, which must agree to the bit, and compares it with the evaluator.
/// The evaluator takes the experts that the device chose.
fn agree(f: &Function, kind: &str, seed: u64, (edges, inputs): &Step) {
    let w = weights::random(f, seed);
    let mut first: Option<BTreeMap<String, Vec<f64>>> = None;
    for name in PRODUCTS {
        let product = product(name);
        let o = object(kind, f, &w, &product);
        assert_eq!(o, object(kind, f, &w, &product), "compiling is deterministic");
        let (out, counters) = call(&o, &w, &product, edges);
        assert_eq!(counters.events(), 0);
        match &first {
            Some(first) => assert_eq!(&out, first, "{name} differs from qb1"),
            None => first = Some(out),
        }
    }
    let out = first.unwrap();
    let ids: Option<Vec<i64>> = out.get("expert_ids.out").map(|v| v.iter().map(|id| *id as i64).collect());
    let options = eval::Options { forced_ids: ids.as_deref(), round: true, trace: None };
    let expected = evaluate(f, inputs, &w.values, options).unwrap();
    for (name, t) in &expected {
        let (got, want) = (&out[&format!("{name}.out")], reals(t));
        assert_eq!(got.len(), want.len(), "{name}");
        let (c, e) = (cosine(got, &want), error(got, &want));
        println!("{kind}.{name}: cosine {c:.9}, greatest error {e:.2e}");
        assert!(c > 0.9999, "{kind}.{name}: cosine {c}, error {e}");
    }
}

#[test]
fn embedding() {
    let f = tiny().embed;
    for token in [0, 1, 2047] {
        let edges = BTreeMap::from([("token.in".into(), vec![f64::from(token)])]);
        let inputs = BTreeMap::from([("token".into(), Tensor::scalar(token.into()))]);
        agree(&f, "embed", 1, &(edges, inputs));
    }
}

#[test]
fn head() {
    let f = tiny().head;
    let hidden = held(&Lcg(7).vector(128, 3.0), fx);
    let edges = BTreeMap::from([("hidden.in".into(), hidden.clone())]);
    let inputs = BTreeMap::from([("hidden".into(), Tensor::f64(&[128], hidden))]);
    agree(&f, "head", 2, &(edges, inputs));
}

/// The edges and inputs of a step of the linear attention layer.
fn linear_step(seed: u64) -> Step {
    let mut rng = Lcg(seed);
    let hidden = held(&rng.vector(128, 2.0), fx);
    let conv = held(&rng.vector(3 * 256, 1.0), f16);
    let state = held(&rng.vector(4 * 32 * 32, 0.3), f32);
    let edges = BTreeMap::from([
        ("hidden.in".into(), hidden.clone()),
        ("conv_state.in".into(), conv.clone()),
        ("recurrent_state.in".into(), state.clone()),
    ]);
    let inputs = BTreeMap::from([
        ("hidden".into(), Tensor::f64(&[128], hidden)),
        ("conv_state".into(), Tensor::f64(&[3, 256], conv)),
        ("recurrent_state".into(), Tensor::f64(&[4, 32, 32], state)),
    ]);
    (edges, inputs)
}

/// The edges and inputs of a step of the full attention layer after `ctx` tokens.
fn full_step(ctx: usize) -> Step {
    let (heads, d) = (2, 64);
    let mut rng = Lcg(ctx as u64);
    let hidden = held(&rng.vector(128, 2.0), fx);
    let mut edges =
        BTreeMap::from([("hidden.in".into(), hidden.clone()), ("pos.in".into(), vec![ctx as f64])]);
    let mut inputs = BTreeMap::from([
        ("hidden".into(), Tensor::f64(&[128], hidden)),
        ("pos".into(), Tensor::scalar(ctx as i64)),
    ]);
    for name in ["k_cache", "v_cache"] {
        let rows = held(&rng.vector(heads * ctx * d, 1.5), f16);
        // beyond what is cached an edge may hold anything, even what is no number
        let mut edge = vec![f64::NAN; heads * CAPACITY as usize * d];
        for h in 0..heads {
            edge[h * CAPACITY as usize * d..][..ctx * d].copy_from_slice(&rows[h * ctx * d..][..ctx * d]);
        }
        edges.insert(format!("{name}.in"), edge);
        inputs.insert(name.into(), Tensor::f64(&[heads, ctx, d], rows));
    }
    (edges, inputs)
}

#[test]
fn linear_attention() {
    let f = &tiny().kinds[0].function;
    for seed in 0..3 {
        agree(f, "linear_attention", seed + 10, &linear_step(seed));
    }
}

#[test]
fn full_attention() {
    let f = &tiny().kinds[1].function;
    for ctx in [0, 1, 127, 128, 129, 256] {
        agree(f, "full_attention", 20 + ctx as u64, &full_step(ctx));
    }
}

/// Functions that gates must refuse are still functions: the device computes what they say.
#[test]
fn broken_variants() {
    for what in Broken::ALL {
        let stack = broken(&tiny(), what).unwrap();
        println!("{what:?}");
        agree(&stack.kinds[0].function, "linear_attention", 3, &linear_step(3));
        agree(&stack.kinds[1].function, "full_attention", 4, &full_step(130));
    }
}
