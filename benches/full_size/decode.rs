//! Decoding, as a ratio to what the memory gives in the same run: eight layers, a vocabulary of 32,768 rows, i4
//! experts and i8 for the rest, two threads.
//!
//! Weight bytes touched are counted from the instruction stream. The machine's own bandwidth wanders, so probe and
//! work take turns, and each figure is compared with the probes around it.

use crate::model::{self, Model, Words};
use crate::probe::{self, Probe};
use crate::run::Run;
use crate::{Figure, median, prompt};
use mica_device::layout::{MatrixLayout, TILE_ROWS};
use mica_device::product::Rates;
use mica_device::segment::Storage;
use mica_simulate::matv::{Activation, Isa, Piece};
use mica_simulate::timing::{Inputs, cycles};
use mica_simulate::{Counters, Program};
use std::time::Instant;

pub const THREADS: usize = 2;
const LAYERS: usize = 8;
pub const VOCABULARY: u64 = 32_768;
/// Tokens before the clock runs, and those that it measures.
pub const WARM: u64 = 2;
const TOKENS: u64 = 40;
/// Bytes of a matrix that a thread takes at a time.
const PIECE: u64 = 1 << 18;

/// The figures, and what the probe has seen from least to most.
pub fn figures() -> (Vec<Figure>, (f64, f64)) {
    if let Err(e) =
        rayon::ThreadPoolBuilder::new().num_threads(THREADS).start_handler(probe::pin).build_global()
    {
        eprintln!("the pool exists already: {e}");
    }
    let model = Model::new(LAYERS, VOCABULARY);
    eprintln!(
        "decode: {LAYERS} layers, {VOCABULARY} rows of vocabulary, {THREADS} threads, {:.2} GB of constants ({} layers' worth)",
        model.bytes() as f64 / 1e9,
        model::DISTINCT
    );
    let probe = Probe::new(model.distinct().map(|d| d.1), THREADS);
    let mut all = Vec::new();
    for (name, least, (rate, ratio)) in [
        ("simulated decode, weight bytes touched", 0.45, decode(&model, &probe)),
        ("matrix kernels alone", 0.85, matrices(&model, &probe)),
    ] {
        all.push(Figure::at_least(name, ratio, least, format!("of the probe, {rate:.1} GB/s")));
    }
    let [one, several] = prompt::tokens_a_second(&model);
    let unit = format!("times as many tokens a second, {several:.1} for {one:.1}");
    let name = format!("simulated prompt, {} tokens a call", prompt::SEVERAL);
    all.push(Figure::at_least(name, several / one, 1.0, unit));
    (all, (probe.least(), probe.most()))
}

/// Weight bytes a second of decode, and their ratio to the probe: the medians over tokens.
fn decode(model: &Model, probe: &Probe<'_>) -> (f64, f64) {
    let kernel = &model.kernel(1);
    let rates = Rates { bus_bytes: 32, clock_mhz: 1000 };
    let program = Program::load(kernel).expect("a kernel that was just linked");
    let constants = model.constants();
    let mut run = Run::new(model, kernel, &program, &constants, 1);
    let mut samples = Vec::new();
    let mut counters = Counters::default();
    for position in 0..WARM + TOKENS {
        let before = probe.run();
        let (seconds, counted) = run.call();
        counters += counted;
        let touched = cycles(kernel, &model.product, &rates, Inputs { position, ..Inputs::default() })
            .expect("a count");
        let rate = touched.share.bytes.constants as f64 / seconds / 1e9;
        let around = f64::midpoint(before, probe.run());
        if position == 0 {
            eprintln!(
                "{:.1} MB of weights a token, {} instructions",
                touched.share.bytes.constants as f64 / 1e6,
                touched.share.instructions
            );
        }
        if position >= WARM {
            samples.push((rate, rate / around));
            eprintln!("token {position:>2}: {:.1} ms, {rate:.1} GB/s, probe {around:.1}", seconds * 1e3);
        }
    }
    eprintln!(
        "saturations {}, overflows {}, non-finite {}",
        counters.saturations, counters.f16_overflows, counters.non_finite
    );
    medians(samples)
}

/// The same for the matrix kernels alone: every matrix of every distinct layer, and eight experts of each,
/// every thread its share of the tiles.
fn matrices(model: &Model, probe: &Probe<'_>) -> (f64, f64) {
    let isa = Isa::best();
    let mut words = Words(2);
    let mut samples = Vec::new();
    for _ in 0..TOKENS {
        let mut vectors = Vec::new();
        let mut pieces = Vec::new();
        for (plan, constants) in model.distinct() {
            for e in &plan.entries {
                let (format, first, count) = match (e.storage, e.shape.as_slice()) {
                    (Storage::Matrix(f), [_, _]) => (f, 0, 1),
                    (Storage::Experts(f), &[n, _, _]) => (f, words.next() % (n - 8), 8),
                    _ => continue,
                };
                let [.., rows, cols] = e.shape[..] else { continue };
                let m = MatrixLayout { rows, cols, format };
                let mut x = Activation::default();
                x.prepare(isa, &m, (0..cols).map(|k| 0x3000 + (k * 7 % 2048) as u16));
                vectors.push(x);
                for n in first..first + count {
                    let at = (e.offset + n * m.bytes()) as usize;
                    let matrix = &constants[at..at + m.bytes() as usize];
                    let of = Piece::of(m, matrix, PIECE);
                    pieces.extend(of.map(|(piece, _, rows)| (piece, rows, vectors.len() - 1)));
                }
            }
        }
        let sizes =
            pieces.iter().map(|(p, rows, _)| (*rows as u64).div_ceil(TILE_ROWS) * p.matrix.tile_bytes(0));
        // shares of equal bytes: pieces differ in size
        let ends: Vec<u64> = sizes
            .scan(0, |end, size| {
                *end += size;
                Some(*end)
            })
            .collect();
        let bytes = ends.last().copied().unwrap_or_default();
        let bound = |t: usize| ends.partition_point(|&end| end <= bytes * t as u64 / THREADS as u64);
        let shares: Vec<_> = (0..THREADS).map(|t| &pieces[bound(t)..bound(t + 1)]).collect();
        let before = probe.run();
        let start = Instant::now();
        std::thread::scope(|s| {
            for (t, share) in shares.into_iter().enumerate() {
                let vectors = &vectors;
                s.spawn(move || {
                    probe::pin(t);
                    let mut out = vec![0.0; 1 << 16];
                    for (piece, rows, x) in share {
                        piece.run(isa, &vectors[*x], &mut out[..*rows]);
                    }
                    std::hint::black_box(out);
                });
            }
        });
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        samples.push((rate, rate / f64::midpoint(before, probe.run())));
    }
    medians(samples)
}

fn medians(samples: Vec<(f64, f64)>) -> (f64, f64) {
    (median(samples.iter().map(|s| s.0)), median(samples.iter().map(|s| s.1)))
}
