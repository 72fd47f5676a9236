//! A stack at the published dimensions with random constants, made in the device's layout at once.

use mica_compile::{Seams, compile, link};
use mica_device::format::Format;
use mica_device::layout::{MatrixFormat, MatrixLayout, Scaling, TableLayout, WeightFormat};
use mica_device::object::{Kernel, Object};
use mica_device::product::Product;
use mica_device::segment::{PlanEntry, SegmentPlan, Storage};
use mica_models::analysis::{WeightUse, weight_uses};
use mica_models::hir::Function;
use mica_models::registry::described;
use mica_models::{Part, Stack, describe};
use serde_json::Value;

/// Layers whose constants differ; the others repeat them, far enough apart that no cache keeps them.
pub const DISTINCT: usize = 4;
/// Columns of a scale of four-bit weights.
const GROUP: u32 = 128;

/// SplitMix64.
pub struct Words(pub u64);

impl Words {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in [−1, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A stack and its constants.
pub struct Model {
    pub product: Product,
    stack: Stack,
    /// Constants with their plan: embedding, distinct layers, head.
    segments: Vec<(SegmentPlan, Vec<u8>)>,
    /// The segment of each part.
    of_part: Vec<usize>,
}

impl Model {
    /// A stack of so many layers and rows of vocabulary.
    pub fn new(layers: usize, vocabulary: u64) -> Model {
        let stack = stack(layers, vocabulary);
        let mut segments = Vec::new();
        let mut of_part = Vec::new();
        for (n, part) in stack.parts().into_iter().enumerate() {
            let like = match part {
                Part::Layer(i) if i >= DISTINCT => of_part[1 + i % DISTINCT],
                _ => {
                    let plan = plan(stack.function(part).expect("a part of the stack"));
                    let bytes = random(&plan, n as u64);
                    segments.push((plan, bytes));
                    segments.len() - 1
                }
            };
            of_part.push(like);
        }
        Model { product: Product::named("qb16").expect("a product"), stack, segments, of_part }
    }

    /// The linked kernel that takes so many tokens a call.
    pub fn kernel(&self, tokens: u64) -> Kernel {
        let parts = self.stack.parts().into_iter().zip(&self.of_part);
        let objects = parts.map(|(part, &like)| {
            let f = self.stack.function(part).expect("a part of the stack");
            // routers' logits are for people; there are no entries to spare
            let exports = f.results.iter().map(|r| r.0.clone()).filter(|n| n != "router_logits");
            let options =
                mica_compile::Options { frac: 20, capacity: 256, exports: exports.collect(), tokens };
            compile(&f.name, f, &self.segments[like].0, &self.product, &options).expect("it compiles")
        });
        let objects: Vec<Object> = objects.collect();
        let parts: Vec<&Object> = objects.iter().collect();
        link(&parts, &self.product, Seams::Whole).expect("it links")
    }

    /// Bytes of all constants in memory.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|s| s.1.len()).sum()
    }

    /// Constants a part.
    pub fn constants(&self) -> Vec<&[u8]> {
        self.of_part.iter().map(|&s| self.segments[s].1.as_slice()).collect()
    }

    /// Each segment once.
    pub fn distinct(&self) -> impl Iterator<Item = (&SegmentPlan, &[u8])> {
        self.segments.iter().map(|s| (&s.0, s.1.as_slice()))
    }
}

/// The published description, cut to so many layers and rows of vocabulary.
fn stack(layers: usize, vocabulary: u64) -> Stack {
    let model = &described()[0];
    let mut config = model.published_config().expect("a shipped file");
    let text = config.get_mut("text_config").and_then(Value::as_object_mut).expect("text fields");
    text.insert("num_hidden_layers".into(), layers.into());
    text.insert("vocab_size".into(), vocabulary.into());
    text.get_mut("layer_types").and_then(Value::as_array_mut).expect("types").truncate(layers);
    describe(model.name, &config).expect("the published fields")
}

/// Bytes of the constant segments of such a stack.
pub fn constant_bytes(layers: usize, vocabulary: u64) -> u64 {
    let stack = stack(layers, vocabulary);
    let parts = stack.parts().into_iter();
    parts.map(|part| plan(stack.function(part).expect("a part of the stack")).bytes).sum()
}

/// The formats of the shipped recipe.
fn plan(f: &Function) -> SegmentPlan {
    let uses = weight_uses(f);
    let scaling = |group, scale| Some(Scaling { group, scale, zero: false });
    let mut plan = SegmentPlan::default();
    for w in f.weights() {
        let shape = w.ty.known_shape().expect("weights have a shape");
        let cols = shape.last().copied().unwrap_or(1) as u32;
        let matrix = |weight, scaling| MatrixFormat { weight, scaling };
        let storage = match uses.get(&w.name).copied().unwrap_or(WeightUse::Vector) {
            WeightUse::Experts => Storage::Experts(matrix(WeightFormat::I4, scaling(GROUP, Format::F16))),
            WeightUse::Table => Storage::Table { element: Format::I8, scaling: scaling(cols, Format::F32) },
            WeightUse::Matrix if shape[0] <= 256 => Storage::Matrix(matrix(WeightFormat::F16, None)),
            WeightUse::Matrix => Storage::Matrix(matrix(WeightFormat::I8, scaling(cols, Format::F32))),
            WeightUse::Vector => Storage::Vector(Format::F32),
        };
        assert!(plan.push(&w.name, &shape, storage), "{}", w.name);
    }
    plan
}

/// Random constants of a plan, of such sizes that values stay about as large as they are.
fn random(plan: &SegmentPlan, seed: u64) -> Vec<u8> {
    let mut words = Words(seed);
    let mut bytes = vec![0; plan.bytes as usize];
    for e in &plan.entries {
        fill(e, &mut words, &mut bytes[e.offset as usize..][..e.bytes as usize]);
    }
    bytes
}

fn fill(e: &PlanEntry, words: &mut Words, out: &mut [u8]) {
    let spread = (3.0 / *e.shape.last().unwrap_or(&1) as f32).sqrt();
    match (e.storage, e.shape.as_slice()) {
        (Storage::Vector(_), _) => {
            for out in out.as_chunks_mut().0 {
                *out = (words.unit() * 0.5).to_le_bytes();
            }
        }
        (Storage::Matrix(format) | Storage::Experts(format), &[.., rows, cols]) => {
            let m = MatrixLayout { rows, cols, format };
            for matrix in out.chunks_mut(m.bytes() as usize) {
                for t in 0..m.tiles() {
                    let tile = &mut matrix[m.tile_offset(t) as usize..][..m.tile_bytes(t) as usize];
                    let (scales, vectors) = tile.split_at_mut(m.scale_bytes(m.tile_rows(t)) as usize);
                    put_scales(format.scaling, spread, format.weight, scales);
                    for out in vectors.as_chunks_mut().0 {
                        // halves of 2^-6 to 2^-5, either sign
                        *out = match format.weight {
                            WeightFormat::F16 => words.next() & 0x83ff_83ff_83ff_83ff | 0x2400_2400_2400_2400,
                            _ => words.next(),
                        }
                        .to_le_bytes();
                    }
                }
            }
        }
        (Storage::Table { element, scaling }, &[rows, cols]) => {
            let t = TableLayout { rows, cols, element, scaling };
            for row in out.chunks_mut(t.row_bytes() as usize) {
                for out in row.as_chunks_mut().0 {
                    *out = words.next().to_le_bytes();
                }
                put_scales(scaling, 1.0, WeightFormat::I8, &mut row[t.scale_offset() as usize..]);
            }
        }
        _ => {}
    }
}

fn put_scales(scaling: Option<Scaling>, spread: f32, weight: WeightFormat, out: &mut [u8]) {
    let step = spread / if weight == WeightFormat::I4 { 8.0 } else { 128.0 };
    match scaling.map(|s| s.scale) {
        Some(Format::F16) => out.as_chunks_mut().0.fill(half::f16::from_f32(step).to_le_bytes()),
        Some(_) => out.as_chunks_mut().0.fill(step.to_le_bytes()),
        None => {}
    }
}
