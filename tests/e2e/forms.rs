//! The same weights in another published form are the same weights.

use crate::{MICA, tiny};
use mica_fetch::testing::{
    NewTensor, PackedFormat, pack_quantized, read_safetensors, rename_prefix, shard, split_experts,
    write_safetensors, write_torch,
};
use mica_tests::{Run, Status, Workspace, files_below, names};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn no_form_of_the_same_weights_packs_anew() {
    type Form = fn(&Path);
    let weights = |dir: &Path| dir.join("model.safetensors");
    let table: &[(&str, Form)] = &[
        ("shards", |dir| shard(dir, 3)),
        ("the text-only prefix", |dir| {
            rename_prefix(&dir.join("model.safetensors"), "model.language_model.", "model.")
        }),
        ("one tensor an expert", |dir| split_experts(&dir.join("model.safetensors"))),
        ("all of it", |dir| {
            rename_prefix(&dir.join("model.safetensors"), "model.language_model.", "model.");
            split_experts(&dir.join("model.safetensors"));
            shard(dir, 5);
        }),
    ];
    let workspace = tiny();
    let published = workspace.build_well(&[]);
    for (what, form) in table {
        let copy = workspace.own("tiny");
        let before = std::fs::read(weights(&copy)).expect("the weights");
        form(&copy);
        assert_ne!(std::fs::read(weights(&copy)).ok(), Some(before), "{what} is another form");
        let built = workspace.build_well(&[]);
        assert_eq!(built.ran(), names(&[]), "{what}");
        assert_eq!(built.with(Status::Cached).len(), published.keys().len(), "{what}");
        built.says_as(&published, what);
        assert_eq!(built.keys(), published.keys(), "{what}");
    }
}

#[test]
fn a_flat_config_is_the_nested_one() {
    let workspace = tiny();
    let nested = workspace.build_well(&[]);
    let config = workspace.own("tiny").join("config.json");
    let text = std::fs::read_to_string(&config).expect("a config");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    std::fs::write(&config, value["text_config"].to_string()).expect("a config is written");
    let flat = workspace.build_well(&[]);
    assert_eq!(flat.ran(), names(&[]));
    assert_eq!(flat.keys(), nested.keys());
}

/// The quantized model alone, its last words as a copy that may be edited.
fn quantized() -> (Workspace, std::path::PathBuf) {
    let mut workspace = Workspace::only(MICA, "tiny-w4a16");
    workspace.set("model.tiny-w4a16.tokens", 3);
    workspace.set("model.tiny-w4a16.whole_tokens", 3);
    let weights = workspace.own("tiny-w4a16").join("full_model.safetensors");
    (workspace, weights)
}

/// What a run says of its score, without the counts of what was reused.
fn score(run: &Run) -> String {
    let end = run.stdout.find("timing:").unwrap_or(run.stdout.len());
    run.stdout[..end].to_string()
}

#[test]
fn a_pickled_delivery_is_the_same_weights() {
    let (mut workspace, weights) = quantized();
    let published = workspace.build_well(&[]);
    write_torch(&weights.with_file_name("full_model.pth"), &read_safetensors(&weights));
    std::fs::remove_file(&weights).expect("the safetensors form goes");
    workspace.set("delivery.tiny-w4a16.weights", "full_model.pth");
    let built = workspace.build_well(&[]);
    assert_eq!(built.ran(), names(&[]));
    assert_eq!(built.keys(), published.keys());
    built.says_as(&published, ".pth");
}

/// Writes the weights beside `weights`, in containers or packed with or without zero points.
fn deliver(weights: &Path, containers: &[NewTensor], format: Option<(PackedFormat, bool)>) {
    let (tensors, config) = match format {
        None => (containers.to_vec(), serde_json::json!(null)),
        Some((f, symmetric)) => (pack_quantized(containers, f), f.config(32, symmetric)),
    };
    write_safetensors(&weights.with_file_name("model.safetensors"), &tensors);
    let file = weights.with_file_name("quantization_config.json");
    match config.is_null() {
        true => drop(std::fs::remove_file(file)),
        false => std::fs::write(file, config.to_string()).expect("a configuration is written"),
    }
}

/// Constants are made straight from the words: from nothing, a build stores what one of containers does, to the byte.
#[test]
fn words_are_stored_nowhere_else() {
    let (mut workspace, weights) = quantized();
    workspace.set("delivery.tiny-w4a16.weights", "model.safetensors");
    let containers = read_safetensors(&weights);
    let stored = |format| {
        deliver(&weights, &containers, format);
        std::fs::remove_dir_all(workspace.cache())
            .or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            })
            .expect("an empty cache");
        let run = workspace.build(&["quantize:tiny-w4a16.*"]).exits(0);
        assert!(run.ran().contains("quantize:tiny-w4a16.layer7"));
        let blobs = files_below(&workspace.cache().join("blobs-1"));
        blobs.into_iter().map(|p| p.file_name().expect("a name").to_owned()).collect::<BTreeSet<_>>()
    };
    let published = stored(None);
    assert!(published.len() > 10);
    for format in [PackedFormat::CompressedTensors, PackedFormat::Gptq, PackedFormat::GptqV2] {
        assert_eq!(stored(Some((format, true))), published, "{format:?}");
    }
}

