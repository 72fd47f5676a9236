//! The simulator of `vg1`: it executes encoded instructions, bit for bit as `docs/spec/device.md`
//! states them, and counts their cycles from the instruction stream.
//!
//! It knows neither the HIR nor the evaluator, no query engine, no cache and no terminal. A kernel,
//! its constant segments and its edges come in; edges and counters go out. Results depend on
//! nothing else: not on the number of threads, nor on the vector units of the machine.

#[macro_use]
mod simd;
pub mod convert;
pub mod counters;
pub mod edges;
pub mod error;
mod exec;
pub mod functions;
mod l2;
pub mod listing;
mod loops;
mod lrm;
pub mod machine;
pub mod matv;
pub mod memory;
pub mod observe;
pub mod program;
mod team;
pub mod timing;
mod written;

pub use counters::Counters;
pub use edges::Edges;
pub use error::{Fault, SimError, Trap};
pub use listing::explained;
pub use machine::{Machine, Options};
pub use observe::{Boundary, Observer, Tally, TileValues, View};
pub use program::{BUFFER_SHIFT, Program};

/// The version of this stage, part of every key beside the numerics version; raised whenever the same
/// program and inputs give other bits.
pub const VERSION: u32 = 1;
