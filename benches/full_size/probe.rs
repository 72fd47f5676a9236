//! What the memory gives: threads that do nothing but read, and read the very constants that decode reads, so that
//! both have the same pages.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

/// Bytes that each run reads: many times the last cache.
const BYTES: usize = 512 << 20;
/// Bytes that a thread reads in one go.
const STRETCH: usize = 4 << 20;

/// The probe, and the range of what it has seen.
pub struct Probe<'m> {
    stretches: Vec<&'m [u8]>,
    threads: usize,
    /// Where the next run begins.
    at: Cell<usize>,
    seen: Cell<(f64, f64)>,
}

impl<'m> Probe<'m> {
    /// A probe of so many threads over some memory.
    pub fn new(memory: impl Iterator<Item = &'m [u8]>, threads: usize) -> Probe<'m> {
        let stretches = memory.flat_map(|m| m.chunks_exact(STRETCH)).collect();
        Probe { stretches, threads, at: Cell::new(0), seen: Cell::new((f64::INFINITY, 0.0)) }
    }

    /// Gigabytes a second of one run.
    pub fn run(&self) -> f64 {
        let count = BYTES / STRETCH;
        let first = self.at.replace((self.at.get() + count) % self.stretches.len());
        let these: Vec<&[u8]> = self.stretches.iter().cycle().skip(first).take(count).copied().collect();
        let start = Instant::now();
        let sums = std::thread::scope(|s| {
            let shares = these.chunks(count.div_ceil(self.threads)).enumerate();
            let parts: Vec<_> = shares.map(|(t, share)| s.spawn(move || read(t, share))).collect();
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

/// Keeps the calling thread on one processor, where the system allows it: two threads that a busy machine puts on
/// one say nothing of the memory.
pub fn pin(thread: usize) {
    #[cfg(target_os = "linux")]
    {
        let mut one = rustix::thread::CpuSet::new();
        one.set(thread);
        if let Err(e) = rustix::thread::sched_setaffinity(None, &one) {
            eprintln!("thread {thread} is not kept on its processor: {e}");
        }
    }
}

fn read(thread: usize, share: &[&[u8]]) -> u64 {
    pin(thread);
    share.iter().map(|m| sum(m)).fold(0, u64::wrapping_add)
}

/// A sum that keeps 32 additions in flight, so that the memory decides.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in bytes.as_chunks::<8>().0.as_chunks::<32>().0 {
        for (lane, w) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*w));
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}
