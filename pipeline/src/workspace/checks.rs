//! What the types of the file's words cannot say: that what one part names is in another, and that numbers are such as
//! something can be built with.
//!
//! It sees the file alone: whether a delivery, a description or a product is what the file takes it for is found later.

use super::{Config, Model, Vectors, addresses};
use crate::error::CliError;
use crate::targets::nearest;
use std::collections::BTreeMap;
use std::path::Path;

/// Checks all of a file; an error shows the place in the text where there is one.
pub(super) fn check(path: &Path, text: &str, config: &Config) -> Result<(), CliError> {
    addresses::check(path, text, config)?;
    let file = File { path, text, config };
    file.config.model.iter().try_for_each(|(name, m)| file.model(name, m))?;
    file.config.vectors.iter().try_for_each(|(name, v)| file.vectors(name, v))
}

/// A file as read and as written.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
    config: &'a Config,
}

impl File<'_> {
    fn model(&self, name: &str, m: &Model) -> Result<(), CliError> {
        let by = format!("[model.{name}]");
        self.names("delivery", &m.delivery, &self.config.delivery, &by)?;
        self.names("recipe", &m.recipe, &self.config.recipe, &by)?;
        self.names("device", &m.device, &self.config.device, &by)?;
        let least = [m.block, m.capacity, m.whole_tokens, m.tokens.unwrap_or(1)];
        if least.contains(&0) || m.layers == Some(0) {
            let why = "block, capacity, tokens, whole_tokens and layers are at least 1".into();
            return Err(CliError::Config { what: by, why });
        }
        per_call(m.tokens_per_call, &by)?;
        if m.tokens_per_call > m.capacity {
            return Err(CliError::Config {
                what: format!("{by} tokens_per_call = {}", m.tokens_per_call),
                why: format!("the caches hold {} positions; raise `capacity` for more", m.capacity),
            });
        }
        if let Some(t) = m.perplexity.as_ref().filter(|t| t.tokens == 0 || t.tokens > m.capacity) {
            return Err(CliError::Config {
                what: format!("{by} perplexity.tokens = {}", t.tokens),
                why: format!("the caches hold 1 to {} positions; raise `capacity` for more", m.capacity),
            });
        }
        plain_name(name, by)
    }

    fn vectors(&self, name: &str, v: &Vectors) -> Result<(), CliError> {
        let by = format!("[vectors.{name}]");
        self.names("recipe", &v.recipe, &self.config.recipe, &by)?;
        self.names("device", &v.device, &self.config.device, &by)?;
        per_call(v.tokens_per_call, &by)?;
        if self.config.model.contains_key(name) {
            let why = format!("[model.{name}] has that name; their targets would be the same");
            return Err(CliError::Config { what: by, why });
        }
        plain_name(name, by)
    }

    /// Refuses a name that the file has nothing under, with the nearest one that it has.
    fn names<T>(
        &self,
        kind: &str,
        name: &str,
        known: &BTreeMap<String, T>,
        by: &str,
    ) -> Result<(), CliError> {
        if known.contains_key(name) {
            return Ok(());
        }
        let mut why = format!("{by} names the {kind} {name:?}, which the file does not have");
        if let Some(nearest) = nearest(name, known.keys().map(String::as_str)) {
            why += &format!("; is it {nearest:?}?");
        }
        let at = self.text.find(&format!("{name:?}")).map_or(0..0, |i| i..i + name.len() + 2);
        Err(CliError::toml(self.path, self.text, why, at))
    }
}

/// The most tokens a call: what any product's memory holds is far less, and code grows with them.
pub const MOST_TOKENS: u64 = 128;

/// Refuses calls that no kernel could take.
pub(super) fn per_call(tokens: u64, by: &str) -> Result<(), CliError> {
    if (1..=MOST_TOKENS).contains(&tokens) {
        return Ok(());
    }
    Err(CliError::Config {
        what: format!("{by} tokens_per_call = {tokens}"),
        why: format!("a call takes 1 to {MOST_TOKENS} tokens"),
    })
}

/// Refuses a name that could not stand in a target.
fn plain_name(name: &str, by: String) -> Result<(), CliError> {
    if name.is_empty() || name.contains(['.', ':', '[', ']', '*']) {
        let why = "its name may not be empty or hold . : [ ] or *, which targets are made of".into();
        return Err(CliError::Config { what: by, why });
    }
    Ok(())
}
