//! `*.safetensors.index.json`: which shard holds which tensor, as the publisher says.
//!
//! Says what the file says; whether the shards agree is for the tensor index to find out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::error::FetchError;
use crate::listing::folder_of;
use crate::names::stays_inside;
use crate::strict_json::UniqueMap;

/// What every shard index's name ends with.
pub(crate) const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// The part of a shard index that means something.
pub(crate) struct ShardIndex {
    /// Tensor name → shard file name, relative to the index.
    pub weight_map: BTreeMap<String, String>,
}

/// The file as stored. Whatever else it says (a total size, which published files often get wrong) decides
/// nothing and is not read.
#[derive(Deserialize)]
struct Stored {
    weight_map: UniqueMap<String>,
}

impl ShardIndex {
    /// Reads the index; refuses duplicate tensors and shards outside the delivery.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, FetchError> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|e| FetchError::json(path, &e))?;
        let weight_map = stored.weight_map.0;
        for shard in weight_map.values() {
            stays_inside(path, shard)?;
            if !shard.ends_with(".safetensors") {
                return Err(FetchError::UnknownFormat { name: shard.clone() });
            }
        }
        Ok(ShardIndex { weight_map })
    }

    /// The shards' names, each once, in order.
    pub fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }
}

/// Whether a file's name is that of a shard index.
pub fn is_index(name: &str) -> bool {
    name.ends_with(INDEX_SUFFIX)
}

/// The shards that the index `index` of the delivery in `dir` names, relative to `dir`, each once, in order.
///
/// # Errors
/// An index that can't be read, or that names a file outside its folder.
pub fn shards(dir: &Path, index: &str) -> Result<Vec<String>, FetchError> {
    let path = dir.join(index);
    let bytes = std::fs::read(&path).map_err(|e| FetchError::io(&path, &e))?;
    let folder = folder_of(index);
    Ok(ShardIndex::parse(&path, &bytes)?.shards().into_iter().map(|s| format!("{folder}{s}")).collect())
}

/// `NAME` of `NAME-00001-of-00003.safetensors`: what all shards of one set have in common.
pub(crate) fn set_name(file: &str) -> Option<&str> {
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (rest, count) = file.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (name, shard) = rest.rsplit_once('-')?;
    (number(shard) && number(count)).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::check_shard_index;

    #[test]
    fn set_names() {
        for (file, set) in [
            ("model-00001-of-00003.safetensors", Some("model")),
            ("model.safetensors-00001-of-00001.safetensors", Some("model.safetensors")),
            ("model.safetensors", None),
            ("a-1-of-.safetensors", None),
            ("a-b-of-3.safetensors", None),
            ("model-00001-of-00003.bin", None),
        ] {
            assert_eq!(set_name(file), set, "{file}");
        }
    }

    #[test]
    fn refusals() {
        for (text, said) in [
            (r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#, "\"a\" occurs twice"),
            (r#"{"weight_map": {"a": "../x.safetensors"}}"#, "leaves the delivery"),
            (r#"{"weight_map": {"a": "/x.safetensors"}}"#, "leaves the delivery"),
            (r#"{"weight_map": {"a": "x.bin"}}"#, "x.bin: not a weights format"),
            (r#"{"weight_map": {"a": 3}}"#, "expected a string"),
            (r#"{"metadata": {}}"#, "missing field `weight_map`"),
            (r#"{"weight_map": {}, "weight_map": {}}"#, "duplicate field"),
            ("[]", "invalid"),
            ("", "EOF"),
        ] {
            let message = match ShardIndex::parse(Path::new("i.json"), text.as_bytes()) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("{text} was taken"),
            };
            assert!(message.contains(said), "{text}: {message}");
        }
    }

    /// Text near an index: names that lead somewhere, escapes, broken ends.
    fn near_format() -> impl Strategy<Value = Vec<u8>> {
        let part = prop::sample::select(vec![
            "a",
            "\\u0061",
            "..",
            "/",
            "\\\\",
            ".safetensors",
            "-1-of-2",
            "\0",
            "\"",
            "{",
            "}",
            ":",
            ",",
            "[",
            "weight_map",
        ]);
        let text = prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat());
        let entry = (text.clone(), text).prop_map(|(tensor, shard)| format!("\"{tensor}\": \"{shard}\""));
        prop::collection::vec(entry, 0..4)
            .prop_map(|entries| format!("{{\"weight_map\": {{{}}}}}", entries.join(",")).into_bytes())
    }

    proptest! {
        #[test]
        fn anything_near_the_format(bytes in near_format()) {
            check_shard_index(&bytes);
        }
    }
}
