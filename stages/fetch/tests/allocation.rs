//! No header and no pickle, however hostile, makes the reader take more memory than a small multiple of the file.

use std::alloc::System;
use std::fs;
use std::path::Path;

use mica_fetch::testing::{raw_safetensors, torch_records, zip_bytes};
use mica_fetch::{ListOptions, MappedDelivery, index, list};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What listing and messages may take whatever the file.
const FIXED: usize = 64 << 10;

/// Every byte allocated while the file was read, freed or not, a byte of the file. The worst honest case
/// is a header of short names and empty tensors, which takes under ten.
const PER_BYTE: usize = 12;

/// The same for a pickle, whose instructions of one byte make values of 24 bytes in tables that double; the
/// allocator counts a byte that a table grows by twice, so the most at one time is a third of this. The
/// number of values is limited besides, so a long pickle takes far less a byte.
const PER_PICKLED_BYTE: usize = 256;

fn allocated(dir: &Path, weights: &str) -> usize {
    let region = Region::new(ALLOCATOR);
    let options = ListOptions { weights: Some(weights.to_owned()), ..ListOptions::default() };
    let listing = list(dir, &options).unwrap();
    let files = MappedDelivery::open(dir, &listing).unwrap();
    let _ = index(&files, &listing);
    let stats = region.change();
    stats.bytes_allocated + usize::try_from(stats.bytes_reallocated).unwrap_or(0)
}

/// One test, so that no other thread allocates meanwhile.
#[test]
fn bounded_by_the_file() {
    let entry = |i: usize| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let many: Vec<String> = (0..50_000).map(entry).collect();
    let axes: Vec<String> = (0..5_000)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[{}0],"data_offsets":[0,0]}}"#, "1,".repeat(60)))
        .collect();
    let huge = r#"{"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}"#;
    let announced = |length: u64| [&length.to_le_bytes()[..], b"{\"a\":{}}"].concat();
    let dir = tempfile::tempdir().unwrap();
    for (what, bytes) in [
        ("many tensors", raw_safetensors(&format!("{{{}}}", many.join(",")), &[])),
        ("many axes", raw_safetensors(&format!("{{{}}}", axes.join(",")), &[])),
        (
            "one endless shape",
            raw_safetensors(&format!("{{\"a\":{{\"shape\":[{}", "1,".repeat(1 << 20)), &[]),
        ),
        ("deep nesting", raw_safetensors(&"{\"a\":".repeat(200_000), &[])),
        ("a huge tensor", raw_safetensors(huge, &[])),
        ("a header of 1 TiB", announced(1 << 40)),
        ("a header of 2^63", announced(1 << 63)),
        ("a header of 2^64 - 1", announced(u64::MAX)),
    ] {
        fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
        let taken = allocated(dir.path(), "model.safetensors");
        let limit = FIXED + PER_BYTE * bytes.len();
        assert!(taken <= limit, "{what}: {taken} bytes for a file of {}", bytes.len());
    }

    let one = [
        b"X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n",
        &b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)Rtq\x01"[..],
    ]
    .concat();
    let endless = [b"X\xff\xff\xff\xff", &b"a"[..]].concat();
    let ints = [b"(", &b"K\x01".repeat(300_000)[..], b"tq\x00", &b"h\x00\x85".repeat(100_000)[..]].concat();
    for (what, body) in [
        ("empty tuples", b")".repeat(1 << 19)),
        ("dictionaries", b"}".repeat(1 << 19)),
        ("more values than may wait", b")".repeat((1 << 20) + 1)),
        ("marks", b"(".repeat(1 << 20)),
        ("tuples in tuples", [b")", &b"\x85".repeat(1 << 20)[..]].concat()),
        ("a long tuple used often", ints),
        ("an endless text", endless),
        ("a memo of many", (0..200_000u32).flat_map(|i| [&b")r"[..], &i.to_le_bytes()].concat()).collect()),
        (
            "one tensor rebuilt often",
            [&one[..], &b"Rctorch._utils\n_rebuild_tensor_v2\nh\x01".repeat(20_000)].concat(),
        ),
    ] {
        let pickle = [b"\x80\x02}", &body[..], b"."].concat();
        let bytes = zip_bytes(&torch_records("m", &pickle, vec![]));
        fs::write(dir.path().join("model.pth"), &bytes).unwrap();
        let taken = allocated(dir.path(), "model.pth");
        let limit = FIXED + PER_PICKLED_BYTE * bytes.len();
        assert!(taken <= limit, "{what}: {taken} bytes for a file of {}", bytes.len());
    }
}
