//! What the command itself counts: cycles of a decode call beside the bytes' bound, and how closely the device follows
//! forty layers that are made to be hard. Nothing here depends on how fast this machine is.

use crate::Figure;
use crate::command::{MICA, MODEL, Place};
use serde_json::Value;
use std::process::Command;

/// The call of a token at position 0 and at one deep in a conversation, on the smallest and the largest product: cycles
/// by those that the bytes take, reads and writes on one bus.
pub fn bound() -> Vec<Figure> {
    let mut all = Vec::new();
    for (product, limit) in [("qb16", 1.05), ("qb1", 1.15)] {
        let reports = told(&["analyze", MODEL, "--device", product, "--position", "0,8191", "--json"], &[0]);
        for report in reports.as_array().expect("a report a position") {
            let share = &report["cycles"]["share"];
            let bytes: f64 =
                ["constants", "edges_in", "edges_out"].map(|kind| number(&share["bytes"][kind])).iter().sum();
            let cycles = number(&report["cycles"]["total"]);
            let name = format!("{product}: a call of forty layers, position {}", report["position"]);
            let unit = format!("of the bytes' cycles; {cycles} cycles");
            all.push(
                Figure::at_most(name, cycles / (bytes / number(&report["bus_bytes"])), limit, unit)
                    .told_to(3),
            );
        }
    }
    all
}

/// Forty layers with one massive channel, at dimensions of few weights (`docs/accuracy.md`): what makes them hard, and
/// how closely the device follows, routing forced.
pub fn accuracy() -> Vec<Figure> {
    let place = Place(std::env::temp_dir().join(format!("mica-judged-{}", std::process::id())));
    let out = place.0.to_str().expect("a folder of plain letters");
    let dimensions = "hidden_size=256,num_experts=32,num_experts_per_tok=4,moe_intermediate_size=128,\
        shared_expert_intermediate_size=128,num_attention_heads=4,head_dim=64,linear_num_key_heads=4,\
        linear_num_value_heads=8,linear_key_head_dim=32,linear_value_head_dim=32";
    let numbers =
        ["--layers", "40", "--vocab", "2048", "--tokens", "16", "--seed", "10", "--set", dimensions];
    run(
        &[&["synth", MODEL, "--profile", "stress", "--captures", "self", "--out", out][..], &numbers]
            .concat(),
        &[0],
    );
    // a gate that fails shows in the figures
    let report = told(&["-C", out, "build", "score:full.decode", "--json"], &[0, 1]);
    let decode = &report["reports"][0]["score"]["decode"];
    let gates = decode["gates"].as_array().expect("gates");
    let gate =
        |name: &str| number(&gates.iter().find(|g| g["name"] == name).expect("a gate of that name")["value"]);
    let hard = &decode["difficulty"];
    let named = |what: &str| format!("hard forty layers: {what}");
    vec![
        Figure::at_least(
            named("worst layer cosine, routing forced"),
            gate("layer-cosine-vs-float64"),
            0.999,
            "",
        )
        .told_to(7),
        Figure::at_least(
            named("the same without the massive channel"),
            number(&hard["forced_without_peak"]),
            0.999,
            "",
        )
        .told_to(7),
        Figure::at_most(
            named("cosine of embedding and final hidden"),
            number(&hard["embed_to_hidden"]),
            0.3,
            format!(
                "; a channel of {:.0}, router margins {:.1e} least, {:.1e} median",
                number(&hard["peak"]["value"]).abs(),
                number(&hard["margins"]["least"]),
                number(&hard["margins"]["median"])
            ),
        )
        .told_to(3),
    ]
}

fn number(v: &Value) -> f64 {
    v.as_f64().expect("a number")
}

/// What the command says on standard output; it may end with one of these.
fn run(words: &[&str], ends: &[i32]) -> Vec<u8> {
    let ran = Command::new(MICA)
        .current_dir(std::env::temp_dir())
        .args(words)
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code().is_some_and(|end| ends.contains(&end)), "{words:?}: {said}");
    ran.stdout
}

/// The same, as a document.
fn told(words: &[&str], ends: &[i32]) -> Value {
    serde_json::from_slice(&run(words, ends)).expect("a document")
}
