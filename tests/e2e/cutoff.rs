//! Times and places decide nothing: only content does.

use crate::{NORM_5, nudge, tiny};
use mica_tests::{Workspace, names};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn weights(workspace: &Workspace) -> std::path::PathBuf {
    workspace.delivery("tiny").join("model.safetensors")
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).and_then(|f| f.set_modified(time)).expect("a time is set");
}

#[test]
fn equal_content_runs_nothing_whatever_its_stamp() {
    type Act = fn(&Path, SystemTime);
    let now = SystemTime::now();
    let table: &[(&str, Act)] = &[
        ("touched", |path, now| set_time(path, now)),
        ("from the future", |path, now| set_time(path, now + Duration::from_secs(86_400))),
        ("from the past", |path, now| set_time(path, now - Duration::from_secs(86_400))),
        ("rewritten in place", |path, _| {
            let bytes = fs::read(path).expect("the weights");
            fs::write(path, bytes).expect("the weights are written");
        }),
        ("replaced by its equal", |path, _| {
            let new = path.with_extension("new");
            fs::copy(path, &new).and_then(|_| fs::rename(&new, path)).expect("the weights are replaced");
        }),
    ];
    let workspace = tiny();
    workspace.own("tiny");
    let first = workspace.build_well(&[]);
    for (what, act) in table {
        act(&weights(&workspace), now);
        let built = workspace.build_well(&[]);
        assert_eq!(built.ran(), names(&[]), "{what}");
        built.says_as(&first, what);
    }
}

#[test]
fn changed_content_is_seen_whatever_its_stamp() {
    let workspace = tiny();
    workspace.own("tiny");
    let first = workspace.build_well(&[]);
    let before = fs::metadata(weights(&workspace)).and_then(|m| m.modified()).expect("a time");
    nudge(&workspace.delivery("tiny"), NORM_5);
    set_time(&weights(&workspace), before);
    let edited = workspace.build_well(&[]);
    assert!(edited.ran().contains("pack:tiny.layer5"), "an edit that keeps size and time");
    nudge(&workspace.delivery("tiny"), NORM_5);
    set_time(&weights(&workspace), before);
    let back = workspace.build_well(&[]);
    assert_eq!(back.ran(), names(&[]), "the old content has its old results");
    back.says_as(&first, "the report");
}

#[test]
fn a_cache_in_another_place_is_as_good() {
    let (workspace, other) = (tiny(), tiny());
    let first = workspace.build_well(&[]);
    mica_tests::copy_tree(&workspace.cache(), &other.cache());
    let second = other.build_well(&[]);
    assert_eq!(second.ran(), names(&[]));
    second.says_as(&first, "the report");
}
