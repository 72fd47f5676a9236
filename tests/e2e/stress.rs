//! Deliveries that are made to be hard: followed by the device, measured by `calibrate`, and refused by the
//! gates where the machine has not the room.

use crate::MICA;
use mica::calibrate::{Class, Held, Tag, tags};
use mica_device::format::Format;
use mica_device::isa::{self, Opcode};
use mica_fetch::testing::edit_tensor;
use mica_tests::port::{Ported, Source};
use mica_tests::{Run, Workspace, shipped_workspace};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Dimensions at which a layer takes no time.
const SMALL: &str = "hidden_size=128,num_experts=16,num_experts_per_tok=4,moe_intermediate_size=128,\
    shared_expert_intermediate_size=128,num_attention_heads=4,head_dim=64,linear_num_key_heads=2,\
    linear_num_value_heads=4,linear_key_head_dim=32,linear_value_head_dim=32";
const SCORE: &str = "score:full.decode";

fn made(profile: &str, layers: &str) -> Workspace {
    let words = ["--profile", profile, "--layers", layers, "--vocab", "512", "--tokens", "8", "--set", SMALL];
    Workspace::synthetic(MICA, &words)
}

/// Scores; the captures are made up, so that the gates on captures are not run and the exit says so.
fn scored(w: &Workspace) -> (Run, Value) {
    let run = w.build(&[SCORE, "--json"]).exits(1);
    let document: Value = serde_json::from_str(&run.stdout).unwrap();
    let report = document["reports"][0]["score"]["decode"].clone();
    (run, report)
}

fn failed(run: &Run) -> BTreeSet<String> {
    let gates = run.gates(SCORE);
    assert!(gates["saturations"].is_some(), "{gates:?}");
    gates.into_iter().filter(|g| g.1 == Some(false)).map(|g| g.0.to_string()).collect()
}

fn calibrated(w: &Workspace) -> Value {
    let run = w.mica(&["calibrate", "--json"]).run().exits(0);
    serde_json::from_str::<Value>(&run.stdout).unwrap()["models"][0].clone()
}

/// Forty layers with one massive channel, at dimensions of no weight; `docs/accuracy.md` has the larger run.
#[test]
fn a_stack_that_is_not_easy_is_followed() {
    let w = made("stress", "40");
    let (run, report) = scored(&w);
    assert_eq!(failed(&run), BTreeSet::new());
    let d = &report["difficulty"];
    let figure = |name: &str| d[name].as_f64().unwrap();
    // what makes it hard is there
    let peak = d["peak"]["value"].as_f64().unwrap();
    assert!((200.0..500.0).contains(&peak) && d["peak"]["channel"] == 77, "{d}");
    assert!(figure("rest") < peak / 50.0, "{d}");
    assert!(figure("embed_to_last") < 0.3 && figure("embed_to_hidden") < 0.3, "{d}");
    assert!(d["margins"]["least"].as_f64().unwrap() < 0.01, "{d}");
    // and the device follows without the channel that would hide the rest
    assert!(figure("forced_without_peak") >= 0.999, "{d}");
}

#[test]
fn values_near_every_limit_are_followed() {
    let w = made("limits", "8");
    let (run, report) = scored(&w);
    assert_eq!(failed(&run), BTreeSet::new());
    assert!(report["difficulty"]["margins"]["least"].as_f64().unwrap() < 1e-3);
    let measured = calibrated(&w);
    let rows = |key: &str| measured[key].as_array().unwrap().clone();
    let largest = |class: &str, held: &str| {
        let found = rows("headroom").into_iter().find(|r| r["class"] == class && r["held"] == held);
        found.unwrap_or_else(|| panic!("{class} {held}"))["largest"]["value"].as_f64().unwrap()
    };
    // float16 holds up to 65504, the fixed point of the residual up to 2048
    assert!((32_768.0..65_504.0).contains(&largest("vectors", "f16")));
    assert!((200.0..1024.0).contains(&largest("residual", "fx32")));
    // the least at most, the most at least
    for (function, least, most) in [
        ("exp", -104.0, -1e-6),
        ("sigmoid", -50.0, 50.0),
        ("silu", -104.0, 104.0),
        ("softplus", -20.0, 20.0),
        ("softmax", 0.0, 104.0),
        ("rsqrt", 2e-6, 1e4),
        ("rms-norm", 1e-6, 30.0),
    ] {
        let row = rows("arguments").into_iter().find(|r| r["function"] == function).unwrap();
        let seen = |end: &str| row[end]["value"].as_f64().unwrap();
        assert!(seen("least") <= least && seen("most") >= most, "{row}");
    }
}

