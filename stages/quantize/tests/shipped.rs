//! The shipped deliveries: the quantized one is re-laid without loss, the bfloat16 one loses less than in
//! its publisher's own, calibrated quantization.

mod common;

use common::*;
use mica_models::stack::{Part, Stack};
use mica_pack::testing::MemoryDelivery;
use mica_pack::{Dtype, PackedLayer, Source};
use mica_quantize::{Dequantized, QuantizeError, TensorBytes, plan, quantize};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::{fs, io};

struct Delivered(MemoryDelivery);

impl TensorBytes for Delivered {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let all = self.0.content(source).ok_or(io::ErrorKind::NotFound)?;
        Ok(Cow::Borrowed(&all[range.start as usize..range.end as usize]))
    }
}

fn delivery(file: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/delivery").join(file)).unwrap()
}

fn stack() -> Stack {
    let config = serde_json::from_slice(&delivery("tiny/config.json")).unwrap();
    mica_models::describe(mica_models::model_for(&config).unwrap(), &config).unwrap()
}

fn packed(file: &str, parts: &[Part]) -> (Vec<PackedLayer>, Delivered) {
    let mut delivery = MemoryDelivery::from_safetensors(&delivery(file));
    let stack = stack();
    let pack = |&part| delivery.packed(&stack, part).unwrap();
    (parts.iter().map(pack).collect(), Delivered(delivery))
}

#[test]
fn the_quantized_delivery_is_relaid_without_loss() {
    let parts = stack().parts();
    let (layers, delivered) = packed("tiny-w4a16/full_model.safetensors", &parts);
    let mut quantized = 0;
    for layer in &layers {
        let written = written(layer, &usual(), &delivered).unwrap();
        let read = Dequantized::new(&written.plan, &written.segment).unwrap();
        for (tensor, figures) in layer.tensors.iter().zip(&written.figures) {
            let Some(scale) = &tensor.scale else { continue };
            quantized += 1;
            assert!(figures.lossless && figures.relative_error == 0.0 && figures.saturated == 0);
            let q = delivered.0.content(&tensor.data).unwrap();
            let scales = delivered.0.content(scale).unwrap();
            let scales: Vec<f32> = match scale.dtype {
                Dtype::F16 => {
                    scales.chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
                }
                _ => scales.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            };
            let group = q.len() / scales.len();
            let values = read.elements(&tensor.role).unwrap();
            assert_eq!(values.len(), q.len());
            for (i, (&value, &q)) in values.iter().zip(q).enumerate() {
                let expected = f64::from(f32::from(q as i8) * scales[i / group]);
                assert_eq!(value.to_bits(), expected.to_bits(), "{} {i}", tensor.role);
            }
        }
    }
    assert_eq!(quantized, 6 * 8 + 2 * 9 + 2); // six DeltaNet layers, two of attention, embedding and head
}

/// Relative errors by role and layer, beside those of the publisher's quantization.json.
#[test]
fn the_bfloat16_delivery_loses_less_than_in_a_calibrated_quantization() {
    let theirs: serde_json::Value =
        serde_json::from_slice(&delivery("tiny-w4a16/quantization.json")).unwrap();
    let theirs = theirs["quantized"].as_object().unwrap();
    let parts = stack().parts();
    let (layers, delivered) = packed("tiny/model.safetensors", &parts);
    let mut compared = 0;
    for (part, layer) in parts.iter().zip(&layers) {
        let written = written(layer, &usual(), &delivered).unwrap();
        for figures in &written.figures {
            let stem = figures.role.trim_end_matches(".weight");
            let name = match part {
                Part::Layer(i) => format!("model.layers.{i}.{stem}"),
                _ if stem == "lm_head" => stem.to_owned(),
                _ => format!("model.{stem}"),
            };
            let Some(their) = theirs.get(&name) else {
                assert!(figures.relative_error < 3e-4, "{figures:?}");
                continue;
            };
            let their = their["relative_error"].as_f64().unwrap();
            assert!(figures.relative_error < their, "{name}: {} {their}", figures.relative_error);
            assert!(figures.relative_error > 0.8 * their, "{name}: {} {their}", figures.relative_error);
            compared += 1;
        }
    }
    assert_eq!(compared, theirs.len());
}