/// `check` reads weights without a build: the evaluator the numbers, judged by the captures, and the device's twin
/// the constants.
#[test]
fn words_are_checked_as_their_containers_are() {
    let (mut workspace, weights) = quantized();
    workspace.set("delivery.tiny-w4a16.weights", "model.safetensors");
    let containers = read_safetensors(&weights);
    let check = |more: &[&str]| workspace.mica(&[&["check", "tiny-w4a16:layer0"], more].concat()).run();
    let captured = || {
        let skip = ["--inputs", "real", "--skip", "conv_state,recurrent_state", "--cosine", "0.9999999"];
        check(&skip)
    };
    let said = |format| {
        deliver(&weights, &containers, format);
        let twin = check(&["--inputs", "random", "--twin", "--cosine", "0.9999"]).exits(0).stdout;
        captured().exits(0).stdout + &twin
    };
    let published = said(None);
    assert!(published.contains("captured"), "{published}");
    for format in PackedFormat::ALL {
        assert_eq!(said(Some((format, format != PackedFormat::Awq))), published, "{format:?}");
    }
    // the same integers, neighbours exchanged, are other weights, and the captures say so
    let mut altered = pack_quantized(&containers, PackedFormat::CompressedTensors);
    for t in altered.iter_mut().filter(|t| t.name.ends_with("weight_packed")) {
        t.bytes.iter_mut().for_each(|b| *b = b.rotate_left(4));
    }
    let config = PackedFormat::CompressedTensors.config(32, true);
    write_safetensors(&weights.with_file_name("model.safetensors"), &altered);
    std::fs::write(weights.with_file_name("quantization_config.json"), config.to_string()).expect("written");
    captured().exits(1);
}

#[test]
fn integers_packed_in_words_are_the_same_weights() {
    let (mut workspace, weights) = quantized();
    workspace.set("delivery.tiny-w4a16.weights", "model.safetensors");
    let containers = read_safetensors(&weights);
    let write = |format| deliver(&weights, &containers, format);
    write(None);
    let published = workspace.build_well(&[]);
    for (format, said) in [
        (PackedFormat::CompressedTensors, "compressed-tensors: 4 bits, groups of 32, symmetric"),
        (PackedFormat::Gptq, "GPTQ v1: 4 bits, groups of 32, symmetric"),
        (PackedFormat::GptqV2, "GPTQ v2: 4 bits, groups of 32, symmetric"),
    ] {
        write(Some((format, true)));
        let built = workspace.build_well(&[]);
        assert_eq!(built.ran(), names(&["{fetch,pack}:tiny-w4a16.layer{0,1,2,3,4,5,6,7}"]), "{format:?}");
        built.says_as(&published, said);
        let status = workspace.mica(&["status", "decode"]).run().exits(0).stdout;
        assert!(status.contains(said), "{status}");
    }
    // zero points that are all in the middle have a place in the constants, and change no value
    write(Some((PackedFormat::Awq, false)));
    let built = workspace.build_well(&[]);
    let ran = built.ran();
    assert!(ran.is_superset(&names(&["quantize:tiny-w4a16.layer0", "simulate:tiny-w4a16.kernel"])));
    // every result has the same bits, so the score is the one that is there
    assert!(!ran.contains("score:tiny-w4a16.decode"));
    assert_eq!(score(&built), score(&published));
    let status = workspace.mica(&["status", "decode"]).run().exits(0).stdout;
    assert!(status.contains("AWQ: 4 bits, groups of 32, zero points"), "{status}");
    // the same form of the same words, said otherwise, needs no other constants
    write(Some((PackedFormat::Gptq, false)));
    let built = workspace.build_well(&[]);
    assert_eq!(built.ran(), names(&["pack:tiny-w4a16.layer{0,1,2,3,4,5,6,7}"]));
}

#[test]
fn words_that_no_configuration_describes_are_refused() {
    let (mut workspace, weights) = quantized();
    workspace.set("delivery.tiny-w4a16.weights", "model.safetensors");
    let packed = pack_quantized(&read_safetensors(&weights), PackedFormat::Gptq);
    write_safetensors(&weights.with_file_name("model.safetensors"), &packed);
    let refused = workspace.build(&["pack:tiny-w4a16.layer0"]).exits(1);
    assert!(refused.stderr.contains("GPTQ or AWQ"), "{}", refused.stderr);
    // and a configuration that the tensors belie
    let file = weights.with_file_name("quantization_config.json");
    std::fs::write(&file, PackedFormat::Gptq.config(64, true).to_string()).expect("a configuration");
    let refused = workspace.build(&["pack:tiny-w4a16.layer0"]).exits(1);
    assert!(refused.stderr.contains("groups of 64"), "{}", refused.stderr);
    std::fs::write(&file, r#"{"quant_method": "nameless"}"#).expect("a configuration");
    let refused = workspace.build(&["pack:tiny-w4a16.layer0"]);
    assert!(refused.stderr.contains("nameless") && refused.stderr.contains("delivery"), "{}", refused.stderr);
}