/// The gate's twin: fraction bits that leave no room for the massive channel.
#[test]
fn fraction_bits_that_leave_no_room_fail_the_gate_and_calibrate_says_which_do() {
    let mut w = made("stress", "4");
    w.set("device.sim.frac", 24);
    let (run, _) = scored(&w);
    assert!(failed(&run).contains("saturations"), "{:?}", failed(&run));
    let advice = calibrated(&w);
    assert_eq!(advice["frac"], 24);
    let residual = &advice["headroom"][0];
    assert!(residual["class"] == "residual" && residual["bits"].as_f64().unwrap() < 0.0, "{residual}");
    assert!(residual["largest"]["part"] == "layer1" || residual["largest"]["part"] == "layer2", "{residual}");
    let text = w.mica(&["calibrate"]).run().exits(0).stdout;
    let proposed = advice["proposed"].as_u64().unwrap();
    assert!(text.contains(&format!("[device.sim]\nfrac = {proposed}\n")), "{text}");
    w.set("device.sim.frac", proposed as i64);
    assert_eq!(failed(&scored(&w).0), BTreeSet::new());
    let text = w.mica(&["calibrate"]).run().exits(0).stdout;
    assert!(text.contains(&format!("has frac = {proposed}, the most that keeps 2 bits")), "{text}");
}

/// The gate's twin in a validation: weights with which the residual outgrows its format.
#[test]
fn a_validation_whose_residual_outgrows_its_format_fails_the_gate() {
    let mut w = Workspace::shipped(MICA);
    let judged =
        |w: &Workspace| w.build(&["score:ops.linear-layer"]).gates("score:ops.linear-layer")["saturations"];
    assert_eq!(judged(&w), Some(true));
    w.set("device.sim.frac", 28);
    let down = "weight.layers.0.mlp.shared_expert.down_proj.weight";
    // 64 times as much, by the exponents of float16
    edit_tensor(&w.own("ops").join("linear_layer.safetensors"), down, |bytes| {
        bytes.as_chunks_mut::<2>().0.iter_mut().filter(|w| w[1] & 0x7c != 0).for_each(|w| w[1] += 6 << 2);
    });
    assert_eq!(judged(&w), Some(false));
}

/// What calibrate takes for the residual is what the compiler holds in fixed point, operation by operation.
#[test]
fn the_residual_is_what_the_device_holds_in_fixed_point() {
    let source = Source::open(&shipped_workspace(), "tiny-w4a16");
    let ported = Ported::of(&source, &source.stack);
    for part in &ported.parts {
        let function = &part.function;
        let is_residual = |tag: &Tag| *tag == Tag::Magnitude(Class::Residual, Held::Fx32);
        let tagged = tags(function).into_iter().skip(function.params.len()).enumerate();
        let expected: BTreeSet<usize> =
            tagged.filter(|(_, tags)| tags.iter().any(is_residual)).map(|(op, _)| op).collect();
        let (mut formats, mut found, mut seen) = (BTreeMap::new(), BTreeSet::new(), 0);
        for i in isa::decode(&part.object.code).unwrap() {
            match i.op {
                Opcode::Tdef => drop(formats.insert(i.r[0], Format::from_code(i.flags))),
                Opcode::Opb if i.r[0] != isa::NONE => {
                    seen += 1;
                    if formats[&i.r[0]] == Some(Format::Fx32) {
                        found.insert((i.src & 0xffff) as usize);
                    }
                }
                _ => {}
            }
        }
        // what leaves at the seam is converted there, whatever tile it comes from
        let seam = function.result("hidden").map(|v| v.0 as usize - function.params.len());
        found.extend(seam);
        assert!(seen > 0 && found == expected, "{}: {found:?}, expected {expected:?}", part.place);
    }
}

