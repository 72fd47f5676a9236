//! What the numerical tests share: random weights in device order beside their exact values, and
//! one call of a linked part on the simulator.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub mod weights;

use half::f16;
use mica_compile::{Options, Seams, compile, link};
use mica_device::format::Format;
use mica_device::isa;
use mica_device::object::{Direction, EdgeUse, Kernel, Object};
use mica_device::product::Product;
use mica_models::Stack;
use mica_models::eval::Tensor;
use mica_models::hir::Function;
use mica_simulate::{Counters, Edges, Machine, Program};
use std::collections::BTreeMap;
use weights::Weights;

pub const FRAC: u8 = 20;
pub const CAPACITY: u64 = 512;

/// The shipped model's stack.
pub fn tiny() -> Stack {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/delivery/tiny/config.json");
    describe(&std::fs::read_to_string(path).unwrap())
}

pub fn describe(config: &str) -> Stack {
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    let config = config.as_object().unwrap();
    mica_models::describe(mica_models::model_for(config).unwrap(), config).unwrap()
}

/// A stack of which no dimension is a power of two or a multiple of a tile.
pub fn odd() -> Stack {
    describe(
        r#"{
        "model_type": "qwen3_5_moe_text", "vocab_size": 101, "hidden_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 24,
        "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_key_head_dim": 20,
        "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3, "num_experts": 11,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
        "attention_bias": false, "attn_output_gate": true, "full_attention_interval": 2,
        "max_position_embeddings": 512, "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000,
            "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2], "mrope_interleaved": true}
    }"#,
    )
}

pub fn options(f: &Function) -> Options {
    let exports = f.results.iter().map(|(n, _)| n.clone()).filter(|n| n != "hidden").collect();
    Options { frac: FRAC, capacity: CAPACITY, exports, tokens: 1 }
}

pub fn product(name: &str) -> Product {
    Product::named(name).unwrap()
}

/// Numbers that look random and are always the same.
pub struct Lcg(pub u64);

impl Lcg {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    /// Uniform in −1..1.
    pub fn unit(&mut self) -> f64 {
        f64::from(self.bits()) / f64::from(1u32 << 30) - 1.0
    }
    pub fn vector(&mut self, n: usize, scale: f64) -> Vec<f64> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

/// The bytes of values in an edge's format.
pub fn encode(e: &EdgeUse, values: &[f64]) -> Vec<u8> {
    if e.shape.is_empty() {
        return (values[0] as i64).to_le_bytes().to_vec();
    }
    let one = |v: &f64| -> Vec<u8> {
        match e.format {
            Format::F32 => (*v as f32).to_le_bytes().to_vec(),
            Format::F16 => f16::from_f64(*v).to_le_bytes().to_vec(),
            Format::Fx32 => ((v * f64::from(1u32 << e.frac)).round() as i32).to_le_bytes().to_vec(),
            Format::I32 => (*v as i32).to_le_bytes().to_vec(),
            other => panic!("no edge is {other:?}"),
        }
    };
    values.iter().flat_map(one).collect()
}

/// The values of an edge's bytes.
pub fn decode(e: &EdgeUse, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks(e.format.bytes() as usize)
        .map(|b| match e.format {
            Format::F32 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
            Format::F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            Format::Fx32 => f64::from(i32::from_le_bytes(b.try_into().unwrap())) / f64::from(1u32 << e.frac),
            Format::I32 => f64::from(i32::from_le_bytes(b.try_into().unwrap())),
            other => panic!("no edge is {other:?}"),
        })
        .collect()
}

pub fn object(kind: &str, f: &Function, w: &Weights, product: &Product) -> Object {
    compile(kind, f, &w.plan, product, &options(f)).unwrap()
}

/// Proves a kernel well-formed, ordered and the same when compiled again.
pub fn prove(kernel: &Kernel) {
    let code = isa::decode(&kernel.code).unwrap();
    mica_device::check::check(&code).unwrap();
    for iterations in 0..3 {
        mica_device::hazards::check_iterations(&code, iterations).unwrap();
    }
}

/// Numbers that an input of a part may be: what a caller gives a call after `ctx` tokens.
pub fn inputs(name: &str, n: usize, seed: u64) -> Vec<f64> {
    let scale = if name.starts_with("hidden") { 2.0 } else { 0.6 };
    Lcg(seed * 1000 + name.len() as u64).vector(n, scale)
}

/// Calls a part once; `inputs` by edge name, absent scalars and forced ids filled in.
pub fn call(
    o: &Object,
    w: &Weights,
    product: &Product,
    inputs: &BTreeMap<String, Vec<f64>>,
) -> (BTreeMap<String, Vec<f64>>, Counters) {
    let kernel = link(&[o], product, Seams::Segment).unwrap();
    prove(&kernel);
    let program = Program::load(&kernel).unwrap();
    let constants: [&[u8]; 1] = [&w.bytes];
    let strict = mica_simulate::Options { strict: true, ..Default::default() };
    let mut machine = Machine::new(&program, product, &constants, strict).unwrap();
    let mut edges = Edges::new(&program);
    for e in &kernel.entries {
        if e.direction == Direction::In {
            let share = &e.shares[0].2;
            let free: Vec<f64> = vec![-1.0; share.shape.iter().product::<u64>() as usize];
            let values = inputs.get(&e.name).unwrap_or_else(|| {
                assert_eq!(e.name, "forced_ids.in", "an input is missing");
                &free
            });
            edges.set_in(&e.name, encode(share, values)).unwrap();
        }
    }
    let counters = machine.call(&mut edges).unwrap();
    let out = kernel
        .entries
        .iter()
        .filter(|e| e.direction == Direction::Out)
        .map(|e| (e.name.clone(), decode(&e.shares[0].2, edges.out(&e.name).unwrap())));
    (out.collect(), counters)
}

pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

/// The greatest difference as a part of the greatest value.
pub fn error(a: &[f64], b: &[f64]) -> f64 {
    let top = b.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs())) / top
}

pub fn reals(t: &Tensor) -> Vec<f64> {
    match t.as_f64() {
        Some(v) => v.to_vec(),
        None => t.as_i64().unwrap().iter().map(|&n| n as f64).collect(),
    }
}
