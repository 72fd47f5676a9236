//! The least that getting from a delivery to constants takes on this machine now: every delivered byte is read once, as many
//! bytes as the constants have are hashed and written, and nothing is computed. All threads share it, as the command's do,
//! and pieces stay in the processor's cache from the hash to the file. Whatever the command takes beyond that is its own.

use crate::cpu::Cpu;
use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

/// Bytes that a thread hashes and writes at a time.
const PIECE: u64 = 512 << 10;

/// Reads `files` and writes a file of `constants` bytes in `dir`, which is removed.
pub fn floor(files: &[&Path], constants: u64, dir: &Path) -> Cpu {
    let before = Cpu::own();
    let path = dir.join("floor");
    let out = File::create(&path).expect("a file");
    let flags = rustix::fs::FallocateFlags::empty();
    if let Err(e) = rustix::fs::fallocate(&out, flags, 0, constants) {
        eprintln!("{}: no room set aside: {e}", path.display());
    }
    let maps: Vec<memmap2::Mmap> = files
        .iter()
        .map(|path| {
            let file = File::open(path).expect("a file of weights");
            // SAFETY: nothing writes the bench's own delivery while it is mapped.
            unsafe { memmap2::Mmap::map(&file) }.expect("a map")
        })
        .collect();
    let delivered: u64 = maps.iter().map(|map| map.len() as u64).sum();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let writing = Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (maps, out, writing) = (&maps, &out, &writing);
            scope.spawn(move || {
                let share = |all: u64| all * thread / threads..all * (thread + 1) / threads;
                one_thread(maps, share(delivered), out, share(constants), writing);
            });
        }
    });
    drop(out);
    std::fs::remove_file(&path).expect("the file of this bench");
    Cpu::own().since(before)
}

/// A thread's share of both, piece by piece.
fn one_thread(maps: &[memmap2::Mmap], read: Range<u64>, out: &File, made: Range<u64>, writing: &Mutex<()>) {
    let mut buffer: Vec<u8> =
        (0..PIECE as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let pieces = (made.end - made.start).div_ceil(PIECE);
    for piece in 0..pieces {
        let step = |number: u64| read.start + (read.end - read.start) * number / pieces;
        let sum = sums(maps, step(piece)..step(piece + 1));
        // what is written depends on what was read
        buffer[..8].copy_from_slice(&sum.to_le_bytes());
        let at = made.start + piece * PIECE;
        let bytes = &buffer[..PIECE.min(made.end - at) as usize];
        black_box(blake3::hash(bytes));
        let _turn = writing.lock().expect("no writer panics");
        out.write_all_at(bytes, at).expect("room for a file as large as the constants");
    }
}

/// A sum over the bytes `range` of the files, one after the other.
fn sums(maps: &[memmap2::Mmap], range: Range<u64>) -> u64 {
    let (mut start, mut sum) = (0, 0u64);
    for map in maps {
        let end = start + map.len() as u64;
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            sum = sum.wrapping_add(crate::probe::sum(&map[(from - start) as usize..(to - start) as usize]));
        }
        start = end;
    }
    sum
}
