//! Directories of empty files, and what they are taken for.

use std::path::PathBuf;

use super::*;

/// A directory with these files; a name with a content after `=`.
fn delivery(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let (name, content) = name.split_once('=').unwrap_or((name, ""));
        let path: PathBuf = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn listed(names: &[&str], options: &ListOptions) -> Result<Listing, FetchError> {
    list(delivery(names).path(), options)
}

fn weights(name: &str) -> ListOptions {
    ListOptions { weights: Some(name.to_owned()), ..ListOptions::default() }
}

const TWO: &str = r#"model.safetensors.index.json={"weight_map": {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}}"#;

#[test]
fn a_single_file_and_the_usual_names() {
    let listing = listed(
        &["model.safetensors=12345", "config.json", "tokenizer.json", "README.md", "captures.safetensors"],
        &ListOptions::default(),
    );
    let listing = listing.unwrap();
    assert_eq!(listing.weights, Weights::Single(0));
    assert_eq!(listing.file(0).unwrap(), &FileEntry { name: "model.safetensors".to_owned(), size: 5 });
    assert_eq!((listing.config, listing.tokenizer, listing.generation_config), (Some(1), Some(2), None));
    assert_eq!(listing.files.len(), 3, "files without a role are not listed");
}

#[test]
fn sets_of_shards() {
    let two = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors", TWO];
    let listing = listed(&two, &ListOptions::default()).unwrap();
    assert_eq!(listing.weights, Weights::Sharded { index: 0, shards: vec![1, 2] });

    let lone = ["model.safetensors-00001-of-00001.safetensors"];
    assert_eq!(listed(&lone, &ListOptions::default()).unwrap().weights, Weights::Single(0));

    let below = [
        "sub/m-1-of-1.safetensors",
        r#"sub/x.safetensors.index.json={"weight_map": {"a": "m-1-of-1.safetensors"}}"#,
    ];
    let listing = listed(&below, &weights("sub/x.safetensors.index.json")).unwrap();
    assert_eq!(listing.files[1].name, "sub/m-1-of-1.safetensors");
}

#[test]
fn named_files() {
    let files = ["full_model.safetensors", "x.safetensors", "c.json", "t.json", "model.safetensors"];
    let options = ListOptions {
        weights: Some("full_model.safetensors".to_owned()),
        config: Some("c.json".to_owned()),
        tokenizer: Some("t.json".to_owned()),
        captures: vec!["x.safetensors".to_owned(), "full_model.safetensors".to_owned()],
    };
    let listing = listed(&files, &options).unwrap();
    assert_eq!(listing.weights, Weights::Single(0));
    assert_eq!((listing.config, listing.tokenizer, listing.captures), (Some(1), Some(2), vec![3, 0]));
}

#[test]
fn refusals() {
    let usual = ListOptions::default();
    let config = ListOptions { config: Some("confg.json".to_owned()), ..ListOptions::default() };
    for (files, options, said) in [
        (&["a.safetensors", "b.txt"][..], &usual, "the directory has a.safetensors"),
        (&[], &usual, "no model.safetensors"),
        (
            &["model.safetensors", TWO],
            &usual,
            "model.safetensors and model.safetensors.index.json could each",
        ),
        (
            &["a.safetensors.index.json={}", "b.safetensors.index.json={}"],
            &usual,
            "name one in the workspace",
        ),
        (
            &["m-00002-of-00002.safetensors", TWO],
            &usual,
            "shards missing from the delivery: m-00001-of-00002.safetensors",
        ),
        (
            &[
                "m-00001-of-00002.safetensors",
                "m-00002-of-00002.safetensors",
                "m-00003-of-00003.safetensors",
                TWO,
            ],
            &usual,
            "m-00003-of-00003.safetensors lies beside the shards",
        ),
        (&["model.safetensors"], &weights("modle.safetensors"), "did you mean model.safetensors"),
        (&["model.safetensors", "config.json"], &config, "did you mean config.json"),
        (&["w.onnx"], &weights("w.onnx"), "not a weights format"),
        (&["w.pth", "x.txt"], &usual, "the directory has w.pth"),
        (&[], &weights("../w.safetensors"), "leaves the delivery"),
        (&[], &weights("/w.safetensors"), "leaves the delivery"),
        (&["model.safetensors/x"], &usual, "not a regular file"),
        (
            &[r#"m.safetensors.index.json={"weight_map": {"a": "../../x.safetensors"}}"#],
            &usual,
            "\"../../x.safetensors\" leaves",
        ),
        (&["m.safetensors.index.json={\n\"weight_map\": 3}"], &usual, "m.safetensors.index.json:2:15: "),
    ] {
        let message = listed(files, options).unwrap_err().to_string();
        assert!(message.contains(said), "{message}\n  not: {said}");
    }
    let nowhere = list(Path::new("no/such/directory"), &usual).unwrap_err();
    assert!(matches!(nowhere, FetchError::Io { kind: std::io::ErrorKind::NotFound, .. }), "{nowhere}");
}

/// A download cache keeps blobs elsewhere and links to them.
#[test]
fn links_are_followed() {
    let blobs = delivery(&["blob=1234"]);
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(blobs.path().join("blob"), dir.path().join("model.safetensors")).unwrap();
    assert_eq!(list(dir.path(), &ListOptions::default()).unwrap().files[0].size, 4);
    std::os::unix::fs::symlink("nowhere", dir.path().join("config.json")).unwrap();
    assert_eq!(list(dir.path(), &ListOptions::default()).unwrap().config, None);
}
