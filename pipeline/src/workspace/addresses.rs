//! Whether the file's addresses can be used, before anything is asked of the network.
//!
//! How an address is written is `obtain`'s; the rest of the file is not looked at.

use super::Config;
use crate::error::CliError;
use crate::obtain;
use std::collections::BTreeMap;
use std::path::Path;

/// Refuses addresses that can't be used, and variables that two deliveries would answer to.
pub(super) fn check(path: &Path, text: &str, config: &Config) -> Result<(), CliError> {
    let mut variables: BTreeMap<String, &String> = BTreeMap::new();
    for (name, d) in &config.delivery {
        let wrong = |given: &Path, why: String| {
            let given = given.to_string_lossy();
            let at = text.find(&*given).map_or(0..0, |i| i..i + given.len());
            CliError::toml(path, text, format!("[delivery.{name}] {why}"), at)
        };
        if obtain::is_remote(&d.source) {
            let source = obtain::source(&d.source, d.allow_http);
            let source = source.map_err(|e| wrong(&d.source, e.to_string()))?;
            if source.file.is_some() && d.weights.is_some() {
                let why = "source names the weights file already; take it or `weights` away";
                return Err(wrong(&d.source, why.into()));
            }
        }
        for given in [&d.config, &d.tokenizer].into_iter().flatten().filter(|p| obtain::is_remote(p)) {
            obtain::file_source(given, d.allow_http).map_err(|e| wrong(given, e.to_string()))?;
        }
        if let Some(other) = variables.insert(obtain::variable(name), name) {
            return Err(CliError::Config {
                what: format!("[delivery.{name}]"),
                why: format!("[delivery.{other}] answers to {} too; rename one", obtain::variable(name)),
            });
        }
    }
    if let Some((name, v)) = config.vectors.iter().find(|(_, v)| obtain::is_remote(&v.source)) {
        return Err(CliError::Config {
            what: format!("[vectors.{name}] source = {:?}", v.source),
            why: "op vectors are read from a folder of this disk".into(),
        });
    }
    Ok(())
}
