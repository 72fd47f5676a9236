//! Packed integers: every format gives the packed layer of the containers that it was packed from.

mod common;

use common::{packed, stack};
use mica_fetch::testing::{NewTensor, PackedFormat, pack_quantized, read_safetensors, shipped};
use mica_models::stack::Part;
use mica_pack::testing::MemoryDelivery;
use mica_pack::{Contents, Dtype, PackedLayer, Place, Scheme, Source, pack, places, resolve, unread};
use serde_json::Value;
use std::ops::Range;
use std::sync::LazyLock;

const EXPERTS: &str = "model.layers.0.mlp.experts.";
const ROLE: &str = "mlp.experts.down_proj";

fn quantized() -> Vec<NewTensor> {
    read_safetensors(&shipped("tiny-w4a16").join("full_model.safetensors"))
}

fn layer_0() -> Vec<NewTensor> {
    static LAYER: LazyLock<Vec<NewTensor>> =
        LazyLock::new(|| quantized().into_iter().filter(|t| t.name.starts_with("model.layers.0.")).collect());
    LAYER.clone()
}

fn delivery(tensors: Vec<NewTensor>, config: &Value) -> MemoryDelivery {
    let mut delivery = MemoryDelivery::default();
    for t in tensors {
        delivery.insert(&t.name, t.dtype, &t.shape, t.bytes);
    }
    delivery.scheme = config.as_object().map(|fields| Scheme::from_config(fields).unwrap());
    delivery
}

fn all_parts(delivery: &mut MemoryDelivery) -> Vec<PackedLayer> {
    let stack = stack();
    stack.parts().into_iter().map(|part| packed(delivery, &stack, part)).collect()
}

#[test]
fn every_format_packs_as_its_containers() {
    let containers = all_parts(&mut delivery(quantized(), &Value::Null));
    for format in PackedFormat::ALL {
        for symmetric in [true, false] {
            // compressed-tensors without zero points is symmetric.
            if format == PackedFormat::CompressedTensors && !symmetric {
                continue;
            }
            let mut delivery = delivery(pack_quantized(&quantized(), format), &format.config(32, symmetric));
            assert_eq!(all_parts(&mut delivery), containers, "{format:?}");
            let stack = stack();
            let resolved = stack.parts().into_iter().map(|part| resolve(&delivery, &stack, part).unwrap());
            assert_eq!(unread(&delivery, &stack.naming, &resolved.collect::<Vec<_>>()), [""; 0]);
        }
    }
}

/// A small random sequence.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// The quantized delivery with the first layer's down projections replaced by random ones, packed.
struct Replaced {
    delivery: MemoryDelivery,
    weights: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
}

fn replaced(format: PackedFormat, groups: u64, dtype: Dtype, zero_points: bool) -> Replaced {
    let mut tensors = layer_0();
    let fused = format!("{EXPERTS}down_proj.");
    tensors.retain(|t| !t.name.starts_with(&fused));
    let mut next = random(groups);
    let [rows, cols] = [128u64, 64];
    let (mut weights, mut scales, mut zeros) = (Vec::new(), Vec::new(), Vec::new());
    for expert in 0..16 {
        // GPTQ's first version has no stored form of the least zero point.
        let mut int4 = |least: u64| (next() % (16 - least) + least) as u8;
        let q: Vec<u8> = (0..rows * cols).map(|_| int4(0).wrapping_sub(8)).collect();
        let z: Vec<i8> = (0..rows * groups).map(|_| int4(1).wrapping_sub(8) as i8).collect();
        let s: Vec<u8> = (0..rows * groups * dtype.bytes()).map(|_| next() as u8).collect();
        let weight = NewTensor::new("w", Dtype::I8, &[rows, cols], q.clone());
        let scale = NewTensor::new("s", dtype, &[rows, groups], s.clone());
        let zero = zero_points.then_some(&z[..]);
        tensors.extend(format.matrix(&format!("{EXPERTS}{expert}.down_proj"), &weight, &scale, zero, 4));
        weights.extend(q);
        scales.extend(s);
        zeros.extend(z.iter().map(|&z| z as u8));
    }
    let mut config = format.config(cols / groups, !zero_points);
    if groups == 1 && format != PackedFormat::CompressedTensors {
        config["group_size"] = (-1).into();
    }
    Replaced { delivery: delivery(tensors, &config), weights, scales, zeros }
}

