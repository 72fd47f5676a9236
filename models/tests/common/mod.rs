//! What the tests share: fixtures read into float64, and comparison.

#![allow(dead_code, reason = "each test file uses its own part of it")]

pub mod captures;
pub mod decode;
pub mod generated;
pub mod production;
pub mod store;

use mica_models::eval::{Data, EvalError, Resource, Tensor, Weights};
use mica_models::hir::Type;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file of the shipped delivery.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/delivery").join(path)
}

pub type Tensors = BTreeMap<String, Tensor>;

/// All tensors of a delivery's safetensors file, widened exactly.
pub fn read(path: &str) -> Tensors {
    read_file(&fixture(path))
}

/// All tensors of a safetensors file, widened exactly.
pub fn read_file(path: &std::path::Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let widened = |(name, view): (&str, safetensors::tensor::TensorView)| {
        (name.to_string(), widen(view.dtype(), view.shape(), view.data()))
    };
    file.iter().map(widened).collect()
}

fn widen(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Tensor {
    fn each<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.chunks_exact(N).map(|c| f(c.try_into().expect("chunk"))).collect()
    }
    match dtype {
        Dtype::F64 => Tensor::f64(shape, each(bytes, f64::from_le_bytes)),
        Dtype::F32 => Tensor::f64(shape, each(bytes, |b| f64::from(f32::from_le_bytes(b)))),
        Dtype::F16 => Tensor::f64(shape, each(bytes, |b| half::f16::from_le_bytes(b).to_f64())),
        Dtype::BF16 => Tensor::f64(shape, each(bytes, |b| half::bf16::from_le_bytes(b).to_f64())),
        Dtype::I8 => Tensor::f64(shape, each(bytes, |b: [u8; 1]| f64::from(b[0] as i8))),
        Dtype::I64 => Tensor::i64(shape, each(bytes, i64::from_le_bytes)),
        other => panic!("{other:?} in a fixture"),
    }
}

/// The JSON object of a file.
pub fn json(path: &str) -> Map<String, Value> {
    let text = std::fs::read_to_string(fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).expect("a JSON object")
}

/// The text config of the tiny model.
pub fn tiny_config() -> Map<String, Value> {
    json("tiny/config.json")["text_config"].as_object().expect("text_config").clone()
}

/// Weights of one part: names within the part, published layout, under a prefix.
pub struct Delivered<'a> {
    pub tensors: &'a Tensors,
    pub prefix: String,
}

impl Delivered<'_> {
    fn find(&self, name: &str) -> Result<&Tensor, EvalError> {
        let whole = format!("{}{name}", self.prefix);
        self.tensors.get(&whole).ok_or(EvalError::MissingWeight { name: whole })
    }
}

impl Weights for Delivered<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let t = self.find(name)?;
        let data = t.as_f64().expect("a float weight");
        if !name.ends_with("conv1d.weight") {
            return Ok(Cow::Borrowed(data));
        }
        // Published [C, 1, K]; the functions take [K, C].
        let (channels, taps) = (t.shape[0], t.shape[2]);
        Ok((0..taps).flat_map(|j| (0..channels).map(move |c| data[c * taps + j])).collect())
    }
}

impl Resource for Delivered<'_> {
    /// The published type; floats all count as bfloat16, since reading widens them.
    fn ty(&self, name: &str) -> Option<Type> {
        let shape: Vec<u64> = self.find(name).ok()?.shape.iter().map(|&n| n as u64).collect();
        Some(Type::new(mica_models::hir::Dtype::BF16, &shape))
    }
}

/// Row `i` of axis 0.
pub fn row(t: &Tensor, i: usize) -> Tensor {
    let n = t.elements() / t.shape[0];
    let shape = &t.shape[1..];
    match &t.data {
        Data::F64(v) => Tensor::f64(shape, v[i * n..(i + 1) * n].to_vec()),
        Data::I64(v) => Tensor::i64(shape, v[i * n..(i + 1) * n].to_vec()),
    }
}

/// Largest absolute difference over largest absolute value of `want`.
pub fn error(got: &Tensor, want: &Tensor) -> f64 {
    if let (Some(a), Some(b)) = (got.as_i64(), want.as_i64()) {
        return if a == b { 0.0 } else { f64::INFINITY };
    }
    let (a, b) = (got.as_f64().expect("real"), want.as_f64().expect("real"));
    assert_eq!(a.len(), b.len(), "{:?} against {:?}", got.shape, want.shape);
    let largest = |i: &mut dyn Iterator<Item = f64>| {
        i.fold(0.0, |m: f64, v| if v.is_nan() { f64::NAN } else { m.max(v.abs()) })
    };
    largest(&mut a.iter().zip(b).map(|(x, y)| x - y)) / largest(&mut b.iter().copied())
}

/// Collects errors by name and judges them together.
#[derive(Default)]
pub struct Score {
    pub worst: BTreeMap<String, f64>,
}

impl Score {
    pub fn check(&mut self, name: &str, got: &Tensor, want: &Tensor) {
        let e = error(got, want);
        let worst = self.worst.entry(name.to_string()).or_insert(0.0);
        if e.is_nan() || e > *worst {
            *worst = e;
        }
    }
    /// Prints each and asserts that none is above `bound`.
    pub fn judge(&self, title: &str, bound: f64) {
        let max = self.worst.values().copied().fold(0.0, f64::max);
        println!("{title}: {} values compared, worst relative error {max:.1e}", self.worst.len());
        let bad: Vec<_> = self.worst.iter().filter(|(_, e)| e.is_nan() || **e > bound).collect();
        assert!(bad.is_empty(), "{title}: above {bound:e}: {bad:?}");
    }
}

/// The published convolution state `[C, K]` (newest last) as the functions' `[K−1, C]`.
pub fn conv_state(published: &Tensor) -> Tensor {
    let (channels, taps) = (published.shape[0], published.shape[1]);
    let data = published.as_f64().expect("real");
    let rows = (1..taps).flat_map(|j| (0..channels).map(move |c| data[c * taps + j])).collect();
    Tensor::f64(&[taps - 1, channels], rows)
}

/// The text config at the published dimensions: the tiny one's fields with the published values.
pub fn published_config() -> Map<String, Value> {
    let mut text = tiny_config();
    let layers = 40;
    let word = |i| if (i + 1) % 4 == 0 { "full_attention" } else { "linear_attention" };
    let values = [
        ("vocab_size", 248_320),
        ("hidden_size", 2048),
        ("num_hidden_layers", layers),
        ("num_attention_heads", 16),
        ("num_key_value_heads", 2),
        ("head_dim", 256),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("linear_key_head_dim", 128),
        ("linear_value_head_dim", 128),
        ("linear_conv_kernel_dim", 4),
        ("num_experts", 256),
        ("num_experts_per_tok", 8),
        ("moe_intermediate_size", 512),
        ("shared_expert_intermediate_size", 512),
        ("max_position_embeddings", 262_144),
    ];
    for (field, value) in values {
        text.insert(field.to_string(), value.into());
    }
    text.insert("layer_types".to_string(), (0..layers).map(word).collect::<Vec<_>>().into());
    text
}
