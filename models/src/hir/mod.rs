//! The HIR: typed functions of tensors in single-assignment form, grouped into modules.

pub mod builder;
pub mod cost;
pub mod display;
pub mod error;
pub mod function;
pub mod inline;
pub mod module;
pub mod op;
pub mod ops;
pub mod types;

pub use builder::Builder;
pub use cost::{Cost, Dims};
pub use error::HirError;
pub use function::{Function, Node, Param, ParamKind, ValueId};
pub use inline::{CallSite, inline, observed};
pub use module::{Child, Module};
pub use op::{Op, ReduceKind};
pub use types::{Dim, DimVar, Dtype, Type};
