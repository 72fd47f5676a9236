//! Which reader a weights file goes to, by the ending of its name.
//!
//! Every reader has one shape: a file's bytes in, its tensors' names, types, shapes and places out, no
//! tensor read. A format that comes later is one more variant here and one more module.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::FetchError;
use crate::index::TensorEntry;
use crate::shard_index::is_index;
use crate::{safetensors_header, torch};

/// A kind of file that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// `.safetensors`.
    Safetensors,
    /// What `torch.save` writes: `.pth`, `.pt` or `.bin`.
    Torch,
}

impl Container {
    /// The container that a file's name promises.
    pub fn of(name: &str) -> Option<Container> {
        match name.rsplit_once('.')?.1 {
            "safetensors" => Some(Container::Safetensors),
            "pth" | "pt" | "bin" => Some(Container::Torch),
            _ => None,
        }
    }

    /// The tensors of the file `bytes`, which is number `file` of its delivery.
    pub fn read(
        self,
        path: &Path,
        file: u32,
        bytes: &[u8],
    ) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
        match self {
            Container::Safetensors => safetensors_header::read(path, file, bytes),
            Container::Torch => torch::read(path, file, bytes),
        }
    }
}

/// Whether a file's name, shard index or container, promises weights.
pub fn is_weights(name: &str) -> bool {
    Container::of(name).is_some() || is_index(name)
}

/// What is often stored under a weights file's name in its stead. Asked only once a file makes no sense as
/// what it should be, so that no real one is mistaken for one of these.
pub(crate) fn impostor(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"version https://git-lfs") {
        Some("a Git LFS pointer")
    } else if text.starts_with(b"<") {
        Some("an HTML or XML page")
    } else if text.starts_with(b"{") {
        Some("a JSON text")
    } else if bytes.starts_with(b"PK\x03\x04") {
        Some("a zip archive, as torch.save writes")
    } else if bytes.starts_with(torch::LEGACY_MAGIC) {
        Some("a file of torch.save's older format")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_ending() {
        for (name, container) in [
            ("model.safetensors", Some(Container::Safetensors)),
            ("a/full_model.pth", Some(Container::Torch)),
            ("x.pt", Some(Container::Torch)),
            ("pytorch_model.bin", Some(Container::Torch)),
            ("model.gguf", None),
            ("pth", None),
            ("model.PTH", None),
        ] {
            assert_eq!(Container::of(name), container, "{name}");
        }
    }
}
