//! The first build and the second.

use crate::both;
use mica_fetch::testing::shipped;
use mica_tests::{Event, Status, fingerprint};

const FORMS: [&str; 2] = ["score:tiny.decode", "score:tiny-w4a16.decode"];

#[test]
fn a_first_build_passes_every_gate_and_a_second_runs_nothing() {
    let workspace = both();
    let first = workspace.build_well(&[]);
    for form in FORMS {
        let gates = first.gates(form);
        assert!(gates.len() > 10, "{gates:?}");
        assert!(gates.values().all(|pass| *pass == Some(true)), "{gates:?}");
        assert!(first.stdout.contains(form), "{}", first.stdout);
    }
    let Some(Event::Plan { targets, dry_run: false, actions, .. }) = first.events.first() else {
        panic!("{:?}", first.events.first());
    };
    assert_eq!(targets, &["decode"]);
    assert_eq!(*actions, first.ran().len() + first.with(Status::Memo).len());

    let second = workspace.build_well(&[]);
    assert!(second.ran().is_empty(), "{:?}", second.ran());
    assert_eq!(second.with(Status::Cached).len(), *actions);
    second.says_as(&first, "the report");
    assert_eq!(second.keys(), first.keys());
}

#[test]
fn the_report_reads_like_the_walkthrough() {
    let report = both().build_well(&[]).stdout;
    for line in [
        "token 0 device vs host float64: cosine 0.9",
        "token 19 chain: cosine 0.9",
        "): PASS -> ",
        "prompt '",
        "predicted ['",
        "perplexity: device ",
        "routing, free-running vs float64: flips ",
        "captures: of the unquantized model, in float64, by the published implementation",
        "captures: of the same weights, in float64, by the published implementation",
        "decode_loop (8 layers, 20 tokens, caches threaded): PASS",
    ] {
        assert!(report.contains(line), "no {line:?} in\n{report}");
    }
    assert!(!report.contains("worst relative error"), "a table of errors though all passed:\n{report}");
}

#[test]
fn nothing_is_written_beside_a_delivery() {
    let forms = ["tiny", "tiny-w4a16"].map(|name| shipped(name).canonicalize().expect("a delivery"));
    let before = forms.each_ref().map(|dir| fingerprint(dir));
    let workspace = both();
    workspace.build_well(&[]);
    assert_eq!(forms.each_ref().map(|dir| fingerprint(dir)), before);
    let own: Vec<_> = std::fs::read_dir(workspace.dir()).expect("the workspace").collect();
    assert_eq!(own.len(), 4, "workspace.toml, tests, cache and events alone: {own:?}");
}

#[test]
fn the_cache_is_beside_the_workspace_unless_told_otherwise() {
    let beside = both().on_cache(None);
    beside.build_well(&["pack:tiny.layer0"]);
    assert!(beside.dir().join(".mica/log-1").is_dir());
    let mut set = both().on_cache(None);
    set.set("cache", "of/its/own");
    set.build_well(&["pack:tiny.layer0"]);
    assert!(set.dir().join("of/its/own/log-1").is_dir() && !set.dir().join(".mica").exists());
}
