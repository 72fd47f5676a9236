//! A cache that something else has written to: detected, a miss, made again.

use crate::tiny;
use mica_tests::{Status, Workspace, files_below, names};
use std::fs::{self, File};
use std::path::Path;

type Damage = fn(&Path);

fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a file of the cache");
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x40;
    }
    fs::write(path, bytes).expect("a file of the cache is written");
}

fn truncate(path: &Path) {
    let file = File::options().write(true).open(path).expect("a file of the cache");
    let length = file.metadata().expect("its size").len();
    file.set_len(length / 2).expect("a file of the cache is cut short");
}

fn empty(path: &Path) {
    fs::write(path, "").expect("a file of the cache is emptied");
}

fn delete(path: &Path) {
    fs::remove_file(path).expect("a file of the cache is removed");
}

fn garbage(path: &Path) {
    fs::write(path, [0xa5; 4096]).expect("a file of the cache is overwritten");
}

fn folder(path: &Path) {
    delete(path);
    fs::create_dir(path).expect("a folder in the place of a file of the cache");
}

const DAMAGES: [(&str, Damage); 6] = [
    ("flipped", flip),
    ("cut short", truncate),
    ("emptied", empty),
    ("removed", delete),
    ("overwritten", garbage),
    ("a folder", folder),
];

/// Damages every file below a folder of the cache.
fn damage(workspace: &Workspace, folder: &str, by: Damage) -> usize {
    let files = files_below(&workspace.cache().join(folder));
    files.iter().for_each(|file| by(file));
    files.len()
}

#[test]
fn damaged_blobs_are_made_again() {
    for (what, by) in DAMAGES {
        let workspace = tiny();
        let first = workspace.build_well(&[]);
        assert!(damage(&workspace, "blobs-1", by) > 50);
        let rebuilt = workspace.build_well(&[]);
        rebuilt.says_as(&first, what);
        assert!(!rebuilt.ran().is_empty(), "{what}");
        // however often it went round, a result that was made again in this build ran
        assert!(
            rebuilt.stderr.contains(&format!("\nran {}, reused ", rebuilt.with(Status::Ran).len())),
            "{what}: {}",
            rebuilt.stderr
        );
        // What is read from now on is read by stages that run, and each finds out for itself.
        workspace.mica(&["invalidate", "simulate:*", "score:*", "link:*"]).run().exits(0);
        let again = workspace.build_well(&[]);
        again.says_as(&first, what);
        assert_eq!(workspace.build_well(&[]).ran(), names(&[]), "{what}");
    }
}

#[test]
fn a_damaged_log_costs_time_and_nothing_else() {
    for (what, by) in DAMAGES {
        let workspace = tiny();
        let first = workspace.build_well(&[]);
        assert!(damage(&workspace, "log-1", by) > 0);
        let rebuilt = workspace.build_well(&[]);
        rebuilt.says_as(&first, what);
        assert_eq!(rebuilt.keys(), first.keys(), "{what}");
        // One flipped byte loses one line of the log, which may be one that nothing hangs on.
        assert!(what == "flipped" || !rebuilt.ran().is_empty(), "{what}");
        assert_eq!(workspace.build_well(&[]).ran(), names(&[]), "{what}");
    }
}

#[test]
fn a_damaged_stamp_memo_costs_time_and_nothing_else() {
    for (what, by) in DAMAGES {
        let workspace = tiny();
        let first = workspace.build_well(&[]);
        by(&workspace.cache().join("stamps"));
        let second = workspace.build_well(&[]);
        assert_eq!(second.ran(), names(&[]), "{what}");
        second.says_as(&first, what);
    }
}

#[test]
fn verify_finds_what_is_damaged() {
    let workspace = tiny();
    let first = workspace.build_well(&[]);
    let files = files_below(&workspace.cache().join("blobs-1"));
    let chosen: Vec<_> = files.iter().step_by(17).collect();
    chosen.iter().for_each(|file| flip(file));
    let verify = workspace.mica(&["cache", "verify"]).run().exits(1);
    assert_eq!(verify.stdout.matches("corrupt, dropped").count(), chosen.len(), "{}", verify.stdout);
    workspace.mica(&["cache", "verify"]).run().exits(0);
    let rebuilt = workspace.build_well(&[]);
    rebuilt.says_as(&first, "the report");
    assert_eq!(workspace.build_well(&[]).ran(), names(&[]));
}

/// What somebody keeps where a blob belongs is not ours to remove: it is named, and all is well once it is gone.
#[test]
fn what_is_kept_in_the_place_of_a_blob_is_named() {
    let workspace = tiny();
    let target = "pack:tiny.layer0";
    let first = workspace.build_well(&[target]);
    let blobs = files_below(&workspace.cache().join("blobs-1"));
    let taken = &blobs[0];
    folder(taken);
    fs::write(taken.join("note"), "a person's own").expect("a file is written");
    let run = workspace.build(&[target]).exits(1);
    let named = format!("{taken:?} is a folder where a blob belongs, and not empty: move it away");
    assert!(run.stderr.contains(&named) && taken.join("note").exists(), "{}", run.stderr);
    let verified = workspace.mica(&["cache", "verify"]).run().exits(1).stdout;
    assert!(verified.contains(&format!("not empty: {}; move it away", taken.display())), "{verified}");
    for command in [&["cache", "gc"][..], &["cache", "stats"], &["status"]] {
        assert!(workspace.mica(command).run().exit.is_some_and(|exit| exit < 2), "{command:?}");
    }
    fs::remove_dir_all(taken).expect("it is moved away");
    workspace.build_well(&[target]).says_as(&first, "made again");
}
