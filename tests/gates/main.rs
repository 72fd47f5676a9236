//! The gates of `decode` bite: one thing is broken at a time, the device runs it, and a gate fails.
//!
//! A broken model is broken for the float64 chain too, as a wrong description would be, so that only the
//! captures of the published implementation can tell. Broken code or weights are the device's alone.

mod calls;
mod float16;

use mica_device::isa;
use mica_device::object::Symbol;
use mica_fetch::testing::edit_tensor;
use mica_models::testing::{Broken, broken};
use mica_score::decode::DecodeReport;
use mica_tests::port::{Captures, Computed, Ported, Source, forced, free, judge, reference, strict, whole};
use mica_tests::{Workspace, shipped_workspace};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

/// What is done to a tensor's bytes.
type Edit<'a> = &'a dyn Fn(&mut [u8]);

const TOKENS: usize = 20;
const MODEL: &str = "tiny-w4a16";

/// The W4A16 delivery as shipped, ported as it should be.
struct Sound {
    source: Source,
    captures: Captures,
    ported: Ported,
    reference: Computed,
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let source = Source::open(&shipped_workspace(), MODEL);
        let captures = Captures::read(&source, TOKENS);
        let ported = Ported::of(&source, &source.stack);
        let reference = reference(&ported, &captures.ids);
        Sound { source, captures, ported, reference }
    })
}

/// Runs a port on the device and judges it against captures and a reference.
fn verdict(source: &Source, captures: &Captures, ported: &Ported, reference: &Computed) -> DecodeReport {
    let ids = &captures.ids;
    let free = free(source, ported, ids).unwrap_or_else(|e| panic!("{e}"));
    let forced = forced(source, ported, ids, &captures.routing).unwrap_or_else(|e| panic!("{e}"));
    let kernel = whole(source, ported, ids).unwrap_or_else(|e| panic!("{e}"));
    judge(source, captures, reference, &free, &forced, &kernel)
}

/// Gates that did not pass.
fn failed(report: &DecodeReport) -> BTreeSet<&str> {
    report.gates.iter().filter(|gate| !gate.passed()).map(|gate| gate.name.as_str()).collect()
}

/// Whether a gate holds the device to the captures, rather than our own reference.
fn device_against_capture(gate: &str) -> bool {
    gate.ends_with("-vs-capture") && !gate.starts_with("reference-")
}

#[test]
fn the_sound_port_passes_every_gate() {
    let Sound { source, captures, ported, reference } = sound();
    let report = verdict(source, captures, ported, reference);
    assert_eq!(failed(&report), BTreeSet::new());
    assert_eq!(report.gates.len(), 24);
    assert_eq!(report.tokens.iter().filter(|token| token.pass).count(), TOKENS);
}

#[test]
fn a_broken_model_fails_against_the_captures() {
    let Sound { source, captures, .. } = sound();
    for what in Broken::ALL {
        let stack = broken(&source.stack, what).unwrap_or_else(|e| panic!("{what:?}: {e}"));
        let ported = Ported::of(source, &stack);
        let own = reference(&ported, &captures.ids);
        let report = verdict(source, captures, &ported, &own);
        let failed = failed(&report);
        assert!(failed.iter().any(|gate| device_against_capture(gate)), "{what:?}: {failed:?}");
        assert!(failed.iter().any(|gate| gate.starts_with("reference-")), "{what:?}: {failed:?}");
        // The device does what the broken model says, so against that nothing is wrong.
        assert!(!failed.contains("whole-kernel"), "{what:?}: {failed:?}");
    }
}

#[test]
fn weights_that_are_not_the_captured_ones_fail() {
    let of = |layer: usize, rest: &str| format!("model.layers.{layer}.{rest}");
    let taken = sound().captures.routing[0][0] as usize;
    /// Adds one to a float16's exponent.
    fn doubled(bytes: &mut [u8]) {
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|scale| scale[1] += 4);
    }
    let expert = |bytes: &mut [u8]| {
        let each = bytes.len() / 16;
        doubled(&mut bytes[taken * each..][..each]);
    };
    let one_scale = |bytes: &mut [u8]| {
        let each = bytes.len() / 16;
        doubled(&mut bytes[taken * each..][..2]);
    };
    let one_weight = |bytes: &mut [u8]| bytes[5] = bytes[5].wrapping_add(64);
    let table: [(&str, String, Edit<'_>); 4] = [
        ("one expert's scales doubled", of(0, "mlp.experts.down_proj.w_scale"), &expert),
        ("one expert's scales doubled, inside", of(0, "mlp.experts.gate_up_proj.w_scale"), &expert),
        ("one scale of one row doubled", of(0, "mlp.experts.down_proj.w_scale"), &one_scale),
        ("one weight of one matrix", of(5, "linear_attn.out_proj.weight"), &one_weight),
    ];
    for (what, tensor, edit) in table {
        let (_workspace, source) = edited("full_model.safetensors", &tensor, edit);
        let ported = Ported::of(&source, &source.stack);
        let captures = &sound().captures;
        let own = reference(&ported, &captures.ids);
        let report = verdict(&source, captures, &ported, &own);
        let failed = failed(&report);
        assert!(!failed.is_empty(), "{what}");
        // That the evaluator ran on these weights as well does not hide it.
        assert!(failed.contains("reference-layer-vs-capture"), "{what}: {failed:?}");
    }
}

