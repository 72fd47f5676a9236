//! Every way in which a delivery and a model may not fit, and what is said.

mod common;

use common::{bf16, stack, w4a16};
use mica_models::stack::Part;
use mica_pack::testing::MemoryDelivery;
use mica_pack::{Dtype, resolve};

const LAYER: &str = "model.language_model.layers.0.";
const QUANTIZED: &str = "model.layers.0.";

fn said(delivery: &MemoryDelivery, part: Part) -> String {
    resolve(delivery, &stack(), part).unwrap_err().to_string()
}

fn zeros(delivery: &mut MemoryDelivery, name: &str, dtype: Dtype, shape: &[u64]) {
    let bytes = shape.iter().product::<u64>() * dtype.bytes();
    delivery.insert(name, dtype, shape, vec![0; bytes as usize]);
}

/// A case: what is done to the delivery, and the parts of the message.
type Case = (&'static str, fn(&mut MemoryDelivery), &'static [&'static str]);

const FLOATS: &[Case] = &[
    (
        "missing",
        |d| {
            let (info, bytes) = d.remove(&format!("{LAYER}linear_attn.in_proj_z.weight"));
            d.insert(&format!("{LAYER}linear_attn.in_proj_zz.weight"), info.dtype, &info.shape, bytes);
        },
        &[
            "layer0",
            "no tensor for linear_attn.in_proj_z.weight",
            "model.language_model.layers.0.linear_attn.in_proj_z.weight, model.layers.0.linear_attn.in_proj_z.weight",
            "nearest: model.language_model.layers.0.linear_attn.",
            "linear_attn.in_proj_zz.weight",
        ],
    ),
    (
        "experts missing in every form",
        |d| {
            d.remove(&format!("{LAYER}mlp.experts.down_proj"));
        },
        &["mlp.experts.down_proj", "model.language_model.layers.0.mlp.experts.0.down_proj.weight"],
    ),
    (
        "an expert missing",
        |d| {
            d.remove(&format!("{LAYER}mlp.experts.down_proj"));
            for e in (0..16).filter(|&e| e != 7) {
                zeros(d, &format!("{LAYER}mlp.experts.{e}.down_proj.weight"), Dtype::BF16, &[128, 64]);
            }
        },
        &["expert by expert", "mlp.experts.7.down_proj.weight is missing", "nearest"],
    ),
    (
        "both forms",
        |d| zeros(d, &format!("{LAYER}mlp.experts.0.down_proj.weight"), Dtype::BF16, &[128, 64]),
        &[
            "mlp.experts.down_proj and model.language_model.layers.0.mlp.experts.0",
            "each be mlp.experts.down_proj",
        ],
    ),
    (
        "both prefixes",
        |d| zeros(d, "model.layers.0.input_layernorm.weight", Dtype::BF16, &[128]),
        &["model.language_model.layers.0.input_layernorm.weight and model.layers.0.input_layernorm.weight"],
    ),
    (
        "wrong shape",
        |d| zeros(d, &format!("{LAYER}linear_attn.out_proj.weight"), Dtype::BF16, &[128, 64]),
        &["linear_attn.out_proj.weight has shape [128, 64]", "is [128, 128]"],
    ),
    (
        "conv without its middle axis",
        |d| zeros(d, &format!("{LAYER}linear_attn.conv1d.weight"), Dtype::BF16, &[256, 4]),
        &["[256, 4]", "[256, 1, 4]"],
    ),
    (
        "wrong dtype",
        |d| zeros(d, &format!("{LAYER}linear_attn.A_log"), Dtype::F64, &[4]),
        &["linear_attn.A_log", "F64", "expected F32, F16 or BF16, or I8 with scales"],
    ),
    (
        "experts of two dtypes",
        |d| {
            d.remove(&format!("{LAYER}mlp.experts.down_proj"));
            for e in 0..16 {
                let dtype = if e == 3 { Dtype::F16 } else { Dtype::BF16 };
                zeros(d, &format!("{LAYER}mlp.experts.{e}.down_proj.weight"), dtype, &[128, 64]);
            }
        },
        &["experts.3.down_proj.weight is F16", "experts.0.down_proj.weight is BF16"],
    ),
    (
        "int8 without scales",
        |d| zeros(d, &format!("{LAYER}linear_attn.out_proj.weight"), Dtype::I8, &[128, 128]),
        &["holds I8", "no model.language_model.layers.0.linear_attn.out_proj.w_scale"],
    ),
    (
        "scales that scale nothing",
        |d| zeros(d, &format!("{LAYER}linear_attn.out_proj.w_scale"), Dtype::F32, &[128, 1]),
        &["out_proj.w_scale would scale model", "out_proj.weight, which is BF16 and not quantized"],
    ),
    (
        "a quantized norm",
        |d| {
            zeros(d, &format!("{LAYER}input_layernorm.weight"), Dtype::I8, &[128]);
            zeros(d, &format!("{LAYER}input_layernorm.w_scale"), Dtype::F32, &[1]);
        },
        &["input_layernorm.weight", "is quantized; only matrices"],
    ),
];

const INTEGERS: &[Case] = &[
    (
        "scale missing",
        |d| {
            d.remove(&format!("{QUANTIZED}mlp.experts.down_proj.w_scale"));
        },
        &["mlp.experts.down_proj.weight", "no model.layers.0.mlp.experts.down_proj.w_scale"],
    ),
    (
        "scale of a wrong shape",
        |d| zeros(d, &format!("{QUANTIZED}mlp.experts.down_proj.w_scale"), Dtype::F16, &[16, 64, 2]),
        &["w_scale has shape [16, 64, 2]", "scaled by [16, 128, 64], the last a divisor"],
    ),
    (
        "groups that do not divide the row",
        |d| zeros(d, &format!("{QUANTIZED}mlp.experts.down_proj.w_scale"), Dtype::F16, &[16, 128, 3]),
        &["w_scale has shape [16, 128, 3]", "divisor"],
    ),
    (
        "scale of a wrong dtype",
        |d| zeros(d, &format!("{QUANTIZED}mlp.experts.down_proj.w_scale"), Dtype::I32, &[16, 128, 2]),
        &["w_scale", "is I32; expected a scale of F16, BF16 or F32"],
    ),
    (
        "an expert's scale missing",
        |d| {
            d.remove(&format!("{QUANTIZED}mlp.experts.down_proj.weight"));
            d.remove(&format!("{QUANTIZED}mlp.experts.down_proj.w_scale"));
            for e in 0..16 {
                zeros(d, &format!("{QUANTIZED}mlp.experts.{e}.down_proj.weight"), Dtype::I8, &[128, 64]);
                if e != 5 {
                    zeros(d, &format!("{QUANTIZED}mlp.experts.{e}.down_proj.w_scale"), Dtype::F16, &[128, 2]);
                }
            }
        },
        &["mlp.experts.5.down_proj.w_scale is missing"],
    ),
    (
        "experts grouped differently",
        |d| {
            d.remove(&format!("{QUANTIZED}mlp.experts.down_proj.weight"));
            d.remove(&format!("{QUANTIZED}mlp.experts.down_proj.w_scale"));
            for e in 0..16 {
                let groups = if e == 9 { 4 } else { 2 };
                zeros(d, &format!("{QUANTIZED}mlp.experts.{e}.down_proj.weight"), Dtype::I8, &[128, 64]);
                zeros(
                    d,
                    &format!("{QUANTIZED}mlp.experts.{e}.down_proj.w_scale"),
                    Dtype::F16,
                    &[128, groups],
                );
            }
        },
        &["mlp.experts.9.down_proj.w_scale has shape [128, 4]", "in other pieces by [128, 2]"],
    ),
];

#[test]
fn each_names_its_facts() {
    for (delivery, cases) in [(bf16(), FLOATS), (w4a16(), INTEGERS)] {
        for (case, spoil, facts) in cases {
            let mut delivery = delivery.clone();
            spoil(&mut delivery);
            let message = said(&delivery, Part::Layer(0));
            for fact in *facts {
                assert!(message.contains(fact), "{case}: {message}");
            }
        }
    }
}

#[test]
fn a_part_that_is_not_there() {
    assert!(said(&bf16(), Part::Layer(8)).contains("8 layers"));
}
