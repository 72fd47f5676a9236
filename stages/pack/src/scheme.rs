//! How a delivery's integers are packed, from its quantization configuration.
//!
//! Reads the configuration's fields and nothing else. The tensors' names and shapes have to agree with
//! it, which `resolve` checks: where they do not, somebody is wrong and nothing is guessed.

use crate::error::PackError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// A quantization method that packs integers into 32-bit words, and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// compressed-tensors `pack-quantized`: a matrix is one of these.
    CompressedTensors(Vec<Described>),
    /// GPTQ.
    Gptq {
        /// All matrices.
        described: Described,
        /// Version 1 stores zero points less one.
        zero_less_one: bool,
        /// Whether columns may be in another order than their groups', which `g_idx` then says.
        reordered: bool,
    },
    /// AWQ, version gemm.
    Awq(Described),
}

/// What a configuration says of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Of an integer.
    pub bits: u32,
    /// Columns that share a scale; `None` where a row has one.
    pub group: Option<u64>,
    /// Whether there are no zero points, or only such as say nothing.
    pub symmetric: bool,
}

impl Scheme {
    /// The scheme of a `quantization_config`'s fields.
    ///
    /// # Errors
    /// A method or parameter that is not read here, with the field's name.
    pub fn from_config(fields: &Map<String, Value>) -> Result<Scheme, PackError> {
        let fields = Fields { at: "", map: fields };
        // The oldest files of both tools do not say which they are of.
        let method = match fields.text("quant_method")? {
            Some(method) => method,
            None if fields.map.contains_key("desc_act") => "gptq",
            None if fields.map.contains_key("w_bit") => "awq",
            None => return Err(fields.refused("quant_method", METHODS)),
        };
        match method {
            "compressed-tensors" => compressed_tensors(&fields),
            "gptq" => gptq(&fields),
            "awq" => awq(&fields),
            _ => Err(fields.refused("quant_method", METHODS)),
        }
    }
}

const METHODS: &str = "compressed-tensors, gptq or awq";

fn compressed_tensors(fields: &Fields<'_>) -> Result<Scheme, PackError> {
    // A transform has to be undone on activations, which the model knows nothing of.
    for (field, key) in [("sparsity_config", Some("format")), ("transform_config", None)] {
        let said = fields.map.get(field).and_then(Value::as_object).filter(|inner| !inner.is_empty());
        let nothing =
            |inner: &Map<String, Value>| key.is_some_and(|key| inner.get(key) == Some(&"dense".into()));
        if said.is_some_and(|inner| !nothing(inner)) {
            return Err(fields.refused(field, "none"));
        }
    }
    let format = fields.text("format")?;
    let groups = fields.map.get("config_groups").and_then(Value::as_object);
    let groups = groups.filter(|groups| !groups.is_empty());
    let groups = groups.ok_or_else(|| fields.refused("config_groups", "at least one group"))?;
    let mut described = Vec::new();
    for (name, group) in groups {
        let at = format!("config_groups.{name}.");
        let refused = || fields.refused("config_groups", "groups of targets and weights");
        let group = Fields { at: &at, map: group.as_object().ok_or_else(refused)? };
        if group.text("format")?.or(format) != Some("pack-quantized") {
            return Err(group.refused("format", "pack-quantized"));
        }
        let at = format!("{at}weights.");
        let weights = group.map.get("weights").and_then(Value::as_object);
        let map = weights.ok_or_else(|| group.refused("weights", "how weights are quantized"))?;
        let weights = Fields { at: &at, map };
        if weights.text("type")?.is_some_and(|kind| kind != "int") {
            return Err(weights.refused("type", "int"));
        }
        let group = match weights.text("strategy")? {
            Some("channel") => None,
            Some("group") => weights.group("group_size")?,
            _ => return Err(weights.refused("strategy", "group or channel")),
        };
        let symmetric = weights.flag("symmetric")?.unwrap_or(true);
        described.push(Described { bits: weights.bits("num_bits", &[4, 8])?, group, symmetric });
    }
    Ok(Scheme::CompressedTensors(described))
}