#[test]
fn code_that_reads_the_wrong_row_fails() {
    let Sound { source, captures, ported, reference } = sound();
    for (part, role) in [
        (0, "embed_tokens.weight"),
        (1, "input_layernorm.weight"),
        (1, "linear_attn.in_proj_qkv.weight"),
        (1, "linear_attn.conv1d.weight"),
        (1, "mlp.experts.gate_up_proj"),
        (2, "mlp.gate.weight"),
        (4, "self_attn.q_proj.weight"),
        (9, "norm.weight"),
    ] {
        let mut moved = ported.clone();
        shift(&mut moved.parts[part], role);
        let report = verdict(source, captures, &moved, reference);
        let failed = failed(&report);
        assert!(failed.iter().any(|gate| device_against_capture(gate)), "{role}: {failed:?}");
        assert!(failed.iter().any(|gate| gate.ends_with("-vs-float64")), "{role}: {failed:?}");
    }
}

/// Moves the constant offset of the first instruction that reads a role by one row of the stored form: 64
/// bytes, which is a table's row of such a width too.
fn shift(part: &mut mica_tests::port::Part, role: &str) {
    let entry = part.plan.entry(role).unwrap_or_else(|| panic!("{} has no {role}", part.place)).clone();
    let mut code = isa::decode(&part.object.code).unwrap_or_else(|e| panic!("{e}"));
    let reads = |at: u32| (entry.offset..entry.offset + entry.bytes).contains(&code[at as usize].z);
    let constants = part.object.relocations.iter().filter(|r| r.symbol == Symbol::Constants);
    let at = constants.map(|r| r.at).find(|at| reads(*at)).unwrap_or_else(|| panic!("nothing reads {role}"));
    code[at as usize].z += 64;
    part.object.code = isa::encode(&code);
}

/// A NaN that gets among the activations is counted, fails the gate and every figure that it reaches, and ends
/// a strict run at the operation that first met it.
#[test]
fn a_nan_among_the_activations_is_counted_and_trapped_when_strict() {
    let Sound { source, captures, ported, reference } = sound();
    strict(source, ported, &captures.ids[..2]).unwrap_or_else(|e| panic!("{e}"));
    let mut spoiled = ported.clone();
    let part = &mut spoiled.parts[6];
    let at = part.plan.entry("input_layernorm.weight").expect("a norm").offset as usize;
    part.constants[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let report = verdict(source, captures, &spoiled, reference);
    let failed = failed(&report);
    for gate in
        ["non-finite", "layer-cosine-vs-float64", "layer-cosine-vs-capture", "logits-cosine-vs-capture"]
    {
        assert!(failed.contains(gate), "{gate}: {failed:?}");
    }
    let trap = strict(source, &spoiled, &captures.ids[..2]).unwrap_err().to_string();
    for words in ["part 6 (linear_attention)", "input_layernorm", "a result is not finite"] {
        assert!(trap.contains(words), "{trap}");
    }
}

#[test]
fn a_corrupted_capture_fails() {
    let Sound { ported, reference, .. } = sound();
    let negated = |bytes: &mut [u8]| bytes[8 * 300 + 7] ^= 0x80;
    let nan = |bytes: &mut [u8]| bytes[8 * 300..][..8].copy_from_slice(&f64::NAN.to_le_bytes());
    let another = |bytes: &mut [u8]| bytes[0] ^= 1;
    let table: [(&str, Edit<'_>); 7] = [
        ("model.embed_tokens:float_output", &negated),
        ("model.layers.0:float_output", &negated),
        ("model.layers.5:float_output", &negated),
        ("model.layers.5:float_output", &nan),
        ("lm_head:float_input", &negated),
        ("lm_head:float_output", &negated),
        ("model.layers.3.mlp.gate:topk_indices", &another),
    ];
    for (tensor, edit) in table {
        let (_workspace, source) = edited("test_vectors_w4a16_f64.safetensors", tensor, edit);
        let captures = Captures::read(&source, TOKENS);
        let report = verdict(&source, &captures, ported, reference);
        assert!(!failed(&report).is_empty(), "{tensor}");
    }
}

/// The delivery with one tensor of one file edited; the folder lives as long as the first of the two.
fn edited(file: &str, tensor: &str, edit: Edit<'_>) -> (Workspace, Source) {
    let workspace = Workspace::shipped(env!("CARGO_BIN_EXE_mica-under-test"));
    let path: &Path = &workspace.own(MODEL).join(file);
    edit_tensor(path, tensor, edit);
    let source = Source::open(workspace.dir(), MODEL);
    (workspace, source)
}
