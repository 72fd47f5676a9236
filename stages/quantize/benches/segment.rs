//! Delivered bytes a second of processor time that one thread turns into a constant segment, by what is delivered and what
//! is stored. Weights of a production layer's shapes, in memory; the segment goes to a sink.
//!
//! `cargo bench -p mica-quantize`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mica_models::analysis::WeightUse;
use mica_pack::{Dtype, PackedLayer, PackedTensor, Source};
use mica_quantize::{ComponentFormat, Group, Recipe, Rule, ScaleFormat, TensorBytes, plan, quantize};
use rustix::time::{ClockId, clock_gettime};
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::time::Duration;

/// The bytes of the one weight and of its scales.
struct Memory {
    data: Vec<u8>,
    scales: Vec<u8>,
    /// Whether the data are words of eight integers.
    in_words: bool,
}

impl TensorBytes for Memory {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let all = if source.digest == digest("scale") { &self.scales } else { &self.data };
        Ok(Cow::Borrowed(&all[range.start as usize..range.end as usize]))
    }

    fn words(&self, _: &Source, range: Range<u64>) -> io::Result<Option<Cow<'_, [u8]>>> {
        let words = range.start as usize / 2..range.end as usize / 2;
        Ok(self.in_words.then(|| Cow::Borrowed(&self.data[words])))
    }
}

fn digest(name: &str) -> mica_pack::Digest {
    blake3::hash(name.as_bytes())
}

fn source(name: &str, dtype: Dtype, shape: &[u64]) -> Source {
    Source { digest: digest(name), dtype, shape: shape.into() }
}

/// Bell-shaped floats around 0, as a checkpoint's are, or int4 values in containers.
fn data(dtype: Dtype, elements: u64) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let values = (0..elements).map(|_| (next() + next() + next() + next()) * 0.05);
    match dtype {
        Dtype::BF16 => values.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        _ => values.map(|x| (x * 70.0) as i8 as u8).collect(),
    }
}

/// Of this thread, so that a busy machine gives the figures of an idle one.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

fn segments(c: &mut Criterion) {
    let [count, rows, cols] = [8, 1024, 2048];
    let shape = [count, rows, cols];
    let elements = count * rows * cols;
    let group = 32;
    let scaled = |group, scale| (Group::Of(group), scale);
    let (g32, f16) = scaled(group, ScaleFormat::F16);
    let i4 = ComponentFormat::I4 { group: g32, scale: f16 };
    let i8 = ComponentFormat::I8 { group: Group::Row, scale: ScaleFormat::F32 };
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one thread");
    let mut bench = c.benchmark_group("one thread");
    for (name, dtype, in_words, format) in [
        ("bf16 to i4, groups of 32", Dtype::BF16, false, i4),
        ("bf16 to i8, a scale a row", Dtype::BF16, false, i8),
        ("bf16 to f16", Dtype::BF16, false, ComponentFormat::F16),
        ("quantized to i4", Dtype::I8, false, i4),
        ("quantized to i8", Dtype::I8, false, i8),
        ("words to i4", Dtype::I8, true, i4),
    ] {
        let quantized = dtype == Dtype::I8;
        let groups = cols / u64::from(group);
        let tensor = PackedTensor {
            role: "experts".into(),
            weight_use: WeightUse::Experts,
            shape: shape.into(),
            data: source("data", dtype, &shape),
            scale: quantized.then(|| source("scale", Dtype::F16, &[count, rows, groups])),
            zero: None,
        };
        let layer = PackedLayer { kind: "bench".into(), fused: vec![], tensors: vec![tensor] };
        let memory = Memory {
            data: data(dtype, if in_words { elements / 2 } else { elements }),
            scales: [0x00, 0x20].repeat((count * rows * groups) as usize),
            in_words,
        };
        let recipe = Recipe { rules: vec![Rule { pattern: "*".into(), format }] };
        let plan = plan(&layer, &recipe).expect("a plan");
        bench.throughput(Throughput::BytesDecimal(memory.data.len() as u64));
        bench.sample_size(10);
        bench.bench_function(name, |b| {
            b.iter_custom(|times| {
                one.install(|| {
                    let start = processor_time();
                    for _ in 0..times {
                        quantize(&layer, &plan, &memory, &|_, _| Ok(()), false).expect("bytes");
                    }
                    processor_time() - start
                })
            });
        });
    }
}

criterion_group!(benches, segments);
criterion_main!(benches);
