//! Threads, several builds at once, and builds that are killed.

use crate::{both, tiny};
use mica_tests::names;
use std::time::Instant;

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let runs = ["-j1", "-j2", "-j4", "-j16"].map(|jobs| both().build_well(&[jobs]));
    for run in &runs[1..] {
        // A key holds the digests of its inputs, so equal keys are equal outputs all the way.
        assert_eq!(run.keys(), runs[0].keys());
        run.says_as(&runs[0], "the report");
    }
}

#[test]
fn two_builds_on_one_cache_both_succeed() {
    let alone = tiny().build_well(&[]);
    let one = tiny();
    let other = tiny().on_cache(Some(one.cache()));
    let mut builds = [&one, &other].map(|workspace| workspace.mica(&["build"]));
    let children = builds.each_mut().map(|mica| mica.spawn());
    for (mica, child) in builds.iter().zip(children) {
        mica.wait(child).exits(0).says_as(&alone, "at the same time");
    }
    assert_eq!(one.build_well(&[]).ran(), names(&[]));
}

#[test]
fn a_killed_build_loses_nothing_that_was_done() {
    let start = Instant::now();
    let whole = tiny().build_well(&["-j1"]);
    let time = start.elapsed();
    let workspace = tiny();
    for percent in [3, 10, 25, 45, 70, 90] {
        let mut build = workspace.mica(&["build", "-j1"]);
        let mut child = build.spawn();
        std::thread::sleep(time * percent / 100);
        child.kill().expect("the build is killed");
        build.wait(child);
    }
    let finished = workspace.build_well(&[]);
    finished.says_as(&whole, "the report");
    assert_eq!(finished.keys(), whole.keys());
    assert!(finished.ran().len() < whole.ran().len(), "what was done before the kill is reused");
    assert_eq!(workspace.build_well(&[]).ran(), names(&[]));
    let verify = workspace.mica(&["cache", "verify"]).run().exits(0);
    assert!(verify.stdout.contains("are good"), "{}", verify.stdout);
    let left = std::fs::read_dir(workspace.cache().join("tmp")).map_or(0, Iterator::count);
    assert!(left == 0, "{left} temporaries of killed builds are left");
}

#[test]
fn a_reader_that_goes_away_stops_no_build() {
    // As with `mica build | head`, and with `2>&1` before it.
    for both in [false, true] {
        let workspace = tiny();
        let mut build = workspace.mica(&["build"]);
        let mut child = build.spawn();
        drop(child.stdout.take());
        if both {
            drop(child.stderr.take());
        }
        let run = build.wait(child);
        assert_eq!(run.exit, Some(0), "standard error closed too: {both}\n{}", run.stderr);
        assert_eq!(workspace.build_well(&[]).ran(), names(&[]));
    }
}
