//! The layers at published dimensions: three decode steps of one of each kind on generated weights.

use super::captures::{LABELLED, RESULTS, SHARED_GATE};
use super::decode::{Step, step};
use super::generated::{Generated, Kept, Made, Read, table};
use super::{Score, Tensors, conv_state, json, published_config, read, row};
use mica_models::decode::Carried;
use mica_models::eval::{Options, Tensor, evaluate};
use mica_models::{Part, Stack, describe};
use std::collections::BTreeMap;
use std::time::Instant;

/// A layer's kind is its index here: 0 is linear attention, 3 full attention.
pub const LAYERS: [usize; 2] = [0, 3];
const STEPS: usize = 3;
const PREFIX: &str = "model.language_model.";

/// The tables and captures.
pub struct Production {
    pub tensors: BTreeMap<String, Made>,
    pub inputs: BTreeMap<String, Made>,
    f64s: Tensors,
    f32s: Tensors,
    pub stack: Stack,
}

/// Errors of one layer's run.
pub struct Agreement {
    /// Against the float64 captures.
    pub f64s: Score,
    /// Against the float32 captures: layer outputs, norm and logits.
    pub outputs: Score,
    /// Against the float32 captures: everything else.
    pub components: Score,
    /// Seconds of the last step with its weights at hand, the least of three.
    pub seconds: f64,
}

impl Production {
    pub fn read() -> Production {
        let index = json("production/production.json");
        let mut text = published_config();
        // The vectors' table and head are the first rows of the published ones.
        text.insert("vocab_size".to_string(), 512.into());
        Production {
            tensors: table(&index, "tensors"),
            inputs: table(&index, "inputs"),
            f64s: read("production/vectors_f64.safetensors"),
            f32s: read("production/vectors.safetensors"),
            stack: describe("qwen3_5_35b_a3b", &text).expect("described"),
        }
    }

    /// The inputs `[3, 2048]` of a layer, the massive channel of step 1 set.
    pub fn hidden(&self, layer: usize) -> Tensor {
        let made = &self.inputs[&format!("input.layers.{layer}.hidden")];
        let mut data = made.tensor().as_f64().expect("real").to_vec();
        data[made.shape[1] + 1234] = 60.0;
        Tensor::f64(&made.shape, data)
    }

    /// Steps through a layer of `stack` (this one's, or a broken variant's) and compares everything captured.
    pub fn run(&self, stack: &Stack, layer: usize) -> Agreement {
        let f = stack.function(Part::Layer(layer)).expect("a layer");
        let generated = Generated::new(&self.tensors, &format!("{PREFIX}layers.{layer}."));
        let hidden = self.hidden(layer);
        let mut carried = Carried::new(f);
        let mut all = Agreement {
            f64s: Score::default(),
            outputs: Score::default(),
            components: Score::default(),
            seconds: 0.0,
        };
        let mut last = None;
        for i in 0..STEPS {
            let before = carried.clone();
            *generated.read.lock().expect("no panic") = (i + 1 == STEPS).then(Read::new);
            let got = step(f, &generated, row(&hidden, i), i as i64, &mut carried);
            self.compare(&mut all, layer, i, &got);
            if let Some(read) = generated.read.lock().expect("no panic").take() {
                let kept = Kept(read);
                // The least of three: a busy machine is no figure of the evaluator.
                all.seconds = f64::INFINITY;
                for _ in 0..3 {
                    let clock = Instant::now();
                    let again = step(f, &kept, row(&hidden, i), i as i64, &mut before.clone());
                    all.seconds = all.seconds.min(clock.elapsed().as_secs_f64());
                    assert_eq!(again.results, got.results, "the same bits a second time");
                }
            }
            last = got.results.get("hidden").cloned();
        }
        self.compare_states(&mut all, layer, &carried);
        let inputs = BTreeMap::from([("hidden".to_string(), last.expect("steps"))]);
        let head = Generated::new(&self.tensors, PREFIX);
        let head = evaluate(&stack.head, &inputs, &head, Options::default()).expect("the head");
        for (name, result) in [("model.norm", "normed"), ("lm_head", "logits")] {
            self.check(&mut all, &format!("after.layers.{layer}.{name}:float_output"), &head[result], None);
        }
        all
    }

    fn compare(&self, all: &mut Agreement, layer: usize, i: usize, got: &Step) {
        let p = format!("model.layers.{layer}");
        for (capture, label) in LABELLED {
            if let Some(value) = got.labels.get(*label) {
                self.check(all, &format!("{p}.{capture}"), value, Some(i));
            }
        }
        for (capture, result) in RESULTS {
            if let Some(value) = got.results.get(*result) {
                self.check(all, &format!("{p}{capture}"), value, Some(i));
            }
        }
        let (capture, label, op) = SHARED_GATE;
        self.check(all, &format!("{p}.{capture}"), &got.ops[&(label.to_string(), op)], Some(i));
    }

    fn compare_states(&self, all: &mut Agreement, layer: usize, carried: &Carried) {
        let p = format!("model.layers.{layer}");
        for (capture, cache) in [("key_cache", "k_cache"), ("value_cache", "v_cache")] {
            if let Some(cache) = carried.caches.get(cache) {
                self.check(all, &format!("{p}.self_attn:{capture}"), &cache.tensor(), None);
            }
        }
        if let Some(want) = self.f32s.get(&format!("{p}.linear_attn:conv_state")) {
            all.components.check("conv_state", &carried.states["conv_state"], &conv_state(want));
        }
    }

    /// Judges a value, or step `i` of one, wherever it was captured.
    fn check(&self, all: &mut Agreement, name: &str, got: &Tensor, i: Option<usize>) {
        let output = name.starts_with("after.")
            || LAYERS.iter().any(|l| name == format!("model.layers.{l}:float_output"));
        let against_f32 = if output { &mut all.outputs } else { &mut all.components };
        // One number, a sum that nearly cancels: float32 leaves it 1.5e-5 of itself. Its sigmoid is judged.
        if name.ends_with("shared_expert_gate:float_output") {
            return;
        }
        for (file, score) in [(&self.f64s, &mut all.f64s), (&self.f32s, against_f32)] {
            if let Some(want) = file.get(name) {
                match i {
                    Some(i) => score.check(name, got, &row(want, i)),
                    None => score.check(name, got, want),
                }
            }
        }
    }

    /// Errors of the embedding's rows; they are gathered, so they are exact.
    pub fn embedding(&self) -> Score {
        let weights = Generated::new(&self.tensors, PREFIX);
        let mut score = Score::default();
        let ids = self.f32s["model.embed_tokens:ids"].as_i64().expect("ids");
        for (i, id) in ids.iter().enumerate() {
            let token = BTreeMap::from([("token".to_string(), Tensor::scalar(*id))]);
            let row_of = evaluate(&self.stack.embed, &token, &weights, Options::default()).expect("embeds");
            score.check(
                "embedding",
                &row_of["hidden"],
                &row(&self.f32s["model.embed_tokens:float_output"], i),
            );
        }
        score
    }
}
