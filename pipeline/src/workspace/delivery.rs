//! What the file says of deliveries: `[delivery.…]`, where a publisher's files are, and what was captured.
//!
//! Addresses are words here; what they lead to is `obtain`'s, and what the files hold is the fetch stage's.

use mica_fetch::CaptureMap;
use serde::Deserialize;
use std::path::PathBuf;

/// A delivery: where the publisher's files are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// Folder with the weights, in which nothing is ever written; or the address of a folder or of the
    /// weights file: `https://…`, `hf://org/repo@revision`.
    pub source: PathBuf,
    /// A variable of the environment that names the folder of a copy, beside `MICA_DELIVERY_<NAME>`.
    #[serde(default)]
    pub env: Option<String>,
    /// Lets addresses be http to other machines than this one.
    #[serde(default)]
    pub allow_http: bool,
    /// The weights' file where its name is not the usual one.
    #[serde(default)]
    pub weights: Option<String>,
    /// `config.json`, where it is not in the folder; a path or an address.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// `tokenizer.json`, where it is not in the folder; a path or an address.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    /// Captured activations of the published implementation.
    #[serde(default)]
    pub captures: Option<Captures>,
}

/// A file of captured activations and what is known of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captures {
    /// The file, relative to the delivery's folder.
    pub file: String,
    /// What the captured run computed in.
    pub precision: Precision,
    /// Who made it.
    #[serde(default)]
    pub made_by: Maker,
    /// Names that differ from the default ones, by meaning.
    #[serde(default)]
    pub names: CaptureMap,
    /// The file is not here and no asked target needs it; not a word of the file.
    #[serde(skip)]
    pub left_out: bool,
}

/// What a captured run computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Float64.
    F64,
    /// Float32.
    F32,
    /// Bfloat16.
    Bf16,
}

/// Who made captures, and whose are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maker {
    /// The published implementation.
    #[default]
    Published,
    /// Our own evaluator: satisfies no gate that asks for the published implementation.
    #[serde(rename = "self")]
    Own,
}
