//! Each gate bites: variants of the model with one thing broken, and the gates that each fails.
//!
//! A row states exactly which gates fail, so that it also says which would have let the mistake pass. That is
//! why the tight ones are there: with doubled positions, or the final norm's `1 +` forgotten, the published
//! bounds hold. `--example production -- --sensitivity` does the same at published dimensions.

mod common;

use common::decode::{decode, step, step_with};
use common::{Delivered, Tensors, error, json, read, row, tiny_config};
use mica_models::decode::Carried;
use mica_models::eval::{Options, Tensor};
use mica_models::testing::{Broken, broken};
use mica_models::{Part, Stack, describe};

const STEPS: usize = 8;

/// A gate and its bounds: on the relative error, or on cosine and norm ratio.
#[derive(Clone, Copy)]
struct Bounds {
    error: f64,
    cosine: f64,
    ratio: f64,
}

/// Float64 against the published implementation.
const REFERENCE: Bounds = Bounds { error: 1e-6, cosine: -1.0, ratio: f64::INFINITY };
/// `decode` on weights whose capture is in float32 or better.
const TIGHT: Bounds = Bounds { error: f64::INFINITY, cosine: 0.99999, ratio: 1e-3 };
/// `decode` as published.
const CHAIN: Bounds = Bounds { error: f64::INFINITY, cosine: 0.95, ratio: f64::INFINITY };
/// `linear-layer`, `attention-layer`, `hybrid`.
const LAYER: Bounds = Bounds { error: f64::INFINITY, cosine: 0.98, ratio: 0.05 };

impl Bounds {
    fn hold(&self, got: &Tensor, want: &Tensor) -> bool {
        let (y, r) = (got.as_f64().expect("real"), want.as_f64().expect("real"));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let (ny, nr) = (dot(y, y).sqrt(), dot(r, r).sqrt());
        error(got, want) <= self.error
            && dot(y, r) / (ny * nr) >= self.cosine
            && (ny / nr - 1.0).abs() <= self.ratio
    }
}

/// Values of a run beside the captured ones.
type Pairs = Vec<(Tensor, Tensor)>;

/// The tiny delivery.
struct Tiny {
    stack: Stack,
    tensors: Tensors,
    captures: Tensors,
}

impl Tiny {
    fn read() -> Tiny {
        Tiny {
            stack: describe("qwen3_5_35b_a3b", &tiny_config()).expect("described"),
            tensors: read("tiny/model.safetensors"),
            captures: read("tiny/test_vectors_f64.safetensors"),
        }
    }

    /// Each layer alone, on the captured input, with routing forced to the reference's experts.
    fn layers(&self, variant: &Stack) -> Pairs {
        let mut pairs = Vec::new();
        for l in 0..variant.layers.len() {
            let weights =
                Delivered { tensors: &self.tensors, prefix: format!("model.language_model.layers.{l}.") };
            let [good, bad] = [&self.stack, variant].map(|s| s.function(Part::Layer(l)).expect("a layer"));
            let (mut as_good, mut as_bad) = (Carried::new(good), Carried::new(bad));
            let input = match l {
                0 => "model.embed_tokens:float_output".to_string(),
                _ => format!("model.layers.{}:float_output", l - 1),
            };
            for i in 0..STEPS {
                let x = row(&self.captures[&input], i);
                let ids =
                    step(good, &weights, x.clone(), i as i64, &mut as_good).results["expert_ids"].clone();
                let options = Options { forced_ids: ids.as_i64(), ..Options::default() };
                let got = step_with(bad, &weights, x, i as i64, &mut as_bad, options);
                let want = row(&self.captures[&format!("model.layers.{l}:float_output")], i);
                pairs.push((got.results["hidden"].clone(), want));
            }
        }
        pairs
    }