/// The first layer, and where its tensors lie.
fn with_places(delivery: &mut MemoryDelivery) -> (PackedLayer, Vec<(mica_pack::Digest, Place)>) {
    let resolved = resolve(delivery, &stack(), Part::Layer(0)).unwrap();
    let layer = pack(&resolved, delivery).unwrap();
    let places = places(&resolved, &layer);
    (layer, places)
}

/// All of a tensor, wherever it lies.
fn content(delivery: &MemoryDelivery, source: &Source, places: &[(mica_pack::Digest, Place)]) -> Vec<u8> {
    let (_, place) = places.iter().find(|(digest, _)| *digest == source.digest).unwrap();
    let stored = delivery.joined(place.tensor());
    assert_eq!(place.bytes(), source.bytes());
    let lent = |r: Range<u64>| Ok(stored[r.start as usize..r.end as usize].into());
    place.read(0..source.bytes(), lent).unwrap().into_owned()
}

/// Any stretch of a tensor in words is that stretch of the whole.
#[test]
fn a_stretch_is_read_without_the_rest() {
    for format in PackedFormat::ALL {
        let mut r = replaced(format, 2, Dtype::F16, true);
        let (layer, places) = with_places(&mut r.delivery);
        let tensor = layer.tensor(ROLE).unwrap();
        let wholes = [
            (Some(&tensor.data), &r.weights),
            (tensor.scale.as_ref(), &r.scales),
            (tensor.zero.as_ref(), &r.zeros),
        ];
        for (source, whole) in wholes {
            let digest = source.unwrap().digest;
            let (_, place) = places.iter().find(|(d, _)| *d == digest).unwrap();
            let stored = r.delivery.joined(place.tensor());
            let mut lent = 0;
            let end = whole.len() as u64;
            for range in [0..1, 0..end, end - 1..end, 63..65, 127..257, end / 2 - 3..end / 2 + 700, 5..5] {
                let made = place.read(range.clone(), |r| {
                    lent += r.end - r.start;
                    Ok(stored[r.start as usize..r.end as usize].into())
                });
                let (start, end) = (range.start as usize, range.end as usize);
                assert!(*made.unwrap() == whole[start..end], "{format:?} {range:?}");
            }
            // a matrix for all but the whole, and two where a stretch goes from one into the next
            assert!(lent < stored.len() as u64 * 2, "{format:?}");
        }
    }
}

/// Words of whole rows of one matrix are given as they are; of anything else there are none.
#[test]
fn words_of_whole_rows() {
    let [row, matrix] = [64u64, 128 * 64];
    for format in PackedFormat::ALL {
        let mut r = replaced(format, 2, mica_fetch::Dtype::F16, true);
        let (layer, places) = with_places(&mut r.delivery);
        let tensor = layer.tensor(ROLE).unwrap();
        let words = |source: &Source, range: Range<u64>| {
            let (_, place) = places.iter().find(|(digest, _)| *digest == source.digest).unwrap();
            let Place::InWords(words) = place else { panic!("{format:?} has them in words") };
            let stored = r.delivery.joined(place.tensor());
            let lent = |r: Range<u64>| Ok(stored[r.start as usize..r.end as usize].to_vec().into());
            words.words(range, lent).unwrap().map(|words| words.into_owned())
        };
        for (range, whole) in [
            (0..row, true),
            (3 * row..5 * row, true),
            (0..matrix, true),
            (2 * matrix + 127 * row..3 * matrix, true),
            (15 * matrix..16 * matrix, true),
            (0..row - 8, false),
            (8..row, false),
            (127 * row..129 * row, false),
        ] {
            let plus = |q: u8| q.wrapping_add(8);
            let pairs = r.weights[range.start as usize..range.end as usize].chunks(2);
            let expected = pairs.map(|pair| plus(pair[0]) | (plus(pair[1]) << 4)).collect();
            let some = whole && format != PackedFormat::Awq;
            assert_eq!(words(&tensor.data, range.clone()), some.then_some(expected), "{format:?} {range:?}");
        }
        assert_eq!(
            words(tensor.zero.as_ref().unwrap(), 0..row),
            None,
            "{format:?}: zero points are no integers"
        );
    }
}

