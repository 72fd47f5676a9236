//! From the tile IR to encoded instructions: addresses, tile numbers, waits.
//!
//! It knows no HIR.

pub mod intervals;
pub mod place;
pub mod spill;
pub mod tiles;
pub mod waits;
