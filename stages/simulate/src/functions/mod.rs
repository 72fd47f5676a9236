//! The functions of the array: exp, sigmoid, silu, softplus, rsqrt, sine and cosine.
//!
//! Each is an integer algorithm with a stated domain, never the machine's own mathematics, so that
//! every machine gives the same bits. Input and output are f32; NaN gives the canonical NaN. Error
//! tables: `cargo test -p mica-simulate --test functions -- --nocapture`.

mod exponential;
mod fixed;
mod logarithm;
mod root;
mod trigonometry;

pub use exponential::{exp, sigmoid, silu};
pub use logarithm::softplus;
pub use root::rsqrt;
pub use trigonometry::{ANGLE_LIMIT, sincos};
