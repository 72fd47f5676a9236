//! Attention far from position 0: positions up to 262,142, and a context of 4,096, with the angles of the
//! captures, with the published float32 angles, and with exact ones.

mod common;

use common::decode::{inner, rows};
use common::generated::{Generated, Made, table};
use common::{Score, Tensors, error, json, read, row, tiny_config};
use mica_models::decode::Carried;
use mica_models::describe;
use mica_models::eval::{Angles, Options, Tensor, published_inv_freq, values};
use mica_models::hir::Function;
use std::collections::BTreeMap;

const THETA: f64 = 1e7;
const ROTARY: usize = 64;

/// Which angles a run takes: an option of the evaluator, or the rows of a file of captures.
#[derive(Clone, Copy)]
enum Turn {
    By(Angles<'static>),
    AsCaptured,
}

struct Long {
    tensors: BTreeMap<String, Made>,
    mixer: Function,
}

impl Long {
    fn read() -> Long {
        let file = json("long/long.json");
        let mut text = tiny_config();
        text.extend(file["config"].as_object().expect("config").clone());
        text.insert("max_position_embeddings".to_string(), 262_144.into());
        let stack = describe("qwen3_5_35b_a3b", &text).expect("described");
        let mixer = inner(&stack, "full_attention", &["mixer"], "full_attention");
        Long { tensors: table(&file, "tensors"), mixer }
    }

