//! The last stage: figures, gates and verdicts.
//!
//! [`metrics`] measures, [`gate`] judges one figure against one bound, [`decode`] does both for a whole
//! run of a model, [`validation`] for one op or layer, and [`table`] lays text out in columns. Every sum
//! is float64 in the order of the elements and every transcendental function comes from a pure-Rust libm,
//! so a report has the same bits on every machine.
//!
//! It takes slices and gives values and text. It must not know salsa, the cache, files or the terminal,
//! nor where the values come from: device, evaluator and capture are three slices of numbers.

mod counted;
pub mod decode;
mod error;
pub mod gate;
pub mod metrics;
pub mod table;
mod thresholds;
pub mod validation;

pub use counted::NonFiniteWeights;
pub use decode::{DecodeInputs, DecodeReport, Texts, render, score_decode};
pub use error::ScoreError;
pub use gate::{Bound, Gate, GateSpec, Reading, Verdict};
pub use thresholds::Thresholds;

/// The version of this stage. Raise it whenever a figure, a gate or the form of a report changes for the
/// same inputs: it is part of the key of every score.
pub const VERSION: u32 = 3;
