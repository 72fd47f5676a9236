//! One mutated header a rule, then what no table can list.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::testing::{NewTensor, check_safetensors, raw_safetensors, safetensors_bytes};

fn parse(bytes: &[u8]) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
    read(Path::new("m.safetensors"), 0, bytes)
}

/// The message for a header, with `data` bytes of data.
fn refusal(header: &str, data: usize) -> String {
    match parse(&raw_safetensors(header, &vec![0; data])) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("taken: {header}"),
    }
}

#[test]
fn sound_headers() {
    for (header, data, tensors) in [
        (r#"{}"#, 0, 0),
        (r#"{"__metadata__":{"format":"pt"}}   "#, 0, 0),
        (r#"{"__metadata__":null}"#, 0, 0),
        (r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#, 4, 1),
        (r#"{"a":{"shape":[2],"data_offsets":[0,2],"dtype":"BOOL"}}"#, 2, 1),
        // An empty tensor, alone, before, between and after others.
        (r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, 0, 1),
        (
            r#"{"a":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
            1,
            2,
        ),
        (
            r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[0],"data_offsets":[1,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
            2,
            3,
        ),
        // Not in the order of the data.
        (
            r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
            2,
            2,
        ),
        (r#"{"\u0061 $:\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1, 1),
    ] {
        let bytes = raw_safetensors(header, &vec![0; data]);
        assert_eq!(parse(&bytes).map(|t| t.len()), Ok(tensors), "{header}");
    }
}

#[test]
fn places() {
    let tensors = parse(&safetensors_bytes(&[
        NewTensor::f32("z", &[2], &[1.0, 2.0]),
        NewTensor::new("odd", Dtype::U8, &[3], vec![1, 2, 3]),
        NewTensor::i64("a", &[1], &[-1]),
    ]));
    let tensors = tensors.unwrap();
    let start = tensors["z"].extents[0].offset;
    let at = |name: &str| {
        (tensors[name].extents[0].offset - start, tensors[name].bytes(), tensors[name].elements())
    };
    assert_eq!([at("z"), at("odd"), at("a")], [(0, 8, 2), (8, 3, 3), (11, 8, 1)]);
}

#[test]
fn one_refusal_a_rule() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let axes =
        format!(r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(MAX_RANK));
    for (header, data, said) in [
        // The JSON.
        ("", 0, "begins with an opening brace"),
        (" {}", 0, "begins with an opening brace"),
        ("[]", 0, "begins with an opening brace"),
        ("{", 0, "EOF"),
        ("{}{}", 0, "trailing characters"),
        (r#"{"a":3}"#, 0, "a: invalid type"),
        (r#"{"__metadata__":{"a":3}}"#, 0, "__metadata__: invalid type"),
        (r#"{"__metadata__":{"a":"","a":""}}"#, 0, "\"a\" occurs twice"),
        (&deep, 0, "a: invalid type: sequence"),
        (r#"{"a":{"dtype":"U8","shape":[1]}}"#, 1, "a: missing field `data_offsets`"),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":[[[]]]}}"#, 1, "a: unknown field `x`"),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#, 1, "a: invalid length 1"),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#, 1, "a: "),
        (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, 1, "a: invalid value: integer `-1`"),
        (r#"{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}"#, 1, "a: invalid type: floating point"),
        (r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}"#, 1, "a: invalid type"),
        (&axes, 1, "a: invalid length 65, expected at most 64 axes"),
        // Duplicates, also spelt differently.
        (
            r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
            "\"a\" occurs twice",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
            "\"a\" occurs twice",
        ),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, 0, "\"__metadata__\" occurs twice"),
        (
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
            "a: duplicate field `dtype`",
        ),
        // Types.
        (
            r#"{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}"#,
            1,
            "tensor a: \"F7\" is no safetensors type",
        ),
        (
            r#"{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#,
            1,
            "tensor a: \"F8_E4M3\" is a safetensors type that has no use here",
        ),
        // Shapes.
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#,
            7,
            "tensor a: F32 [2] takes 8 bytes and the header gives it 7",
        ),
        (r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}}"#, 4, "takes 0 bytes"),
        (
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
            0,
            "[4294967296, 4294967296] overflows",
        ),
        (r#"{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}"#, 0, "overflows"),
        (r#"{"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}"#, 0, "overflows"),
        (r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}"#, 0, "overflows"),
        // Ranges.
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}"#, 1, "ends (0) before it begins (1)"),
        (
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
            1,
            "tensor a ends at byte 2 of the data and the file has 1",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}}"#,
            1,
            "cut short",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
            3,
            "tensor b begins at byte 114 of the file, inside a",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
            2,
            "tensor b begins",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}"#,
            2,
            "tensor e begins",
        ),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#, 2, "1 bytes before tensor a"),
        (
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#,
            3,
            "1 bytes before tensor b",
        ),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 5, "4 bytes after the last tensor"),
        ("{}", 1, "1 bytes after the last tensor"),
    ] {
        let message = refusal(header, data);
        assert!(message.starts_with("m.safetensors: "), "{message}");
        assert!(message.contains(said), "{header}\n  gave: {message}\n  not:  {said}");
    }
}

#[test]
fn lengths_that_do_not_fit() {
    let file = |length: u64, rest: &[u8]| [&length.to_le_bytes()[..], rest].concat();
    for (bytes, said) in [
        (vec![], "0 bytes are too few"),
        (vec![0; 7], "7 bytes are too few"),
        (file(3, b"{}"), "the header is said to take 3 bytes and the file has 10"),
        (file(1 << 63, b"{}"), "said to take 9223372036854775808 bytes"),
        (file(u64::MAX, b"{}"), "said to take 18446744073709551615 bytes"),
        (file(0, b""), "begins with an opening brace"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n".to_vec(),
            "a Git LFS pointer",
        ),
        (b"\n<!DOCTYPE html><html><body>404".to_vec(), "an HTML or XML page"),
        (b"<a/>".to_vec(), "an HTML or XML page"),
        (b"{\"error\": \"not found\"}".to_vec(), "a JSON text"),
        (b"PK\x03\x04aaaaaaaaaaaaaaaaaaaa".to_vec(), "a zip archive"),
    ] {
        let message = parse(&bytes).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = safetensors_bytes(&[
        NewTensor::f32("a", &[2, 3], &[0.5; 6]),
        NewTensor::new("b", Dtype::U8, &[5], vec![7; 5]),
        NewTensor::i64("c", &[2], &[1, 2]),
    ]);
    assert!(parse(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(parse(&whole[..length]).is_err(), "{length} of {}", whole.len());
    }
}

/// Bytes near the format: a length that may fit, JSON-like text, and data.
fn near_format() -> impl Strategy<Value = Vec<u8>> {
    let entry = (
        prop::sample::select(vec!["a", "b", "\\u0061", "__metadata__", ""]),
        prop::sample::select(vec!["F32", "U8", "BOOL", "F4", "X"]),
        prop::collection::vec(prop_oneof![0u64..4, any::<u64>()], 0..4),
        (prop_oneof![0u64..9, any::<u64>()], prop_oneof![0u64..9, any::<u64>()]),
    );
    let header = prop::collection::vec(entry, 0..4).prop_map(|entries| {
        let entry = |(name, dtype, shape, (a, b))| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{a},{b}]}}"#)
        };
        format!("{{{}}}", entries.into_iter().map(entry).collect::<Vec<_>>().join(","))
    });
    (header, 0usize..17, prop::option::of((any::<prop::sample::Index>(), any::<u8>()))).prop_map(
        |(header, data, flip)| {
            let mut bytes = raw_safetensors(&header, &vec![0; data]);
            if let Some((at, value)) = flip {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn anything_near_the_format(bytes in near_format()) {
        check_safetensors(&bytes);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_safetensors(&bytes);
    }

    #[test]
    fn what_is_written_is_read(sizes in prop::collection::vec(0u64..20, 0..8)) {
        let tensor = |(i, n): (usize, &u64)| NewTensor::new(&format!("t{i}"), Dtype::U8, &[*n], vec![i as u8; *n as usize]);
        let tensors: Vec<NewTensor> = sizes.iter().enumerate().map(tensor).collect();
        let bytes = safetensors_bytes(&tensors);
        let read = parse(&bytes).unwrap();
        prop_assert_eq!(read.len(), tensors.len());
        for t in &tensors {
            let e = &read[&t.name].extents[0];
            prop_assert_eq!(&bytes[e.offset as usize..][..e.len as usize], &t.bytes[..]);
        }
    }
}
