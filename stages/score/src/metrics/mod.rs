//! The measuring engine: every figure that a gate or a report shows is made here.
//!
//! The rules hold for all of it. Operands are float64, or integers that are compared as they are; sums run
//! in the order of the elements. One NaN or infinity among the operands makes the figure NaN, which no
//! bound admits. Operands of different length, and operands without elements, are errors. Each figure
//! carries how many elements were compared.
//!
//! It knows no bound, no model and no text.

mod branch;
mod distribution;
mod elements;
mod equality;
mod ranking;
mod similarity;

pub use branch::Branching;
pub(crate) use distribution::softmax;
pub use distribution::{Divergence, Perplexity};
pub use elements::{Elements, Places};
pub use equality::Equality;
pub use ranking::{Attainment, Choice, argmax};
pub use similarity::{Scale, Similarity};

use crate::ScoreError;

/// Refuses operands that are empty or of different length.
fn comparable<T>(found: &[T], reference: &[T]) -> Result<(), ScoreError> {
    if found.len() != reference.len() {
        return Err(ScoreError::Mismatch { expected: reference.len(), found: found.len() });
    }
    if reference.is_empty() {
        return Err(ScoreError::Empty { what: "the reference".into() });
    }
    Ok(())
}

/// Splits a flattened table into its rows. Errors where it is empty or no whole number of them.
fn rows<'a>(
    what: &str,
    table: &'a [f64],
    width: usize,
) -> Result<std::slice::ChunksExact<'a, f64>, ScoreError> {
    if table.is_empty() || width == 0 {
        return Err(ScoreError::Empty { what: what.into() });
    }
    if !table.len().is_multiple_of(width) {
        let rows = table.len().div_ceil(width);
        return Err(ScoreError::Rows { what: what.into(), elements: table.len(), rows });
    }
    Ok(table.chunks_exact(width))
}

/// Whether no element is NaN or infinite.
fn finite(values: &[f64]) -> bool {
    values.iter().all(|v| v.is_finite())
}

/// The value itself, or the one NaN: what 0/0 leaves in its bits differs between processors, and a
/// report must not.
pub(crate) fn finite_or_nan(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::NAN }
}

/// `sqrt(Σ v²)`.
fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}
