//! What can be wrong between a delivery and a model, each with the facts that put it right.

use crate::scheme::Described;
use mica_dtype::Dtype;
use mica_models::ModelError;

/// Why a part cannot be packed. `role` is the weight's name within the part, `tensor` a delivered name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum PackError {
    /// The part or its names cannot be described.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// The model needs a weight that the delivery lacks in every form.
    #[error(
        "{part}: the delivery has no tensor for {role}; tried {}{}",
        tried.join(", "),
        listed("; nearest: ", nearest)
    )]
    Missing { part: String, role: String, tried: Vec<String>, nearest: Vec<String> },
    /// Some experts are there and others are not.
    #[error(
        "{part}: {role} comes expert by expert and {tensor} is missing{}",
        listed("; nearest: ", nearest)
    )]
    MissingPiece { part: String, role: String, tensor: String, nearest: Vec<String> },
    /// More than one tensor could be the weight.
    #[error(
        "{part}: {} could each be {role}; a delivery has it under one prefix and in one form",
        tensors.join(" and ")
    )]
    Ambiguous { part: String, role: String, tensors: Vec<String> },
    /// A tensor of another shape.
    #[error("{part}: {tensor} has shape {found:?}, and {role} is {expected}; is the config this delivery's?")]
    Shape { part: String, role: String, tensor: String, found: Vec<u64>, expected: String },
    /// A tensor of an element type that it cannot have.
    #[error("{part}: {tensor}, which is {role}, is {found}; expected {expected}")]
    Dtype { part: String, role: String, tensor: String, found: Dtype, expected: &'static str },
    /// Pieces of one weight that differ in element type.
    #[error(
        "{part}: the pieces of {role} differ: {tensor} is {found} and {first} is {expected}; all have to be alike"
    )]
    MixedDtypes { part: String, role: String, tensor: String, found: Dtype, first: String, expected: Dtype },

    /// Integers without scales.
    #[error(
        "{part}: {tensor}, which is {role}, holds {found} and the delivery has no {scale} to scale it by"
    )]
    MissingScale { part: String, role: String, tensor: String, found: Dtype, scale: String },
    /// Scales beside a tensor that is not quantized.
    #[error(
        "{part}: {scale} would scale {tensor}, which is {found} and not quantized; remove one, or deliver I8 weights"
    )]
    UnusedScale { part: String, role: String, tensor: String, found: Dtype, scale: String },
    /// A quantized weight that is no matrix and no table, or that is laid out anew.
    #[error("{part}: {tensor}, which is {role}, is quantized; {why}, so deliver it as F32, F16 or BF16")]
    Quantized { part: String, role: String, tensor: String, why: &'static str },

    /// A quantization configuration that is not read here.
    #[error("quantization config: {field} is {found}; expected {expected}")]
    Scheme { field: String, found: String, expected: &'static str },
    /// Packed words without a configuration that says how.
    #[error(
        "{part}: {tensor}, which is {role}, is packed, and the delivery's quantization config says {said}; expected {expected}"
    )]
    NoScheme { part: String, role: String, tensor: String, said: String, expected: &'static str },
    /// Packed tensors of another kind than the configuration says.
    #[error("{tensor}, which is {role}, has {found}, and the delivery's quantization config says {said}")]
    SchemeDiffers { role: String, tensor: String, found: Described, said: String },
    /// Columns that are not in the order of their groups.
    #[error(
        "{role}: {tensor}: column {column} is in group {found} and its place is in group {expected}; reordered columns \
         (desc_act, actorder) are not read, so quantize without"
    )]
    Reordered { role: String, tensor: String, column: u64, found: i32, expected: u64 },
    /// A shape, stated in a tensor, that is another one.
    #[error("{role}: {tensor} states {found:?}, and the weight is {expected:?}")]
    StatedShape { role: String, tensor: String, found: Vec<i64>, expected: Vec<u64> },
    /// A zero point that cannot be taken.
    #[error("{role}: {tensor}: the zero point {stored} of row {row}, group {group} {reason}")]
    ZeroPoint { role: String, tensor: String, row: u64, group: u64, stored: u8, reason: &'static str },

    /// A converter that does more than move elements.
    #[error(
        "{role}: its converter computes ({op}); a converter may only reshape, transpose, slice, join and repeat"
    )]
    ConverterComputes { role: String, op: &'static str },
    /// A converter that does not give the weight.
    #[error("{role}: its converter failed: {reason}")]
    Converter { role: String, reason: String },
}

/// Why packing failed: the delivery is wrong, or its contents could not be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackFailure<E> {
    /// The stage's own error.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// What [`Contents`](crate::Contents) said.
    #[error("{role}: {error}")]
    Contents {
        /// The weight in work.
        role: String,
        /// The reason.
        error: E,
    },
}

fn listed(lead: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("{lead}{}", names.join(", ")) }
}
