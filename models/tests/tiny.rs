//! The tiny model in both shipped forms against the published implementation's float64 captures, and the
//! broken variants, each of which must move the result.

mod common;

use common::captures::{LABELLED, RESULTS};
use common::decode::{Decoded, at, decode};
use common::{Score, Tensors, conv_state, error, read, tiny_config};
use mica_models::eval::Tensor;
use mica_models::testing::{Broken, broken};
use mica_models::{Stack, describe};

/// The delivery as published: its tensors and their prefix.
fn published() -> (Tensors, &'static str) {
    (read("tiny/model.safetensors"), "model.language_model.")
}

/// The W4A16 delivery, dequantized: integers times the scale of their group, in float32 as its captures were.
fn dequantized() -> (Tensors, &'static str) {
    let mut tensors = read("tiny-w4a16/full_model.safetensors");
    let scales: Vec<String> = tensors.keys().filter(|n| n.ends_with(".w_scale")).cloned().collect();
    for name in scales {
        let scale = tensors.remove(&name).expect("listed");
        let base = name.trim_end_matches(".w_scale").to_string();
        let t = tensors.remove(&format!("{base}.weight")).expect("the integers of a scale");
        let (s, q) = (scale.as_f64().expect("real"), t.as_f64().expect("real"));
        let group = q.len() / s.len();
        let value = |(i, v): (usize, &f64)| f64::from(*v as f32 * s[i / group] as f32);
        let data = q.iter().enumerate().map(value).collect();
        let name = if base.contains(".experts.") { base } else { format!("{base}.weight") };
        tensors.insert(name, Tensor::f64(&t.shape, data));
    }
    (tensors, "model.")
}

fn stack() -> Stack {
    describe("qwen3_5_35b_a3b", &tiny_config()).expect("the tiny config is described")
}

fn compare(captures: &Tensors, got: &Decoded) -> Score {
    let mut score = Score::default();
    for i in 0..got.logits.len() {
        let mut check = |name: &str, t: &Tensor| score.check(name, t, &at(captures, name, i));
        check("model.embed_tokens:float_output", &got.embedded[i]);
        check("lm_head:float_input", &got.normed[i]);
        check("lm_head:float_output", &got.logits[i]);
        for (l, step) in got.layers[i].iter().enumerate() {
            for (capture, label) in LABELLED {
                let name = format!("model.layers.{l}.{capture}");
                if let (true, Some(t)) = (captures.contains_key(&name), step.labels.get(*label)) {
                    check(&name, t);
                }
            }
            for (capture, result) in RESULTS {
                let name = format!("model.layers.{l}{capture}");
                if let (true, Some(t)) = (captures.contains_key(&name), step.results.get(*result)) {
                    check(&name, t);
                }
            }
        }
        for (l, step) in got.layers[i].iter().enumerate() {
            let name = format!("model.layers.{l}.linear_attn:conv_state_steps");
            if captures.contains_key(&name) {
                score.check(&name, &step.results["conv_state"], &conv_state(&at(captures, &name, i)));
            }
        }
    }
    for (l, carried) in got.carried.iter().enumerate() {
        for (name, cache) in [("key_cache", "k_cache"), ("value_cache", "v_cache")] {
            if let Some(want) = captures.get(&format!("model.layers.{l}.self_attn:{name}")) {
                score.check(name, &carried.caches[cache].tensor(), want);
            }
        }
    }
    score
}

fn argmax(t: &Tensor) -> i64 {
    let v = t.as_f64().expect("real");
    (0..v.len()).fold(0, |best, i| if v[i] > v[best] { i } else { best }) as i64
}

fn agrees(title: &str, (tensors, prefix): (Tensors, &str), captures: &str) {
    let captures = read(captures);
    let tokens = captures["input_ids"].as_i64().expect("ids");
    let got = decode(&stack(), &tensors, prefix, tokens);
    let score = compare(&captures, &got);
    // Every layer's output, and on the two captured in full what is inside.
    assert!(score.worst.len() > 50, "{} values", score.worst.len());
    score.judge(title, 1e-12);
    let chosen: Vec<i64> = got.logits.iter().map(argmax).collect();
    assert_eq!(chosen, captures["greedy_ids"].as_i64().expect("ids"));
}

#[test]
fn the_published_form_agrees_with_the_published_implementation() {
    agrees("tiny", published(), "tiny/test_vectors_f64.safetensors");
}

#[test]
fn the_w4a16_form_agrees_with_the_published_implementation() {
    agrees("tiny w4a16", dequantized(), "tiny-w4a16/test_vectors_w4a16_f64.safetensors");
}

#[test]
fn each_broken_variant_moves_the_result() {
    let (tensors, prefix) = published();
    let captures = read("tiny/test_vectors_f64.safetensors");
    let tokens = &captures["input_ids"].as_i64().expect("ids")[..8];
    for what in Broken::ALL {
        let variant = broken(&stack(), what).expect("rewrites");
        let got = decode(&variant, &tensors, prefix, tokens);
        let last = tokens.len() - 1;
        let moved = error(&got.normed[last], &at(&captures, "lm_head:float_input", last));
        println!("{what:?}: the post-norm hidden of token {last} moves by {moved:.1e}");
        assert!(moved > 1e-3, "{what:?} moves the post-norm hidden by {moved:e} only");
    }
}
