//! Quantized experts in the formats of the Hugging Face ecosystem: integers packed into 32-bit words,
//! expert by expert. Only the packing differs from the int8 containers that they are made from.

use mica_dtype::Dtype;
use serde_json::{Value, json};

use super::rewrite::{halves, outer};
use super::writer::NewTensor;

/// A format of packed integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedFormat {
    /// compressed-tensors `pack-quantized`: the shared expert too, in 8 bits.
    CompressedTensors,
    /// GPTQ, version 1: stored zero points are one less than they mean.
    Gptq,
    /// GPTQ, version 2.
    GptqV2,
    /// AWQ, version gemm.
    Awq,
}

/// In which order AWQ puts eight neighbours into a word, lowest bits first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

impl PackedFormat {
    /// All of them.
    pub const ALL: [PackedFormat; 4] =
        [PackedFormat::CompressedTensors, PackedFormat::Gptq, PackedFormat::GptqV2, PackedFormat::Awq];

    /// What stands in a delivery's `quantization_config.json` for groups of `group`.
    pub fn config(self, group: u64, symmetric: bool) -> Value {
        match self {
            PackedFormat::CompressedTensors => json!({
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "quantization_status": "compressed",
                "config_groups": {
                    "group_0": { "targets": ["re:.*mlp\\.experts\\..*_proj$"], "weights": {
                        "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group",
                        "group_size": group, "dynamic": false } },
                    "group_1": { "targets": ["re:.*shared_expert\\..*_proj$"], "weights": {
                        "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel",
                        "dynamic": false } },
                },
                "ignore": ["lm_head"],
            }),
            PackedFormat::Gptq | PackedFormat::GptqV2 => json!({
                "quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": false,
                "checkpoint_format": if self == PackedFormat::Gptq { "gptq" } else { "gptq_v2" },
                "pack_dtype": "int32", "lm_head": false,
            }),
            PackedFormat::Awq => json!({
                "quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": true,
            }),
        }
    }

    /// The tensors that stand for one matrix: containers `weight` `[rows, cols]`, `scale` `[rows, groups]` and
    /// zero points of the scales' shape. `base` is the matrix's name without `.weight`.
    pub fn matrix(
        self,
        base: &str,
        weight: &NewTensor,
        scale: &NewTensor,
        zeros: Option<&[i8]>,
        bits: u32,
    ) -> Vec<NewTensor> {
        let [rows, cols] = [weight.shape[0] as usize, weight.shape[1] as usize];
        let groups = scale.shape[1] as usize;
        let half = 1i32 << (bits - 1);
        let unsigned = |value: i8| (i32::from(value) + half) as u32;
        let q: Vec<u32> = weight.bytes.iter().map(|&b| unsigned(b as i8)).collect();
        let zero: Vec<u32> = match zeros {
            Some(zeros) => zeros.iter().map(|&z| unsigned(z)).collect(),
            None => vec![half as u32; rows * groups],
        };
        let named =
            |ending: &str, tensor: NewTensor| NewTensor { name: format!("{base}.{ending}"), ..tensor };
        let words = |ending, values: &[u32], shape, along, order| {
            named(ending, words(values, shape, bits, along, order))
        };
        let transposed = named("scales", transpose_scales(scale));
        match self {
            PackedFormat::CompressedTensors => {
                let shape = [rows as i64, cols as i64];
                let mut out = vec![
                    words("weight_packed", &q, [rows, cols], 1, &ORDER),
                    named("weight_scale", scale.clone()),
                    named("weight_shape", NewTensor::i64("", &[2], &shape)),
                ];
                if zeros.is_some() {
                    out.push(words("weight_zero_point", &zero, [rows, groups], 0, &ORDER));
                }
                out
            }
            PackedFormat::Gptq | PackedFormat::GptqV2 => {
                let stored = |z: &u32| if self == PackedFormat::Gptq { z.wrapping_sub(1) & 15 } else { *z };
                let zero: Vec<u32> = zero.iter().map(stored).collect();
                let index: Vec<u8> =
                    (0..cols).flat_map(|col| ((col / (cols / groups)) as i32).to_le_bytes()).collect();
                vec![
                    words("qweight", &transpose(&q, rows), [cols, rows], 0, &ORDER),
                    words("qzeros", &transpose(&zero, rows), [groups, rows], 1, &ORDER),
                    transposed,
                    named("g_idx", NewTensor::new("", Dtype::I32, &[cols as u64], index)),
                ]
            }
            PackedFormat::Awq => vec![
                words("qweight", &transpose(&q, rows), [cols, rows], 1, &AWQ_ORDER),
                words("qzeros", &transpose(&zero, rows), [groups, rows], 1, &AWQ_ORDER),
                transposed,
            ],
        }
    }
}

