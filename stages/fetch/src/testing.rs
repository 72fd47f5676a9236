//! Deliveries made on the spot: small ones from nothing, and every published form of a given one.
//!
//! For tests only, so everything here panics where it cannot go on. Writes only into the directories it
//! is given, which are the test's own.

mod check;
mod drive;
mod packed;
mod pickler;
mod rewrite;
mod seeds;
mod torch;
mod writer;

use std::path::{Path, PathBuf};

pub use check::{
    Checked, READERS, pickle as check_pickle, safetensors as check_safetensors,
    shard_index as check_shard_index, torch as check_torch,
};
pub use drive::drive;
pub use packed::{PackedFormat, pack_quantized};
pub use pickler::dictionary;
pub use rewrite::{
    edit_tensor, read_safetensors, remove_tensor, rename_prefix, shard, shard_with_names, split_experts,
};
pub use torch::{Content, Record, torch_bytes, torch_records, write_torch, write_zip, zip_bytes};
pub use writer::{NewTensor, raw_safetensors, safetensors_bytes, write_safetensors};

/// The directory of a shipped delivery: `tiny`, `tiny-w4a16`, `ops`, or one of `formats/`.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/delivery").join(name)
}

/// The shipped quantized tensors in the order of the publisher's dictionary: the unquantized delivery's,
/// each quantized weight followed by its scales. With [`torch_bytes`] they give the publisher's
/// `full_model.pth`, byte for byte, which is too large to be shipped beside the same in safetensors.
///
/// # Panics
/// If the shipped deliveries cannot be read.
pub fn w4a16_dictionary() -> Vec<NewTensor> {
    let quantized = read_safetensors(&shipped("tiny-w4a16").join("full_model.safetensors"));
    let find = |name: String| quantized.iter().find(|t| t.name == name).cloned();
    let mut tensors = Vec::new();
    for tensor in read_safetensors(&shipped("tiny").join("model.safetensors")) {
        let name = tensor.name.replace("model.language_model.", "model.");
        let base = name.strip_suffix(".weight").unwrap_or(&name);
        let scale = find(format!("{base}.w_scale"));
        let stored = if scale.is_some() { format!("{base}.weight") } else { name };
        tensors.extend([find(stored), scale].into_iter().flatten());
    }
    tensors
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
