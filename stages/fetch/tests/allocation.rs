//! No header, however hostile, makes the reader take more memory than a small multiple of the file.

use std::alloc::System;
use std::fs;
use std::path::Path;

use mica_fetch::testing::raw_safetensors;
use mica_fetch::{ListOptions, MappedDelivery, index, list};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What listing and messages may take whatever the file.
const FIXED: usize = 64 << 10;

/// Every byte allocated while the file was read, freed or not, a byte of the file. The worst honest case
/// is a header of short names and empty tensors, which takes under ten.
const PER_BYTE: usize = 12;

fn allocated(dir: &Path) -> usize {
    let region = Region::new(ALLOCATOR);
    let listing = list(dir, &ListOptions::default()).unwrap();
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
        let taken = allocated(dir.path());
        let limit = FIXED + PER_BYTE * bytes.len();
        assert!(taken <= limit, "{what}: {taken} bytes for a file of {}", bytes.len());
    }
}
