//! `mica synth` where it can't go on, and deliveries with captures of our own.

use crate::MICA;
use mica_fetch::testing::{edit_tensor, read_safetensors, shipped, write_safetensors};
use mica_tests::{Mica, Run, Workspace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// A delivery that meets a full disk halfway is told with what to do, and leaves nothing: no half delivery, and no
/// folder of its own.
#[test]
fn a_full_disk_leaves_no_half_delivery() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out");
    let synth = |blocks: &str| {
        // a limit of file sizes, in blocks of 512 bytes, fails a write as a full disk does, if it is no signal
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        Command::new("sh")
            .args([
                "-c",
                &script,
                MICA,
                "synth",
                "qwen3_5_35b_a3b",
                "--layers",
                "1",
                "--vocab",
                "16",
                "--out",
            ])
            .arg(&out)
            .output()
            .expect("a shell")
    };
    // the header fits, the first matrices do not
    let made = synth("9000");
    // as a line: the message is wrapped and framed for a terminal
    let told = String::from_utf8_lossy(&made.stderr).replace(['│', '╰', '─', '▶'], "");
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(made.status.code(), Some(2), "{told}");
    assert!(told.contains("out/model.safetensors: "), "{told}");
    assert!(told.contains("nothing is left behind: make room, or take fewer layers, --packed"), "{told}");
    assert_eq!(told.matches("make room").count(), 1, "{told}");
    assert!(made.stdout.is_empty(), "no workspace is named");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Dimensions at which a layer takes no time.
const SMALL: &str = "hidden_size=128,num_experts=16,num_experts_per_tok=4,moe_intermediate_size=128,\
    shared_expert_intermediate_size=128,num_attention_heads=4,head_dim=64,linear_num_key_heads=2,\
    linear_num_value_heads=4,linear_key_head_dim=32,linear_value_head_dim=32";
const SCORE: &str = "score:full.decode";
const CAPTURES: &str = "captures.safetensors";

/// Four layers with captures of our own.
fn captured(words: &[&str]) -> Workspace {
    let all = ["--layers", "4", "--vocab", "512", "--tokens", "6", "--set", SMALL, "--captures", "self"];
    Workspace::synthetic(MICA, &[&all, words].concat())
}

/// Verdicts of the gates on captures, by their ending.
fn on_captures(run: &Run, ending: &str) -> BTreeMap<String, Option<bool>> {
    let gates = run.gates(SCORE).into_iter().filter(|(name, _)| name.ends_with(ending));
    gates.map(|(name, pass)| (name.to_string(), pass)).collect()
}

fn failed(run: &Run) -> Vec<String> {
    run.gates(SCORE).into_iter().filter(|g| g.1 != Some(true)).map(|g| g.0.to_string()).collect()
}

/// A delivery with captures of our own is judged by them, in every form, and the build is well. It says that
/// nothing was compared with the published implementation.
#[test]
fn captures_of_our_own_judge_a_delivery() {
    let forms: [(&[&str], usize); 3] = [(&[], 12), (&["--packed"], 12), (&["--format", "bf16"], 1)];
    for (form, gates) in forms {
        let w = captured(form);
        let run = w.build_well(&[]);
        let own = on_captures(&run, "-vs-self");
        assert_eq!(own.len(), gates, "{form:?}: {own:?}");
        assert!(on_captures(&run, "-vs-capture").is_empty(), "{form:?}");
        for line in
            ["by our own evaluator\n", "PASS\noracle: self; nothing here was compared with the published"]
        {
            assert!(run.stdout.contains(line), "{form:?}: no {line:?} in\n{}", run.stdout);
        }
        let json: Value = serde_json::from_str(&w.build_well(&[SCORE, "--json"]).stdout).unwrap();
        assert_eq!(json["reports"][0]["score"]["decode"]["oracle"], "self");
        let status: Value = serde_json::from_str(&w.mica(&["status", SCORE, "--json"]).run().stdout).unwrap();
        assert_eq!(status["deliveries"][0]["captures_by"], "self");
        assert_eq!(status["deliveries"][0]["evaluator"], "float64 evaluator, numerics 1");
        let text = w.mica(&["status", SCORE]).run().exits(0).stdout;
        assert!(text.contains("self, float64 evaluator, numerics 1"), "{text}");
    }
}

/// The label is in the file: no word of the workspace makes captures of our own pass for the published
/// implementation's.
#[test]
fn a_label_of_our_own_survives_the_workspace() {
    let mut w = captured(&[]);
    w.set("delivery.full.captures.made_by", "published");
    let run = w.build_well(&[]);
    assert!(on_captures(&run, "-vs-capture").is_empty());
    w.unset("model.full.oracle");
    let run = w.build(&[]).exits(1);
    let asked = on_captures(&run, "-vs-capture");
    assert!(asked.len() == 12 && asked.values().all(Option::is_none), "{asked:?}");
    let own = on_captures(&run, "-vs-self");
    assert!(own.len() == 12 && own.values().all(|pass| *pass == Some(true)), "{own:?}");
    assert!(run.stderr.contains("was made by self, float64 evaluator, numerics 1"), "{}", run.stderr);
    // what kept them from passing is the label alone
    let file = w.dir().join(CAPTURES);
    write_safetensors(&file, &read_safetensors(&file));
    let asked = on_captures(&w.build_well(&[]), "-vs-capture");
    assert!(asked.len() == 12 && asked.values().all(|pass| *pass == Some(true)), "{asked:?}");
    // and the workspace can still say what they are
    w.set("delivery.full.captures.made_by", "self");
    let run = w.build(&[]).exits(1);
    let asked = on_captures(&run, "-vs-capture");
    assert!(asked.len() == 12 && asked.values().all(Option::is_none), "{asked:?}");
}

/// The twins of the gates on our own captures: a capture that is wrong, and a weight that is not the one they
/// were computed on.
#[test]
fn captures_and_weights_that_part_fail_the_gates() {
    let w = captured(&[]);
    edit_tensor(&w.dir().join(CAPTURES), "model.layers.2:float_output", |bytes| {
        // the lowest exponent bit: the value twice or half as large
        bytes[2] ^= 0x80;
    });
    let found = failed(&w.build(&[SCORE]).exits(1));
    assert!(found.contains(&"reference-layer-vs-self".into()), "{found:?}");
    assert!(
        found.iter().all(|gate| gate.starts_with("layer-") || gate.starts_with("reference-layer")),
        "{found:?}"
    );

    let w = captured(&[]);
    let norm = "model.language_model.layers.1.post_attention_layernorm.weight";
    edit_tensor(&w.dir().join("model.safetensors"), norm, |bytes| bytes[1] ^= 0x80);
    let run = w.build(&[SCORE]).exits(1);
    let found = failed(&run);
    assert!(found.contains(&"reference-layer-vs-self".into()), "{found:?}");
    assert!(
        found.iter().all(|gate| gate.ends_with("-vs-self")),
        "the chain has the weights that there are: {found:?}"
    );
}

/// A model that is to be judged by our own captures and has none is not judged.
#[test]
fn no_captures_are_no_pass() {
    let mut w = Workspace::synthetic(MICA, &["--layers", "4", "--vocab", "64", "--set", SMALL]);
    w.set("model.full.oracle", "self");
    let run = w.build(&[SCORE]).exits(1);
    let own = on_captures(&run, "-vs-self");
    assert!(own.len() == 12 && own.values().all(Option::is_none), "{own:?}");
}

/// Names, types and shapes are those of the shipped delivery, whose publisher's modules were captured.
#[test]
fn captures_are_called_and_shaped_as_the_published_ones() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out");
    let dimensions = "hidden_size=128,num_experts=16,num_experts_per_tok=4,moe_intermediate_size=64,\
        shared_expert_intermediate_size=64,num_attention_heads=4,head_dim=64,linear_num_key_heads=2,\
        linear_num_value_heads=4,linear_key_head_dim=32,linear_value_head_dim=32";
    let synth = |threads: &str| {
        let _ = fs::remove_dir_all(&out);
        let words =
            ["--layers", "8", "--vocab", "2048", "--tokens", "20", "--format", "bf16", "--set", dimensions];
        let mica = Mica::new(Path::new(MICA)).arg("synth").arg("qwen3_5_35b_a3b").arg("--out").arg(&out);
        let mica = words.iter().chain(&["--captures", "self"]).fold(mica, |mica, word| mica.arg(word));
        mica.env("RAYON_NUM_THREADS", threads).run().exits(0);
        fs::read(out.join(CAPTURES)).expect("captures")
    };
    assert!(synth("1") == synth("3"), "bytes depend on the number of threads");
    let form = |file: &Path| -> BTreeMap<String, (bool, Vec<u64>)> {
        let all = read_safetensors(file).into_iter();
        all.map(|t| (t.name, (t.dtype.is_float(), t.shape))).collect()
    };
    let mut published = form(&shipped("tiny").join("test_vectors_f64.safetensors"));
    // not captured here: states after every token, and a continuation of the prompt
    published.retain(|name, _| !name.ends_with("_steps") && name != "continuation_ids");
    let own = form(&out.join(CAPTURES));
    let apart: Vec<_> = own.iter().filter(|t| published.get(t.0) != Some(t.1)).collect();
    assert!(apart.is_empty(), "not as published: {apart:?}");
    let lacking: Vec<_> = published.keys().filter(|name| !own.contains_key(*name)).collect();
    assert!(lacking.is_empty(), "not captured: {lacking:?}");
}

