//! The files of a delivery's weights, and changing one.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a file has to lie unchanged for its digests to be remembered, and some more.
pub const SETTLED: Duration = Duration::from_secs(4);

/// The files of weights and their lengths, in order.
pub fn shards(delivery: &Path) -> Vec<(PathBuf, u64)> {
    let mut found: Vec<(PathBuf, u64)> = fs::read_dir(delivery)
        .expect("the delivery")
        .map(|e| e.expect("an entry").path())
        .filter(|p| {
            p.file_name().is_some_and(|n| {
                n.to_string_lossy().starts_with("model") && p.extension().is_some_and(|e| e == "safetensors")
            })
        })
        .map(|p| {
            let bytes = fs::metadata(&p).expect("a file").len();
            (p, bytes)
        })
        .collect();
    found.sort();
    found
}

/// Changes one byte in the middle of a file of a layer; gives the bytes of the file.
pub fn change(delivery: &Path, shards: &[(PathBuf, u64)]) -> u64 {
    let (path, bytes) = &shards[shards.len() / 2];
    assert!(path.starts_with(delivery));
    let mut file = fs::File::options().read(true).write(true).open(path).expect("a file of weights");
    let mut byte = [0];
    file.seek(SeekFrom::Start(bytes / 2)).expect("the middle");
    file.read_exact(&mut byte).expect("a byte");
    file.seek(SeekFrom::Start(bytes / 2)).expect("the middle");
    file.write_all(&[byte[0] ^ 1]).expect("the byte");
    *bytes
}
