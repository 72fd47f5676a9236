//! The sources that this binary was built from and hands out: each model's own files, and those that the
//! tutorial quotes. An installed command has no checkout beside it, so they are compiled in.

use std::path::{Path, PathBuf};

/// A shipped file.
pub struct File {
    /// Path from the root of a checkout.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(File { path: $path, text: include_str!(concat!("../../../../", $path)) }),*]
    };
}

/// The sources by path.
pub static FILES: &[File] = files![
    "models/src/eval/loaded.rs",
    "models/src/hir/module.rs",
    "models/src/qwen3_5_moe/config.json",
    "models/src/qwen3_5_moe/config.rs",
    "models/src/qwen3_5_moe/full_attention.rs",
    "models/src/qwen3_5_moe/linear_attention.rs",
    "models/src/qwen3_5_moe/mod.rs",
    "models/src/qwen3_5_moe/moe.rs",
    "models/src/qwen3_5_moe/names.rs",
    "models/src/qwen3_5_moe/norm.rs",
];

/// The directory of a model's own files, from the root of a checkout.
pub fn directory(model: &str) -> Option<&'static str> {
    match model {
        mica_models::qwen3_5_moe::NAME => Some("models/src/qwen3_5_moe"),
        _ => None,
    }
}

/// The files of a directory.
pub fn of(directory: &str) -> Vec<&'static File> {
    let within = |f: &&File| f.path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    FILES.iter().filter(within).collect()
}

/// The text of a shipped file.
pub fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|f| f.path == path).map(|f| f.text)
}

/// What a file says of itself: its first line of documentation; of a config, what it describes.
pub fn first_line(file: &File) -> String {
    let doc = file.text.lines().find_map(|l| l.strip_prefix("//! "));
    let architecture = || {
        let config: serde_json::Value = serde_json::from_str(file.text).ok()?;
        Some(format!("The published configuration, {}.", config["model_type"].as_str()?))
    };
    doc.map(str::to_string).or_else(architecture).unwrap_or_default()
}

/// The directory in the checkout that this binary was built from, if it is still there with these very files.
pub fn in_checkout(directory: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let same = |f: &&File| std::fs::read(root.join(f.path)).is_ok_and(|b| b == f.text.as_bytes());
    of(directory).iter().all(same).then(|| root.join(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_model_is_shipped_and_says_what_it_is() {
        for model in mica_models::described() {
            let directory = directory(model.name).expect("a described model has a directory");
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let there = std::fs::read_dir(root.join(directory)).expect("a checkout");
            let mut there: Vec<String> = there
                .map(|e| format!("{directory}/{}", e.expect("an entry").file_name().to_string_lossy()))
                .collect();
            there.sort();
            let shipped: Vec<&str> = of(directory).iter().map(|f| f.path).collect();
            assert_eq!(shipped, there);
            assert!(of(directory).iter().all(|f| !first_line(f).is_empty()));
        }
    }
}
