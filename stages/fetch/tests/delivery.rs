//! The shipped delivery in every published form: the same tensors have the same digests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mica_fetch::testing::{
    NewTensor, copy_delivery, edit_tensor, read_safetensors, remove_tensor, rename_prefix, shard,
    shard_with_names, shipped, split_experts, write_safetensors,
};
use mica_fetch::{
    DeliveryFiles as _, Digest, FetchError, ListOptions, MappedDelivery, TensorIndex, index, list,
};

/// A copy of the small delivery that may be changed.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(shipped("tiny").join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    dir
}

fn indexed(dir: &Path) -> Result<(MappedDelivery, TensorIndex), FetchError> {
    let listing = list(dir, &ListOptions::default())?;
    let files = MappedDelivery::open(dir, &listing)?;
    let index = index(&files, &listing)?;
    Ok((files, index))
}

fn digests(dir: &Path) -> BTreeMap<String, Digest> {
    let (files, index) = indexed(dir).unwrap();
    index.tensors.values().map(|t| (t.name.clone(), t.digest(&files, false).unwrap())).collect()
}

fn refusal(dir: &Path) -> String {
    match indexed(dir) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the delivery was taken"),
    }
}

#[test]
fn the_shipped_files() {
    let tiny = indexed(&shipped("tiny")).unwrap().1;
    assert_eq!(tiny.tensors.values().map(|t| t.elements()).sum::<u64>(), 4_554_352);
    let a_log = tiny.get("model.language_model.layers.0.linear_attn.A_log").unwrap();
    assert_eq!((a_log.dtype.name(), a_log.shape.as_slice()), ("F32", &[4][..]));
    let experts = tiny.get("model.language_model.layers.3.mlp.experts.gate_up_proj").unwrap();
    assert_eq!((experts.dtype.name(), experts.shape.as_slice()), ("BF16", &[16, 128, 128][..]));

    let options =
        ListOptions { weights: Some("full_model.safetensors".to_owned()), ..ListOptions::default() };
    let dir = shipped("tiny-w4a16");
    let listing = list(&dir, &options).unwrap();
    assert_eq!((listing.config, listing.tokenizer), (None, None), "both come from tiny");
    let files = MappedDelivery::open(&dir, &listing).unwrap();
    let quantized = index(&files, &listing).unwrap();
    assert_eq!(quantized.get("lm_head.w_scale").unwrap().shape, [2048, 1]);

    for entry in fs::read_dir(shipped("ops")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            assert!(!read_safetensors(&path).is_empty(), "{}", path.display());
        }
    }
}

#[test]
fn a_misspelt_tensor_gets_its_nearest_names() {
    let tiny = indexed(&shipped("tiny")).unwrap().1;
    let error = tiny.get("model.language_model.layers.3.mlp.gate.weihgt").unwrap_err().to_string();
    assert!(error.contains("nearest: model.language_model.layers.3.mlp.gate.weight, "), "{error}");
}

#[test]
fn shards_and_prefixes_give_the_same_digests() {
    let single = digests(&shipped("tiny"));
    for n in [1, 3, 14] {
        let dir = copy();
        shard(dir.path(), n);
        assert_eq!(digests(dir.path()), single, "{n} shards");
    }
    let usual = copy();
    shard_with_names(usual.path(), 2, |i| format!("model-{i:05}-of-00002.safetensors"));
    assert_eq!(digests(usual.path()), single);

    let text_only = copy();
    rename_prefix(&text_only.path().join("model.safetensors"), "model.language_model.", "model.");
    let renamed = digests(text_only.path());
    assert!(renamed.contains_key("model.norm.weight"));
    let back = |name: &str| {
        name.strip_prefix("model.").map_or(name.to_owned(), |n| format!("model.language_model.{n}"))
    };
    assert_eq!(renamed.iter().map(|(n, d)| (back(n), *d)).collect::<BTreeMap<_, _>>(), single);
}

#[test]
fn split_experts_are_the_fused_ones_row_by_row() {
    let dir = copy();
    let path = dir.path().join("model.safetensors");
    split_experts(&path);
    let before: BTreeMap<_, _> = read_safetensors(&shipped("tiny").join("model.safetensors"))
        .into_iter()
        .map(|t| (t.name.clone(), t))
        .collect();
    let after: BTreeMap<_, _> = read_safetensors(&path).into_iter().map(|t| (t.name.clone(), t)).collect();
    assert_eq!(after.len(), before.len() - 8 * 2 + 8 * 16 * 3);
    let experts = "model.language_model.layers.5.mlp.experts";
    let joined = |parts: &[String]| parts.iter().flat_map(|p| after[p].bytes.clone()).collect::<Vec<u8>>();
    let gate_up: Vec<String> =
        (0..16).flat_map(|e| ["gate", "up"].map(|p| format!("{experts}.{e}.{p}_proj.weight"))).collect();
    let down: Vec<String> = (0..16).map(|e| format!("{experts}.{e}.down_proj.weight")).collect();
    assert_eq!(joined(&gate_up), before[&format!("{experts}.gate_up_proj")].bytes);
    assert_eq!(joined(&down), before[&format!("{experts}.down_proj")].bytes);
    assert_eq!(after[&gate_up[1]].shape, [64, 128]);
    assert_eq!(after[&down[0]].shape, [128, 64]);
}