#[test]
fn groups_scales_and_zero_points_arrive_exactly() {
    for format in PackedFormat::ALL {
        for groups in [1, 2, 4] {
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
                for zero_points in [false, true] {
                    let mut r = replaced(format, groups, dtype, zero_points);
                    let (layer, places) = with_places(&mut r.delivery);
                    let tensor = layer.tensor(ROLE).unwrap();
                    let what = format!("{format:?} {groups} {dtype} {zero_points}");
                    let scale = tensor.scale.as_ref().unwrap();
                    assert_eq!((tensor.data.dtype, &tensor.data.shape[..]), (Dtype::I8, &[16, 128, 64][..]));
                    assert_eq!(
                        (scale.dtype.name(), &scale.shape[..]),
                        (dtype.name(), &[16, 128, groups][..])
                    );
                    assert!(content(&r.delivery, &tensor.data, &places) == r.weights, "{what}");
                    assert!(content(&r.delivery, scale, &places) == r.scales, "{what}");
                    assert_eq!(tensor.zero.is_some(), zero_points, "{what}");
                    if let Some(zero) = &tensor.zero {
                        assert_eq!((zero.dtype, &zero.shape), (Dtype::I8, &scale.shape));
                        assert!(content(&r.delivery, zero, &places) == r.zeros, "{what}");
                    }
                }
            }
        }
    }
}

/// Integers of four bits are called by their words, whose name the delivery has; one wider integer, and they are called by
/// their containers.
#[test]
fn integers_are_named_by_what_they_are() {
    let named = |delivery: &mut MemoryDelivery| {
        let resolved = resolve(delivery, &stack(), Part::Layer(0)).unwrap();
        let own = resolved.roles.iter().find(|role| role.role == ROLE).unwrap().data.clone();
        let layer = pack(&resolved, delivery).unwrap();
        let digest = layer.tensor(ROLE).unwrap().data.digest;
        (digest, delivery.digest(&own).unwrap())
    };
    let mut words = replaced(Compressed, 2, Dtype::F16, false);
    let resolved = resolve(&words.delivery, &stack(), Part::Layer(0)).unwrap();
    let layer = pack(&resolved, &mut words.delivery).unwrap();
    for role in resolved.roles.iter().filter(|role| role.unpack.is_some()) {
        let own = words.delivery.digest(&role.data).unwrap();
        assert_eq!(layer.tensor(&role.role).unwrap().data.digest, own, "{}", role.role);
    }
    let (name, _) = named(&mut words.delivery);

    // the same integers in containers, and others
    let scales: Vec<u8> = words.scales.clone();
    let containers = |change: fn(&mut Vec<u8>)| {
        let mut weights = words.weights.clone();
        change(&mut weights);
        let mut delivery = words.delivery.clone();
        delivery.tensors.retain(|name, _| !(name.starts_with(EXPERTS) && name.contains(".down_proj.")));
        for (expert, (q, s)) in weights.chunks(128 * 64).zip(scales.chunks(128 * 2 * 2)).enumerate() {
            let name = |ending| format!("{EXPERTS}{expert}.down_proj.{ending}");
            delivery.insert(&name("weight"), Dtype::I8, &[128, 64], q.to_vec());
            delivery.insert(&name("w_scale"), Dtype::F16, &[128, 2], s.to_vec());
        }
        named(&mut delivery)
    };
    let (same, own) = containers(|_| {});
    assert_eq!(same, name);
    assert_ne!(same, own);
    let wider: [fn(&mut Vec<u8>); 2] = [|q| q[0] = 8, |q| q[131_071] = 0xf7];
    for change in wider {
        let (other, own) = containers(change);
        assert_eq!(other, own);
        assert_ne!(other, name);
    }
    let (other, own) = containers(|q| q[7] ^= 1);
    assert!(other != name && other != own);
}

