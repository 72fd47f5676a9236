//! What is written is where and what the device's layout says, for shapes and formats of every kind. The
//! places are computed here from the manual's words, not by the code that writes.

mod common;

use common::*;
use half::f16;
use mica_device::format::Format;
use mica_device::segment::Storage;
use mica_models::analysis::WeightUse;
use mica_pack::{Dtype, PackedTensor};
use mica_quantize::{ComponentFormat, Dequantized, Group, Recipe, ScaleFormat};
use proptest::prelude::*;

/// A quantized weight: `count` matrices, or one where `count` is `None`.
#[derive(Clone, Debug)]
struct Case {
    count: Option<u64>,
    rows: u64,
    cols: u64,
    group: u64,
    i4: bool,
    scale: Dtype,
    zero: bool,
    seed: u64,
}

impl Case {
    fn shape(&self, last: u64) -> Vec<u64> {
        self.count.into_iter().chain([self.rows, last]).collect()
    }

    fn matrices(&self) -> u64 {
        self.count.unwrap_or(1)
    }

    fn recipe(&self) -> Recipe {
        // Group and scale of a quantized weight are the delivery's, whatever the recipe says.
        let (group, scale) = (Group::Of(7), ScaleFormat::F32);
        recipe(&[("w", if self.i4 { i4(group, scale) } else { i8(group, scale) })])
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let grouped = (1u64..5, prop_oneof![Just(16u64), Just(32), Just(48), Just(64), Just(128), Just(512)]);
    let cols = prop_oneof![
        3 => grouped.prop_map(|(groups, group)| (groups * group, group)),
        1 => (1u64..40).prop_map(|cols| (cols, cols)),
    ];
    let rows = prop_oneof![Just(1u64), Just(4), Just(16), Just(64), 1u64..150];
    let scale = prop_oneof![Just(Dtype::F16), Just(Dtype::F32), Just(Dtype::BF16)];
    let count = prop_oneof![Just(None), (1u64..4).prop_map(Some)];
    (count, rows, cols, any::<bool>(), scale, any::<bool>(), any::<u64>()).prop_map(
        |(count, rows, (cols, group), i4, scale, zero, seed)| Case {
            count,
            rows,
            cols,
            group,
            i4,
            scale,
            zero,
            seed,
        },
    )
}

/// The weight's integers, scales and zero points.
struct Values {
    q: Vec<i8>,
    scales: Vec<f32>,
    zeros: Vec<i8>,
}

fn values(case: &Case) -> Values {
    let mut state = case.seed | 1;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as i32
    };
    let elements = (case.matrices() * case.rows * case.cols) as usize;
    let groups = elements / case.group as usize;
    let integer = |n: i32| if case.i4 { (n % 16 - 8) as i8 } else { n as i8 };
    let q = (0..elements).map(|_| integer(next())).collect();
    // Eight significant bits, which all three scale formats hold.
    let scales = (0..groups).map(|_| (next() % 128 + 128) as f32 / 16384.0).collect();
    let zeros = (0..groups).map(|_| if case.zero { (next() % 16 - 8) as i8 } else { 0 }).collect();
    Values { q, scales, zeros }
}

fn tensor(case: &Case, values: &Values, tensors: &mut Tensors) -> PackedTensor {
    let weight_use = if case.count.is_some() { WeightUse::Experts } else { WeightUse::Matrix };
    let shape = case.shape(case.cols);
    let data = tensors.add(Dtype::I8, &shape, i8_bytes(&values.q));
    let mut tensor = weight(weight_use, &shape, data);
    let scale_shape = case.shape(case.cols / case.group);
    let bytes = match case.scale {
        Dtype::F16 => f16_bytes(&values.scales),
        Dtype::BF16 => bf16_bytes(&values.scales),
        _ => f32_bytes(&values.scales),
    };
    tensor.scale = Some(tensors.add(case.scale, &scale_shape, bytes));
    if case.zero {
        tensor.zero = Some(tensors.add(Dtype::I8, &scale_shape, i8_bytes(&values.zeros)));
    }
    tensor
}

fn up(n: usize, to: usize) -> usize {
    n.div_ceil(to) * to
}

