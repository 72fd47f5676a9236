//! Folders as a whole: copied, listed, fingerprinted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Every file below a folder, sorted.
///
/// # Panics
/// If a folder cannot be listed.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Copies all files below `from` to the same places below `to`.
///
/// # Panics
/// If a file cannot be copied.
pub fn copy_tree(from: &Path, to: &Path) {
    for file in files_below(from) {
        let place = to.join(file.strip_prefix(from).expect("a file below the folder"));
        fs::create_dir_all(place.parent().expect("a file in a folder")).expect("the folder is made");
        fs::copy(&file, &place).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

/// Size and time of every file below a folder, and of the folder itself: unequal if anything was written.
///
/// # Panics
/// If a file cannot be examined.
pub fn fingerprint(dir: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut paths = files_below(dir);
    paths.push(dir.to_owned());
    let stamp = |path: PathBuf| {
        let metadata = fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let time = metadata.modified().expect("files have times");
        (path, (metadata.len(), time))
    };
    paths.into_iter().map(stamp).collect()
}
