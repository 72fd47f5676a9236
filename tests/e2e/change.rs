//! What runs after one thing has changed, to the target.

use crate::{FROM_LAYER_5, NORM_5, nudge, tiny};
use mica_tests::{Workspace, names};
use toml::Value;

#[test]
fn one_edited_layer_runs_what_depends_on_it() {
    let workspace = tiny();
    workspace.own("tiny");
    workspace.build_well(&[]);
    nudge(&workspace.own("tiny"), NORM_5);
    // Timing is cut off early: the kernel is the same code.
    assert_eq!(workspace.build_well(&[]).ran(), names(&FROM_LAYER_5));
    assert!(workspace.build_well(&[]).ran().is_empty());
}

#[test]
fn a_changed_setting_runs_what_reads_it() {
    type Change = fn(&mut Workspace);
    let table: &[(&str, Change, &[&str])] = &[
        ("a threshold", |w| w.set("gates.decode.layer_cosine", 0.9), &["score:tiny.decode"]),
        (
            "the clock, which only timing reads",
            |w| w.set("device.sim.clock_mhz", 500),
            &["timing:tiny.kernel"],
        ),
        ("the bus, likewise", |w| w.set("device.sim.bus_bytes", 16), &["timing:tiny.kernel"]),
        (
            "tokens of the whole kernel",
            |w| w.set("model.tiny.whole_tokens", 3),
            &["simulate:tiny.kernel", "score:tiny.decode"],
        ),
        (
            "the head's format",
            |w| w.first_rule("w4a16", r#"pattern = "lm_head.weight", format = "f16""#),
            &[
                "{quantize,compile}:tiny.head",
                "reference:tiny.head.block{0,1,2}",
                "simulate:tiny.head.{free,forced}.block{0,1,2}",
                "{link,simulate,timing}:tiny.kernel",
                "score:tiny.decode",
            ],
        ),
        (
            "a component of full-attention layers alone, which are 3 and 7",
            |w| w.first_rule("w4a16", r#"pattern = "self_attn.k_proj.weight", format = "f16""#),
            &[
                "quantize:tiny.layer{3,7}",
                "compile:tiny.full_attention",
                "reference:tiny.{layer3,layer4,layer5,layer6,layer7,head}.block{0,1,2}",
                "simulate:tiny.{layer3,layer4,layer5,layer6,layer7,head}.{free,forced}.block{0,1,2}",
                "{link,simulate,timing}:tiny.kernel",
                "score:tiny.decode",
            ],
        ),
        (
            "the prompt's length: the first blocks are reused",
            |w| w.set("model.tiny.tokens", 19),
            &[
                "reference:tiny.{embed,layer0,layer1,layer2,layer3,layer4,layer5,layer6,layer7,head}.block2",
                "simulate:tiny.embed.block2",
                "simulate:tiny.{layer0,layer1,layer2,layer3,layer4,layer5,layer6,layer7,head}.{free,forced}.block2",
                "{simulate,timing}:tiny.kernel",
                "score:tiny.decode",
            ],
        ),
        ("a target of the workspace's own", |w| w.set("targets.mine", vec!["pack:tiny.*"]), &[]),
        ("the name of a cache folder that is not used", |w| w.set("cache", Value::from("unused")), &[]),
    ];
    for (what, change, expected) in table {
        let mut workspace = tiny();
        workspace.build_well(&[]);
        change(&mut workspace);
        let changed = workspace.build(&[]);
        assert_eq!(changed.ran(), names(expected), "{what}\n{}", changed.stderr);
    }
}

#[test]
fn invalidated_targets_and_no_others_run_again() {
    let workspace = tiny();
    let first = workspace.build_well(&[]);
    for (selector, expected) in [
        ("quantize:tiny.layer5", &["quantize:tiny.layer5"][..]),
        ("pack:tiny.layer[0..2]", &["pack:tiny.layer{0,1}"]),
        ("compile:tiny.*", &["compile:tiny.{embed,linear_attention,full_attention,head}"]),
        ("score:decode", &["score:tiny.decode"]),
        ("simulate:tiny.layer5.free", &["simulate:tiny.layer5.free.block{0,1,2}"]),
    ] {
        let forget = workspace.mica(&["invalidate", selector]).run().exits(0);
        assert_eq!(forget.stdout, "", "stdout is data");
        let again = workspace.build_well(&[]);
        // What runs again gives the same, so nothing after it does.
        assert_eq!(again.ran(), names(expected), "{selector}");
        again.says_as(&first, selector);
        assert!(workspace.build_well(&[]).ran().is_empty(), "{selector}");
    }
}

#[test]
fn what_one_workspace_forgets_another_keeps() {
    let one = tiny();
    one.build_well(&[]);
    let other = tiny().on_cache(Some(one.cache()));
    assert_eq!(other.build_well(&[]).ran(), names(&[]), "a colleague's results are as good as one's own");
    one.mica(&["invalidate", "score:decode", "pack:tiny.*"]).run().exits(0);
    assert_eq!(other.build_well(&[]).ran(), names(&[]));
    assert!(!one.build_well(&[]).ran().is_empty());
}

#[test]
fn everything_runs_when_forced() {
    let workspace = tiny();
    let first = workspace.build_well(&[]);
    let forced = workspace.build_well(&["-B"]);
    assert_eq!(forced.ran(), first.ran());
    assert_eq!(forced.keys(), first.keys());
    forced.says_as(&first, "the report");
}
