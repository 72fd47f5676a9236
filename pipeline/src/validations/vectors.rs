//! Op vectors: one operation a file, weights and inputs in float16, results of the published modules in
//! float64, described by one `ops.json`.
//!
//! Each is given the names that a delivery of one layer has, so that everything reads it as it reads a
//! delivery: weights under `model.layers.N.`, values under the names of captures.

use super::{Case, Subject};
use crate::delivery::{OpenDelivery, read};
use crate::error::CliError;
use mica_cache::Stamp;
use mica_fetch::{FetchError, ListOptions, MappedDelivery, RawConfig, TensorIndex, Weights};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// The description of all files of a folder.
const INDEX: &str = "ops.json";

/// The name of a vector's input rows, among its captures.
pub const HIDDEN: &str = "input.hidden";

/// One op vector as a delivery.
pub struct Vector {
    /// The delivery: the weights are its index, everything else its captures.
    pub delivery: OpenDelivery,
    /// The mixers' words, a layer each.
    pub mixers: Vec<String>,
    /// Captured steps.
    pub steps: usize,
}

/// The descriptions of a folder's files.
pub struct Descriptions(Map<String, Value>);

impl Descriptions {
    /// Reads `ops.json`.
    pub fn read(name: &str, dir: &Path) -> Result<Descriptions, CliError> {
        let path = dir.join(INDEX);
        let failed = |message: String| CliError::Delivery { delivery: name.into(), message };
        match serde_json::from_slice(&read(&path)?) {
            Ok(Value::Object(all)) => Ok(Descriptions(all)),
            Ok(_) => Err(failed(format!("{} is no JSON object", path.display()))),
            Err(e) => Err(failed(format!("{}: {e}", path.display()))),
        }
    }
}

impl Vector {
    /// Opens the vector of a case. `name` is its delivery's.
    pub fn open(name: &str, dir: &Path, all: &Descriptions, case: &Case) -> Result<Vector, CliError> {
        let failed = |message: String| CliError::Delivery { delivery: name.into(), message };
        let fetch = |e: FetchError| failed(e.to_string());
        let described = all.0.get(case.vector).and_then(|v| v.get("config")).and_then(Value::as_object);
        let Some(described) = described else {
            return Err(failed(format!("{INDEX} describes no {:?} with a config", case.vector)));
        };
        let words = described.get("layer_types").and_then(Value::as_array).cloned().unwrap_or_default();
        let mixers: Vec<String> = words.iter().filter_map(Value::as_str).map(String::from).collect();
        let options =
            ListOptions { weights: Some(format!("{}.safetensors", case.vector)), ..ListOptions::default() };
        let listing = mica_fetch::list(dir, &options).map_err(fetch)?;
        let files = MappedDelivery::open(dir, &listing).map_err(fetch)?;
        let plain = mica_fetch::index(&files, &listing).map_err(fetch)?;
        let self_made = match listing.weights {
            Weights::Single(f) => mica_fetch::self_made(&files, f).map_err(fetch)?,
            Weights::Sharded { .. } => None,
        };
        let stamps = (0..listing.files.len() as u32)
            .map(|f| files.metadata(f).map(Stamp::of))
            .collect::<Result<_, _>>()
            .map_err(fetch)?;
        let layer = case.subject.layer(&mixers);
        let (index, captures) = split(plain, case.subject, layer);
        let rows = captures.find(HIDDEN).and_then(|e| e.shape.first().copied());
        let steps = rows.ok_or_else(|| failed(format!("{} has no {HIDDEN}", case.vector)))? as usize;
        let text = completed(described, mixers.len());
        let config = RawConfig { text: text.clone(), top: text, nested: false };
        let delivery = OpenDelivery {
            name: name.into(),
            files,
            listing,
            index: Arc::new(index),
            captures: Some(Arc::new(captures)),
            self_made,
            config,
            scheme: None,
            tokenizer: None,
            stamps,
        };
        Ok(Vector { delivery, mixers, steps })
    }
}