/// The tensors with their fused quantized experts (`NAME.weight` of containers, `NAME.w_scale`) in the format,
/// gate and up apart.
pub fn pack_quantized(tensors: &[NewTensor], format: PackedFormat) -> Vec<NewTensor> {
    let mut out = Vec::new();
    for tensor in tensors {
        let base = tensor.name.strip_suffix(".weight").or(tensor.name.strip_suffix(".w_scale"));
        let Some(base) = base else {
            out.push(tensor.clone());
            continue;
        };
        let scale = tensors.iter().find(|t| t.name == format!("{base}.w_scale"));
        let shared = format == PackedFormat::CompressedTensors && base.contains(".shared_expert.");
        let (Some(scale), true) = (scale, shared || base.contains(".mlp.experts.")) else {
            out.push(tensor.clone());
            continue;
        };
        if scale.name == tensor.name {
            continue;
        }
        if shared {
            out.extend(format.matrix(base, tensor, scale, None, 8));
            continue;
        }
        let (experts, role) = base.rsplit_once('.').expect("a role's name");
        for (e, (weight, scale)) in outer(tensor).into_iter().zip(outer(scale)).enumerate() {
            let mut put = |role, weight: &NewTensor, scale: &NewTensor| {
                out.extend(format.matrix(&format!("{experts}.{e}.{role}"), weight, scale, None, 4));
            };
            if role == "gate_up_proj" {
                let ((gate, up), (gate_scale, up_scale)) = (halves(&weight), halves(&scale));
                put("gate_proj", &gate, &gate_scale);
                put("up_proj", &up, &up_scale);
            } else {
                put(role, &weight, &scale);
            }
        }
    }
    out
}

/// Values `[a, b]` packed along one of the axes.
fn words(values: &[u32], [a, b]: [usize; 2], bits: u32, along: usize, order: &[usize; 8]) -> NewTensor {
    let per = 32 / bits as usize;
    let shape = if along == 0 { [a.div_ceil(per), b] } else { [a, b.div_ceil(per)] };
    let mut out = vec![0u32; shape[0] * shape[1]];
    // The place in a word of each of the eight (or, of longer integers, four) neighbours.
    let mut place = [0; 8];
    order.iter().enumerate().for_each(|(at, &neighbour)| place[neighbour] = at as u32);
    for (i, &value) in values.iter().enumerate() {
        let (row, col) = (i / b, i % b);
        let (word, neighbour) = if along == 0 {
            (row / per * b + col, row % per)
        } else {
            (row * shape[1] + col / per, col % per)
        };
        out[word] |= value << (place[neighbour] * bits);
    }
    let bytes = out.iter().flat_map(|word| word.to_le_bytes()).collect();
    NewTensor::new("", Dtype::I32, &[shape[0] as u64, shape[1] as u64], bytes)
}

fn transpose<T: Copy>(values: &[T], rows: usize) -> Vec<T> {
    let cols = values.len() / rows;
    (0..cols).flat_map(|col| (0..rows).map(move |row| values[row * cols + col])).collect()
}

fn transpose_scales(scale: &NewTensor) -> NewTensor {
    let size = scale.dtype.bytes() as usize;
    let elements: Vec<&[u8]> = scale.bytes.chunks_exact(size).collect();
    let bytes = transpose(&elements, scale.shape[0] as usize).concat();
    NewTensor::new("", scale.dtype, &[scale.shape[1], scale.shape[0]], bytes)
}