#[test]
fn one_edited_tensor_has_a_new_digest_and_no_other() {
    let dir = copy();
    let name = "model.language_model.layers.5.mlp.gate.weight";
    let before = digests(dir.path());
    edit_tensor(&dir.path().join("model.safetensors"), name, |bytes| bytes[17] ^= 1);
    let after = digests(dir.path());
    let changed: Vec<&String> = before.iter().filter(|(n, d)| after[*n] != **d).map(|(n, _)| n).collect();
    assert_eq!(changed, [name]);
}

#[test]
fn shards_that_disagree_with_their_index() {
    let name = |i: usize| format!("model.safetensors-{i:05}-of-00003.safetensors");
    let sharded = || {
        let dir = copy();
        shard(dir.path(), 3);
        dir
    };

    let missing = sharded();
    fs::remove_file(missing.path().join(name(2))).unwrap();
    assert!(refusal(missing.path()).contains(&format!("shards missing from the delivery: {}", name(2))));

    let swapped = sharded();
    let [one, two, other] = [&name(1), &name(2), "other"].map(|n| swapped.path().join(n));
    fs::rename(&one, &other).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(&other, &two).unwrap();
    let message = refusal(swapped.path());
    assert!(message.contains(&format!("{}: tensor ", name(1))), "{message}");
    assert!(message.contains(&format!("belongs to {}", name(2))) && message.contains("swapped"), "{message}");

    let lacking = sharded();
    let first = lacking.path().join(name(1));
    let gone = read_safetensors(&first)[0].name.clone();
    remove_tensor(&first, &gone);
    let message = refusal(lacking.path());
    assert!(message.contains(&gone) && message.contains("the shard lacks it"), "{message}");
    assert!(message.contains(&name(1)), "{message}");

    let stray = sharded();
    let first = stray.path().join(name(1));
    let mut tensors = read_safetensors(&first);
    tensors.push(NewTensor::f32("nobody.knows", &[1], &[0.0]));
    write_safetensors(&first, &tensors);
    assert!(refusal(stray.path()).contains("tensor nobody.knows is not in the index"));

    let twice = sharded();
    let [first, second] = [1, 2].map(|i| twice.path().join(name(i)));
    let copied = read_safetensors(&first).remove(0);
    let mut tensors = read_safetensors(&second);
    tensors.push(copied.clone());
    write_safetensors(&second, &tensors);
    let message = refusal(twice.path());
    assert!(message.contains(&copied.name) && message.contains("belongs to"), "{message}");
}

#[test]
fn a_delivery_cut_at_many_places_is_refused() {
    let whole = fs::read(shipped("tiny").join("model.safetensors")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let ends = [0, 1, 7, 8, 9, header / 2, header - 1, header, header + 1, whole.len() / 3, whole.len() - 1];
    for end in ends.into_iter().chain((1..40).map(|i| whole.len() * i / 40)) {
        fs::write(&path, &whole[..end]).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains("model.safetensors") && message.contains("cut short"), "{end}: {message}");
    }
}

/// An index of one delivery used on the files of another: an error, not a slice out of bounds.
#[test]
fn a_stale_index_is_found_out() {
    let (_, index) = indexed(&shipped("tiny")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_safetensors(&dir.path().join("model.safetensors"), &[NewTensor::f32("a", &[1], &[1.0])]);
    let (files, _) = indexed(dir.path()).unwrap();
    let error = index.get("lm_head.weight").unwrap().chunks(&files).unwrap_err();
    assert!(matches!(error, FetchError::Truncated { .. }), "{error}");
}

#[test]
fn nothing_is_written_and_read_only_will_do() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    copy_delivery(&shipped("tiny"), dir.path());
    let names =
        |dir: &Path| -> Vec<_> { fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect() };
    let before = names(dir.path());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let (files, index) = indexed(dir.path()).unwrap();
    index.get("lm_head.weight").unwrap().digest(&files, true).unwrap();
    assert_eq!(files.bytes(0).unwrap().len() as u64, files.metadata(0).unwrap().len());
    files.verify_unchanged(0).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(names(dir.path()), before);
}

#[test]
fn an_index_survives_serialization() {
    let (_, index) = indexed(&shipped("tiny")).unwrap();
    let json = serde_json::to_string(&index).unwrap();
    assert_eq!(serde_json::from_str::<TensorIndex>(&json).unwrap(), index);
}
