//! The described models by name, so that what runs them names none.

use crate::error::ModelError;
use crate::qwen3_5_moe;
use crate::stack::Stack;
use serde_json::{Map, Value};

/// A described model.
pub struct Described {
    /// Name.
    pub name: &'static str,
    /// Values of a config's `model_type` that it reads.
    pub model_types: &'static [&'static str],
    /// The published config's fields that the text decoder is built from, and what stands around them.
    pub config: &'static str,
    /// The directory of its source, from the root of a checkout.
    pub directory: &'static str,
    /// What is shipped of it.
    pub files: &'static [Shipped],
    stack: fn(&Map<String, Value>) -> Result<Stack, ModelError>,
}

/// A shipped source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// Path below the model's directory.
    pub path: &'static str,
    /// Contents.
    pub text: &'static str,
}

impl Shipped {
    /// The first line of its documentation; of a file that has none, what sort of file it is.
    pub fn summary(&self) -> &'static str {
        let line = self.text.lines().find_map(|l| l.strip_prefix("//! "));
        line.unwrap_or("the published configuration")
    }
}

impl Described {
    /// The published config.
    ///
    /// # Errors
    /// A shipped file that is no JSON object.
    pub fn published_config(&self) -> Result<Map<String, Value>, ModelError> {
        serde_json::from_str(self.config).map_err(|e| ModelError::WrongField {
            field: "config.json".to_string(),
            found: e.to_string(),
            expected: "a JSON object".to_string(),
        })
    }
    /// The stack at the published dimensions.
    ///
    /// # Errors
    /// As `describe`.
    pub fn published(&self) -> Result<Stack, ModelError> {
        describe(self.name, &self.published_config()?)
    }
}

static MODELS: &[Described] = &[Described {
    name: qwen3_5_moe::NAME,
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    config: qwen3_5_moe::CONFIG,
    directory: "models/src/qwen3_5_moe",
    files: qwen3_5_moe::FILES,
    stack: |text| qwen3_5_moe::stack(&qwen3_5_moe::Config::from_json(text)?),
}];

/// The described models.
pub fn described() -> &'static [Described] {
    MODELS
}

/// The name of the model that reads a config, by its `model_type`.
pub fn model_for(config: &Map<String, Value>) -> Option<&'static str> {
    let model_type = config.get("model_type")?.as_str()?;
    MODELS.iter().find(|m| m.model_types.contains(&model_type)).map(|m| m.name)
}

/// The stack of a described model from a config: the published file's object, whose text fields stand under
/// `text_config`, or these fields themselves.
///
/// # Errors
/// An unknown name; a config field that is missing or wrong.
pub fn describe(name: &str, config: &Map<String, Value>) -> Result<Stack, ModelError> {
    let model = MODELS.iter().find(|m| m.name == name).ok_or_else(|| ModelError::UnknownModel {
        name: name.to_string(),
        known: MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", "),
    })?;
    let text = config.get("text_config").and_then(Value::as_object).unwrap_or(config);
    (model.stack)(text)
}
