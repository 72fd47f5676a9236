//! Names of files and tensors: which are safe to follow, and which resemble a misspelt one.

use std::path::{Component, Path};

use crate::error::FetchError;

/// How many similar names an error offers.
const OFFERED: usize = 3;

/// Whether `name`, said by `said_by`, stays below the delivery's directory: relative, no `..`, no
/// backslash (which some systems take for a separator).
pub(crate) fn stays_inside(said_by: &Path, name: &str) -> Result<(), FetchError> {
    let path = Path::new(name);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let odd = name.is_empty() || name.ends_with('/') || name.contains(['\\', '\0']);
    if plain && !odd {
        Ok(())
    } else {
        Err(FetchError::PathEscapes { path: said_by.to_owned(), name: name.to_owned() })
    }
}

/// The candidates most like `name`, best first; none when nothing is like it.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(usize, &str)> = candidates
        // A cheap bound first: the edit distance is at least the difference in length.
        .filter(|c| c.len().abs_diff(name.len()) <= name.len() / 2)
        .map(|c| (strsim::damerau_levenshtein(name, c), c))
        .filter(|(distance, _)| *distance <= name.len() / 2)
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(OFFERED).map(|(_, c)| c.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_directory() {
        for good in ["model.safetensors", "shards/a.safetensors", "a..b", "日本 $.safetensors"] {
            assert_eq!(stays_inside(Path::new("i"), good), Ok(()), "{good}");
        }
        for bad in ["", "/etc/passwd", "../a", "a/../../b", "./a", "a\\..\\b", "a/", "a\0b", ".."] {
            assert!(stays_inside(Path::new("i"), bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nearest_first() {
        let names = ["model.norm.weight", "model.layers.0.norm.weight", "lm_head.weight"];
        assert_eq!(nearest("model.norm.wieght", names.into_iter())[0], "model.norm.weight");
        assert!(nearest("zzzz", names.into_iter()).is_empty());
    }
}
