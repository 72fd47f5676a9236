//! The same weights in another published form are the same weights.

use crate::tiny;
use mica_fetch::testing::{rename_prefix, shard, split_experts};
use mica_tests::{Status, names};
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
