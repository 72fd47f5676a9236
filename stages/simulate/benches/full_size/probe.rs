//! What the memory gives: threads that do nothing but read.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

/// Bytes that each run reads: many times the last cache.
const BYTES: usize = 512 << 20;

/// The probe, and the range of what it has seen.
pub struct Probe {
    words: Vec<u64>,
    threads: usize,
    seen: Cell<(f64, f64)>,
}

impl Probe {
    /// A probe of so many threads.
    pub fn new(threads: usize) -> Probe {
        Probe { words: vec![1; BYTES / 8], threads, seen: Cell::new((f64::INFINITY, 0.0)) }
    }

    /// Gigabytes a second of one run.
    pub fn run(&self) -> f64 {
        let start = Instant::now();
        let sums = std::thread::scope(|s| {
            let share = self.words.len().div_ceil(self.threads);
            let parts: Vec<_> = self.words.chunks(share).map(|part| s.spawn(|| sum(part))).collect();
            parts.into_iter().map(|p| p.join().unwrap_or_default()).fold(0, u64::wrapping_add)
        });
        black_box(sums);
        let rate = BYTES as f64 / start.elapsed().as_secs_f64() / 1e9;
        let (least, most) = self.seen.get();
        self.seen.set((least.min(rate), most.max(rate)));
        rate
    }

    /// The slowest run.
    pub fn least(&self) -> f64 {
        self.seen.get().0
    }

    /// The fastest run.
    pub fn most(&self) -> f64 {
        self.seen.get().1
    }
}

/// A sum that keeps 32 additions in flight, so that the memory decides.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        for (lane, w) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*w);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}
