//! `mica status` says what every gate last said, in its exit status too; `mica calibrate` fails as a build would.

use crate::{MICA, tiny};
use mica_fetch::testing::edit_tensor;
use mica_tests::{Workspace, files_below};
use serde_json::Value;
use std::fs;

const TARGET: &str = "score:ops.router";

/// The exit, the text, and the exit as JSON, which says the same.
fn status(workspace: &Workspace) -> (Option<i32>, String) {
    let text = workspace.mica(&["status", TARGET]).run();
    let json = workspace.mica(&["status", TARGET, "--json"]).run();
    assert_eq!(json.exit, text.exit, "{}", json.stdout);
    assert!(serde_json::from_str::<Value>(&json.stdout).is_ok(), "{}", json.stdout);
    (text.exit, text.stdout)
}

#[test]
fn it_is_well_where_all_is_built_and_passes() {
    let mut workspace = Workspace::shipped(MICA);
    let (exit, said) = status(&workspace);
    assert!(exit == Some(1) && said.contains("score:ops.router"), "nothing is built: {exit:?}\n{said}");
    let built = workspace.build_well(&[TARGET]);
    let (exit, said) = status(&workspace);
    assert!(exit == Some(0) && said.contains("score-error") && !said.contains("FAIL"), "{exit:?}\n{said}");

    // a bound that nothing meets, by another judgement
    workspace.set("gates.router.tight_score_error", 0.0);
    assert_eq!(status(&workspace).0, Some(1), "it would be judged again");
    workspace.build(&[TARGET]).exits(1);
    let (exit, said) = status(&workspace);
    assert!(exit == Some(1) && said.contains("FAIL"), "{exit:?}\n{said}");
    workspace.unset("gates.router.tight_score_error");
    assert_eq!(status(&workspace).0, Some(0));

    // a report that is corrupt in the cache is found out when it is read
    for file in files_below(&workspace.cache().join("blobs-1")) {
        let length = fs::metadata(&file).expect("a blob").len() as usize;
        fs::write(&file, vec![0xa5; length]).expect("a blob is overwritten");
    }
    let (exit, said) = status(&workspace);
    assert_eq!(exit, Some(1), "{said}");
    let again = workspace.build_well(&[TARGET]);
    again.says_as(&built, "made again");
    assert_eq!(status(&workspace).0, Some(0));
}

/// What is measured rests on weights: where they cannot be quantized, calibrate says why and fails.
#[test]
fn calibrate_fails_where_a_weight_cannot_be_quantized() {
    let workspace = tiny();
    let weights = workspace.own("tiny").join("model.safetensors");
    let router = "model.language_model.layers.5.mlp.gate.weight";
    edit_tensor(&weights, router, |bytes| bytes[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes()));
    let run = workspace.mica(&["calibrate"]).run().exits(1);
    let place = format!("mlp.gate.weight: element [0, 0] of {router} is NaN");
    assert!(run.stderr.contains(&place), "{}", run.stderr);
    let json = workspace.mica(&["calibrate", "--json"]).run().exits(1);
    let document: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(document["models"], Value::Array(Vec::new()));
}
