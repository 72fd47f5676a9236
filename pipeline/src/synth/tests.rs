//! What a delivery's tensors are, against the table that another generator was made by.

use super::{Form, MASSIVE, Profile, SynthError, Tensor, Values, config, delivery};
use mica_models::describe;
use serde_json::Value;
use std::collections::BTreeMap;

const MODEL: &str = "qwen3_5_35b_a3b";
/// The layers whose tensors an independent generator made, at the published dimensions.
const PRODUCTION: &str = include_str!("../../../tests/delivery/production/production.json");

fn form(quantized: bool, packed: bool) -> Form {
    Form { seed: 10, quantized, packed, distinct: None, profile: Profile::Plain }
}

fn all(layers: u16, form: &Form) -> Result<BTreeMap<String, Tensor>, SynthError> {
    let stack = describe(MODEL, &config(MODEL, layers, &[("vocab_size".into(), 512)], None)?)?;
    Ok(delivery(&stack, form)?.into_iter().map(|t| (t.name.clone(), t)).collect())
}

/// The first bytes of a tensor, or all of it.
fn bytes(t: &Tensor, most: usize) -> Vec<u8> {
    let mut out = vec![0; most.min(t.bytes() as usize)];
    t.values.fill(t.stream, t.first, 0, &mut out);
    out
}

#[test]
fn bfloat16_weights_are_those_of_the_production_layers() {
    let made = all(4, &form(false, false)).unwrap();
    let table: Value = serde_json::from_str(PRODUCTION).unwrap();
    assert_eq!(table["seed"], 10);
    let mut whole = 0;
    for (name, entry) in table["tensors"].as_object().unwrap() {
        let t = &made[name];
        assert_eq!(Value::from(t.dtype), entry["dtype"], "{name}");
        assert_eq!(Value::from(t.shape.clone()), entry["shape"], "{name}");
        let Values::Uniform { scale, offset, .. } = t.values else { panic!("{name}: {:?}", t.values) };
        assert_eq!(
            (Some(scale.into()), Some(offset.into())),
            (entry["scale"].as_f64(), entry["offset"].as_f64())
        );
        if t.bytes() <= 1 << 20 {
            assert_eq!(blake3::hash(&bytes(t, usize::MAX)).to_hex().as_str(), entry["blake3"], "{name}");
            whole += 1;
        }
    }
    assert!(whole > 15, "{whole}");
}

#[test]
fn a_quantized_delivery_has_scales_where_they_belong() {
    let made = all(4, &form(true, false)).unwrap();
    let find = |name: &str| &made[&format!("model.language_model.layers.3.{name}")];
    let table: [(&str, &str, &[u64]); 6] = [
        ("mlp.experts.gate_up_proj", "I8", &[256, 1024, 2048]),
        ("mlp.experts.gate_up_proj.w_scale", "F16", &[256, 1024, 16]),
        ("self_attn.q_proj.weight", "I8", &[8192, 2048]),
        ("self_attn.q_proj.w_scale", "F32", &[8192, 1]),
        ("mlp.gate.weight", "BF16", &[256, 2048]),
        ("self_attn.q_norm.weight", "BF16", &[256]),
    ];
    for (name, dtype, shape) in table {
        assert_eq!((find(name).dtype, find(name).shape.as_slice()), (dtype, shape), "{name}");
    }
    assert!(bytes(find("mlp.experts.down_proj"), 4096).iter().all(|&q| (-8..8).contains(&(q as i8))));
}

/// Packed experts say what the containers say, piece by piece.
#[test]
fn packing_changes_no_weight() {
    let (made, packed) = (all(1, &form(true, false)).unwrap(), all(1, &form(true, true)).unwrap());
    let layer = "model.language_model.layers.0.mlp.experts.";
    for (piece, whole, rows, cols, row) in [
        ("7.up_proj", "gate_up_proj", 512, 2048, 7 * 1024 + 512),
        ("9.down_proj", "down_proj", 2048, 512, 9 * 2048),
    ] {
        let t = &packed[&format!("{layer}{piece}.weight_packed")];
        assert_eq!(t.shape, [rows, cols / 8]);
        let words = bytes(t, 1024);
        let mut containers = vec![0; 2048];
        let fused = &made[&format!("{layer}{whole}")];
        fused.values.fill(fused.stream, 0, row * cols, &mut containers);
        for (i, q) in containers.iter().enumerate() {
            assert_eq!((words[i / 2] >> (4 * (i % 2)) & 15) as i8 - 8, *q as i8, "{piece} {i}");
        }
        let (scales, fused) =
            (&packed[&format!("{layer}{piece}.weight_scale")], &made[&format!("{layer}{whole}.w_scale")]);
        let mut expected = vec![0; 64];
        fused.values.fill(fused.stream, 0, row * (cols / 128) * 2, &mut expected);
        assert_eq!(bytes(scales, 64), expected, "{piece}");
        let shape = bytes(&packed[&format!("{layer}{piece}.weight_shape")], 16);
        assert_eq!(shape, [rows.to_le_bytes(), cols.to_le_bytes()].concat());
    }
}

