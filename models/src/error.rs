//! What can be wrong with a model's configuration or description.

use crate::hir::HirError;

/// An error of describing a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A name that no model here has.
    #[error("no model `{name}` is described, expected one of: {known}")]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// Names of described models.
        known: String,
    },
    /// A field that the published config has and this one lacks. It is never guessed from others.
    #[error("config field `{field}` is missing, expected {expected}")]
    MissingField {
        /// Path of the field below the text config.
        field: String,
        /// What it holds.
        expected: String,
    },
    /// A field whose value the model cannot be built from.
    #[error("config field `{field}` is {found}, expected {expected}")]
    WrongField {
        /// Path of the field below the text config.
        field: String,
        /// Its value as JSON.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A part that the stack does not have.
    #[error("the stack has {layers} layers, expected a layer below that, not {layer}")]
    NoLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the stack.
        layers: usize,
    },
    /// The authored functions do not fit together at these dimensions.
    #[error(transparent)]
    Hir(#[from] HirError),
}
