//! The published configuration of a described model, cut to fewer layers.

use super::SynthError;
use mica_models::registry::described;
use serde_json::{Map, Value, json};

/// Fields that the command's other words decide, or that nothing reads.
const DECIDED: [(&str, &str); 2] = [
    ("num_hidden_layers", "--layers says how many there are"),
    ("full_attention_interval", "layer_types names the kind of each layer, and keeps the published pattern"),
];

/// The published configuration of a model, with its first so many layers and other numbers in the fields
/// named in `set`. `packed` states how packed experts of such a group are to be read.
pub fn config(
    model: &str,
    layers: u16,
    set: &[(String, u32)],
    packed: Option<u32>,
) -> Result<Map<String, Value>, SynthError> {
    let found = described().iter().find(|m| m.name == model).ok_or_else(|| SynthError::Model {
        name: model.into(),
        known: described().iter().map(|m| m.name).collect::<Vec<_>>().join(", "),
    })?;
    let mut config = found.published_config()?;
    cut(model, &mut config, layers)?;
    if let Some(text) = text_fields(&mut config) {
        for (n, (field, value)) in set.iter().enumerate() {
            if let Some((_, decided)) = DECIDED.iter().find(|(name, _)| name == field) {
                return Err(SynthError::Decided { field: field.clone(), decided });
            }
            if set[..n].iter().any(|(name, _)| name == field) {
                return Err(SynthError::Twice { field: field.clone() });
            }
            match text.get_mut(field) {
                Some(old) if old.is_u64() => *old = (*value).into(),
                _ => {
                    let free = |name: &str| DECIDED.iter().all(|(decided, _)| *decided != name);
                    let known = text.iter().filter(|(name, v)| v.is_u64() && free(name));
                    let known = known.map(|(name, _)| name.as_str());
                    return Err(SynthError::Field {
                        model: model.into(),
                        field: field.clone(),
                        known: known.collect::<Vec<_>>().join(", "),
                    });
                }
            }
        }
    }
    if let Some(group) = packed {
        let weights = json!({
            "num_bits": 4, "type": "int", "symmetric": true,
            "strategy": "group", "group_size": group, "dynamic": false,
        });
        let groups = json!({ "group_0": {
            "targets": ["re:.*mlp\\.experts\\..*_proj$"], "format": "pack-quantized", "weights": weights,
        }});
        let scheme = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "config_groups": groups,
        });
        config.insert("quantization_config".into(), scheme);
    }
    Ok(config)
}

/// The text fields, which stand on their own or under a name.
fn text_fields(config: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    match config.contains_key("text_config") {
        true => config.get_mut("text_config").and_then(Value::as_object_mut),
        false => Some(config),
    }
}

/// Cuts a configuration to its first so many layers.
///
/// # Errors
/// `Layers` where it has fewer.
pub fn cut(model: &str, config: &mut Map<String, Value>, layers: u16) -> Result<(), SynthError> {
    let Some(text) = text_fields(config) else { return Ok(()) };
    let published = text.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or_default();
    if u64::from(layers) > published {
        return Err(SynthError::Layers { model: model.into(), asked: layers, published });
    }
    text.insert("num_hidden_layers".into(), layers.into());
    if let Some(kinds) = text.get_mut("layer_types").and_then(Value::as_array_mut) {
        kinds.truncate(layers.into());
    }
    Ok(())
}