/// The config of a vector, which states only what its operation reads, with what a whole model has beside:
/// a vocabulary and a longest context, which nothing here depends on.
fn completed(described: &Map<String, Value>, layers: usize) -> Map<String, Value> {
    let mut text = described.clone();
    for (field, value) in
        [("vocab_size", 64), ("max_position_embeddings", 32768), ("num_hidden_layers", layers)]
    {
        text.entry(field).or_insert_with(|| value.into());
    }
    text
}

/// Parts a file's tensors into weights and values, under a delivery's names.
fn split(all: TensorIndex, subject: Subject, layer: usize) -> (TensorIndex, TensorIndex) {
    let (mut weights, mut values) = (TensorIndex::default(), TensorIndex::default());
    for (key, mut entry) in all.tensors {
        let (index, name) = match weight_name(&key, subject, layer) {
            Some(name) => (&mut weights, name),
            None => match value_name(&key, subject, layer) {
                Some(name) => (&mut values, name),
                None => continue,
            },
        };
        entry.name.clone_from(&name);
        index.tensors.insert(name, entry);
    }
    (weights, values)
}

fn weight_name(key: &str, subject: Subject, layer: usize) -> Option<String> {
    let rest = key.strip_prefix("weight.")?;
    Some(match subject {
        Subject::Layers(_) => format!("model.{rest}"),
        _ => format!("model.layers.{layer}.{}.{rest}", subject.scope()),
    })
}

fn value_name(key: &str, subject: Subject, layer: usize) -> Option<String> {
    if let Some(rest) = key.strip_prefix("output.") {
        return Some(match subject {
            Subject::Layers(_) => format!("model.{rest}"),
            Subject::Router => format!("model.layers.{layer}.mlp.gate:{rest}"),
            _ => format!("model.layers.{layer}.{rest}"),
        });
    }
    let Some(rest) = key.strip_prefix("state_out.") else {
        return (!key.starts_with("weight.")).then(|| key.to_string());
    };
    let (layer, state) = match rest.strip_prefix("layers.").and_then(|r| r.split_once('.')) {
        Some((number, state)) => (number.to_string(), state),
        None => (layer.to_string(), rest),
    };
    let mixer = if state.ends_with("_cache") { "self_attn" } else { "linear_attn" };
    Some(format!("model.layers.{layer}.{mixer}:{state}"))
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    #[test]
    fn keys_get_a_deliverys_names() {
        let linear = Subject::Mixer { full: false };
        let full = Subject::Mixer { full: true };
        let table: &[(&str, Subject, usize, &str)] = &[
            ("weight.weight", Subject::Router, 0, "model.layers.0.mlp.gate.weight"),
            ("weight.experts.down_proj", Subject::Moe, 0, "model.layers.0.mlp.experts.down_proj"),
            ("weight.A_log", linear, 0, "model.layers.0.linear_attn.A_log"),
            ("weight.q_proj.weight", full, 3, "model.layers.3.self_attn.q_proj.weight"),
            (
                "weight.layers.2.mlp.gate.weight",
                Subject::Layers(Span::All),
                0,
                "model.layers.2.mlp.gate.weight",
            ),
            ("output.topk_indices", Subject::Router, 0, "model.layers.0.mlp.gate:topk_indices"),
            ("output.mlp:float_output", Subject::Moe, 0, "model.layers.0.mlp:float_output"),
            ("output.layers.1:float_output", Subject::Layers(Span::All), 0, "model.layers.1:float_output"),
            ("state_out.key_cache", full, 3, "model.layers.3.self_attn:key_cache"),
            (
                "state_out.layers.1.conv_state",
                Subject::Layers(Span::All),
                0,
                "model.layers.1.linear_attn:conv_state",
            ),
            ("state_in.conv_state", linear, 0, "state_in.conv_state"),
            ("input.hidden", linear, 0, "input.hidden"),
        ];
        for &(key, subject, layer, want) in table {
            let of = if key.starts_with("weight.") { weight_name } else { value_name };
            assert_eq!(of(key, subject, layer).as_deref(), Some(want), "{key}");
        }
        assert_eq!(value_name("weight.weight", Subject::Router, 0), None);
        assert_eq!(weight_name("input.hidden", linear, 0), None);
    }
}
