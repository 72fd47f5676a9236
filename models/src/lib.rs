//! Authored models: the HIR, its float64 evaluator, and one module a model.
//!
//! It knows no device format, no file, no cache and no terminal. What it is given are configuration
//! fields and tensors by name; what it gives are functions, shapes and reference values.

pub mod analysis;
pub mod decode;
pub mod error;
pub mod eval;
pub mod hir;
pub mod naming;
pub mod qwen3_5_moe;
pub mod registry;
pub mod stack;
pub mod twin;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::ModelError;
pub use naming::{SourceForm, WeightSource, expert_name, sources};
pub use registry::{describe, described, model_for};
pub use stack::{Facts, LayerKind, Part, Stack};