/// The rows, ends and scales that `Limits` and `Stress` are for.
#[test]
fn stressed_weights_are_where_they_are_said_to_be() {
    let of = |profile| all(8, &Form { profile, ..form(true, false) }).unwrap();
    let (stress, limits) = (of(Profile::Stress), of(Profile::Limits));
    let name = |layer: usize, rest: &str| format!("model.language_model.layers.{layer}.{rest}");
    let floats = |t: &Tensor, from: u64, n: usize| -> Vec<f32> {
        let mut raw = vec![0; n * t.bytes() as usize / t.shape.iter().product::<u64>() as usize];
        let at = from * t.bytes() / t.shape.iter().product::<u64>();
        t.values.fill(t.stream, t.first, at, &mut raw);
        match t.dtype {
            "F16" => raw.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
            "F32" => raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            _ => raw.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
        }
    };
    // a row of equal weights makes the massive channel, and the norms after it take it down
    let down = &stress[&name(1, "mlp.shared_expert.down_proj.weight")];
    assert_eq!((down.dtype, down.shape.as_slice()), ("BF16", &[2048, 512][..]));
    let row = floats(down, MASSIVE * 512, 512);
    assert!(row[0] > 1.0 && row.iter().all(|v| *v == row[0]));
    assert!(floats(down, (MASSIVE + 1) * 512, 512).iter().all(|v| v.abs() < 0.1));
    let gate = &stress[&name(1, "mlp.shared_expert.gate_proj.weight")];
    let up = &stress[&name(1, "mlp.shared_expert.up_proj.weight")];
    assert_eq!(bytes(gate, 4096), bytes(up, 4096));
    let norm = floats(&stress[&name(2, "input_layernorm.weight")], 0, 2048);
    assert_eq!(norm[MASSIVE as usize], -0.75);
    assert!(norm.iter().enumerate().all(|(i, v)| i as u64 == MASSIVE || *v > -0.3));
    // scales at both ends of float16, in every expert, and codes at both ends
    let scales = &limits[&name(5, "mlp.experts.gate_up_proj.w_scale")];
    assert_eq!((scales.dtype, scales.shape.as_slice()), ("F16", &[256, 1024, 16][..]));
    for expert in [0, 255] {
        let smallest = floats(scales, expert * 1024 * 16, 16);
        assert!(smallest.iter().all(|v| *v == half::f16::from_bits(1).to_f32()), "{smallest:?}");
        let largest = floats(scales, (expert * 1024 + 512) * 16, 16);
        assert!(largest.iter().all(|v| (32_768.0..=65_504.0).contains(v)), "{largest:?}");
    }
    for (tensor, ends) in [("mlp.experts.down_proj", [-8, 7]), ("self_attn.q_proj.weight", [-128, 127])] {
        let codes = bytes(&limits[&name(7, tensor)], 1 << 16);
        assert!(ends.iter().all(|end| codes.contains(&(*end as i8 as u8))), "{tensor}");
    }
}

#[test]
fn fields_and_groups_that_do_not_fit_are_named() {
    let of = |field: &str, value| {
        let config = config(MODEL, 4, &[(field.into(), value)], None)?;
        delivery(&describe(MODEL, &config)?, &form(true, false))
    };
    let said = |field, value| of(field, value).map(|all| all.len()).unwrap_err().to_string();
    assert!(said("hiden_size", 256).contains("no number \"hiden_size\"; there are"));
    assert!(
        said("moe_intermediate_size", 192).contains("experts of 192 columns can't be cut into groups of 128")
    );
    assert!(of("hidden_size", 256).is_ok());
}

#[test]
fn layers_share_bytes_only_with_their_kind() {
    let distinct = |n| Form { distinct: Some(n), ..form(false, false) };
    let made = all(8, &distinct(4)).unwrap();
    let name = |layer: usize| format!("model.language_model.layers.{layer}.mlp.gate.weight");
    assert_eq!(bytes(&made[&name(1)], 64), bytes(&made[&name(5)], 64));
    assert_ne!(bytes(&made[&name(1)], 64), bytes(&made[&name(2)], 64));
    let e = all(8, &distinct(3)).unwrap_err();
    assert!(matches!(e, SynthError::Distinct { layer: 3, like: 0, period: 4 }), "{e}");
    let e = all(41, &distinct(4)).unwrap_err();
    assert!(matches!(e, SynthError::Layers { asked: 41, published: 40, .. }), "{e}");
}
