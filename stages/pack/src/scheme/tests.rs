//! Configurations as the tools write them, and what is refused.

use super::*;
use serde_json::json;

fn scheme(config: Value) -> Result<Scheme, PackError> {
    Scheme::from_config(config.as_object().unwrap())
}

fn compressed(top: Value, weights: Value) -> Value {
    let mut config = json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": { "group_0": { "targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": true } } },
    });
    config.as_object_mut().unwrap().extend(top.as_object().unwrap().clone());
    if let Some(group) = config["config_groups"].get_mut("group_0") {
        group["weights"].as_object_mut().unwrap().extend(weights.as_object().unwrap().clone());
    }
    config
}

#[test]
fn schemes_and_how_they_are_shown() {
    let none = json!({});
    for (config, shown) in [
        (compressed(none.clone(), none.clone()), "compressed-tensors: 4 bits, groups of 128, symmetric"),
        (
            compressed(
                json!({"sparsity_config": {"format": "dense"}, "transform_config": {}}),
                json!({"num_bits": 8,
                "strategy": "channel", "group_size": null, "symmetric": false, "actorder": "static"}),
            ),
            "compressed-tensors: 8 bits, one scale a row, zero points",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "desc_act": false,
            "checkpoint_format": "gptq", "pack_dtype": "int32"}),
            "GPTQ v1: 4 bits, groups of 32, symmetric",
        ),
        (
            json!({"bits": 8, "group_size": -1, "desc_act": true, "sym": false}),
            "GPTQ v1: 8 bits, one scale a row, zero points",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"}),
            "GPTQ v2: 4 bits, groups of 64, symmetric",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}),
            "AWQ: 4 bits, groups of 32, zero points",
        ),
        (
            json!({"w_bit": 4, "q_group_size": 128, "version": "GEMM", "zero_point": false}),
            "AWQ: 4 bits, groups of 128, symmetric",
        ),
    ] {
        assert_eq!(scheme(config.clone()).map(|s| s.to_string()), Ok(shown.to_owned()), "{config}");
    }
}

#[test]
fn one_refusal_a_rule() {
    let none = json!({});
    let gptq = |key: &str, value: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
        config[key] = value;
        config
    };
    let awq = |key: &str, value: Value| {
        let mut config = json!({"quant_method": "awq", "bits": 4, "group_size": 32});
        config[key] = value;
        config
    };
    for (config, said) in [
        (json!({}), "quant_method is absent; expected compressed-tensors, gptq or awq"),
        (json!({"quant_method": "fp8"}), "quant_method is \"fp8\""),
        (json!({"quant_method": 4}), "quant_method is 4; expected a text"),
        (gptq("bits", json!(3)), "bits is 3; expected 4 or 8"),
        (gptq("bits", json!("4")), "bits is \"4\""),
        (gptq("group_size", json!(0)), "group_size is 0"),
        (gptq("group_size", Value::Null), "group_size is null"),
        (gptq("sym", json!("yes")), "sym is \"yes\"; expected true or false"),
        (
            gptq("checkpoint_format", json!("marlin")),
            "checkpoint_format is \"marlin\"; expected gptq or gptq_v2",
        ),
        (gptq("is_marlin_format", json!(true)), "is_marlin_format is true"),
        (gptq("pack_dtype", json!("int16")), "pack_dtype is \"int16\""),
        (awq("bits", json!(8)), "bits is 8; expected 4"),
        (awq("version", json!("gemv")), "version is \"gemv\"; expected gemm"),
        (
            compressed(json!({"format": "marlin-24"}), none.clone()),
            "config_groups.group_0.format is absent; expected pack-quantized",
        ),
        (
            compressed(json!({"config_groups": {}}), none.clone()),
            "config_groups is not empty; expected at least one group",
        ),
        (
            compressed(json!({"sparsity_config": {"format": "sparse-24"}}), none.clone()),
            "sparsity_config is not empty; expected none",
        ),
        (compressed(json!({"transform_config": {"a": 1}}), none.clone()), "transform_config is not empty"),
        (compressed(none.clone(), json!({"num_bits": 2})), "config_groups.group_0.weights.num_bits is 2"),
        (compressed(none.clone(), json!({"type": "float"})), "weights.type is \"float\"; expected int"),
        (
            compressed(none.clone(), json!({"strategy": "tensor"})),
            "weights.strategy is \"tensor\"; expected group or channel",
        ),
    ] {
        let message = scheme(config.clone()).unwrap_err().to_string();
        assert!(message.contains(said), "{config}: {message}");
    }
}
