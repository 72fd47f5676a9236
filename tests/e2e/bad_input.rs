//! What is wrong with a delivery or a workspace is named, with what to do, and costs the cache nothing.

use crate::{both, tiny};
use mica_fetch::testing::{
    NewTensor, edit_tensor, read_safetensors, remove_tensor, shard, write_safetensors,
};
use mica_tests::{Run, Workspace, names};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// One thing that is wrong, the exit status, and words of the message.
type Case = (&'static str, fn(&mut Workspace), i32, &'static [&'static str]);

const LAYER_5: &str = "model.language_model.layers.5";
const LAYER_5_GATE: &str = "model.language_model.layers.5.mlp.gate.weight";

fn weights(workspace: &Workspace) -> PathBuf {
    workspace.own("tiny").join("model.safetensors")
}

/// Rewrites the weights with their tensors changed.
fn rewrite(workspace: &Workspace, change: fn(&mut Vec<NewTensor>)) {
    let path = weights(workspace);
    let mut tensors = read_safetensors(&path);
    change(&mut tensors);
    write_safetensors(&path, &tensors);
}

fn norm(tensors: &mut [NewTensor]) -> &mut NewTensor {
    let name = format!("{LAYER_5}.input_layernorm.weight");
    tensors.iter_mut().find(|t| t.name == name).expect("a norm weight")
}

/// Rewrites the config's text fields.
fn config(workspace: &Workspace, change: fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = workspace.own("tiny").join("config.json");
    let mut value: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    change(value["text_config"].as_object_mut().expect("a text config"));
    fs::write(path, value.to_string()).expect("a config is written");
}

fn cut(path: &Path, by: u64) {
    let file = File::options().write(true).open(path).expect("the weights");
    let length = file.metadata().expect("their size").len();
    file.set_len(length - by).expect("they are cut short");
}

const DELIVERIES: &[Case] = &[
    (
        "weights cut short",
        |w| cut(&weights(w), 1000),
        1,
        &["model.safetensors", "tensor model.language_model.layers.7", "cut short"],
    ),
    (
        "weights that are no safetensors",
        |w| fs::write(weights(w), "<html>not found</html>").expect("written"),
        1,
        &["model.safetensors", "download"],
    ),
    (
        "a shard that the disk lacks",
        |w| {
            let dir = w.own("tiny");
            shard(&dir, 3);
            fs::remove_file(dir.join("model.safetensors-00002-of-00003.safetensors")).expect("removed");
        },
        1,
        &["model.safetensors.index.json", "model.safetensors-00002-of-00003.safetensors", "download"],
    ),
    (
        "a tensor of a wrong shape",
        |w| rewrite(w, |tensors| norm(tensors).shape = vec![2, 64]),
        1,
        &["layer5", "layers.5.input_layernorm.weight", "[2, 64]", "[128]", "config"],
    ),
    (
        "a tensor of a wrong dtype",
        |w| rewrite(w, |tensors| norm(tensors).dtype = "I16".parse().expect("a dtype")),
        1,
        &["layer5", "layers.5.input_layernorm.weight", "I16", "expected"],
    ),
    (
        "a missing tensor",
        |w| remove_tensor(&weights(w), &format!("{LAYER_5}.mlp.gate.weight")),
        1,
        &["layer5", "mlp.gate.weight", "tried", "model.language_model.layers.5.mlp.gate.weight"],
    ),
    (
        "a tensor that nobody reads",
        |w| {
            rewrite(w, |tensors| {
                tensors.push(NewTensor::f32("model.language_model.layers.5.mlp.gate.bias", &[1], &[0.0]))
            })
        },
        1,
        &["layers.5.mlp.gate.bias", "does not read"],
    ),
    (
        "a scale beside a tensor that is not quantized",
        |w| {
            rewrite(w, |tensors| {
                tensors.push(NewTensor::f32(
                    "model.language_model.layers.5.mlp.gate.w_scale",
                    &[16, 1],
                    &[1.0; 16],
                ))
            })
        },
        1,
        &["layer5", "layers.5.mlp.gate.w_scale", "not quantized", "remove"],
    ),
    (
        "one tensor under two names",
        |w| {
            rewrite(w, |tensors| {
                let twin = NewTensor {
                    name: "model.layers.5.input_layernorm.weight".into(),
                    ..norm(tensors).clone()
                };
                tensors.push(twin);
            });
        },
        1,
        &["layer5", "model.layers.5.input_layernorm.weight", LAYER_5],
    ),
    (
        "NaN in a weight",
        |w| {
            let router = format!("{LAYER_5}.mlp.gate.weight");
            edit_tensor(&weights(w), &router, |bytes| bytes[6..8].copy_from_slice(&0x7fc0_u16.to_le_bytes()));
        },
        1,
        &["quantize:tiny.layer5: mlp.gate.weight: element [0, 3] of", LAYER_5_GATE, "is NaN", "repair"],
    ),
    (
        "NaN in a weight that the model lays out otherwise",
        |w| {
            let conv = format!("{LAYER_5}.linear_attn.conv1d.weight");
            // four taps a channel
            edit_tensor(&weights(w), &conv, |bytes| {
                bytes[2 * (4 * 7 + 1)..][..2].copy_from_slice(&0x7fc0_u16.to_le_bytes())
            });
        },
        1,
        &["linear_attn.conv1d.weight: element [7, 0, 1] of", "5.linear_attn.conv1d.weight is NaN", "repair"],
    ),
    (
        "a missing config field",
        |w| config(w, |fields| drop(fields.remove("head_dim"))),
        1,
        &["head_dim", "missing", "tiny"],
    ),
    (
        "a config field of a wrong kind",
        |w| config(w, |fields| drop(fields.insert("num_experts".into(), "sixteen".into()))),
        1,
        &["num_experts", "sixteen", "expected"],
    ),
    (
        "a config of other dimensions",
        |w| config(w, |fields| drop(fields.insert("moe_intermediate_size".into(), 32.into()))),
        1,
        &["mlp.experts", "[16, 128, 128]", "[16, 64, 128]", "config"],
    ),
    (
        "a config that is no JSON",
        |w| fs::write(w.own("tiny").join("config.json"), "{\n \"text_config\": oops").expect("written"),
        1,
        &["config.json:2:"],
    ),
    (
        "a missing config",
        |w| fs::remove_file(w.own("tiny").join("config.json")).expect("removed"),
        1,
        &["config.json", "config ="],
    ),
    (
        "missing captures",
        |w| fs::remove_file(w.own("tiny").join("test_vectors_f64.safetensors")).expect("removed"),
        1,
        &["test_vectors_f64.safetensors", "captures"],
    ),
    (
        "captures without a prompt",
        |w| write_safetensors(&w.own("tiny").join("test_vectors_f64.safetensors"), &[]),
        2,
        &[
            "warning: [delivery.tiny] captures:",
            "has no input_ids, so there are no tokens",
            "\"score:*.decode\"",
        ],
    ),
    (
        "no weights at all",
        |w| fs::remove_file(weights(w)).expect("removed"),
        1,
        &["no model.safetensors", "name the weights file"],
    ),
    (
        "no delivery at all",
        |w| fs::remove_dir_all(w.own("tiny")).expect("removed"),
        1,
        &["tests/delivery/tiny", "No such file"],
    ),
];

const WORKSPACES: &[Case] = &[
    (
        "an unknown key",
        |w| w.append("\n[model.tiny.extra]\nx = 1\n"),
        2,
        &["workspace.toml", "line ", "extra", "unknown field"],
    ),
    (
        "an unknown key at the top",
        |w| w.append("\n[divice.sim]\nproduct = \"qb16\"\n"),
        2,
        &["line ", "divice", "device"],
    ),
    ("no TOML", |w| w.append("\n[model.tiny\n"), 2, &["workspace.toml", "line "]),
    (
        "a recipe that is not there",
        |w| w.set("model.tiny.recipe", "w4a61"),
        2,
        &["\"w4a61\"", "is it \"w4a16\"?"],
    ),
    (
        "a model that nobody described",
        |w| w.set("model.tiny.description", "llama"),
        1,
        &["llama", "qwen3_5_35b_a3b"],
    ),
    (
        "a product that does not exist",
        |w| w.set("device.sim.product", "qb64"),
        2,
        &["[device.sim]", "qb64", "qb16"],
    ),
    (
        "a bus that does not exist",
        |w| w.set("device.sim.bus_bytes", 12),
        2,
        &["[device.sim]", "bus_bytes", "8, 16 or 32"],
    ),
    (
        "a cache shorter than the prompt",
        |w| w.set("model.tiny.capacity", 4),
        2,
        &["[model.tiny]", "capacity", "raise"],
    ),
    (
        "a cache longer than the model",
        |w| w.set("model.tiny.capacity", 4097),
        2,
        &["[model.tiny] capacity = 4097", "the model's config ends at 4096 positions"],
    ),
    (
        "a kernel that runs no token",
        |w| w.set("model.tiny.whole_tokens", 0),
        2,
        &["[model.tiny]", "whole_tokens", "at least 1"],
    ),
    (
        "a format that does not exist",
        |w| w.first_rule("w4a16", r#"pattern = "*", format = "i5""#),
        2,
        &["i5", "line "],
    ),
    (
        "a group that divides no row",
        |w| w.first_rule("w4a16", r#"pattern = "mlp.experts.*", format = "i4", group = 48, scale = "f16""#),
        1,
        &["mlp.experts", "48", "divides"],
    ),
    (
        "a workspace that is not there",
        |w| fs::remove_file(w.dir().join("workspace.toml")).expect("removed"),
        2,
        &["workspace.toml", "-C"],
    ),
];

/// Breaks a workspace whose cache is filled, one thing at a time, then mends it.
fn refuses(cases: &[Case]) {
    let filled = tiny();
    let good = filled.build_well(&[]);
    let mut wrong = String::new();
    for (what, break_it, exit, words) in cases {
        let mut workspace = tiny().on_cache(Some(filled.cache()));
        break_it(&mut workspace);
        let run = workspace.build(&[]);
        let said = unwrapped(&run.stderr);
        let unsaid: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
        if run.exit != Some(*exit) || !unsaid.is_empty() || !run.stdout.trim().is_empty() {
            let Run { exit, stdout, stderr, .. } = run;
            wrong += &format!("{what}: exit {exit:?}, not said {unsaid:?}\n{stderr}{stdout}\n");
        }
        let after = filled.build_well(&[]);
        assert_eq!(after.ran(), names(&[]), "{what}: the cache is as before");
        after.says_as(&good, what);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_delivery_that_is_wrong_is_refused_by_name() {
    refuses(DELIVERIES);
}

/// What needs no prompt is built all the same.
#[test]
fn a_prompt_outside_the_vocabulary_is_refused_by_file_and_tensor() {
    let workspace = tiny();
    let file = workspace.own("tiny").join("test_vectors_f64.safetensors");
    for (tensor, id) in [("input_ids", -1i64), ("next_ids", 2048)] {
        let was = fs::read(&file).expect("captures");
        edit_tensor(&file, tensor, |bytes| bytes[24..32].copy_from_slice(&id.to_le_bytes()));
        let said = unwrapped(&workspace.build(&["score:tiny.decode"]).exits(1).stderr);
        let words =
            format!("test_vectors_f64.safetensors: {tensor}: id {id} at position 3 is outside 0..2048");
        assert!(said.contains(&words), "{said}");
        fs::write(&file, was).expect("captures are written");
    }
    workspace.build_well(&[]);
}

/// Two deliveries that are wrong in the same way are two errors, each with its file; whoever asks after a target of one
/// is told of that one.
#[test]
fn what_is_wrong_with_the_captures_of_two_deliveries_is_told_of_each() {
    let workspace = both();
    let words =
        [("tiny", "test_vectors_f64"), ("tiny-w4a16", "test_vectors_w4a16_f64")].map(|(delivery, file)| {
            let file = workspace.own(delivery).join(format!("{file}.safetensors"));
            let mut tensors = read_safetensors(&file);
            let ids = tensors.iter_mut().find(|t| t.name == "input_ids").expect("a prompt");
            ids.dtype = "U64".parse().expect("a dtype");
            ids.bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
            write_safetensors(&file, &tensors);
            let place =
                format!("fetch:{delivery}.captures: {}: capture input_ids: element 1 is", file.display());
            (delivery, place)
        });
    let said = unwrapped(&workspace.build(&["score:decode"]).exits(1).stderr);
    for (delivery, place) in &words {
        assert!(said.contains(place), "{said}");
        let target = format!("score:{delivery}.decode");
        for command in ["why", "status"] {
            let said = workspace.mica(&[command, &target]).run().stdout;
            assert!(said.contains(&format!("{target}: needs {place}")), "{command}: {said}");
        }
    }
}

/// What is quantized already keeps its groups and scales: a recipe that asks for others is told so once, and the
/// result is that of one that asks for what is there.
#[test]
fn a_recipe_that_asks_what_a_quantized_delivery_has_otherwise_gets_one_warning() {
    let mut workspace = both();
    let target = ["quantize:tiny-w4a16.layer0"];
    let said = workspace.build_well(&target).stderr;
    assert!(!said.contains("warning"), "{said}");
    let rule = r#"pattern = "mlp.experts.*", format = "i4", group = 64, scale = "f32""#;
    workspace.first_rule("w4a16", rule);
    let run = workspace.build_well(&target);
    let said = unwrapped(&run.stderr);
    for (asked, used) in [("group = 64", "group = 32"), (r#"scale = "f32""#, r#"scale = "f16""#)] {
        let warning = format!(
            "warning: [recipe.w4a16] \"mlp.experts.*\" {asked}: [delivery.tiny-w4a16] is quantized already; {used} is used"
        );
        assert_eq!(said.matches(&warning).count(), 1, "{said}");
    }
    assert_eq!(said.matches("warning").count(), 2, "what is quantized here does as it is told: {said}");
    assert_eq!(run.ran(), names(&[]));
}

#[test]
fn a_tokenizer_that_is_none_is_refused_by_its_file() {
    let workspace = tiny();
    let file = workspace.own("tiny").join("tokenizer.json");
    fs::write(&file, "").expect("a tokenizer is written");
    let said = unwrapped(&workspace.build(&["score:tiny.decode"]).exits(1).stderr);
    assert!(said.contains(&format!("score:tiny.decode: {}: tokenizer: EOF", file.display())), "{said}");
}

#[test]
fn a_workspace_that_is_wrong_is_refused_with_its_line() {
    refuses(WORKSPACES);
}

/// What a product cannot have is clamped: each value with one warning, however many models are built on it.
#[test]
fn a_product_above_its_caps_is_clamped_with_a_warning_each() {
    let with = |values: [i64; 3]| {
        let mut workspace = both();
        for (key, value) in ["clock_mhz", "bus_bytes", "l2_mib"].iter().zip(values) {
            workspace.set(&format!("device.sim.{key}"), value);
        }
        workspace.build_well(&["timing:*.kernel"])
    };
    let (run, within) = (with([1400, 64, 64]), with([1000, 32, 32]));
    assert!(!within.stderr.contains("warning"), "{}", within.stderr);
    let said = unwrapped(&run.stderr);
    for (key, kept) in [("clock_mhz = 1400", "1000"), ("bus_bytes = 64", "32"), ("l2_mib = 64", "32")] {
        let warning = format!("warning: [device.sim] {key}: qb16 has");
        assert_eq!(said.matches(&warning).count(), 1, "{key}\n{said}");
        assert!(said.contains(&format!("; {kept} is used")), "{key}\n{said}");
    }
    run.says_as(&within, "it is timed as what it can have");
}

#[test]
fn targets_that_do_not_exist_are_refused_with_the_nearest() {
    let workspace = tiny();
    for (word, nearest) in [
        ("pack:tiny.layr5", "pack:tiny.layer5"),
        ("score:tiny.decod", "score:tiny.decode"),
        ("decoed", "decode"),
        ("quantise:tiny.head", "quantize:tiny.head"),
    ] {
        for command in ["build", "invalidate", "why", "targets", "graph"] {
            let run = workspace.mica(&[command, word]).run().exits(2);
            let said = unwrapped(&run.stderr);
            assert!(
                said.contains(word) && said.contains(&format!("{nearest:?}")),
                "{command} {word}\n{said}"
            );
            assert_eq!(run.stdout, "", "{command} {word}");
        }
    }
    let far = workspace.mica(&["build", "nothing-like-it"]).run().exits(2);
    assert!(far.stderr.contains("mica targets") && !far.stderr.contains("the nearest"), "{}", far.stderr);
}

#[test]
fn a_list_that_names_nothing_is_refused() {
    let mut workspace = tiny();
    workspace.set("targets.none", toml::Value::Array(Vec::new()));
    workspace.set("targets.with-none", vec!["pack:tiny.layer0", "none"]);
    for list in ["none", "with-none"] {
        for command in ["build", "invalidate", "why", "status", "targets", "graph"] {
            let run = workspace.mica(&[command, list]).run().exits(2);
            let said = unwrapped(&run.stderr);
            assert!(said.contains("\"none\" of workspace.toml is an empty list"), "{command} {list}\n{said}");
            assert_eq!(run.stdout, "", "{command} {list}");
        }
    }
    let status = workspace.mica(&["status", "pack:tiny.layer0"]).run().exits(2);
    assert!(unwrapped(&status.stderr).contains("pack:tiny.layer0 names no target that is judged"));
}

/// A negative number is taken for the value that it is meant as, and refused with what the option takes.
#[test]
fn a_number_that_an_option_does_not_take_is_told_with_those_that_it_does() {
    let workspace = tiny();
    for (words, said) in [
        (
            &["synth", "qwen3_5_35b_a3b", "--out", "new", "--layers", "-1"][..],
            "'--layers <LAYERS>': -1 is not in 1..=65535",
        ),
        (&["analyze", "tiny", "--position", "-1"], "'--position <N,…>': expected a whole number from 0 on"),
        (&["analyze", "tiny", "--tokens", "1,0"], "'--tokens <N,…>': expected a whole number from 1 to 128"),
        (&["cache", "gc", "--days", "-3"], "'--days <DAYS>': -3 is not in"),
        (&["debug", "tiny", "--token", "-1"], "'--token <N>': expected a whole number"),
        (&["debug", "tiny", "--ids", "7,-5"], "--ids: id -5 is outside 0..2048, the vocabulary of tiny"),
        (&["debug", "tiny", "--ids", "2048"], "--ids: id 2048 is outside 0..2048, the vocabulary of tiny"),
        (&["analyze", "tiny", "--position", "-1,2"], "unexpected argument '-1' found"),
        (&["build", "-j", "-4"], "'--jobs <N>': -4 is not in 1..=65535"),
    ] {
        let run = workspace.mica(words).run().exits(2);
        let told = unwrapped(&run.stderr);
        assert!(told.contains(said) && !told.contains("tip:"), "{words:?}: {told}");
        assert_eq!(run.stdout, "", "{words:?}");
    }
}

#[test]
fn words_that_do_not_exist_are_misuse() {
    let workspace = tiny();
    for words in [
        &["bild"][..],
        &["build", "--treads", "4"],
        &["build", "-j0"],
        &["build", "-jx"],
        &["why"],
        &["pack:tiny.layer[3..1]"],
    ] {
        let run = workspace.mica(words).run().exits(2);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{words:?}");
    }
}

/// A message as one line, whatever the width it was wrapped to.
fn unwrapped(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c == '│')
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}