    /// Runs a case and compares what `captures` has of it.
    fn compare(&self, case: &str, captures: &Tensors, turn: Turn) -> Score {
        let weights = Generated::new(&self.tensors, "long.self_attn.");
        let mut carried = Carried::new(&self.mixer);
        if case == "ctx4096" {
            for (cache, name) in [("k_cache", "key_cache"), ("v_cache", "value_cache")] {
                let before = self.tensors[&format!("long.{case}.{name}")].tensor();
                carried.append(cache, &rows(&before)).expect("a cache");
            }
        }
        let hidden = self.tensors[&format!("long.{case}.hidden")].tensor();
        let positions = captures[&format!("{case}.input.positions")].as_i64().expect("positions");
        let mut score = Score::default();
        for (i, &pos) in positions.iter().enumerate() {
            let pairs = given(captures, case, i);
            let angles = match turn {
                Turn::By(angles) => angles,
                Turn::AsCaptured => Angles::Given(&pairs),
            };
            let mut inputs = carried.inputs();
            inputs.insert("hidden".to_string(), row(&hidden, i));
            inputs.insert("pos".to_string(), Tensor::scalar(pos));
            let options = Options { angles, ..Options::default() };
            let (results, seen) = values(&self.mixer, &inputs, &weights, options).expect("runs");
            for (name, value) in &results {
                carried.keep(name, value).expect("fits");
            }
            let label = |label: &str| {
                let found = seen.iter().rev().find(|v| v.label == label);
                &found.unwrap_or_else(|| panic!("no value at `{label}`")).value
            };
            let q_rope = &seen.iter().find(|v| v.op == "rope").expect("a rotation").value;
            for (capture, value) in [
                ("self_attn:q_rope", q_rope),
                ("self_attn:k_rope", &results["k_row"]),
                // The last value of the mixer itself is what o_proj reads.
                ("self_attn.o_proj:float_input", label("")),
                ("self_attn:float_output", &results["hidden"]),
                ("self_attn.q_proj:float_output", label("q_proj")),
                ("self_attn.k_proj:float_output", label("k_proj")),
                ("self_attn.v_proj:float_output", label("v_proj")),
                ("self_attn.q_norm:float_output", label("q_norm")),
                ("self_attn.k_norm:float_output", label("k_norm")),
            ] {
                if let Some(want) = captures.get(&format!("{case}.{capture}")) {
                    score.check(capture, value, &row(want, i));
                }
            }
        }
        score
    }
}

/// Cosine and sine of each pair at step `i` of a case, as a file has them.
fn given(captures: &Tensors, case: &str, i: usize) -> Vec<(f64, f64)> {
    let of = |name: &str| row(&captures[&format!("{case}.input.rope_{name}")], i);
    let (cos, sin) = (of("cos"), of("sin"));
    let pairs = cos.as_f64().expect("real").iter().zip(sin.as_f64().expect("real"));
    pairs.take(ROTARY / 2).map(|(c, s)| (*c, *s)).collect()
}

#[test]
fn agreement_by_the_angles_taken() {
    let long = Long::read();
    let published = Turn::By(Angles::Published);
    let exact = Turn::By(Angles::Exact);
    // File, angles, bound on every value.
    let table = [
        ("vectors_f64", Turn::AsCaptured, 1e-12, "the file's own"),
        ("vectors_f64_angles32", Turn::AsCaptured, 1e-12, "the file's own"),
        ("vectors", Turn::AsCaptured, 2.5e-6, "the file's own"),
        // Cosines that the published run rounds to the other neighbour are a unit of float32 off.
        ("vectors_f64_angles32", published, 1e-6, "published float32"),
        ("vectors", published, 2.5e-6, "published float32"),
        // An angle in plain float64 is off by up to 3e-11 radians at position 262,142.
        ("vectors_f64", exact, 1e-10, "float64"),
    ];
    for (file, turn, bound, angles) in table {
        let captures = read(&format!("long/{file}.safetensors"));
        for case in ["positions", "ctx4096"] {
            let score = long.compare(case, &captures, turn);
            assert!(score.worst.len() >= 4, "{case} of {file}");
            score.judge(&format!("{case} against {file}, {angles} angles"), bound);
        }
    }
}

#[test]
fn exact_angles_are_not_the_published_ones() {
    let long = Long::read();
    let captures = read("long/vectors.safetensors");
    let score = long.compare("positions", &captures, Turn::By(Angles::Exact));
    let (q, out) = (score.worst["self_attn:q_rope"], score.worst["self_attn:float_output"]);
    println!("exact against published float32: q {q:.1e}, output {out:.1e}");
    assert!((5e-3..1e-2).contains(&q) && (5e-4..2e-3).contains(&out));
}

#[test]
fn published_frequencies_bit_for_bit() {
    let captures = read("long/vectors.safetensors");
    for (j, want) in captures["rope.inv_freq"].as_f64().expect("real").iter().enumerate() {
        let power = libm::pow(THETA, 2.0 * j as f64 / ROTARY as f64);
        assert_eq!(f64::from(published_inv_freq(power)), *want, "frequency {j}");
    }
}

#[test]
fn cosines_and_sines_of_the_published_angles() {
    let captures = read("long/vectors.safetensors");
    let mut other_neighbour = 0;
    for case in ["positions", "ctx4096"] {
        let positions = captures[&format!("{case}.input.positions")].as_i64().expect("positions");
        for (i, &pos) in positions.iter().enumerate() {
            let turns = Angles::Published.turns(ROTARY, THETA, pos).expect("angles");
            for (ours, theirs) in turns.iter().zip(given(&captures, case, i)) {
                for (a, b) in [(ours.0, theirs.0), (ours.1, theirs.1)] {
                    assert!((a - b).abs() <= 6e-8, "{a} against {b} at {pos}");
                    other_neighbour += usize::from(a != b);
                }
            }
        }
    }
    println!("{other_neighbour} of 448 are the other neighbour");
    assert!(other_neighbour <= 12);
}

/// The figures that the docs show.
#[test]
fn size_of_the_published_float32_angle_error() {
    println!("{:>9} {:>14} {:>14}", "position", "angle, rad", "cos and sin");
    // Position, largest error of an angle, of a cosine or sine.
    let table = [
        (1, 1.8e-8, 6.1e-8),
        (4_095, 7.1e-5, 7.1e-5),
        (65_535, 1.5e-3, 1.5e-3),
        (131_071, 4.3e-3, 4.3e-3),
        (262_142, 8.4e-3, 8.4e-3),
    ];
    for (position, angle_bound, turn_bound) in table {
        let exact = Angles::Exact.turns(ROTARY, THETA, position).expect("angles");
        let published = Angles::Published.turns(ROTARY, THETA, position).expect("angles");
        let turn = exact.iter().zip(&published).flat_map(|(e, p)| [(e.0 - p.0).abs(), (e.1 - p.1).abs()]);
        let turn = turn.fold(0.0, f64::max);
        let angle = (0..ROTARY / 2).map(|j| {
            let power = libm::pow(THETA, 2.0 * j as f64 / ROTARY as f64);
            (f64::from(position as f32 * published_inv_freq(power)) - position as f64 / power).abs()
        });
        let angle = angle.fold(0.0, f64::max);
        println!("{position:>9} {angle:>14.1e} {turn:>14.1e}");
        assert!(angle <= angle_bound && turn <= turn_bound && angle > angle_bound / 2.0);
    }
}

#[test]
fn given_angles_of_another_number_are_refused() {
    let refused = Angles::Given(&[(1.0, 0.0)]).turns(ROTARY, THETA, 0).expect_err("one pair");
    assert_eq!(refused, "32 given angles, not 1");
    let still = Angles::Given(&[(1.0, 0.0); 32]).turns(ROTARY, THETA, 9).expect("all pairs");
    let as_tensor = |t: Vec<(f64, f64)>| Tensor::f64(&[32], t.iter().map(|p| p.0).collect());
    assert_eq!(error(&as_tensor(still), &Tensor::f64(&[32], vec![1.0; 32])), 0.0);
}

#[test]
fn the_generator_makes_the_published_bytes() {
    for (name, made) in &Long::read().tensors {
        assert_eq!(made.blake3(0, made.elements()), made.digest, "{name}");
    }
}
