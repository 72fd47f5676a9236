//! Deliveries made on the spot: small ones from nothing, and every published form of a given one.
//!
//! For tests only, so everything here panics where it cannot go on. Writes only into the directories it
//! is given, which are the test's own.

mod rewrite;
mod writer;

use std::path::{Path, PathBuf};

pub use rewrite::{
    edit_tensor, read_safetensors, remove_tensor, rename_prefix, shard, shard_with_names, split_experts,
};
pub use writer::{NewTensor, raw_safetensors, safetensors_bytes, write_safetensors};

/// The directory of a shipped delivery: `tiny`, `tiny-w4a16` or `ops`.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/delivery").join(name)
}

/// Copies the files of a delivery (not its folders) into `to`, which is made, all of them writable.
///
/// # Panics
/// If a file cannot be copied.
pub fn copy_delivery(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    for entry in std::fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let path = entry.expect("a directory entry").path();
        if path.is_file() {
            let name = path.file_name().expect("a file has a name");
            let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            std::fs::write(to.join(name), bytes).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
        }
    }
}
