//! The random driver: sound inputs, mutated, given to a reader over and over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::Checked;

/// Bytes that mean something to a reader: instructions, marks, digits, ends of ranges.
const TELLING: &[u8] = b"(t}us)\x85\x86\x87RQqhrjKMJ\x8aXcNb.\x88\x89PK\x01\x02\x03\x04\x05\x06\x07\x08{}[]\",:0123456789-\\u\0\xff\x7f\x80";

/// A fixed sequence of numbers for each seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }
}

/// Changes one to eight places: bytes, runs cut, doubled or moved, numbers at the ends of their ranges.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(8) {
        if bytes.is_empty() {
            bytes.push(random.next() as u8);
            continue;
        }
        let at = random.below(bytes.len());
        let run = (random.below(16) + 1).min(bytes.len() - at);
        match random.below(8) {
            0 => bytes[at] = random.next() as u8,
            1 | 2 => bytes[at] = TELLING[random.below(TELLING.len())],
            3 => bytes[at] ^= 1 << random.below(8),
            4 => _ = bytes.drain(at..at + run),
            5 => {
                let copy = bytes[at..at + run].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            6 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
            _ => {
                let ends = [0, 1, 0x7f, 0x80, 0xff];
                bytes[at..at + run.min(8)].fill(ends[random.below(ends.len())]);
            }
        }
    }
}

/// Gives a reader mutations of its seeds for so long, and prints how many it took. The same seed gives the
/// same inputs.
///
/// # Panics
/// If the reader breaks its promise, with the seed and the execution.
pub fn drive(reader: &Checked, time: Duration, seed: u64) {
    let seeds = (reader.seeds)();
    assert!(seeds.iter().all(|bytes| (reader.check)(bytes)), "{}: its seeds are sound", reader.name);
    // zero would stay zero
    let mut random = Random(seed.max(1));
    let (mut executions, mut taken) = (0u64, 0u64);
    let start = Instant::now();
    while executions % 1024 != 0 || start.elapsed() < time {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut bytes);
        let result = catch_unwind(AssertUnwindSafe(|| (reader.check)(&bytes)));
        let Ok(took) = result else {
            panic!(
                "{} broke its promise: seed {seed}, execution {executions}: {}",
                reader.name,
                bytes.escape_ascii()
            );
        };
        taken += u64::from(took);
        executions += 1;
    }
    println!("{:12} {executions:>10} executions, {taken} inputs taken, no promise broken", reader.name);
}
