//! A disk that takes no more.

use crate::tiny;
use mica_tests::{files_below, names};

/// Files end at this many blocks of 512 bytes, and the process is told so rather than killed.
fn limits(blocks: u32) -> String {
    format!("trap '' XFSZ; ulimit -f {blocks}")
}

#[test]
fn a_full_disk_is_an_error_and_the_cache_stays_sound() {
    let whole = tiny().build_well(&[]);
    for blocks in [0, 1, 40, 120, 400] {
        let workspace = tiny();
        let full = workspace.mica(&["build"]).limited(&limits(blocks)).run();
        let said = &full.stderr;
        assert!(matches!(full.exit, Some(1 | 2)), "{blocks} blocks: {:?}\n{said}", full.exit);
        assert!(
            said.contains("too large") && said.contains("cache/"),
            "{blocks} blocks: names no file or no reason\n{said}"
        );
        assert!(!full.stdout.contains("PASS"), "{blocks} blocks\n{}", full.stdout);
        workspace.mica(&["cache", "verify"]).run().exits(0);
        let built = workspace.build_well(&[]);
        built.says_as(&whole, "after a full disk");
        assert_eq!(built.keys(), whole.keys(), "{blocks} blocks");
        assert_eq!(workspace.build_well(&[]).ran(), names(&[]), "{blocks} blocks");
    }
}

#[test]
fn an_events_file_that_cannot_be_written_is_said_so() {
    let workspace = tiny();
    let events = workspace.dir().join("no/such/folder/events.jsonl");
    let run = workspace.mica(&["build", "--events", &events.to_string_lossy()]).run().exits(2);
    assert!(run.stderr.contains("no/such/folder/events.jsonl"), "{}", run.stderr);
    workspace.build_well(&["pack:tiny.layer0"]);
    let full = workspace.mica(&["build", "--events", "/dev/full"]).run();
    assert!(matches!(full.exit, Some(1 | 2)) && full.stderr.contains("/dev/full"), "{full:?}");
}

/// What is printed is wanted: where it can't all be written, the command does not end well, whatever it found.
#[test]
fn output_that_cannot_be_written_is_said_so() {
    let workspace = tiny();
    workspace.build_well(&["timing:tiny.kernel"]);
    for words in [
        &["build", "timing:tiny.kernel"][..],
        &["build", "timing:tiny.kernel", "--json"],
        &["build", "-n", "-B", "timing:tiny.kernel"],
        &["analyze", "tiny", "--json"],
        &["disasm", "link:tiny.kernel"],
        &["targets"],
        &["spec", "device"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
        &["cache", "gc", "-h"],
    ] {
        let full = workspace.mica(words).limited("exec >/dev/full").run().exits(2);
        assert!(full.stderr.contains("standard output: No space left"), "{words:?}: {}", full.stderr);
    }
}

/// A limit on the size of files ends no command without a word.
#[test]
fn a_limit_of_file_sizes_is_told_and_leaves_nothing() {
    let workspace = tiny();
    let full = workspace.mica(&["build"]).limited("ulimit -f 40").run().exits(1);
    assert!(full.stderr.contains("too large") && full.stderr.contains("cache/"), "{}", full.stderr);
    workspace.build_well(&["pack:tiny.layer0"]);
}

#[test]
fn a_cache_that_is_no_folder_is_refused() {
    let workspace = tiny();
    std::fs::write(workspace.cache(), "a person's own file").expect("a file is written");
    let run = workspace.mica(&["build"]).run().exits(2);
    assert!(run.stderr.contains("cache"), "{}", run.stderr);
    assert_eq!(std::fs::read(workspace.cache()).expect("the file"), b"a person's own file");
    assert!(files_below(workspace.dir()).len() > 2);
}
