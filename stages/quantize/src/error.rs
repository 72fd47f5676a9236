//! What can be wrong with a recipe, a packed layer or its values, each with the facts that put it right.

use mica_models::analysis::WeightUse;
use mica_pack::Dtype;
use std::{fmt, io};

/// Why a segment cannot be planned, written or read. Element and group indices are counted over the
/// whole weight, row-major. The errors are plain values, since a caller may keep one as a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum QuantizeError {
    /// The recipe is silent about a weight.
    #[error("{role}: no rule of the recipe matches; add one, or end the rules with pattern \"*\"")]
    NoRule { role: String },
    /// The recipe gives a format that the weight's use has no form for.
    #[error("{role}: the recipe's {format} is no format for {}, which takes {allowed}", word(*weight_use))]
    FormatNotFor { role: String, weight_use: WeightUse, format: &'static str, allowed: &'static str },
    /// The recipe would undo the delivery's quantization.
    #[error(
        "{role}: delivered quantized ({found} with scales), and the recipe says {format}; what is quantized is \
         re-laid as it is: say {allowed}"
    )]
    Contradicts {
        role: String,
        weight_use: WeightUse,
        format: &'static str,
        found: Dtype,
        allowed: &'static str,
    },
    /// A group that the device cannot walk.
    #[error(
        "{role}: groups of {group} columns in rows of {cols}; a group is a multiple of 16 that divides the row, or \
         the row"
    )]
    GroupDoesNotFit { role: String, group: u64, cols: u64 },
    /// A weight whose shape does not suit its use.
    #[error("{role}: shape {shape:?} is no shape of {}", word(*weight_use))]
    Rank { role: String, weight_use: WeightUse, shape: Vec<u64> },
    /// A source of the wrong element type.
    #[error("{role}: its {part} is delivered as {found}; expected {expected}")]
    Dtype { role: String, part: &'static str, found: Dtype, expected: &'static str },
    /// A source of the wrong shape.
    #[error("{role}: its {part} has shape {found:?}; expected {expected}")]
    Shape { role: String, part: &'static str, found: Vec<u64>, expected: String },
    /// Zero points where the device has no place for them.
    #[error("{role}: {} cannot have zero points{why}", word(*weight_use))]
    ZeroPoints { role: String, weight_use: WeightUse, why: &'static str },

    /// NaN or infinity in a weight.
    #[error(
        "{role}: element {at} is {value}; repair the delivery, or allow non-finite weights in the workspace"
    )]
    NonFinite { role: String, at: Element, value: String },
    /// A finite value that the narrower format would make infinite.
    #[error("{role}: element {at} is {value}, which overflows {format}; give the role a wider format")]
    Overflow { role: String, at: Element, value: String, format: &'static str },
    /// A container value that four bits cannot hold.
    #[error("{role}: element {at} is {value}, outside the int4 range -8..=7; the recipe should say i8")]
    Container { role: String, at: Element, value: i8 },
    /// A delivered scale that scales nothing.
    #[error("{role}: scale {at} is {value}; {reason}")]
    Scale { role: String, at: Element, value: String, reason: &'static str },
    /// A group whose scale the format cannot hold.
    #[error(
        "{role}: group {index} reaches {value}, which is too much for a scale in {format}{}",
        wider(format)
    )]
    ScaleOverflow { role: String, index: u64, value: String, format: &'static str },

    /// The surroundings failed.
    #[error("{role}: {doing}: {message}")]
    Io { role: String, doing: &'static str, kind: io::ErrorKind, message: String },
    /// Bytes that are not the tensor's.
    #[error("{role}: its source gave {found} bytes where {expected} were asked for")]
    Length { role: String, expected: u64, found: u64 },
    /// A plan that was not made from this packed layer.
    #[error(
        "the plan does not belong to the packed layer: at entry {entry}, {difference}; plan the layer again"
    )]
    PlanMismatch { entry: usize, difference: String },

    /// A segment of the wrong length.
    #[error("the constant segment has {found} bytes and its plan says {expected}")]
    SegmentLength { expected: u64, found: u64 },
    /// A role that the plan lacks.
    #[error("the plan has no weight {role}; it has {}", known.join(", "))]
    UnknownRole { role: String, known: Vec<String> },
    /// A row that the weight lacks.
    #[error("{role}: row {row} was asked for and it has {rows}")]
    NoSuchRow { role: String, row: usize, rows: u64 },
}

/// An element of a weight, or one of its scales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Counted over the whole packed weight or all of its scales, row-major.
    pub index: u64,
    /// The delivered tensor that has it, and its indices there, outermost first; `None` as far as the stage knows.
    pub delivered: Option<Box<(String, Vec<u64>)>>,
}

impl From<u64> for Element {
    fn from(index: u64) -> Element {
        Element { index, delivered: None }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.delivered {
            Some(found) => write!(f, "{:?} of {}", found.1, found.0),
            None => write!(f, "{}", self.index),
        }
    }
}

impl QuantizeError {
    /// The same, naming what it names in the delivery: `element` and `scale` find the tensor and the indices of an
    /// element of a role, and of one of its scales.
    #[must_use]
    pub fn delivered<'a>(
        mut self,
        element: impl FnOnce(&str, u64) -> Option<(&'a str, Vec<u64>)>,
        scale: impl FnOnce(&str, u64) -> Option<(&'a str, Vec<u64>)>,
    ) -> QuantizeError {
        let found = match &self {
            QuantizeError::NonFinite { role, at, .. }
            | QuantizeError::Overflow { role, at, .. }
            | QuantizeError::Container { role, at, .. } => element(role, at.index),
            QuantizeError::Scale { role, at, .. } => scale(role, at.index),
            _ => None,
        };
        if let QuantizeError::NonFinite { at, .. }
        | QuantizeError::Overflow { at, .. }
        | QuantizeError::Container { at, .. }
        | QuantizeError::Scale { at, .. } = &mut self
        {
            at.delivered = found.map(|(tensor, indices)| Box::new((tensor.to_string(), indices)));
        }
        self
    }

    /// Whether the surroundings and not the inputs are at fault: such an error may be gone on the next
    /// try, so it must not be remembered as a result.
    pub fn is_environment(&self) -> bool {
        matches!(self, QuantizeError::Io { .. })
    }

    pub(crate) fn io(role: &str, doing: &'static str, error: &io::Error) -> QuantizeError {
        QuantizeError::Io { role: role.into(), doing, kind: error.kind(), message: error.to_string() }
    }
}

fn wider(scale: &str) -> &'static str {
    if scale == "f16" { "; give the role scale = \"f32\"" } else { "" }
}

const fn word(weight_use: WeightUse) -> &'static str {
    match weight_use {
        WeightUse::Matrix => "a matrix",
        WeightUse::Experts => "a stack of experts",
        WeightUse::Table => "a table",
        WeightUse::Vector => "a vector",
    }
}
