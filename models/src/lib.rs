//! Authored models: the HIR, its float64 evaluator, and one module a model.
//!
//! It knows no device format, no file, no cache and no terminal. What it is given are configuration
//! fields and tensors by name; what it gives are functions, shapes and reference values.

pub mod analysis;
pub mod decode;
pub mod dims;
pub mod error;
pub mod eval;
pub mod forest;
pub mod generator;
pub mod hir;
pub mod inputs;
pub mod naming;
pub mod prepare;
pub mod qwen3_5_moe;
pub mod registry;
pub mod select;
pub mod stack;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod twin;

pub use error::ModelError;
pub use naming::{SourceForm, WeightSource, expert_name, sources};
pub use registry::{Described, Shipped, describe, described, model_for};
pub use select::{SelectError, Selection, select};
pub use stack::{Facts, LayerKind, Part, Stack};