    /// The post-norm hidden of the whole chain, and whether every token attains the captured maximum.
    fn chain(&self, variant: &Stack) -> (Pairs, bool) {
        let tokens = &self.captures["input_ids"].as_i64().expect("ids")[..STEPS];
        let got = decode(variant, &self.tensors, "model.language_model.", tokens);
        let (mut pairs, mut all) = (Vec::new(), true);
        for (i, normed) in got.normed.into_iter().enumerate() {
            pairs.push((normed, row(&self.captures["lm_head:float_input"], i)));
            let ours = got.logits[i].as_f64().expect("real");
            let chosen = (0..ours.len()).fold(0, |best, j| if ours[j] > ours[best] { j } else { best });
            let captured = row(&self.captures["lm_head:float_output"], i);
            let captured = captured.as_f64().expect("real");
            all &= captured.iter().all(|v| *v <= captured[chosen]);
        }
        (pairs, all)
    }
}

/// The layer vectors of one operation each, chained as they were made.
fn op_layers(what: Option<Broken>) -> Pairs {
    let index = json("ops/ops.json");
    let mut pairs = Vec::new();
    for name in ["linear_layers_2", "attention_layer", "hybrid_aaab"] {
        let mut text = tiny_config();
        text.extend(index[name]["config"].as_object().expect("config").clone());
        let layers = text["layer_types"].as_array().expect("layer_types").len();
        text.insert("num_hidden_layers".to_string(), layers.into());
        let stack = describe("qwen3_5_35b_a3b", &text).expect("described");
        let stack = what.map_or(Ok(stack.clone()), |w| broken(&stack, w)).expect("rewrites");
        let t = read(&format!("ops/{name}.safetensors"));
        let functions: Vec<_> =
            (0..layers).map(|l| stack.function(Part::Layer(l)).expect("a layer")).collect();
        let mut carried: Vec<Carried> = functions.iter().map(|f| Carried::new(f)).collect();
        for i in 0..t["input.hidden"].shape[0] {
            let mut h = row(&t["input.hidden"], i);
            for (l, f) in functions.iter().enumerate() {
                let weights = Delivered { tensors: &t, prefix: format!("weight.layers.{l}.") };
                h = step(f, &weights, h, i as i64, &mut carried[l]).results["hidden"].clone();
                pairs.push((h.clone(), row(&t[&format!("output.layers.{l}:float_output")], i)));
            }
        }
    }
    pairs
}

/// The gates that a variant fails.
fn failed(tiny: &Tiny, what: Option<Broken>) -> Vec<&'static str> {
    let variant = what.map_or(Ok(tiny.stack.clone()), |w| broken(&tiny.stack, w)).expect("rewrites");
    let layers = tiny.layers(&variant);
    let (chain, tokens) = tiny.chain(&variant);
    let ops = op_layers(what);
    let holds = |bounds: Bounds, pairs: &Pairs| pairs.iter().all(|(got, want)| bounds.hold(got, want));
    let both: Pairs = layers.iter().chain(&chain).cloned().collect();
    [
        ("reference", holds(REFERENCE, &both)),
        ("layers", holds(TIGHT, &layers)),
        ("hidden", holds(TIGHT, &chain)),
        ("chain", holds(CHAIN, &chain)),
        ("ops", holds(LAYER, &ops)),
        ("tokens", tokens),
    ]
    .into_iter()
    .filter(|(_, holds)| !holds)
    .map(|(gate, _)| gate)
    .collect()
}

#[test]
fn each_broken_variant_fails_the_gates_that_apply() {
    let tiny = Tiny::read();
    assert_eq!(failed(&tiny, None), [""; 0], "the model itself passes all");
    // A gate that a row leaves out would have let that mistake pass.
    let table = [
        (Broken::PlainNorms, "reference layers hidden chain ops tokens"),
        // It is in no layer, and a cosine of 0.9989 does not show it: the norm ratio of 0.41 does.
        (Broken::PlainFinalNorm, "reference hidden"),
        (Broken::PositionsDoubled, "reference layers hidden"),
        (Broken::NoRope, "reference layers hidden tokens"),
        (Broken::GateQuerySwapped, "reference layers hidden chain ops tokens"),
        (Broken::ConvStateZeroed, "reference layers hidden chain ops tokens"),
        (Broken::CacheDropped, "reference layers hidden chain ops tokens"),
        (Broken::KeyHeadOrder, "reference layers hidden chain ops tokens"),
    ];
    assert_eq!(table.map(|row| row.0), Broken::ALL, "each variant has its row");
    for (what, gates) in table {
        assert_eq!(failed(&tiny, Some(what)).join(" "), gates, "{what:?}");
    }
}
