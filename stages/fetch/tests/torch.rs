//! The quantized delivery as `torch.save` writes it: the same tensors, digests and placeability as the
//! shipped safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use mica_fetch::testing::{shipped, torch_bytes, w4a16_dictionary, write_torch};
use mica_fetch::{DeliveryFiles as _, Digest, ListOptions, MappedDelivery, index, list};

fn digests(dir: &Path, weights: &str) -> BTreeMap<String, Digest> {
    let options = ListOptions { weights: Some(weights.to_owned()), ..ListOptions::default() };
    let listing = list(dir, &options).unwrap();
    let files = MappedDelivery::open(dir, &listing).unwrap();
    let index = index(&files, &listing).unwrap();
    assert!(files.path(0).ends_with(weights));
    index.tensors.values().map(|t| (t.name.clone(), t.digest(&files, false).unwrap())).collect()
}

/// The publisher's `full_model.pth` has this length and BLAKE3; the tests derive it rather than ship it.
#[test]
fn what_is_derived_is_what_torch_wrote() {
    let bytes = torch_bytes("full_model", &w4a16_dictionary());
    assert_eq!(bytes.len(), 4_895_522);
    assert_eq!(
        blake3::hash(&bytes).to_hex().as_str(),
        "9930e05a99269b28d5ea85274a75156cefcde7e3e2c2125fce56ab5fe4b7820c"
    );
}

#[test]
fn the_same_digests_as_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    write_torch(&dir.path().join("full_model.pth"), &w4a16_dictionary());
    let torch = digests(dir.path(), "full_model.pth");
    assert_eq!(torch.len(), 209);
    assert_eq!(torch, digests(&shipped("tiny-w4a16"), "full_model.safetensors"));
}
