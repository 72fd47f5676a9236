//! A gate that fails, and an action that fails: told apart, told where, and nothing else is lost.

use crate::both;
use mica_fetch::testing::edit_tensor;
use mica_tests::{Event, Status, Workspace};

#[test]
fn a_failed_gate_says_where_it_went_wrong() {
    let mut workspace = both();
    // Asked of the bf16 form alone: its captures are of the unquantized weights.
    workspace.set("gates.decode.chain_cosine_unquantized", 0.999_999);
    let run = workspace.build(&[]).exits(1);
    let failed: Vec<_> = run.gates("score:tiny.decode").into_iter().filter(|g| g.1 != Some(true)).collect();
    assert_eq!(failed, [("chain-cosine-vs-capture", Some(false))]);
    let others = run.gates("score:tiny-w4a16.decode");
    assert!(others.len() > 10 && others.values().all(|pass| *pass == Some(true)), "{others:?}");
    for line in [
        "worst relative error",
        "quantization alone",
        "embed ",
        "layer 7 ",
        "final norm ",
        "caches threaded): FAIL (1 of ",
        "caches threaded): PASS",
    ] {
        assert!(run.stdout.contains(line), "no {line:?} in\n{}", run.stdout);
    }
    assert!(run.with(Status::Failed).is_empty(), "a failed gate is no failed action");
    assert!(matches!(run.events.last(), Some(Event::End { gates: [_, 1, 0], exit: 1, .. })));
    // It fails again without running anything.
    let again = workspace.build(&[]).exits(1);
    assert_eq!(again.ran().len(), 0);
    again.says_as(&run, "again");
}

/// Both models, a NaN in layer 5 of the bf16 one.
fn with_a_nan() -> Workspace {
    let workspace = both();
    let weights = workspace.own("tiny").join("model.safetensors");
    let router = "model.language_model.layers.5.mlp.gate.weight";
    edit_tensor(&weights, router, |bytes| bytes[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes()));
    workspace
}

#[test]
fn a_failed_action_stops_the_build_unless_told_to_go_on() {
    let stopped = with_a_nan().build(&["-j1"]).exits(1);
    assert_eq!(stopped.with(Status::Failed), ["quantize:tiny.layer5".to_owned()].into());
    assert!(stopped.with(Status::Skipped).contains("score:tiny.decode"));

    let workspace = with_a_nan();
    let on = workspace.build(&["-k"]).exits(1);
    assert_eq!(on.with(Status::Failed), ["quantize:tiny.layer5".to_owned()].into());
    let skipped = on.with(Status::Skipped);
    assert!(
        skipped.contains("simulate:tiny.layer5.free.block0")
            && !skipped.contains("simulate:tiny.layer4.free.block0")
    );
    assert!(skipped.iter().all(|target| target.contains(":tiny.")), "{skipped:?}");
    let gates = on.gates("score:tiny-w4a16.decode");
    assert!(!gates.is_empty() && gates.values().all(|pass| *pass == Some(true)), "{gates:?}");
    assert!(on.gates("score:tiny.decode").is_empty());
    assert_eq!(on.stderr.matches("error: ").count(), 1, "one cause, said once:\n{}", on.stderr);

    // A refusal is not kept as a result, and what was built is.
    let again = workspace.build(&["-k"]).exits(1);
    assert!(again.ran().is_empty(), "{:?}", again.ran());
    workspace.own("tiny");
    let mended = workspace.build_well(&[]);
    assert!(!mended.ran().contains("quantize:tiny.layer4"));
}
