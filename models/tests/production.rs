//! One layer of each kind at the published dimensions (hidden 2048, 256 experts) against the published
//! implementation in float64. The weights are generated row by row as the evaluator asks for them: every
//! element is a function of its tensor's name and its index, so only the experts that are chosen are made.

mod common;

use common::decode::{State, step};
use common::{Score, published_config, read_file, row};
use mica_models::eval::{EvalError, Options, Tensor, Weights, evaluate};
use mica_models::{Part, Stack, describe};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

fn here(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/production").join(name)
}

/// The generator of one tensor: SplitMix64 started from the name's FNV-1a, scaled in float32.
struct Generator {
    start: u64,
    scale: f32,
    offset: f32,
    bf16: bool,
}

impl Generator {
    fn new(name: &str, entry: &Value, seed: u64) -> Generator {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        let number = |field: &str| entry[field].as_f64().expect("a number") as f32;
        Generator {
            start: name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv).wrapping_add(seed),
            scale: number("scale"),
            offset: number("offset"),
            bf16: entry["dtype"] == "BF16",
        }
    }

    fn element(&self, i: usize) -> f64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.start.wrapping_add((i as u64 + 1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let v = ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32;
        let value = self.scale * v + self.offset;
        match self.bf16 {
            true => half::bf16::from_f32(value).to_f64(),
            false => f64::from(value),
        }
    }
}

type Made = BTreeMap<(String, Vec<usize>), Vec<f64>>;

/// Generated weights of a part; where `made` is some, what is made is kept there, for a second run without
/// the generator.
struct Generated<'a> {
    index: &'a Map<String, Value>,
    prefix: String,
    made: Mutex<Option<Made>>,
}

impl Generated<'_> {
    fn keep(&self, name: &str, rows: &[usize], data: &[f64]) {
        if let Some(made) = self.made.lock().expect("no panic").as_mut() {
            made.insert((name.to_string(), rows.to_vec()), data.to_vec());
        }
    }

    fn entry(&self, name: &str) -> (Generator, Vec<usize>) {
        let whole = match name {
            "lm_head.weight" => name.to_string(),
            _ => format!("{}{name}", self.prefix),
        };
        let entry = &self.index["tensors"][&whole];
        let shape = entry["shape"].as_array().unwrap_or_else(|| panic!("no tensor {whole}"));
        let shape = shape.iter().map(|n| n.as_u64().expect("a length") as usize).collect();
        let seed = self.index["seed"].as_u64().expect("a seed");
        (Generator::new(&whole, entry, seed), shape)
    }
}

impl Weights for Generated<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let (generator, shape) = self.entry(name);
        let (n, taps) = (shape.iter().product(), shape[shape.len() - 1]);
        // The convolution is published as [C, 1, K] and taken as [K, C].
        let place = |i: usize| match name.ends_with("conv1d.weight") {
            true => i % (n / taps) * taps + i / (n / taps),
            false => i,
        };
        let data: Vec<f64> = (0..n).map(|i| generator.element(place(i))).collect();
        self.keep(name, &[], &data);
        Ok(Cow::Owned(data))
    }

    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let (generator, _) = self.entry(name);
        let one = |r: &usize| (r * row_len..(r + 1) * row_len).map(|i| generator.element(i));
        let data: Vec<f64> = rows.iter().flat_map(one).collect();
        self.keep(name, rows, &data);
        Ok(Cow::Owned(data))
    }
}

/// What was made, as weights that cost nothing to read.
struct Kept(Made);

impl Weights for Kept {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        self.rows(name, &[], 0)
    }
    fn rows(&self, name: &str, rows: &[usize], _: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let found = self.0.get(&(name.to_string(), rows.to_vec()));
        Ok(Cow::Borrowed(found.expect("made in the run before")))
    }
}

fn stack() -> Stack {
    let mut text = published_config();
    // The vectors' table and head are the first rows of the published ones.
    text.insert("vocab_size".to_string(), 512.into());
    describe("qwen3_5_35b_a3b", &text).expect("described")
}

fn agrees(layer: usize, mixer: &str) {
    let text = std::fs::read_to_string(here("production.json")).expect("the index");
    let index: Map<String, Value> = serde_json::from_str(&text).expect("a JSON object");
    let captures = read_file(&here("vectors_f64.safetensors"));
    let stack = stack();
    let f = stack.function(Part::Layer(layer)).expect("a layer");
    let prefix = format!("model.language_model.layers.{layer}.");
    let weights =
        |prefix: &str| Generated { index: &index, prefix: prefix.to_string(), made: Mutex::default() };
    let generated = weights(&prefix);

    let input = format!("input.layers.{layer}.hidden");
    let seed = index["seed"].as_u64().expect("a seed");
    let generator = Generator::new(&input, &index["inputs"][&input], seed);
    let mut hidden: Vec<f64> = (0..3 * 2048).map(|i| generator.element(i)).collect();
    hidden[2048 + 1234] = 60.0;
    let hidden = Tensor::f64(&[3, 2048], hidden);

    let mut state = State::start(f);
    let mut score = Score::default();
    let mut last = None;
    for i in 0..3 {
        let before = state.clone();
        *generated.made.lock().expect("no panic") = (i == 2).then(Made::new);
        let got = step(f, &generated, row(&hidden, i), i as i64, &mut state);
        let p = format!("model.layers.{layer}");
        for (name, value) in [
            (format!("{p}:float_output"), &got.results["hidden"]),
            (format!("{p}.mlp.gate:logits"), &got.results["router_logits"]),
            (format!("{p}.mlp.gate:topk_indices"), &got.results["expert_ids"]),
            (format!("{p}.mlp.gate:topk_weights"), &got.labels["mlp.gate"]),
            (format!("{p}.mlp:float_output"), &got.labels["mlp"]),
            (format!("{p}.{mixer}:float_output"), &got.labels[&format!("{mixer}.{}", out(mixer))]),
        ] {
            score.check(&name, value, &row(&captures[&name], i));
        }
        if let Some(made) = generated.made.lock().expect("no panic").take() {
            let kept = Kept(made);
            let clock = Instant::now();
            let again = step(f, &kept, row(&hidden, i), i as i64, &mut before.clone());
            println!(
                "layer {layer}: a step with weights at hand takes {:.3} s",
                clock.elapsed().as_secs_f64()
            );
            assert_eq!(again.results, got.results);
        }
        last = got.results.get("hidden").cloned();
    }
    let inputs = BTreeMap::from([("hidden".to_string(), last.expect("three steps"))]);
    let head = evaluate(&stack.head, &inputs, &weights("model.language_model."), Options::default());
    let head = head.expect("the head");
    for (name, result) in [("model.norm", "normed"), ("lm_head", "logits")] {
        let name = format!("after.layers.{layer}.{name}:float_output");
        score.check(&name, &head[result], &captures[&name]);
    }
    score.judge(&format!("layer {layer} at the published dimensions"), 1e-12);
}

fn out(mixer: &str) -> &'static str {
    match mixer {
        "linear_attn" => "out_proj",
        _ => "o_proj",
    }
}

#[test]
fn the_linear_layer_agrees() {
    agrees(0, "linear_attn");
}

#[test]
fn the_full_attention_layer_agrees() {
    agrees(3, "self_attn");
}
