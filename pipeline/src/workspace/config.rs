//! The whole file, and its text made into it: words that it does not have are refused with their line.
//!
//! It must not know what its parts say, each of which has a file of its own, nor how they have to agree (`checks.rs`).

use super::{Delivery, Device, Gates, Model, Vectors, checks};
use crate::error::CliError;
use mica_quantize::Recipe;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What `mica build` without a target builds.
    pub default: String,
    /// Place of the cache, relative to the file; `.mica` where absent.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Deliveries by name.
    pub delivery: BTreeMap<String, Delivery>,
    /// Models by name.
    pub model: BTreeMap<String, Model>,
    /// Folders of op vectors by name.
    #[serde(default)]
    pub vectors: BTreeMap<String, Vectors>,
    /// Recipes by name.
    pub recipe: BTreeMap<String, Recipe>,
    /// Devices by name.
    pub device: BTreeMap<String, Device>,
    /// Bounds of the gates.
    #[serde(default)]
    pub gates: Gates,
    /// Named lists of targets.
    #[serde(default)]
    pub targets: BTreeMap<String, Vec<String>>,
}

/// Parses and cross-checks; an error shows the place in the text.
pub fn parse(path: &Path, text: &str) -> Result<Config, CliError> {
    let config: Config = toml::from_str(text).map_err(|e| {
        let at = e.span().unwrap_or(0..0);
        CliError::toml(path, text, e.message().trim().to_string(), at)
    })?;
    checks::check(path, text, &config)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
default = "decode"
[delivery.d]
source = "d"
[model.m]
description = "qwen3_5_35b_a3b"
delivery = "d"
recipe = "r"
device = "sim"
[recipe.r]
rules = []
[device.sim]
product = "qb16"
"#;

    fn error(text: &str) -> String {
        parse(Path::new("workspace.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_smallest_workspace_parses() {
        let c = parse(Path::new("w"), GOOD).unwrap();
        assert_eq!((c.model["m"].block, c.device["sim"].frac), (32, 20));
    }

    #[test]
    fn mistakes_name_their_line() {
        let table = [
            (GOOD.replace("source", "sauce"), "line 4", "unknown field `sauce`"),
            (GOOD.replace("delivery = \"d\"", "delivery = \"dd\""), "line 7", "is it \"d\"?"),
            (GOOD.replace("recipe = \"r\"", "recipe = \"x\""), "line 8", "the recipe \"x\""),
            (GOOD.replace("[device.sim]", "[device.sim"), "line 12", ""),
            (format!("{GOOD}[gates.router]\ncosine = 1.0\n"), "line 15", "unknown field `cosine`"),
            (GOOD.replace("\"d\"\n[model", "\"ftp://h/d\"\n[model"), "line 4", "only https, http and hf"),
            (GOOD.replace("\"d\"\n[model", "\"http://h/d\"\n[model"), "line 4", "not encrypted"),
            (GOOD.replace("\"d\"\n[model", "\"hf://d\"\n[model"), "line 4", "hf://org/repo"),
            (
                GOOD.replace("\"d\"\n[model", "\"https://h/x.pth\"\nweights = \"y.pth\"\n[model"),
                "line 4",
                "names the weights file already",
            ),
            (
                GOOD.replace("\"d\"\n[model", "\"d\"\nconfig = \"https://h/\"\n[model"),
                "line 5",
                "names no file",
            ),
            (format!("{GOOD}[delivery.D]\nsource = \"x\"\n"), "[delivery.d]", "MICA_DELIVERY_D"),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ntokens_a_call = 4"),
                "line 9",
                "unknown field `tokens_a_call`",
            ),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ntokens_per_call = 0"),
                "[model.m] tokens_per_call = 0",
                "1 to 128 tokens",
            ),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ncapacity = 8\ntokens_per_call = 9"),
                "[model.m] tokens_per_call = 9",
                "the caches hold 8 positions",
            ),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\nwhole_tokens = 0"),
                "[model.m]",
                "whole_tokens and layers are at least 1",
            ),
            (GOOD.replace("[model.m]", "[model.\"\"]"), "[model.]", "may not be empty"),
            (format!("{GOOD}[gates.lmhead]\n"), "line 14", "unknown field `lmhead`"),
            (
                format!(
                    "{GOOD}[vectors.m]\nsource = \"\"\ndescription = \"\"\nrecipe = \"r\"\ndevice = \"sim\"\n"
                ),
                "[vectors.m]",
                "targets would be the same",
            ),
        ];
        for (text, line, words) in table {
            let e = error(&text);
            assert!(e.contains(line) && e.contains(words), "{e}");
        }
    }
}