/// Zero points are dropped where each is the middle of the range, and kept where the last one alone is not.
#[test]
fn zero_points_that_say_nothing_are_dropped() {
    let mut delivery = delivery(pack_quantized(&layer_0(), Gptq), &Gptq.config(32, false));
    let dropped =
        |delivery: &mut MemoryDelivery| with_places(delivery).0.tensor(ROLE).unwrap().zero.is_none();
    assert!(dropped(&mut delivery));
    edit(&mut delivery, "qzeros", 127, &[0x67]);
    assert!(!dropped(&mut delivery));
}

/// compressed-tensors before it packed zero points.
#[test]
fn plain_zero_points() {
    let mut r = replaced(PackedFormat::CompressedTensors, 2, Dtype::F16, true);
    for (expert, zeros) in r.zeros.chunks(256).enumerate() {
        let name = format!("{EXPERTS}{expert}.down_proj.weight_zero_point");
        r.delivery.insert(&name, Dtype::I8, &[128, 2], zeros.to_vec());
    }
    let (layer, places) = with_places(&mut r.delivery);
    let zero = layer.tensor(ROLE).unwrap().zero.clone().unwrap();
    assert!(content(&r.delivery, &zero, &places) == r.zeros);
}

fn said(delivery: &mut MemoryDelivery) -> String {
    match resolve(delivery, &stack(), Part::Layer(0)) {
        Err(error) => error.to_string(),
        Ok(resolved) => match pack(&resolved, delivery) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was packed"),
        },
    }
}

