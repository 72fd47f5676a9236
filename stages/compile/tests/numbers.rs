//! The compiled parts of the shipped model, on the simulator, against the float64 evaluator on the
//! same weights.

mod support;

use mica_models::eval::{self, Tensor, evaluate};
use mica_models::hir::{Builder, Dim, Dtype, Function, Op, Type};
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
    let options = eval::Options { forced_ids: ids.as_deref(), round: true, ..eval::Options::default() };
    let expected = evaluate(f, inputs, &w.values, options).unwrap();
    for (name, t) in &expected {
        let (got, want) = (&out[&format!("{name}.out")], reals(t));
        assert_eq!(got.len(), want.len(), "{name}");
        let (c, e) = (cosine(got, &want), error(got, &want));
        println!("{kind}.{name}: cosine {c:.9}, greatest error {e:.2e}");
        assert!(c > 0.9999, "{kind}.{name}: cosine {c}, error {e}");
    }
}

/// Random inputs of a step after `ctx` tokens, as edges hold them.
fn step(f: &Function, seed: u64, ctx: u64) -> Step {
    let mut rng = Lcg(seed);
    let (mut edges, mut inputs) = (BTreeMap::new(), BTreeMap::new());
    for p in f.activations() {
        let length = |d: &Dim| d.known().unwrap_or(ctx) as usize;
        let shape: Vec<usize> = p.ty.shape.iter().map(length).collect();
        let open = p.ty.known_shape().is_none();
        let random = |rng: &mut Lcg, scale, bits| held(&rng.vector(shape.iter().product(), scale), bits);
        let values = match p.ty.dtype {
            _ if p.name == "hidden" => random(&mut rng, 2.0, fx),
            Dtype::I64 => vec![ctx as f64],
            Dtype::F32 => random(&mut rng, 0.3, f32),
            Dtype::BF16 | Dtype::F16 => random(&mut rng, 1.2, f16),
        };
        let tensor = match p.ty.dtype {
            Dtype::I64 => Tensor::scalar(ctx as i64),
            _ => Tensor::f64(&shape, values.clone()),
        };
        let edge = if open { cache_edge(&values, &shape) } else { values };
        edges.insert(format!("{}.in", p.name), edge);
        inputs.insert(p.name.clone(), tensor);
    }
    (edges, inputs)
}

/// The rows of each head at the compiled stride; beyond what is cached an edge may hold anything, even
/// what is no number.
fn cache_edge(values: &[f64], shape: &[usize]) -> Vec<f64> {
    let (rows, stride) = (shape[1] * shape[2], CAPACITY as usize * shape[2]);
    let mut edge = vec![f64::NAN; shape[0] * stride];
    for h in 0..shape[0] {
        edge[h * stride..][..rows].copy_from_slice(&values[h * rows..][..rows]);
    }
    edge
}

#[test]
fn embedding() {
    let f = tiny().embed;
    for token in [0, 1, 2047] {
        agree(&f, "embed", 1, &step(&f, 1, token));
    }
}

#[test]
fn head() {
    let f = tiny().head;
    agree(&f, "head", 2, &step(&f, 7, 0));
}

#[test]
fn linear_attention() {
    let f = &tiny().kinds[0].function;
    for seed in 0..3 {
        agree(f, "linear_attention", seed + 10, &step(f, seed, 0));
    }
}

#[test]
fn full_attention() {
    let f = &tiny().kinds[1].function;
    for ctx in [0, 1, 127, 128, 129, 255, 256, 257, 384, 385, 512] {
        agree(f, "full_attention", 20 + ctx, &step(f, ctx, ctx));
    }
}

/// No dimension is a power of two or a multiple of a tile.
#[test]
fn odd_dimensions() {
    let odd = support::odd();
    agree(&odd.embed, "embed", 5, &step(&odd.embed, 5, 99));
    agree(&odd.head, "head", 5, &step(&odd.head, 5, 0));
    for kind in &odd.kinds {
        agree(&kind.function, &kind.name, 6, &step(&kind.function, 6, 200));
    }
}

/// Views of a head that are read outside of what runs head by head, or leave in the seam.
#[test]
fn views_of_heads() {
    let mut b = Builder::new("heads");
    let s = b.param("s", Type::new(Dtype::F32, &[2, 8, 16]));
    let k = b.param("k", Type::new(Dtype::F32, &[2, 8]));
    let v = b.param("v", Type::new(Dtype::F32, &[2, 1, 16]));
    let row = b.reshape(k, &[2, 1, 8]).unwrap();
    let column = b.reshape(k, &[2, 8, 1]).unwrap();
    let seen = b.matmul(row, s).unwrap();
    let d = b.sub(v, seen).unwrap();
    let size = b.sum(d, 2, true).unwrap();
    let z = b.mul(d, size).unwrap();
    let flat = b.reshape(z, &[2, 16]).unwrap();
    let z = b.reshape(flat, &[2, 1, 16]).unwrap();
    let update = b.matmul(column, z).unwrap();
    let next = b.add(s, update).unwrap();
    let (y, z) = (b.unary(Op::Silu, flat).unwrap(), b.unary(Op::Silu, d).unwrap());
    b.result("s", next);
    b.result("hidden", seen);
    b.result("y", y);
    b.result("z", z);
    let f = b.finish().unwrap();
    agree(&f, "heads", 4, &step(&f, 4, 0));
}

/// Two states of which each head of one reads the other's.
#[test]
fn states_that_meet() {
    let mut b = Builder::new("states");
    let [s, t] = ["s", "t"].map(|name| b.param(name, Type::new(Dtype::F32, &[2, 8, 16])));
    let k = b.param("k", Type::new(Dtype::F32, &[2, 1, 8]));
    let both = b.add(s, t).unwrap();
    let y = b.matmul(k, both).unwrap();
    let alone = b.unary(Op::Sigmoid, s).unwrap();
    let next = b.mul(both, alone).unwrap();
    b.result("s", next);
    b.result("t", both);
    b.result("y", y);
    let f = b.finish().unwrap();
    agree(&f, "states", 8, &step(&f, 8, 0));
}

/// Functions that gates must refuse are still functions: the device computes what they say.
#[test]
fn broken_variants() {
    for what in Broken::ALL {
        let stack = broken(&tiny(), what).unwrap();
        println!("{what:?}");
        for kind in &stack.kinds {
            agree(&kind.function, &kind.name, 3, &step(&kind.function, 3, 130));
        }
    }
}
