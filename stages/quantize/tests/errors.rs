//! Every refusal of a recipe, a packed layer, its values, a plan or a segment, and what is said.

mod common;

use common::*;
use mica_device::segment::SegmentPlan;
use mica_models::analysis::WeightUse;
use mica_pack::{Dtype, PackedTensor};
use mica_quantize::{
    ComponentFormat, Dequantized, Group, QuantizeError, ScaleFormat, plan, quantize, quantize_in_memory,
};
use std::sync::Mutex;

const ROWS: u64 = 2;
const COLS: u64 = 32;

/// A quantized weight of two rows, two groups each.
fn quantized(weight_use: WeightUse, tensors: &mut Tensors, q: i8, scale: f32) -> PackedTensor {
    let shape: &[u64] = if weight_use == WeightUse::Experts { &[1, ROWS, COLS] } else { &[ROWS, COLS] };
    let groups = [&shape[..shape.len() - 1], &[2]].concat();
    let data = tensors.add(Dtype::I8, shape, vec![q as u8; 64]);
    let mut tensor = weight(weight_use, shape, data);
    tensor.scale = Some(tensors.add(Dtype::F32, &groups, f32_bytes(&[1.0, 1.0, scale, 1.0])));
    tensor
}

fn floats(weight_use: WeightUse, tensors: &mut Tensors, value: f32) -> PackedTensor {
    let mut values = vec![0.5; 64];
    values[37] = value;
    let shape: &[u64] = if weight_use == WeightUse::Experts { &[1, ROWS, COLS] } else { &[ROWS, COLS] };
    let data = tensors.add(Dtype::F32, shape, f32_bytes(&values));
    weight(weight_use, shape, data)
}

fn said(tensor: PackedTensor, tensors: &Tensors, format: ComponentFormat) -> String {
    written(&layer(vec![tensor]), &recipe(&[("w", format)]), tensors).err().expect("an error").to_string()
}

