//! Calls of several tokens, from a delivery to the verdict.

use crate::{MICA, tiny};
use mica_tests::{Workspace, names};

/// Twenty tokens are six calls of three and two tokens more; the segments they are compared with run token by token.
#[test]
fn a_whole_kernel_of_calls_passes_every_gate() {
    let workspace = tiny();
    workspace.build_well(&[]);
    let run = workspace.build_well(&["decode[call=3]"]);
    let ran = names(&[
        "compile:tiny[call=3].{embed,linear_attention,full_attention,head}.call3",
        "{link,simulate,timing}:tiny[call=3].kernel",
        "score:tiny[call=3].decode",
    ]);
    // what is of one token a call is the plain model's, and found
    assert_eq!(run.ran(), ran);
    let gates = run.gates("score:tiny[call=3].decode");
    assert_eq!(gates["whole-kernel"], Some(true));
    assert!(gates.values().all(|pass| *pass == Some(true)), "{gates:?}");
    assert!(run.stdout.contains("a call of 3 tokens at positions 17 to 19"), "{}", run.stdout);
    assert_eq!(workspace.build_well(&["decode[call=3]"]).ran(), names(&[]));
    // the same of a workspace that says so itself
    let mut said = tiny();
    said.set("model.tiny.tokens_per_call", 3);
    let said = said.on_cache(Some(workspace.cache())).build_well(&[]);
    assert_eq!(said.ran(), names(&[]));
}

/// Four steps of a DeltaNet, two tokens of attention behind five: one call each, judged as they are step by step.
#[test]
fn validations_run_their_steps_in_one_call() {
    let workspace = Workspace::shipped(MICA);
    for (plain, called) in [
        ("score:ops.deltanet[steps=4]", "score:ops[call=4].deltanet[steps=4]"),
        ("score:ops.attention[tokens=2,prior=5]", "score:ops[call=2].attention[tokens=2,prior=5]"),
        ("score:ops-w4a16.resume", "score:ops-w4a16[call=2].resume"),
    ] {
        let (one, several) = (workspace.build_well(&[plain]), workspace.build_well(&[called]));
        let (one, several) = (one.gates(plain), several.gates(called));
        assert!(!one.is_empty() && one == several, "{called}: {several:?}");
    }
}

/// Constants that come on edges come once a call, for all its tokens.
#[test]
fn constants_on_edges_serve_calls_of_several_tokens() {
    let mut workspace = tiny();
    workspace.set("device.sim.constants", "edges");
    let target = "score:tiny[layers=1,call=3].decode";
    let run = workspace.build_well(&[target]);
    let gates = run.gates(target);
    assert_eq!(gates["whole-kernel"], Some(true));
    assert!(gates.values().all(|pass| *pass == Some(true)), "{gates:?}");
}

#[test]
fn the_debugger_stops_in_the_call_of_a_token() {
    let mut workspace = tiny();
    workspace.set("model.tiny.tokens_per_call", 3);
    let dump = ["debug", "tiny", "--token", "7", "--dump", "layer2:topk mlp.gate"];
    let run = workspace.mica(&dump).run().exits(0);
    // once for each of the call's tokens
    assert_eq!(run.stdout.matches("topk mlp.gate left").count(), 3, "{}", run.stdout);
    let refused = workspace.mica(&["debug", "tiny", "--token", "19"]).run().exits(2);
    assert!(refused.stderr.contains("takes 3 tokens from 18"), "{}", refused.stderr);
    let rest = ["debug", "link:tiny.rest", "--token", "19", "--dump", "layer2:topk mlp.gate"];
    let run = workspace.mica(&rest).run().exits(0);
    assert_eq!(run.stdout.matches("topk mlp.gate left").count(), 1, "{}", run.stdout);
}

#[test]
fn calls_that_no_memory_holds_are_refused_with_figures() {
    let mut workspace = tiny();
    workspace.set("device.sim.product", "qb1");
    let run = workspace.build(&["link:tiny[call=100].kernel"]).exits(1);
    assert!(
        run.stderr.contains("bytes of LRM") && run.stderr.contains("100 tokens a call"),
        "{}",
        run.stderr
    );
}
