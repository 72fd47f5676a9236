//! The third stage: a packed layer and a recipe become a constant segment in the device's formats and
//! tile order.
//!
//! [`plan`] decides from shapes and dtypes what is stored where; [`quantize`] streams the bytes and
//! reports what was lost; [`Dequantized`] reads a segment back as the numbers that the reference runs on.
//! The recipe is weight-only: no activation and no calibration data enter, and nothing is tuned to a gate.
//!
//! It must not know files, names of delivered tensors, the cache's place, salsa nor the terminal. Bytes
//! come from [`TensorBytes`] and go to a writer; the same inputs give the same bytes on every machine.

mod dequantize;
mod error;
mod glob;
mod plan;
mod recipe;
mod search;
mod segment;
mod source;
mod table;
mod tally;
mod tile;
mod unit;
mod vector;
mod weight;

pub use dequantize::Dequantized;
pub use error::QuantizeError;
pub use plan::plan;
pub use recipe::{ComponentFormat, Group, Recipe, Rule, ScaleFormat};
pub use segment::quantize;
pub use source::TensorBytes;
pub use tally::{TensorFigures, WorstGroup};

/// The stage's version, part of every key; raised whenever the same inputs give other bytes or figures.
pub const VERSION: u32 = 1;