#[test]
fn recipes_and_shapes() {
    use WeightUse::{Experts, Matrix, Table, Vector};
    let row = (Group::Row, ScaleFormat::F32);
    let (i4_row, i8_row) = (i4(row.0, row.1), i8(row.0, row.1));
    let (f16, bf16, f32) = (ComponentFormat::F16, ComponentFormat::Bf16, ComponentFormat::F32);
    let i4_of = |group| i4(Group::Of(group), ScaleFormat::F16);
    type Make = fn(WeightUse, &mut Tensors) -> PackedTensor;
    let plain: Make = |u, t| floats(u, t, 0.0);
    let scaled: Make = |u, t| quantized(u, t, 1, 1.0);
    let cases: &[(WeightUse, Make, ComponentFormat, &str)] = &[
        (Matrix, plain, bf16, "w: the recipe's bf16 is no format for a matrix, which takes i4, i8 or f16"),
        (Experts, plain, f32, "f32 is no format for a stack of experts"),
        (Table, plain, i4_row, "i4 is no format for a table, which takes i8, bf16, f16 or f32"),
        (Vector, plain, i8_row, "i8 is no format for a vector, which takes f32 or f16"),
        (Vector, plain, bf16, "bf16 is no format for a vector"),
        (Matrix, scaled, f16, "delivered quantized (I8 with scales), and the recipe says f16"),
        (Table, scaled, bf16, "say i8"),
        (Vector, scaled, f32, "its data (a vector, which has no quantized form) is delivered as I8"),
        (Matrix, plain, i4_of(24), "groups of 24 columns in rows of 32; a group is a multiple of 16"),
        (Matrix, plain, i4_of(8), "groups of 8"),
        (Matrix, plain, i4_of(64), "groups of 64"),
        (
            Matrix,
            |u, t| PackedTensor { shape: vec![64], ..floats(u, t, 0.0) },
            f16,
            "shape [64] is no shape of a matrix",
        ),
        (
            Matrix,
            |u, t| PackedTensor { shape: vec![0, 32], ..floats(u, t, 0.0) },
            f16,
            "no shape of a matrix",
        ),
        (
            Experts,
            |_, t| PackedTensor { weight_use: Experts, ..floats(Matrix, t, 0.0) },
            f16,
            "no shape of a stack of experts",
        ),
        (
            Matrix,
            |u, t| PackedTensor { shape: vec![2, 16], ..floats(u, t, 0.0) },
            f16,
            "its data has shape [2, 32]; expected as many elements as [2, 16]",
        ),
        (Matrix, |u, t| PackedTensor { scale: None, ..quantized(u, t, 1, 1.0) }, i8_row, "or I8 with scales"),
        (
            Matrix,
            |u, t| PackedTensor { scale: quantized(u, t, 1, 1.0).scale, ..floats(u, t, 0.0) },
            i8_row,
            "its data is delivered as F32; expected I8, since it has scales",
        ),
        (
            Matrix,
            |u, t| PackedTensor {
                scale: Some(t.add(Dtype::I32, &[2, 1], vec![0; 8])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "its scale is delivered as I32",
        ),
        (
            Matrix,
            |u, t| PackedTensor {
                scale: Some(t.add(Dtype::F16, &[2, 3], vec![0; 12])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "its scale has shape [2, 3]; expected [2, 32] with the last a divisor of it",
        ),
        (
            Matrix,
            |u, t| PackedTensor {
                scale: Some(t.add(Dtype::F16, &[2, 4], vec![0; 16])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "groups of 8 columns",
        ),
        (
            Matrix,
            |u, t| PackedTensor {
                zero: Some(t.add(Dtype::U8, &[2, 2], vec![0; 4])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "its zero point is delivered as U8",
        ),
        (
            Matrix,
            |u, t| PackedTensor {
                zero: Some(t.add(Dtype::I8, &[2, 1], vec![0; 2])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "its zero point has shape [2, 1]; expected that of the scales, [2, 2]",
        ),
        (
            Table,
            |u, t| PackedTensor {
                zero: Some(t.add(Dtype::I8, &[2, 2], vec![0; 4])),
                ..quantized(u, t, 1, 1.0)
            },
            i8_row,
            "a table cannot have zero points",
        ),
        (
            Matrix,
            |u, t| PackedTensor { zero: Some(t.add(Dtype::I8, &[2, 2], vec![0; 4])), ..floats(u, t, 0.0) },
            f16,
            "zero points without scales",
        ),
    ];
    for (weight_use, make, format, fact) in cases {
        let mut tensors = Tensors::default();
        let tensor = make(*weight_use, &mut tensors);
        let message = said(tensor, &tensors, *format);
        assert!(message.contains(fact), "{weight_use:?} {format:?}: {message}");
    }

    let mut tensors = Tensors::default();
    let layer = layer(vec![floats(Matrix, &mut tensors, 0.0)]);
    let error = plan(&layer, &recipe(&[("v*", f16)])).unwrap_err();
    assert_eq!(error, QuantizeError::NoRule { role: "w".into() });
    assert!(error.to_string().contains("pattern \"*\""));
}

#[test]
fn values() {
    use WeightUse::{Experts, Matrix, Table, Vector};
    let i4_row = i4(Group::Row, ScaleFormat::F16);
    let i8_row = i8(Group::Row, ScaleFormat::F32);
    let (f16, bf16, f32) = (ComponentFormat::F16, ComponentFormat::Bf16, ComponentFormat::F32);
    for (weight_use, value, format, fact) in [
        (Matrix, f32::NAN, i4_row, "w: element 37 is NaN"),
        (Experts, f32::INFINITY, i8_row, "w: element 37 is inf"),
        (Table, f32::NEG_INFINITY, i8_row, "w: element 37 is -inf"),
        (Matrix, f32::NAN, f16, "element 37 is NaN"),
        (Vector, f32::NAN, f32, "element 37 is NaN"),
        (Table, f32::NAN, bf16, "element 37 is NaN"),
        (Matrix, 65520.0, f16, "element 37 is 65520, which overflows f16"),
        (Vector, -1e6, f16, "element 37 is -1000000, which overflows f16"),
        (Table, 3.4e38, bf16, "which overflows bf16"),
        (Matrix, 1e6, i4_row, "group 1 reaches 1000000, which is too much for a scale in f16; give the role"),
        (Matrix, 3e38, i8_row, "which is too much for a scale in f32"),
    ] {
        let mut tensors = Tensors::default();
        let tensor = floats(weight_use, &mut tensors, value);
        let message = said(tensor, &tensors, format);
        assert!(message.contains(fact), "{weight_use:?} {format:?}: {message}");
    }
    for (q, scale, format, fact) in [
        (8, 1.0, i4_row, "element 0 is 8, outside the int4 range -8..=7"),
        (-9, 1.0, i4_row, "element 0 is -9"),
        (1, -1.0, i4_row, "scale 2 is -1; a scale is positive and finite"),
        (1, f32::NAN, i8_row, "scale 2 is NaN"),
        (1, f32::INFINITY, i8_row, "scale 2 is inf"),
        (1, 0.0, i8_row, "scale 2 is 0; zero is only the scale of a group that is all zero"),
    ] {
        for weight_use in [Matrix, Experts] {
            let mut tensors = Tensors::default();
            let tensor = quantized(weight_use, &mut tensors, q, scale);
            let message = said(tensor, &tensors, format);
            assert!(message.contains(fact), "{format:?}: {message}");
        }
    }
    let mut tensors = Tensors::default();
    let tensor = quantized(Matrix, &mut tensors, 0, 0.0);
    assert!(written(&layer(vec![tensor]), &recipe(&[("*", i4_row)]), &tensors).is_ok());
}

#[test]
fn non_finite_weights_where_they_are_allowed() {
    let i8_groups = i8(Group::Of(16), ScaleFormat::F32);
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (value, format, stored, saturated) in [
        (f32::NAN, i8_groups, 0.0, 0),
        (f32::INFINITY, i8_groups, 0.5, 1),
        (f32::NEG_INFINITY, i8_groups, -0.5, 1),
        (f32::NEG_INFINITY, ComponentFormat::F16, -inf, 0),
        (f32::NAN, ComponentFormat::F16, nan, 0),
    ] {
        let mut tensors = Tensors::default();
        let layer = layer(vec![floats(WeightUse::Matrix, &mut tensors, value)]);
        let plan = plan(&layer, &recipe(&[("*", format)])).unwrap();
        let (segment, figures) = quantize_in_memory(&layer, &plan, &tensors, true).unwrap();
        let read = Dequantized::new(&plan, &segment).unwrap().elements("w").unwrap();
        assert!(read[37] == stored || read[37].is_nan() && stored.is_nan(), "{} {stored}", read[37]);
        assert!((read[36] - 0.5).abs() < 1e-3);
        assert_eq!((figures[0].non_finite, figures[0].saturated), (1, saturated));
        assert!(figures[0].relative_error < 1e-3);
    }
}

/// A scale of 0 stands for a group that is all zero point, also where integers come in words.
#[test]
fn a_scale_of_zero_in_words() {
    struct Words<'a>(&'a Tensors, u8);
    impl mica_quantize::TensorBytes for Words<'_> {
        fn bytes(
            &self,
            source: &mica_pack::Source,
            range: std::ops::Range<u64>,
        ) -> std::io::Result<std::borrow::Cow<'_, [u8]>> {
            self.0.bytes(source, range)
        }
        fn words(
            &self,
            _: &mica_pack::Source,
            range: std::ops::Range<u64>,
        ) -> std::io::Result<Option<std::borrow::Cow<'_, [u8]>>> {
            let mut words = vec![0x88; ((range.end - range.start) / 2) as usize];
            words[16] = self.1; // the first two of the third group
            Ok(Some(words.into()))
        }
    }
    let mut tensors = Tensors::default();
    let layer = layer(vec![quantized(WeightUse::Matrix, &mut tensors, 0, 0.0)]);
    let recipe = recipe(&[("w", i4(Group::Row, ScaleFormat::F32))]);
    assert!(written(&layer, &recipe, &Words(&tensors, 0x88)).is_ok());
    for other in [0x98, 0x89] {
        let error = written(&layer, &recipe, &Words(&tensors, other)).err().unwrap().to_string();
        assert!(error.contains("scale 2 is 0; zero is only the scale"), "{error}");
    }
}

/// Places are counted over the whole weight, also in tiles behind the first one.
#[test]
fn places_in_later_tiles() {
    let (rows, cols) = (70, 32);
    let integers = |q_at: Option<usize>, scale_at: Option<usize>| {
        let mut tensors = Tensors::default();
        let (mut q, mut scales) = (vec![1; (rows * cols) as usize], vec![1.0; rows as usize]);
        q_at.into_iter().for_each(|at| q[at] = 8);
        scale_at.into_iter().for_each(|at| scales[at] = -1.0);
        let data = tensors.add(Dtype::I8, &[rows, cols], q);
        let mut tensor = weight(WeightUse::Matrix, &[rows, cols], data);
        tensor.scale = Some(tensors.add(Dtype::F32, &[rows, 1], f32_bytes(&scales)));
        said(tensor, &tensors, i4(Group::Row, ScaleFormat::F32))
    };
    let floats = |value: f32, format| {
        let mut tensors = Tensors::default();
        let mut values = vec![0.5; (rows * cols) as usize];
        values[2100] = value;
        let data = tensors.add(Dtype::F32, &[rows, cols], f32_bytes(&values));
        said(weight(WeightUse::Matrix, &[rows, cols], data), &tensors, format)
    };
    for (message, fact) in [
        (integers(Some(2100), None), "element 2100 is 8, outside"),
        (integers(None, Some(66)), "scale 66 is -1"),
        (floats(f32::NAN, ComponentFormat::F16), "element 2100 is NaN"),
        (floats(65520.0, ComponentFormat::F16), "element 2100 is 65520"),
        (floats(f32::NAN, i8(Group::Row, ScaleFormat::F32)), "element 2100 is NaN"),
        (floats(1e6, i4(Group::Row, ScaleFormat::F16)), "group 65 reaches 1000000"),
    ] {
        assert!(message.contains(fact), "no {fact:?} in {message}");
    }
    // and where a format lost most
    let mut values = vec![0.5; (rows * cols) as usize];
    values[2100] = 0.1;
    let mut tensors = Tensors::default();
    let data = tensors.add(Dtype::F32, &[rows, cols], f32_bytes(&values));
    let layer = layer(vec![weight(WeightUse::Matrix, &[rows, cols], data)]);
    let written = written(&layer, &recipe(&[("w", ComponentFormat::F16)]), &tensors).unwrap();
    assert_eq!(written.figures[0].worst_group.unwrap().index, 2100 / cols);
}

/// Every byte of a segment is given once, what lies between weights and behind them too.
#[test]
fn every_byte_is_put_once() {
    let mut tensors = Tensors::default();
    let row = |role: &str, cols: u64, tensors: &mut Tensors| {
        let data = tensors.add(Dtype::F32, &[cols], f32_bytes(&vec![1.0; cols as usize]));
        PackedTensor { role: role.into(), ..weight(WeightUse::Vector, &[cols], data) }
    };
    let layer =
        layer(vec![row("a", 5, &mut tensors), row("b", 70_000, &mut tensors), row("c", 3, &mut tensors)]);
    let plan = plan(&layer, &recipe(&[("*", ComponentFormat::F32)])).unwrap();
    let stored: u64 = plan.entries.iter().map(|entry| entry.bytes).sum();
    assert!(stored < plan.bytes, "there is something between");
    let counts = Mutex::new(vec![0u8; plan.bytes as usize]);
    let put = |at: u64, bytes: &[u8]| {
        counts.lock().unwrap()[at as usize..][..bytes.len()].iter_mut().for_each(|count| *count += 1);
        Ok(())
    };
    quantize(&layer, &plan, &tensors, &put, false).unwrap();
    assert!(counts.into_inner().unwrap().iter().all(|&count| count == 1));
}

/// A scale of 0 stands for a group that is all zero point, whatever that is.
#[test]
fn a_scale_of_zero_and_its_zero_point() {
    for (q, zero, good) in [(3, 3, true), (0, 3, false), (0, 0, true), (3, 0, false)] {
        let mut tensors = Tensors::default();
        let mut tensor = quantized(WeightUse::Matrix, &mut tensors, q, 0.0);
        tensor.zero = Some(tensors.add(Dtype::I8, &[ROWS, 2], i8_bytes(&[zero; 4])));
        let recipe = recipe(&[("w", i8(Group::Row, ScaleFormat::F32))]);
        assert_eq!(written(&layer(vec![tensor]), &recipe, &tensors).is_ok(), good, "{q} by {zero}");
    }
}

/// Where nothing else is in a group it has no scale, and an infinity no integer; floats keep a NaN's very bits.
#[test]
fn what_is_no_number_leaves_no_trace_or_its_own() {
    let stored = |dtype, bytes, format| {
        let mut tensors = Tensors::default();
        let data = tensors.add(dtype, &[ROWS, COLS], bytes);
        let layer = layer(vec![weight(WeightUse::Matrix, &[ROWS, COLS], data)]);
        let plan = plan(&layer, &recipe(&[("*", format)])).unwrap();
        quantize_in_memory(&layer, &plan, &tensors, true).unwrap()
    };
    let mut alone = vec![0.0; 64];
    alone[37] = f32::INFINITY;
    let (segment, figures) = stored(Dtype::F32, f32_bytes(&alone), i8(Group::Of(16), ScaleFormat::F32));
    assert!(segment.iter().all(|&byte| byte == 0));
    assert_eq!((figures[0].non_finite, figures[0].saturated), (1, 1));
    // one that signals
    let mut halves = vec![0; 128];
    halves[74..76].copy_from_slice(&0x7c01_u16.to_le_bytes());
    let (segment, _) = stored(Dtype::F16, halves, ComponentFormat::F16);
    assert_eq!(segment.chunks(2).filter(|half| *half == 0x7c01_u16.to_le_bytes()).count(), 1);
}

#[test]
fn plans_and_segments_that_do_not_belong() {
    let mut tensors = Tensors::default();
    let first = layer(vec![floats(WeightUse::Matrix, &mut tensors, 0.0)]);
    let fitting = plan(&first, &recipe(&[("*", ComponentFormat::F16)])).unwrap();
    let scaled = layer(vec![quantized(WeightUse::Matrix, &mut tensors, 1, 1.0)]);
    let spoil = |change: fn(&mut SegmentPlan)| {
        let mut plan = fitting.clone();
        change(&mut plan);
        plan
    };
    for (layer, plan, fact) in [
        (&first, spoil(|p| p.entries[0].role = "v".into()), "v [2, 32] for w [2, 32]"),
        (&first, spoil(|p| p.entries.clear()), "at entry 0, 0 entries for 1 weights"),
        (&first, spoil(|p| p.entries[0].bytes = 3), "w has the wrong place"),
        (&first, spoil(|p| p.bytes = 64), "64 bytes end before"),
        (&scaled, fitting.clone(), "w is stored as Matrix"),
        (&first, spoil(|p| p.entries[0].shape = vec![32, 2]), "w [32, 2] for w [2, 32]"),
        (&first, spoil(|p| p.entries.push(p.entries[0].clone())), "at entry 1, 2 entries for 1 weights"),
    ] {
        let error = quantize_in_memory(layer, &plan, &tensors, false).unwrap_err().to_string();
        assert!(error.contains(fact), "{error}");
    }

    // one weight over another
    let second = PackedTensor { role: "v".into(), ..first.tensors[0].clone() };
    let two = layer(vec![first.tensors[0].clone(), second]);
    let mut over = plan(&two, &recipe(&[("*", ComponentFormat::F16)])).unwrap();
    over.entries[1].offset = 0;
    let error = quantize_in_memory(&two, &over, &tensors, false).unwrap_err().to_string();
    assert!(error.contains("v has the wrong place"), "{error}");

    // the groups of another weight, and zero points that only one of the two has
    let mut zeroed = scaled.clone();
    zeroed.tensors[0].zero = Some(tensors.add(Dtype::I8, &[ROWS, 2], i8_bytes(&[1; 4])));
    let i8_row = recipe(&[("*", i8(Group::Row, ScaleFormat::F32))]);
    let plans = [&first, &scaled, &zeroed].map(|layer| plan(layer, &i8_row).unwrap());
    for (number, plan) in plans.iter().enumerate() {
        for (other, layer) in [&first, &scaled, &zeroed].into_iter().enumerate() {
            let made = quantize_in_memory(layer, plan, &tensors, false);
            let good = match (number, other) {
                // scales of any group may be found, and a place for zero points may stay 0
                (1, 0) | (2, 1) => true,
                _ => number == other,
            };
            assert_eq!(made.is_ok(), good, "{number} for {other}");
            let told = made.err().is_none_or(|e| e.to_string().contains("w is stored as Matrix"));
            assert!(told, "{number} for {other}");
        }
    }

    let made = written(&first, &recipe(&[("*", ComponentFormat::F16)]), &tensors).unwrap();
    let short = Dequantized::new(&made.plan, &made.segment[1..]).unwrap_err();
    assert!(short.to_string().contains("1023 bytes and its plan says 1024"), "{short}");
    let read = Dequantized::new(&made.plan, &made.segment).unwrap();
    assert!(read.elements("v").unwrap_err().to_string().contains("no weight v; it has w"));
    assert!(read.chosen("w", &[2], 32).unwrap_err().to_string().contains("row 2 was asked for and it has 2"));

    struct Short;
    impl mica_quantize::TensorBytes for Short {
        fn bytes(
            &self,
            _: &mica_pack::Source,
            _: std::ops::Range<u64>,
        ) -> std::io::Result<std::borrow::Cow<'_, [u8]>> {
            Ok(vec![0; 3].into())
        }
    }
    let error = quantize_in_memory(&first, &made.plan, &Short, false).unwrap_err();
    assert_eq!(error.to_string(), "w: its source gave 3 bytes where 256 were asked for");
}
