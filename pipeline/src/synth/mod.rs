//! Synthetic deliveries at a model's published dimensions or others: valid names and files, random weights, the
//! same bits for the same seed on every machine.
//!
//! They are what benchmarks and full-size runs work on where the published weights cannot be had. Weights are
//! streamed, a few mebibytes at a time; [`captures`] of our own evaluator can be added to them. Nothing is
//! learned from: the numbers mean nothing.

pub mod captures;
mod files;
pub mod partial;
mod published;
mod statistics;
mod tensors;
#[cfg(test)]
mod tests;
mod values;
mod workspace;

pub use files::{Entry, Files, Label, Shard, write_file};
pub use published::{config, cut};
pub use statistics::{MASSIVE, Profile};
pub use tensors::{Form, GROUP, Tensor, tensors};
pub use values::{Codes, Stream, Values};
pub use workspace::{About, recipe, workspace};

use mica_models::Stack;
use thiserror::Error;

/// Why a synthetic delivery can't be made.
#[derive(Debug, Error)]
pub enum SynthError {
    /// No such model.
    #[error("no model is described as {name:?}; there are {known}")]
    Model {
        /// As asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// More layers than the model has.
    #[error("{model} has {published} layers, and {asked} were asked for")]
    Layers {
        /// The model.
        model: String,
        /// As asked for.
        asked: u16,
        /// Its own.
        published: u64,
    },
    /// A field that the configuration does not have as a number.
    #[error("the configuration of {model} has no number {field:?}; there are {known}")]
    Field {
        /// The model.
        model: String,
        /// As asked for.
        field: String,
        /// Those that are numbers.
        known: String,
    },
    /// A field that something else decides.
    #[error("{field} is not set as a field: {decided}")]
    Decided {
        /// As asked for.
        field: String,
        /// By what, and what to do.
        decided: &'static str,
    },
    /// A field with two numbers.
    #[error("{field} is set twice; say one number")]
    Twice {
        /// The field.
        field: String,
    },
    /// Experts that can't be cut into groups.
    #[error(
        "experts of {columns} columns can't be cut into groups of {GROUP}; set hidden_size and moe_intermediate_size to multiples of it, or take --format bf16"
    )]
    Group {
        /// Inputs of an expert's matrix.
        columns: u64,
    },
    /// The description refused the configuration.
    #[error(transparent)]
    Config(#[from] mica_models::ModelError),
    /// A weight without stated statistics.
    #[error("no statistics are stated for the weight {role:?}")]
    Statistics {
        /// The weight's name within its part.
        role: String,
    },
    /// Layers that would share bytes are of different kinds.
    #[error(
        "layers {layer} and {like} are of different kinds and can't share bytes; take a multiple of {period} for --distinct-layers"
    )]
    Distinct {
        /// A layer.
        layer: usize,
        /// The one whose bytes it would have.
        like: usize,
        /// After how many layers the kinds repeat.
        period: usize,
    },
}

/// All tensors of a delivery, in the order of its files.
pub fn delivery(stack: &Stack, form: &Form) -> Result<Vec<Tensor>, SynthError> {
    if let Some(distinct) = form.distinct {
        let period =
            (1..).find(|p| stack.layers.iter().zip(stack.layers.iter().skip(*p)).all(|(a, b)| a == b));
        for layer in 0..stack.layers.len() {
            let like = layer % distinct;
            if stack.layers[layer] != stack.layers[like] {
                return Err(SynthError::Distinct { layer, like, period: period.unwrap_or(1) });
            }
        }
    }
    let mut all = Vec::new();
    for part in stack.parts() {
        all.extend(tensors(stack, part, form)?);
    }
    Ok(all)
}