/// One tile as the manual describes it: scales `[group][row]`, zero points, then vectors of 16 rows by a
/// dword of columns.
fn tile(case: &Case, values: &Values, matrix: usize, first_row: usize) -> Vec<u8> {
    let (rows, cols, group) = (case.rows as usize, case.cols as usize, case.group as usize);
    let here = (rows - first_row).min(64);
    let padded = up(here, 16);
    let groups = cols / group;
    let scale_size = if case.scale == Dtype::F16 { 2 } else { 4 };
    let step = if case.i4 { 8 } else { 4 };
    let scale_bytes = up(groups * padded * scale_size, 64);
    let zero_bytes = if case.zero { up(groups * padded, 64) } else { 0 };
    let mut out = vec![0; scale_bytes + zero_bytes + cols.div_ceil(step) * (padded / 16) * 64];
    for r in 0..here {
        let row = matrix * rows + first_row + r;
        for g in 0..groups {
            let at = g * padded + r;
            let scale = values.scales[row * groups + g];
            if case.scale == Dtype::F16 {
                out[at * 2..at * 2 + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            } else {
                out[at * 4..at * 4 + 4].copy_from_slice(&scale.to_le_bytes());
            }
            if case.zero {
                out[scale_bytes + at] = values.zeros[row * groups + g] as u8;
            }
        }
        for c in 0..cols {
            let q = values.q[row * cols + c] as u8;
            let vector = (c / step) * (padded / 16) + r / 16;
            let dword = scale_bytes + zero_bytes + vector * 64 + r % 16 * 4;
            if case.i4 {
                let shift = if c % 8 < 4 { 0 } else { 4 };
                out[dword + c % 4] |= (q & 15) << shift;
            } else {
                out[dword + c % 4] = q;
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn quantized_weights_are_relaid_bit_for_bit(case in cases()) {
        let mut tensors = Tensors::default();
        let values = values(&case);
        let layer = layer(vec![tensor(&case, &values, &mut tensors)]);
        let written = written(&layer, &case.recipe(), &tensors).unwrap();

        let mut expected = Vec::new();
        for matrix in 0..case.matrices() as usize {
            for first_row in (0..case.rows as usize).step_by(64) {
                expected.extend(tile(&case, &values, matrix, first_row));
            }
        }
        prop_assert_eq!(&written.segment, &expected);
        prop_assert!(written.figures[0].lossless && written.figures[0].relative_error == 0.0);

        let (cols, group) = (case.cols as usize, case.group as usize);
        let value = |i: usize| {
            let g = i / group;
            f64::from((i32::from(values.q[i]) - i32::from(values.zeros[g])) as f32 * values.scales[g])
        };
        let all: Vec<f64> = (0..values.q.len()).map(value).collect();
        let read = Dequantized::new(&written.plan, &written.segment).unwrap();
        prop_assert_eq!(&read.elements("w").unwrap(), &all);
        let last = values.q.len() / cols - 1;
        let some = read.chosen("w", &[last, 0, last], cols).unwrap();
        prop_assert_eq!(&some[..cols], &all[last * cols..]);
        prop_assert_eq!(&some[cols..2 * cols], &all[..cols]);
        prop_assert_eq!(&some[2 * cols..], &all[last * cols..]);
    }

    #[test]
    fn fitted_weights_read_back_within_half_a_step(
        rows in 1u64..80, groups in 1u64..4, group in prop_oneof![Just(16u64), Just(32), Just(96)],
        bits in any::<bool>(), scale in prop_oneof![Just(ScaleFormat::F16), Just(ScaleFormat::F32)], seed in any::<u64>(),
    ) {
        let cols = groups * group;
        let mut state = seed | 1;
        let values: Vec<f32> = (0..rows * cols).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            half::bf16::from_f32(((state >> 40) as f32 / 16777216.0 - 0.5) * 0.1).to_f32()
        }).collect();
        let mut tensors = Tensors::default();
        let data = tensors.add(Dtype::BF16, &[rows, cols], bf16_bytes(&values));
        let layer = layer(vec![weight(WeightUse::Matrix, &[rows, cols], data)]);
        let format = if bits { i4(Group::Of(group as u32), scale) } else { i8(Group::Of(group as u32), scale) };
        let written = written(&layer, &recipe(&[("*", format)]), &tensors).unwrap();
        let read = Dequantized::new(&written.plan, &written.segment).unwrap().elements("w").unwrap();
        let (mut error, mut energy) = (0.0, 0.0);
        for (&w, &r) in values.iter().zip(&read) {
            error += (f64::from(w) - r).powi(2);
            energy += f64::from(w).powi(2);
        }
        let relative = (error / energy).sqrt();
        let figures = &written.figures[0];
        prop_assert!((figures.relative_error - relative).abs() <= 1e-4 * relative, "{figures:?} {relative}");
        let bound = if bits { 0.12 } else { 0.01 };
        prop_assert!(relative < bound);
        let worst = figures.worst_group.unwrap();
        prop_assert!(worst.relative_error >= relative * 0.999 && worst.index < rows * groups);
    }
}

#[test]
fn halves_are_tiled_two_a_dword() {
    for (rows, cols) in [(1u64, 5u64), (4, 8), (33, 7), (64, 64), (70, 30)] {
        let values: Vec<f32> = (0..rows * cols).map(|n| n as f32 / 8.0 - 3.0).collect();
        let mut tensors = Tensors::default();
        let data = tensors.add(Dtype::BF16, &[rows, cols], bf16_bytes(&values));
        let exact: Vec<f32> = values.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        let layer = layer(vec![weight(WeightUse::Matrix, &[rows, cols], data)]);
        let written = written(&layer, &recipe(&[("*", ComponentFormat::F16)]), &tensors).unwrap();
        for row in 0..rows {
            for col in 0..cols {
                let tile = row / 64;
                let padded = up((rows - tile * 64).min(64) as usize, 16) as u64;
                let start = tile * 64 * cols.div_ceil(2) * 4;
                let vector = col / 2 * (padded / 16) + row % 64 / 16;
                let at = (start + vector * 64 + row % 16 * 4 + col % 2 * 2) as usize;
                let half = f16::from_le_bytes([written.segment[at], written.segment[at + 1]]);
                assert_eq!(half.to_f32(), exact[(row * cols + col) as usize]);
            }
        }
        assert!(written.figures[0].lossless);
        let read = Dequantized::new(&written.plan, &written.segment).unwrap().elements("w").unwrap();
        assert!(read.iter().zip(&exact).all(|(&r, &w)| r == f64::from(w)));
    }
}

#[test]
fn tables_hold_a_row_and_its_scales() {
    let (rows, cols) = (70u64, 6u64);
    let q: Vec<i8> = (0..rows * cols).map(|n| n as i8).collect();
    for (dtype, size) in [(Dtype::F16, 2), (Dtype::F32, 4)] {
        let scales: Vec<f32> = (0..rows).map(|n| (n + 1) as f32 / 64.0).collect();
        let mut tensors = Tensors::default();
        let bytes = if size == 2 { f16_bytes(&scales) } else { f32_bytes(&scales) };
        let mut table =
            weight(WeightUse::Table, &[rows, cols], tensors.add(Dtype::I8, &[rows, cols], i8_bytes(&q)));
        table.scale = Some(tensors.add(dtype, &[rows, 1], bytes.clone()));
        let recipe = recipe(&[("*", i8(Group::Row, ScaleFormat::F32))]);
        let written = written(&layer(vec![table]), &recipe, &tensors).unwrap();
        for row in 0..rows as usize {
            let place = &written.segment[row * 64..(row + 1) * 64];
            assert_eq!(place[..6], i8_bytes(&q[row * 6..row * 6 + 6]));
            assert_eq!(place[8..8 + size], bytes[row * size..(row + 1) * size]);
            assert!(place[6..8].iter().chain(&place[8 + size..]).all(|&b| b == 0));
        }
        let read = Dequantized::new(&written.plan, &written.segment).unwrap();
        let row = read.chosen("w", &[69], 6).unwrap();
        let expected = q[414..].iter().map(|&q| f64::from(f32::from(q) * scales[69]));
        assert_eq!(row, expected.collect::<Vec<_>>());
    }
}

#[test]
fn floats_keep_their_bits_where_the_format_is_theirs() {
    // Values that the next narrower formats would change.
    let values = [1.0f32, -0.0, 1.0 + f32::EPSILON, 3.0e-39, 65504.0, -1.5e-7];
    for weight_use in [WeightUse::Vector, WeightUse::Table] {
        for (format, stored) in [(ComponentFormat::F32, Format::F32), (ComponentFormat::F16, Format::F16)] {
            let mut tensors = Tensors::default();
            let data = tensors.add(Dtype::F32, &[2, 3], f32_bytes(&values));
            let layer = layer(vec![weight(weight_use, &[2, 3], data)]);
            let written = written(&layer, &recipe(&[("*", format)]), &tensors).unwrap();
            let read = Dequantized::new(&written.plan, &written.segment).unwrap().elements("w").unwrap();
            let f32s = stored == Format::F32;
            assert_eq!(written.figures[0].lossless, f32s);
            assert_eq!(written.figures[0].worst_group.is_none(), f32s);
            for (&read, &value) in read.iter().zip(&values) {
                let expected = if f32s { f64::from(value) } else { f16::from_f32(value).to_f64() };
                assert_eq!(read.to_bits(), expected.to_bits());
            }
            if weight_use == WeightUse::Vector {
                assert_eq!(written.plan.entries[0].storage, Storage::Vector(stored));
                assert_eq!(written.plan.bytes, 64);
            }
        }
    }
}
