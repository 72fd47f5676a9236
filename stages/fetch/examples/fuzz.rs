//! Mutates sound inputs at random and gives them to every reader, for so many seconds each:
//!
//!     cargo run --release -p mica-fetch --features testing --example fuzz -- SECONDS [SEED]
//!
//! A broken promise panics with the reader, the seed and the execution, which happens again with the same
//! arguments. Needs no nightly compiler; the coverage-guided targets in `fuzz/` do.

use mica_fetch::testing::{READERS, drive};
use std::time::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("SECONDS and SEED are numbers"));
    let seconds = arguments.next().unwrap_or(10);
    let seed = arguments.next().unwrap_or(1);
    for reader in &READERS {
        drive(reader, Duration::from_secs(seconds), seed);
    }
}