/// A disk that fills up while captures are computed leaves no delivery.
#[test]
fn captures_that_are_not_whole_are_no_delivery() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out");
    let synth = |tokens: &str| {
        let mica = Mica::new(Path::new(MICA)).arg("synth").arg("qwen3_5_35b_a3b").arg("--out").arg(&out);
        let words = ["--layers", "4", "--vocab", "1024", "--packed", "--shard-size", "1", "--tokens", tokens];
        words.iter().chain(&["--set", SMALL, "--captures", "self"]).fold(mica, |mica, word| mica.arg(word))
    };
    // every tensor of the weights is smaller than 160 kB, the captured logits alone are not
    let full = synth("60").limited("trap '' XFSZ; ulimit -f 320").run();
    let told = full.stderr.replace(['│', '╰', '─', '▶'], "");
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(full.exit, Some(2), "{told}");
    assert!(told.contains("out/captures.safetensors: ") && told.contains("nothing is left behind"), "{told}");
    let left = || -> Vec<PathBuf> {
        fs::read_dir(dir.path()).expect("the folder").map(|e| e.expect("an entry").path()).collect()
    };
    assert!(left().is_empty(), "{:?}", left());
}

/// A run that is stopped while it writes leaves nothing and says so; what one that was killed had to leave goes with
/// the next run into the same folder, which touches nothing of a run that is alive.
#[test]
fn a_stopped_run_leaves_nothing_and_a_killed_one_until_the_next() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let within = |folder: &Path| -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|e| e.expect("an entry").path()).collect()
    };
    let left = || within(dir.path());
    let synth = |out: &str, tokens: &str| {
        let mica = Mica::new(Path::new(MICA)).arg("synth").arg("qwen3_5_35b_a3b");
        let words =
            ["--layers", "4", "--vocab", "1024", "--tokens", tokens, "--captures", "self", "--set", SMALL];
        words.iter().fold(mica, |mica, word| mica.arg(word)).arg("--out").arg(dir.path().join(out))
    };
    // starts a run that takes long and waits until it computes; gives its folder
    let start_in = |mica: &mut Mica, folder: &Path| {
        let before = within(folder);
        let mut child = mica.spawn();
        loop {
            let new: Vec<PathBuf> = within(folder).difference(&before).cloned().collect();
            if let Some(partial) = new.iter().find(|partial| partial.join(CAPTURES).exists()) {
                return (child, partial.clone());
            }
            assert!(child.try_wait().expect("a status").is_none(), "it ended before it was stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let start = |mica: &mut Mica| start_in(mica, dir.path());
    let stop = |child: &Child, signal| {
        kill_process(Pid::from_child(child), signal).expect("it is signalled");
    };

    for signal in [Signal::INT, Signal::TERM] {
        let mut mica = synth("new/folders/out", "20000");
        let (child, _) = start_in(&mut mica, &dir.path().join("new/folders"));
        stop(&child, signal);
        let run = mica.wait(child);
        assert_eq!(run.exit, None, "the signal ends it: {}", run.stderr);
        assert!(run.stderr.contains("stopped; nothing is left behind"), "{}", run.stderr);
        assert!(left().is_empty(), "{signal:?}: {:?}", left());
    }

    let mut killed = synth("out", "20000");
    let (child, dead) = start(&mut killed);
    stop(&child, Signal::KILL);
    killed.wait(child);
    assert_eq!(left(), BTreeSet::from([dead.clone()]), "no delivery");
    let mut long = synth("long", "20000");
    let (child, living) = start(&mut long);
    // the run that is alive has taken away what is dead
    assert_eq!(left(), BTreeSet::from([living.clone()]));
    let run = synth("out", "2").run().exits(0);
    assert!(!run.stderr.contains("removed"), "{}", run.stderr);
    assert_eq!(left(), BTreeSet::from([living.clone(), dir.path().join("out")]));
    stop(&child, Signal::KILL);
    let told = long.wait(child).stderr;
    assert!(told.contains(&format!("removed {}", dead.display())), "{told}");
    let run = synth("other", "2").run().exits(0);
    assert!(run.stderr.contains(&format!("removed {}, left by a run that was killed", living.display())));
    assert_eq!(left(), BTreeSet::from(["out", "other"].map(|name| dir.path().join(name))));
}

/// A few layers repeated add up in no direction of their own, and their embedding is left behind.
#[test]
fn repeated_layers_keep_their_residual_small() {
    let dimensions = "hidden_size=512,num_experts=8,num_experts_per_tok=4,moe_intermediate_size=256,\
        shared_expert_intermediate_size=128,num_attention_heads=4,head_dim=64,linear_num_key_heads=2,\
        linear_num_value_heads=4,linear_key_head_dim=32,linear_value_head_dim=32";
    let words = ["--layers", "8", "--distinct-layers", "4", "--vocab", "64", "--captures", "self"];
    let w = Workspace::synthetic(MICA, &[&words[..], &["--packed", "--set", dimensions]].concat());
    let json: Value = serde_json::from_str(&w.build_well(&[SCORE, "--json"]).stdout).unwrap();
    let difficulty = &json["reports"][0]["score"]["decode"]["difficulty"];
    // 0.53 was read; with codes of which each expert's mean is not zero it is 8
    assert!(difficulty["peak"]["value"].as_f64().unwrap().abs() < 1.0, "{difficulty}");
    assert!(difficulty["embed_to_last"].as_f64().unwrap() < 0.3, "{difficulty}");
    assert!(difficulty["embed_to_hidden"].as_f64().unwrap() < 0.3, "{difficulty}");
}
