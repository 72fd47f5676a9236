//! The third stage: a packed layer and a recipe become a constant segment in the device's formats and
//! tile order.
//!
//! [`plan`] decides from shapes and dtypes what is stored where; [`quantize`] streams the bytes and
//! reports what was lost; [`Dequantized`] reads a segment back as the numbers that the reference runs on.
//!
//! A float weight gets integers q and a scale s a group, symmetric (no zero point): i4 in −8..=7, i8 in
//! −127..=127. s is searched for the least Σ (w − q·s)² over twelve candidates, 1, 1 − t, 1 − 2t, … times
//! max|w| / 7 with t = 1/32 for i4 and max|w| / 127 with t = 1/384 for i8, each rounded to its stored format
//! first, and then refined once to Σwq / Σqq if that is better. The rule is weight-only: no activation and no
//! calibration data enter, and nothing is tuned to a gate. `search.rs` states it to the bit.
//!
//! It must not know files, names of delivered tensors, the cache's place, salsa nor the terminal. Bytes
//! come from [`TensorBytes`] and go to [`Put`]; the same inputs give the same bytes on every machine.

mod dequantize;
mod error;
mod glob;
mod interleave;
mod plan;
mod recipe;
mod scale;
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
pub use error::{Element, QuantizeError};
pub use plan::{Overruled, overruled, plan};
pub use recipe::{ComponentFormat, Group, Recipe, Rule, ScaleFormat};
pub use segment::{Put, quantize, quantize_in_memory};
pub use source::TensorBytes;
pub use tally::{TensorFigures, WorstGroup};

/// The stage's version, part of every key; raised whenever the same inputs give other bytes or figures.
pub const VERSION: u32 = 1;