fn gptq(fields: &Fields<'_>) -> Result<Scheme, PackError> {
    let zero_less_one = match fields.text("checkpoint_format")? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(_) => return Err(fields.refused("checkpoint_format", "gptq or gptq_v2")),
    };
    if fields.text("pack_dtype")?.is_some_and(|dtype| dtype != "int32") {
        return Err(fields.refused("pack_dtype", "int32"));
    }
    if fields.flag("is_marlin_format")? == Some(true) {
        return Err(fields.refused("is_marlin_format", "false"));
    }
    let described = Described {
        bits: fields.bits("bits", &[4, 8])?,
        group: fields.group("group_size")?,
        symmetric: fields.flag("sym")?.unwrap_or(true),
    };
    let reordered = fields.flag("desc_act")?.unwrap_or(false);
    Ok(Scheme::Gptq { described, zero_less_one, reordered })
}

fn awq(fields: &Fields<'_>) -> Result<Scheme, PackError> {
    if !fields.text("version")?.is_none_or(|version| version.eq_ignore_ascii_case("gemm")) {
        return Err(fields.refused("version", "gemm"));
    }
    let either = |new, old| if fields.map.contains_key(new) { new } else { old };
    Ok(Scheme::Awq(Described {
        bits: fields.bits(either("bits", "w_bit"), &[4])?,
        group: fields.group(either("group_size", "q_group_size"))?,
        symmetric: !fields.flag("zero_point")?.unwrap_or(true),
    }))
}

/// The fields of an object, for messages at `at`.
struct Fields<'a> {
    at: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn refused(&self, field: &str, expected: &'static str) -> PackError {
        let found = self.map.get(field).map_or("absent".to_owned(), |value| match value {
            Value::Object(_) | Value::Array(_) => "not empty".to_owned(),
            value => value.to_string(),
        });
        PackError::Scheme { field: format!("{}{field}", self.at), found, expected }
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>, PackError> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| self.refused(field, "a text"));
        self.get(field).map(text).transpose()
    }

    fn flag(&self, field: &str) -> Result<Option<bool>, PackError> {
        let flag = |value: &Value| value.as_bool().ok_or_else(|| self.refused(field, "true or false"));
        self.get(field).map(flag).transpose()
    }

    fn bits(&self, field: &str, allowed: &[u32]) -> Result<u32, PackError> {
        let expected = if allowed.len() == 1 { "4" } else { "4 or 8" };
        let bits = self.get(field).and_then(Value::as_u64).and_then(|bits| u32::try_from(bits).ok());
        bits.filter(|bits| allowed.contains(bits)).ok_or_else(|| self.refused(field, expected))
    }

    /// A group's columns; −1 is the row.
    fn group(&self, field: &str) -> Result<Option<u64>, PackError> {
        match self.get(field).and_then(Value::as_i64) {
            Some(-1) => Ok(None),
            Some(group @ 1..) => Ok(Some(group as u64)),
            _ => Err(self.refused(field, "a number of columns, or -1 for the row")),
        }
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits, ", self.bits)?;
        match self.group {
            Some(group) => write!(f, "groups of {group}, ")?,
            None => f.write_str("one scale a row, ")?,
        }
        f.write_str(if self.symmetric { "symmetric" } else { "zero points" })
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::CompressedTensors(described) => {
                f.write_str("compressed-tensors")?;
                let mut lead = ": ";
                for described in described {
                    write!(f, "{lead}{described}")?;
                    lead = "; ";
                }
                Ok(())
            }
            Scheme::Gptq { described, zero_less_one, .. } => {
                write!(f, "GPTQ {}: {described}", if *zero_less_one { "v1" } else { "v2" })
            }
            Scheme::Awq(described) => write!(f, "AWQ: {described}"),
        }
    }
}

#[cfg(test)]
mod tests;
