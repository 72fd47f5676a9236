//! Targets with a parameter, and a text of one's own.

use crate::{MICA, tiny};
use mica_tests::{Status, Workspace, files_below, names};

#[test]
fn a_shorter_model_shares_what_its_layers_need() {
    let workspace = tiny();
    workspace.build_well(&[]);
    let shorter = workspace.build_well(&["decode[layers=3]"]);
    let ran = names(&[
        "{link,simulate}:tiny[layers=3].kernel",
        "timing:tiny[layers=3].kernel",
        "reference:tiny[layers=3].head.block{0,1,2}",
        "simulate:tiny[layers=3].head.{free,forced}.block{0,1,2}",
        "score:tiny[layers=3].decode",
    ]);
    assert!(shorter.ran().is_subset(&ran), "{:?}", shorter.ran());
    assert!(shorter.with(Status::Ran).contains("score:tiny[layers=3].decode"));
    assert!(shorter.stdout.contains("decode_loop (3 layers, 20 tokens, caches threaded): PASS"));
    let gates = shorter.gates("score:tiny[layers=3].decode");
    assert!(gates.values().all(|pass| *pass == Some(true)), "{gates:?}");
    // the captured end of the whole model is no reference of a shorter one
    assert!(!gates.contains_key("token-vs-capture") && gates.contains_key("chain-cosine-vs-capture"));

    let refused = workspace.build(&["decode[layers=9]"]).exits(1);
    assert!(refused.stderr.contains("9 layers are asked for"), "{}", refused.stderr);
    let refused = workspace.build(&["decode[layers=0]"]).exits(2);
    assert!(refused.stderr.contains("at least one layer"), "{}", refused.stderr);
}

/// The quantized model on a text of the test's.
fn with_text(text: &str, tokens: i64) -> Workspace {
    let mut workspace = Workspace::only(MICA, "tiny-w4a16");
    std::fs::write(workspace.dir().join("text.txt"), text).expect("a text is written");
    workspace.set("model.tiny-w4a16.perplexity.text", "text.txt");
    workspace.set("model.tiny-w4a16.perplexity.tokens", tokens);
    workspace
}

const TARGET: &str = "score:tiny-w4a16.perplexity";

#[test]
fn a_text_is_scored_and_another_bound_judges_it_again() {
    let mut workspace = with_text("It was the best of friends, and she knew that he would come.", 12);
    let first = workspace.build_well(&[TARGET]);
    let line = first.stdout.lines().find(|l| l.starts_with("perplexity (text.txt, 12 tokens): PASS"));
    assert!(line.is_some(), "{}", first.stdout);
    assert_eq!(workspace.build_well(&[TARGET]).ran(), names(&[]));
    workspace.set("gates.perplexity.divergence", 0.0);
    let judged = workspace.build(&[TARGET]).exits(1);
    assert_eq!(judged.ran(), names(&[TARGET]));
    assert_eq!(judged.gates(TARGET)["divergence"], Some(false));
    // a text that begins with the same tokens is the same run
    let same = with_text("It was the best of friends, and she knew that he would stay.", 12);
    let same = same.on_cache(Some(workspace.cache())).build_well(&[TARGET]);
    let expected = names(&["fetch:tiny-w4a16.perplexity.ids"]);
    assert_eq!(same.ran(), expected);
}

#[test]
fn lost_ids_are_made_again() {
    let workspace = with_text("It was the best of friends, and she knew that he would come.", 12);
    let first = workspace.build_well(&[TARGET]);
    let ids = files_below(&workspace.cache().join("blobs-1"));
    let ids: Vec<_> = ids.iter().filter(|f| std::fs::metadata(f).is_ok_and(|m| m.len() == 13 * 8)).collect();
    assert!(!ids.is_empty());
    for file in ids {
        std::fs::write(file, [0xa5; 13 * 8]).expect("the ids are overwritten");
    }
    workspace.build_well(&[TARGET]).says_as(&first, "made again");
}

#[test]
fn a_text_that_cannot_be_scored_is_refused() {
    let short = with_text("Emma.", 12).build(&[TARGET]).exits(1);
    assert!(short.stderr.contains("text.txt has") && short.stderr.contains("perplexity.tokens"));
    let long = with_text("Emma.", 257).build(&[TARGET]).exits(2);
    assert!(long.stderr.contains("capacity"), "{}", long.stderr);
    let binary = with_text("Emma.", 1);
    std::fs::write(binary.dir().join("text.txt"), [0xff, 0xfe]).expect("bytes are written");
    let refused = binary.build(&[TARGET]).exits(2);
    assert!(refused.stderr.contains("not UTF-8"), "{}", refused.stderr);
}
