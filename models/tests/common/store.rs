//! Made-up weights in memory that know their types and remember what was asked of them.

use super::{Tensors, tiny_config};
use mica_models::describe;
use mica_models::eval::{EvalError, Resource, Tensor, Weights};
use mica_models::hir::{Function, Module, Type};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Weights of made-up values with their types; remembers what was read.
#[derive(Default)]
pub struct Store {
    pub weights: BTreeMap<String, (Type, Vec<f64>)>,
    /// Names whose elements were read.
    pub read: Mutex<Vec<String>>,
    /// Names whose types were asked.
    pub typed: Mutex<Vec<String>>,
}

impl Store {
    /// Everything that a flattened function reads, under a scope.
    pub fn of(f: &Function, scope: &str) -> Store {
        let mut store = Store::default();
        for (i, w) in f.weights().enumerate() {
            let n: u64 = w.ty.known_shape().expect("closed").iter().product();
            let value = |j: u64| ((j * 37 + i as u64 * 11) % 101) as f64 / 500.0 - 0.1;
            let data = (0..n).map(value).collect();
            store.weights.insert(format!("{scope}{}", w.name), (w.ty.clone(), data));
        }
        store
    }

    /// The weights as parameters of a call.
    pub fn parameters(&self) -> BTreeMap<String, Tensor> {
        let tensor = |(ty, data): &(Type, Vec<f64>)| {
            let shape: Vec<usize> = ty.known_shape().expect("closed").iter().map(|&n| n as usize).collect();
            Tensor::f64(&shape, data.clone())
        };
        self.weights.iter().map(|(name, w)| (name.clone(), tensor(w))).collect()
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
        self.typed.lock().expect("no panic").push(name.to_string());
        self.weights.get(name).map(|(ty, _)| ty.clone())
    }
}

/// The full-attention layer of the tiny model.
pub fn layer() -> Module {
    let stack = describe("qwen3_5_35b_a3b", &tiny_config()).expect("described");
    let kind = stack.kinds.into_iter().find(|k| k.name == "full_attention");
    Module::clone(&kind.expect("a kind").module)
}

/// A hidden vector of the tiny model.
pub fn hidden() -> Tensor {
    let wave = |i| ((i * 29 % 64) as f64 - 31.0) / 16.0;
    Tensor::f64(&[128], (0..128).map(wave).collect())
}

/// Activations of the tiny model's attention with `ctx` cached rows.
pub fn step(ctx: usize) -> Tensors {
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

/// Tensors by name.
pub fn named<const N: usize>(pairs: [(&str, Tensor); N]) -> Tensors {
    pairs.into_iter().map(|(n, t)| (n.to_string(), t)).collect()
}