/// What a segment is must not change unless the stage's version does. Made on one thread and on three.
#[test]
fn golden() {
    assert_eq!(mica_quantize::VERSION, 1);
    let segments = |file| {
        let (layers, delivered) = packed(file, &[Part::Embed, Part::Layer(0), Part::Layer(3)]);
        let digest = |layer| {
            let made = written(layer, &usual(), &delivered).unwrap();
            let text = serde_json::to_string(&(&made.plan, &made.figures)).unwrap();
            blake3::hash(&[&made.segment, text.as_bytes()].concat()).to_hex()[..16].to_owned()
        };
        layers.iter().map(digest).collect::<Vec<_>>()
    };
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (bf16, w4a16) = pool
            .install(|| (segments("tiny/model.safetensors"), segments("tiny-w4a16/full_model.safetensors")));
        assert_eq!(bf16, ["3ba0d1d18f102436", "f2865e4194419b75", "a49cf111dcac660c"]);
        assert_eq!(w4a16, ["ec2ae3cfb692864e", "aa0e878bad27a290", "41dbc5eea8970c2e"]);
    }
}

/// Gives bytes in copies, as of a tensor in pieces, and only so many at a time.
struct Copies<'a> {
    of: &'a Delivered,
    most: u64,
}

impl TensorBytes for Copies<'_> {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        assert!(range.end - range.start <= self.most, "{range:?}");
        Ok(Cow::Owned(self.of.bytes(source, range)?.into_owned()))
    }
}

#[test]
fn a_large_weight_is_read_a_tile_at_a_time() {
    let (layers, delivered) = packed("tiny/model.safetensors", &[Part::Layer(0)]);
    let most = 64 * 128 * 2; // 64 rows of 128 columns
    let copied = written(&layers[0], &usual(), &Copies { of: &delivered, most }).unwrap();
    assert_eq!(copied.segment, written(&layers[0], &usual(), &delivered).unwrap().segment);
}

/// Gives integers of four bits also in words.
struct InWords<'a>(&'a Delivered);

impl TensorBytes for InWords<'_> {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        self.0.bytes(source, range)
    }

    fn words(&self, source: &Source, range: Range<u64>) -> io::Result<Option<Cow<'_, [u8]>>> {
        let containers = self.0.bytes(source, range)?;
        let plus = |q: u8| q.wrapping_add(8);
        let pairs = containers.as_chunks().0.iter().map(|&[low, high]| plus(low) | (plus(high) << 4));
        Ok(Some(pairs.collect::<Vec<u8>>().into()))
    }
}

#[test]
fn words_give_what_their_containers_give() {
    let parts = stack().parts();
    let (layers, delivered) = packed("tiny-w4a16/full_model.safetensors", &parts);
    for layer in &layers {
        let containers = written(layer, &usual(), &delivered).unwrap();
        let words = written(layer, &usual(), &InWords(&delivered)).unwrap();
        assert!(words.segment == containers.segment && words.figures == containers.figures);
    }
}

#[test]
fn the_surroundings_errors_are_told_from_the_weights() {
    let (layers, delivered) = packed("tiny/model.safetensors", &[Part::Layer(0)]);
    let error = written(&layers[0], &usual(), &Tensors::default()).err().unwrap();
    assert!(error.is_environment(), "{error}");
    assert!(error.to_string().starts_with("input_layernorm.weight: reading the delivery:"), "{error}");

    let plan = plan(&layers[0], &usual()).unwrap();
    let full = |at: u64, bytes: &[u8]| match at + bytes.len() as u64 {
        ..=1000 => Ok(()),
        _ => Err(std::io::ErrorKind::StorageFull.into()),
    };
    let error = quantize(&layers[0], &plan, &delivered, &full, false).unwrap_err();
    assert!(matches!(&error, QuantizeError::Io { doing: "writing the segment", .. }), "{error}");
}