fn files(dir: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file());
    entries.map(|p| (p.to_string_lossy().into_owned(), std::fs::read(&p).unwrap())).collect()
}

#[test]
fn calibrate_changes_nothing() {
    let w = made("stress", "4");
    let before = files(w.dir());
    calibrated(&w);
    assert!(files(w.dir()) == before);
    // the weights that it needed are quantized, for the build as well
    let all = w.build(&[SCORE]).exits(1).ran();
    assert!(!all.is_empty() && !all.iter().any(|t| t.starts_with("quantize:")), "{all:?}");
    w.mica(&["calibrate", "--margin", "5"]).run().exits(0);
    assert!(w.build(&[SCORE]).exits(1).ran().is_empty());
    let unknown = w.mica(&["calibrate", "fool"]).run().exits(2);
    assert!(unknown.stderr.contains("no model \"fool\"; it has full"), "{}", unknown.stderr);
}

/// A NaN that the workspace allows comes through to the device, is counted, and passes no gate.
#[test]
fn a_weight_that_is_no_number_is_refused_or_counted() {
    let mut w = Workspace::only(MICA, "tiny");
    let weights = w.own("tiny").join("model.safetensors");
    let router = "model.language_model.layers.5.mlp.gate.weight";
    edit_tensor(&weights, router, |bytes| bytes[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes()));
    let refused = w.build(&[]).exits(1);
    let place = format!("mlp.gate.weight: element [0, 0] of {router} is NaN");
    assert!(refused.stderr.contains(&place), "{}", refused.stderr);
    w.set("model.tiny.allow_non_finite", true);
    let run = w.build(&[]).exits(1);
    let gates = run.gates("score:tiny.decode");
    for gate in ["non-finite", "layer-cosine-vs-float64", "hidden-cosine-vs-float64"] {
        assert_eq!(gates[gate], Some(false), "{gates:?}");
    }
}

/// One that is stored as an integer is 0 or an end of the range on the device, which sees nothing of it; it is counted
/// and named all the same.
#[test]
fn a_weight_that_is_no_number_is_counted_where_it_becomes_an_integer() {
    let mut w = Workspace::only(MICA, "tiny");
    w.set("model.tiny.allow_non_finite", true);
    w.set("model.tiny.layers", 2);
    w.unset("model.tiny.perplexity");
    let name = "score:tiny.decode";
    let clean = w.build(&[name]);
    assert_eq!(clean.gates(name)["non-finite"], Some(true), "the switch alone fails nothing");
    for (tensor, role, bits) in [
        // i8, then i4
        ("linear_attn.in_proj_qkv.weight", "in_proj_qkv", 0x7fc0_u16),
        ("mlp.experts.gate_up_proj", "experts", 0xff80),
    ] {
        let weights = w.own("tiny").join("model.safetensors");
        let tensor = format!("model.language_model.layers.1.{tensor}");
        edit_tensor(&weights, &tensor, |bytes| bytes[..2].copy_from_slice(&bits.to_le_bytes()));
        let run = w.build(&[name]).exits(1);
        assert_eq!(run.gates(name)["non-finite"], Some(false), "{tensor}: {}", run.stdout);
        let told = run.stdout.lines().find(|l| l.contains("non-finite")).unwrap_or_default();
        assert!(
            told.contains("1 of them weights, the first in layer1: ") && told.contains(role),
            "{tensor}: {told:?} in\n{}",
            run.stdout
        );
    }
}
