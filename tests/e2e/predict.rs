//! `-n` and `why` say what the next build does, and why.

use crate::{NORM_5, nudge, tiny};
use mica_tests::{Run, Status, Workspace};
use serde_json::Value;
use std::collections::BTreeSet;

/// Checks what a dry run says against what the next build does.
fn predicts(what: &str, workspace: &Workspace, words: &[&str]) -> (Run, Run) {
    let dry = workspace.build_well(&[&["-n"], words].concat());
    let again = workspace.build_well(&[&["-n"], words].concat());
    let (would, might) = (dry.with(Status::WouldRun), dry.with(Status::MightRun));
    assert_eq!(
        (&again.with(Status::WouldRun), &again.with(Status::MightRun)),
        (&would, &might),
        "{what}: a dry run is dry"
    );
    assert!(dry.with(Status::Ran).is_empty(), "{what}");
    let json: Value =
        serde_json::from_str(&workspace.build_well(&[&["-n", "--json"], words].concat()).stdout)
            .expect("JSON");
    let actions = json["actions"].as_array().expect("actions");
    let planned = |status: &str| -> BTreeSet<String> {
        let of = actions.iter().filter(|a| a["status"] == status);
        of.map(|a| a["target"].as_str().expect("a target").to_string()).collect()
    };
    assert_eq!((planned("would_run"), planned("might_run")), (would.clone(), might.clone()), "{what}");
    assert_eq!(json["errors"], Value::Array(Vec::new()), "{what}: nothing failed");
    let listed = |word: &str| dry.stdout.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!((listed("run "), listed("maybe ")), (would.len(), might.len()), "{what}\n{}", dry.stdout);
    assert_eq!(dry.stdout.lines().count(), would.len() + might.len(), "{what}\n{}", dry.stdout);

    let real = workspace.build_well(words);
    let ran = real.ran();
    assert!(would.is_subset(&ran), "{what}: said to run and did not: {:?}", would.difference(&ran));
    let foretold = &would | &might;
    assert!(ran.is_subset(&foretold), "{what}: ran unforetold: {:?}", ran.difference(&foretold));
    (dry, real)
}

#[test]
fn a_dry_run_says_what_runs() {
    let workspace = tiny();
    workspace.own("tiny");
    let (dry, _) = predicts("a fresh cache", &workspace, &[]);
    assert!(dry.with(Status::Cached).is_empty());
    let (dry, _) = predicts("nothing changed", &workspace, &[]);
    assert_eq!(dry.stdout, "");
    nudge(&workspace.own("tiny"), NORM_5);
    let (dry, _) = predicts("one layer changed", &workspace, &[]);
    assert!(dry.with(Status::WouldRun).contains("pack:tiny.layer5"), "{}", dry.stdout);
    assert!(dry.with(Status::Cached).contains("simulate:tiny.layer4.free.block0"), "{}", dry.stdout);
    workspace.mica(&["invalidate", "quantize:tiny.layer2"]).run().exits(0);
    let (dry, real) = predicts("a forgotten result", &workspace, &[]);
    assert!(dry.stdout.contains("run    quantize:tiny.layer2  (invalidated)"), "{}", dry.stdout);
    assert_eq!(real.ran().len(), 1, "what it would have reached came out the same");
    predicts("everything forced", &workspace, &["-B"]);
    predicts("a part of the targets", &workspace, &["quantize:tiny.layer[2..4]"]);
}

#[test]
fn why_names_the_first_input_that_differs() {
    let mut workspace = tiny();
    workspace.own("tiny");
    let why = |workspace: &Workspace, target: &str| workspace.mica(&["why", target]).run().exits(0).stdout;
    assert_eq!(why(&workspace, "pack:tiny.layer5").lines().count(), 1);
    assert!(why(&workspace, "compile:tiny.head").contains("would run: first build"));
    let before = workspace.build_well(&[]);
    assert_eq!(why(&workspace, "pack:tiny.layer5"), "pack:tiny.layer5: up to date\n");

    nudge(&workspace.own("tiny"), NORM_5);
    let layer = why(&workspace, "pack:tiny.layer5");
    assert!(layer.contains("input input_layernorm.weight"), "{layer}");
    let old_and_new = layer.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() >= 8).count();
    assert_eq!(old_and_new, 2, "the old and the new digest: {layer}");
    let score = why(&workspace, "score:tiny.decode");
    assert!(score.contains("layer5") && score.contains("input input_layernorm.weight"), "{score}");
    assert_eq!(why(&workspace, "pack:tiny.layer4"), "pack:tiny.layer4: up to date\n");
    assert_ne!(workspace.build_well(&[]).keys(), before.keys());

    workspace.set("gates.decode.layer_cosine", 0.5);
    let threshold = why(&workspace, "score:tiny.decode");
    assert!(threshold.contains("param thresholds") && threshold.contains("layer_cosine: 0.5"), "{threshold}");
    workspace.set("device.sim.clock_mhz", 500);
    let clock = why(&workspace, "timing:tiny.kernel");
    assert!(clock.contains("param clock_mhz") && clock.contains("1000") && clock.contains("500"), "{clock}");
}
