//! Widening, typing, and the names of the shipped captures.

use super::*;
use crate::files::MappedDelivery;
use crate::index::index;
use crate::listing::{ListOptions, list};
use crate::testing::{NewTensor, raw_safetensors, shipped, write_safetensors};

/// Runs `test` on the captures of one file.
fn with_file(dir: &std::path::Path, name: &str, test: impl Fn(CaptureSet<'_>)) {
    let options = ListOptions { weights: Some(name.to_owned()), ..ListOptions::default() };
    let listing = list(dir, &options).unwrap();
    let files = MappedDelivery::open(dir, &listing).unwrap();
    let index = index(&files, &listing).unwrap();
    test(CaptureSet::new(&index, &files));
}

#[test]
fn every_type_widens_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [
        // One byte first, so that nothing after it is aligned.
        NewTensor::new("bool", Dtype::Bool, &[1], vec![1]),
        NewTensor::new("f64", Dtype::F64, &[1], 0.1f64.to_le_bytes().to_vec()),
        NewTensor::f32("f32", &[1, 2], &[0.1, f32::NEG_INFINITY]),
        NewTensor::new("f16", Dtype::F16, &[1], vec![0x01, 0x00]),
        NewTensor::new("bf16", Dtype::BF16, &[1], vec![0x80, 0x3f]),
        NewTensor::i64("i64", &[2], &[i64::MIN, 5]),
        NewTensor::new("i32", Dtype::I32, &[1], (-7i32).to_le_bytes().to_vec()),
        NewTensor::new("i8", Dtype::I8, &[2], vec![0xff, 0x7f]),
        NewTensor::new("u8", Dtype::U8, &[1], vec![0xff]),
        NewTensor::new("u64", Dtype::U64, &[1], u64::MAX.to_le_bytes().to_vec()),
        NewTensor::f32("empty", &[0, 3], &[]),
    ];
    write_safetensors(&dir.path().join("c.safetensors"), &tensors);
    with_file(dir.path(), "c.safetensors", |captures| {
        let float = |name| captures.get_f64(name).unwrap().values;
        let integer = |name| captures.get_i64(name).unwrap().values;
        assert_eq!(float("f64"), [0.1]);
        assert_eq!(float("f32"), [f64::from(0.1f32), f64::NEG_INFINITY]);
        assert_eq!(float("f16"), [2f64.powi(-24)]);
        assert_eq!(float("bf16"), [1.0]);
        assert_eq!(integer("i64"), [i64::MIN, 5]);
        assert_eq!(integer("i32"), [-7]);
        assert_eq!(integer("i8"), [-1, 127]);
        assert_eq!((integer("u8"), integer("bool")), (vec![255], vec![1]));
        let empty = captures.get_f64("empty").unwrap();
        assert_eq!((empty.shape, empty.values.len()), (vec![0, 3], 0));
        for (error, said) in [
            (captures.get_f64("i64").unwrap_err(), "capture i64 is I64, and a floating-point type"),
            (captures.get_i64("f32").unwrap_err(), "capture f32 is F32, and an integer type"),
            (captures.get_i64("u64").unwrap_err(), "element 0 is 18446744073709551615"),
            (captures.get_f64("bf61").unwrap_err(), "nearest: bf16"),
        ] {
            assert!(error.to_string().contains(said), "{error}");
        }
    });
}

#[test]
fn rows() {
    let array = Array { shape: vec![2, 3], values: vec![1, 2, 3, 4, 5, 6] };
    assert_eq!(array.row(1), Some(&[4, 5, 6][..]));
    assert_eq!(array.row(2), None);
    assert_eq!(Array { shape: vec![], values: vec![1] }.row(0), None);
}

/// Both shipped capture files have every name of the default map, save the states of every step, which
/// only layer 0 has. Layer 0 is linear, layer 3 full attention.
#[test]
fn the_default_map_is_the_shipped_naming() {
    let map = CaptureMap::default();
    for (delivery, file) in [("tiny", "test_vectors_f64"), ("tiny-w4a16", "test_vectors_w4a16_f64")] {
        with_file(&shipped(delivery), &format!("{file}.safetensors"), |captures| {
            for (linear, full) in map.names(0).into_iter().zip(map.names(3)) {
                let found = [&linear, &full].map(|(_, name)| captures.find(name).is_some());
                assert!(found[0] || found[1], "{file}: {linear:?}");
            }
            let hidden = captures.get_f64(map.head_input.as_str()).unwrap();
            assert_eq!(hidden.shape, [20, 128]);
            let chosen = captures.get_i64(&map.topk_indices.of(7)).unwrap();
            assert_eq!((chosen.shape.as_slice(), chosen.row(0).unwrap().len()), (&[20, 4][..], 4));
            let out = captures.get_f64(&map.layer_output.of(6)).unwrap();
            assert_eq!(out, captures.get_f64(&map.layer_input.of(7)).unwrap());
        });
    }
}

#[test]
fn a_workspace_overrides_names() {
    let map: CaptureMap = toml::from_str("logits = \"head.out\"\nlayer_output = \"h.{layer}.out\"").unwrap();
    assert_eq!(map.logits.as_str(), "head.out");
    assert_eq!(map.layer_output.of(12), "h.12.out");
    assert_eq!(map.layer_input, CaptureMap::default().layer_input);
    for (text, said) in [
        ("layer_output = \"out\"", "write {layer} in it"),
        ("logits = \"out.{layer}\"", "has no {layer}"),
        ("logits = \"\"", "not empty"),
        ("logit = \"x\"", "unknown field `logit`"),
    ] {
        let error = toml::from_str::<CaptureMap>(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// A file with our own label is known under any name; no other word passes for one.
#[test]
fn a_file_of_our_own_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let labelled = |metadata: &str| {
        let header =
            format!("{{{metadata}\"a\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}}}");
        std::fs::write(dir.path().join("c.safetensors"), raw_safetensors(&header, &[])).unwrap();
        let options = ListOptions { weights: Some("c.safetensors".into()), ..ListOptions::default() };
        let listing = list(dir.path(), &options).unwrap();
        self_made(&MappedDelivery::open(dir.path(), &listing).unwrap(), 0)
    };
    let own = labelled(r#""__metadata__":{"mica.made_by":"self","mica.evaluator":"e 1"},"#).unwrap();
    assert_eq!(own.map(|o| o.to_string()).as_deref(), Some("self, e 1"));
    let bare = labelled(r#""__metadata__":{"mica.made_by":"self"},"#).unwrap();
    assert_eq!(bare, Some(SelfMade { evaluator: None }));
    for publishers in ["", r#""__metadata__":{"format":"pt"},"#, r#""__metadata__":null,"#] {
        assert_eq!(labelled(publishers).unwrap(), None);
    }
    let other = labelled(r#""__metadata__":{"mica.made_by":"Self"},"#).unwrap_err().to_string();
    assert!(other.contains("c.safetensors") && other.contains("made by \"Self\""), "{other}");
}