/// A case: the format, what is done to its delivery, and the message.
type Case = (PackedFormat, fn(&mut MemoryDelivery), &'static str);

/// The tensor of expert 3 of that ending.
fn third(ending: &str) -> String {
    format!("{EXPERTS}3.down_proj.{ending}")
}

fn reshape(d: &mut MemoryDelivery, ending: &str, shape: &[u64]) {
    let (info, _) = d.remove(&third(ending));
    let bytes = shape.iter().product::<u64>() * info.dtype.bytes();
    d.insert(&third(ending), info.dtype, shape, vec![0; bytes as usize]);
}

fn edit(d: &mut MemoryDelivery, ending: &str, at: usize, bytes: &[u8]) {
    let (info, mut content) = d.remove(&third(ending));
    content[at..at + bytes.len()].copy_from_slice(bytes);
    d.insert(&third(ending), info.dtype, &info.shape.clone(), content);
}

fn retype(d: &mut MemoryDelivery, ending: &str, dtype: Dtype) {
    let (info, content) = d.remove(&third(ending));
    let mut shape = info.shape;
    let last = shape.last_mut().unwrap();
    *last = *last * info.dtype.bytes() / dtype.bytes();
    d.insert(&third(ending), dtype, &shape, content);
}

use PackedFormat::{Awq, CompressedTensors as Compressed, Gptq, GptqV2};

const CASES: &[Case] = &[
    // The configuration.
    (
        Gptq,
        |d| d.scheme = None,
        "0.gate_proj.qweight, which is mlp.experts.gate_up_proj, is packed, and the delivery's quantization config says nothing; expected GPTQ or AWQ",
    ),
    (
        Compressed,
        |d| d.scheme = Some(Scheme::from_config(Gptq.config(32, true).as_object().unwrap()).unwrap()),
        "says GPTQ v1: 4 bits, groups of 32, symmetric; expected compressed-tensors",
    ),
    (
        Awq,
        |d| d.scheme = Some(Scheme::from_config(Gptq.config(32, true).as_object().unwrap()).unwrap()),
        "has shape [128, 8]",
    ),
    (
        Gptq,
        |d| d.scheme = Some(Scheme::from_config(Gptq.config(64, true).as_object().unwrap()).unwrap()),
        "has 4 bits, groups of 32, symmetric, and the delivery's quantization config says 4 bits, groups of 64, symmetric",
    ),
    (
        Compressed,
        |d| d.scheme = Some(Scheme::from_config(Compressed.config(32, false).as_object().unwrap()).unwrap()),
        "has 4 bits, groups of 32, symmetric, and",
    ),
    // Tensors.
    (Gptq, |d| _ = d.remove(&third("scales")), "experts.3.down_proj.scales is missing"),
    (Gptq, |d| _ = d.remove(&third("qzeros")), "experts.3.down_proj.qzeros is missing"),
    (Gptq, |d| _ = d.remove(&third("qweight")), "experts.3.down_proj.qweight is missing"),
    (Gptq, |d| _ = d.remove(&third("g_idx")), "experts.3.down_proj.g_idx is missing"),
    (Compressed, |d| _ = d.remove(&third("weight_scale")), "experts.3.down_proj.weight_scale is missing"),
    (Compressed, |d| _ = d.remove(&third("weight_shape")), "experts.3.down_proj.weight_shape is missing"),
    (
        Awq,
        |d| reshape(d, "qweight", &[64, 15]),
        "experts.3.down_proj.qweight has shape [64, 15], and mlp.experts.down_proj is [64, 16] by its packing",
    ),
    (Gptq, |d| reshape(d, "qzeros", &[2, 15]), "qzeros has shape [2, 15]"),
    (Gptq, |d| reshape(d, "scales", &[128, 2]), "scales has shape [128, 2]"),
    (Compressed, |d| reshape(d, "weight_scale", &[128, 3]), "weight_scale has shape [128, 3]"),
    (
        Gptq,
        |d| retype(d, "qweight", Dtype::U32),
        "qweight, which is mlp.experts.down_proj, is U32; expected packed words, I32",
    ),
    (
        Awq,
        |d| retype(d, "scales", Dtype::I16),
        "scales, which is mlp.experts.down_proj, is I16; expected a scale",
    ),
    (Gptq, |d| retype(d, "scales", Dtype::BF16), "the pieces of mlp.experts.down_proj differ"),
    (
        Gptq,
        |d| d.insert(&format!("{EXPERTS}down_proj"), Dtype::BF16, &[16, 128, 64], vec![0; 262_144]),
        "could each be mlp.experts.down_proj",
    ),
    // Values.
    (
        Gptq,
        |d| edit(d, "g_idx", 32 * 4, &[0]),
        "experts.3.down_proj.g_idx: column 32 is in group 0 and its place is in group 1; reordered",
    ),
    (Gptq, |d| edit(d, "g_idx", 3, &[0x80]), "column 0 is in group -2147483648"),
    (
        Compressed,
        |d| edit(d, "weight_shape", 0, &[127]),
        "experts.3.down_proj.weight_shape states [127, 64], and the weight is [128, 64]",
    ),
    (
        Gptq,
        |d| edit(d, "qzeros", 0, &[0x76]),
        "experts.3.down_proj.qzeros: the zero point 6 of row 0, group 0 is no middle of the range",
    ),
    (Gptq, |d| edit(d, "qzeros", 64, &[0xf7]), "the zero point 15 of row 1, group 1 is stored less one"),
    (Gptq, |d| edit(d, "qzeros", 1, &[0xf7]), "the zero point 15 of row 3, group 0 is stored less one"),
    (GptqV2, |d| edit(d, "qzeros", 0, &[0x87]), "the zero point 7 of row 0, group 0 is no middle"),
];

#[test]
fn one_refusal_a_rule() {
    for (format, edit, expected) in CASES {
        let mut delivery = delivery(pack_quantized(&layer_0(), *format), &format.config(32, true));
        assert!(resolve(&delivery, &stack(), Part::Layer(0)).is_ok());
        edit(&mut delivery);
        let message = said(&mut delivery);
        assert!(message.contains(expected), "{format:?}\n  gave: {message}\n  not:  {expected}");
    }
}

/// A vector or a tensor that is laid out anew has no packed form.
#[test]
fn what_cannot_be_packed() {
    for (name, shape) in [("input_layernorm", &[16u64][..]), ("linear_attn.conv1d", &[256, 1, 1])] {
        let mut tensors = pack_quantized(&layer_0(), Gptq);
        tensors.retain(|t| t.name != format!("model.layers.0.{name}.weight"));
        let mut delivery = delivery(tensors, &Gptq.config(32, true));
        let bytes = shape.iter().product::<u64>() as usize * 4;
        delivery.insert(&format!("model.layers.0.{name}.qweight"), Dtype::I32, shape, vec![0; bytes]);
        let message = said(&mut delivery);
        assert!(
            message.contains(&format!("{name}.qweight, which is {name}.weight, is quantized")),
            "{message}"
        );
    }
}
