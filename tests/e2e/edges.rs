//! Constants on edges: the same results as baked ones as far as entry pointers go, and then the error that says so.

use crate::both;
use mica_tests::Workspace;

fn on_edges() -> Workspace {
    let mut workspace = both();
    workspace.set("device.sim.constants", "edges");
    workspace
}

#[test]
fn one_part_gives_the_same_report() {
    let asked =
        ["score:ops.moe-block", "score:ops.attention[tokens=2]", "score:ops.deltanet", "score:tiny.embed"];
    let (baked, edges) = (both().build_well(&asked), on_edges().build_well(&asked));
    assert!(baked.stdout.contains("PASS"), "{}", baked.stdout);
    edges.says_as(&baked, "constants on edges");
    // it is not the same action: a kernel linked so takes its constants as it runs
    assert_ne!(edges.keys(), baked.keys());
}

/// A model short enough for the entries that there are, from delivery to verdict: the kernel, the segments and the
/// reference agree as they do when constants are baked.
#[test]
fn a_short_model_gives_the_same_report() {
    let asked = ["score:*[layers=1].decode"];
    let (baked, edges) = (both().build_well(&asked), on_edges().build_well(&asked));
    assert!(baked.stdout.contains("PASS"), "{}", baked.stdout);
    edges.says_as(&baked, "constants on edges");
    let entries = |run: &mica_tests::Run| {
        let line = run.stdout.lines().find(|l| l.contains("entry pointers")).map(str::to_owned);
        line.and_then(|l| l.split("entry pointers ").nth(1).map(str::to_owned))
    };
    let timed = ["timing:tiny[layers=1].kernel"];
    let (baked, edges) = (both().build_well(&timed), on_edges().build_well(&timed));
    assert_eq!([entries(&baked), entries(&edges)], [Some("10 of 15".into()), Some("13 of 15".into())]);
}

#[test]
fn a_whole_model_of_too_many_parts_is_refused() {
    let run = on_edges().build(&["link:tiny.kernel"]).exits(1);
    for word in
        ["25 edges and qb16 has 15 entry pointers", "weights.9.in", "10 of them are the constants", "baked"]
    {
        assert!(run.stderr.contains(word), "no {word:?} in\n{}", run.stderr);
    }
    let wrong = |mut workspace: Workspace| {
        workspace.set("device.sim.constants", "edge");
        workspace.build(&[]).exits(2)
    };
    let run = wrong(both());
    assert!(run.stderr.contains("baked") && run.stderr.contains("edges"), "{}", run.stderr);
}
