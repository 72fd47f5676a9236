//! config.json as it stands: fields, not meanings.
//!
//! Published multimodal models nest the text model's fields under `text_config`; text-only ones have
//! them at the top. What a field means, and which are needed, is for the model's own module.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::FetchError;
use crate::strict_json;

/// The key that holds the text model's fields, where they are nested.
const TEXT: &str = "text_config";

/// The fields of a config.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawConfig {
    /// The text model's fields: those under `text_config`, or all of them in a flat file.
    pub text: Map<String, Value>,
    /// The fields of the file's top level, `text_config` itself left out.
    pub top: Map<String, Value>,
    /// Whether the file has a `text_config`.
    pub nested: bool,
}

impl RawConfig {
    /// Reads config.json; `path` is for messages.
    ///
    /// # Errors
    /// [`FetchError::Json`] with line and column, if this is no JSON object, an object in it has a key
    /// twice, or `text_config` is no object.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FetchError> {
        let mut top = object(path, strict_json::value(path, bytes)?, "the file")?;
        match top.remove(TEXT) {
            Some(text) => Ok(RawConfig { text: object(path, text, TEXT)?, top, nested: true }),
            None => Ok(RawConfig { text: top.clone(), top, nested: false }),
        }
    }
}

fn object(path: &Path, value: Value, what: &str) -> Result<Map<String, Value>, FetchError> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(FetchError::Json {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: format!("{what} is not a JSON object"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RawConfig, FetchError> {
        RawConfig::from_bytes(Path::new("config.json"), text.as_bytes())
    }

    #[test]
    fn nested_and_flat_have_the_same_text_fields() {
        let nested = read(r#"{"model_type": "m", "text_config": {"head_dim": 64}}"#).unwrap();
        let flat = read(r#"{"head_dim": 64}"#).unwrap();
        assert_eq!(nested.text, flat.text);
        assert_eq!(nested.top["model_type"], "m");
        assert!(nested.nested && !flat.nested && !nested.top.contains_key(TEXT));
    }

    #[test]
    fn refusals_say_where() {
        for (text, said) in [
            ("{\"a\": 1,\n  \"a\": 2}", "config.json:2:5: the key \"a\" occurs twice"),
            ("{\"text_config\": {\"a\": 1,\n\"a\": 2}}", "config.json:2:3: the key \"a\" occurs twice"),
            ("{\n \"a\" 1}", "config.json:2:6: expected `:`"),
            ("[]", "config.json:1:1: the file is not a JSON object"),
            ("{\"text_config\": 3}", "text_config is not a JSON object"),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn the_shipped_configuration() {
        let dir = crate::testing::shipped("tiny");
        let path = dir.join("config.json");
        let config = RawConfig::from_bytes(&path, &std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(config.text["head_dim"], 64);
        assert_eq!(config.top["model_type"], "qwen3_5_moe");
    }
}
