//! A model through the stages in a straight line: fetch, pack, quantize, compile, link, simulate, score.
//!
//! No cache, no queries, no blocks: each stage's own function on the whole of its input, in memory. So a test
//! can put something wrong between two stages and see whether the gates find it.

mod chain;
mod device;
mod judge;
mod parts;
mod reference;

pub use chain::Computed;
pub use device::{forced, free, loaded, prompt, strict, whole};
pub use judge::{Captures, judge};
pub use parts::{Part, Ported, Source};
pub use reference::{forced_reference, in_float16, reference};
