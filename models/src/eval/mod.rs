//! The float64 evaluator: what a function means, in float64 and in a fixed order of summation.
//!
//! Elementary functions come from the pure-Rust `libm`, threads only share independent outputs, and there
//! is no fused multiply–add, so a result has the same bits on every machine and for any number of threads.

pub mod angles;
pub mod error;
pub mod loaded;
pub mod observe;
pub mod round;
mod run;
pub(crate) mod tensor;
pub mod weights;

pub use angles::{Angles, published_inv_freq};
pub use error::EvalError;
pub use loaded::{Loaded, Resource};
pub use observe::{Called, Labelled, calls, values};
pub use run::{Options, Trace, check_inputs, evaluate};
pub use tensor::{Data, Tensor};
pub use weights::{Scoped, Weights};

/// Changes when a result's bits may change; a part of every key that names such results.
pub const NUMERICS_VERSION: u32 = 1;
