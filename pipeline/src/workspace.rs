//! `workspace.toml`: what is built, from what, for which machine, judged by which bounds.
//!
//! It knows the file's words and refuses others with their line. It reads no delivery.

mod parameters;
mod validations;

pub use validations::{Gates, Vectors};

use crate::error::CliError;
use crate::obtain;
use mica_device::object::Constants;
use mica_device::product::{CAPS, FAMILY, Product, Rates};
use mica_fetch::CaptureMap;
use mica_quantize::Recipe;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The name looked for in a folder.
pub const FILE: &str = "workspace.toml";

/// A workspace as written, with the folder its relative paths start from.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Folder of the file.
    pub root: PathBuf,
    /// Path of the file, for messages.
    pub file: PathBuf,
    /// Its contents.
    pub config: Config,
}

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What `mica build` without a target builds.
    pub default: String,
    /// Place of the cache, relative to the file; `.mica` where absent.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Deliveries by name.
    pub delivery: BTreeMap<String, Delivery>,
    /// Models by name.
    pub model: BTreeMap<String, Model>,
    /// Folders of op vectors by name.
    #[serde(default)]
    pub vectors: BTreeMap<String, Vectors>,
    /// Recipes by name.
    pub recipe: BTreeMap<String, Recipe>,
    /// Devices by name.
    pub device: BTreeMap<String, Device>,
    /// Bounds of the gates.
    #[serde(default)]
    pub gates: Gates,
    /// Named lists of targets.
    #[serde(default)]
    pub targets: BTreeMap<String, Vec<String>>,
}

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

/// A model: a description applied to a delivery.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name of the authored description.
    pub description: String,
    /// Name of the delivery.
    pub delivery: String,
    /// Name of the recipe.
    pub recipe: String,
    /// Name of the device.
    pub device: String,
    /// Only the first layers, and the head after them; all where absent.
    #[serde(default)]
    pub layers: Option<usize>,
    /// A text that the model was not trained on, for its perplexity on the device.
    #[serde(default)]
    pub perplexity: Option<HeldOut>,
    /// Teacher-forced tokens of a decode run; all that the captures have where absent.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Tokens of a block, the grain at which segments are kept.
    #[serde(default = "default_block")]
    pub block: u64,
    /// Positions that the compiled K/V caches hold.
    #[serde(default = "default_capacity")]
    pub capacity: u64,
    /// Tokens that the whole linked kernel runs beside the segments.
    #[serde(default = "default_whole")]
    pub whole_tokens: u64,
    /// Tokens that each call of the linked kernel takes; its outputs have the same bits whatever they are.
    #[serde(default = "one_token")]
    pub tokens_per_call: u64,
    /// Whether values are rounded where a bfloat16 run of the published model stores them (the embedding
    /// row). Where absent, they are if the captures are of a bfloat16 run.
    #[serde(default)]
    pub stored_rounding: Option<bool>,
    /// Lets weights that are NaN or infinite pass.
    #[serde(default)]
    pub allow_non_finite: bool,
    /// Whose captures the gates ask for.
    #[serde(default)]
    pub oracle: Maker,
}

/// A held-out text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// A UTF-8 file.
    pub text: PathBuf,
    /// How many of its positions are scored, from its beginning; at most as many as the caches hold.
    #[serde(default = "default_positions")]
    pub tokens: u64,
}

fn one_token() -> u64 {
    1
}
fn default_positions() -> u64 {
    200
}
fn default_block() -> u64 {
    32
}
fn default_capacity() -> u64 {
    256
}
fn default_whole() -> u64 {
    4
}

/// A device: a product and what may be said about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// `qb1`, `qb4` or `qb16`.
    pub product: String,
    /// L2 in MiB, 2 to 32.
    #[serde(default)]
    pub l2_mib: Option<u64>,
    /// Bytes a cycle on the external bus: 8, 16 or 32.
    #[serde(default = "default_bus")]
    pub bus_bytes: u32,
    /// Clock in MHz.
    #[serde(default = "default_clock")]
    pub clock_mhz: u32,
    /// Fraction bits of the residual stream.
    #[serde(default = "default_frac")]
    pub frac: u8,
    /// Where kernels get their constants from: `baked`, or on `edges`, an entry a part.
    #[serde(default)]
    pub constants: Constants,
}

impl Device {
    /// A product at its usual rates.
    pub fn usual(product: &str) -> Device {
        Device {
            product: product.into(),
            l2_mib: None,
            bus_bytes: default_bus(),
            clock_mhz: default_clock(),
            frac: default_frac(),
            constants: Constants::default(),
        }
    }
}

fn default_bus() -> u32 {
    32
}
fn default_clock() -> u32 {
    1000
}
fn default_frac() -> u8 {
    20
}

/// A device within its caps, and what was clamped.
pub struct Machine {
    /// What programs depend on.
    pub product: Product,
    /// What the timing model reads.
    pub rates: Rates,
    /// Fraction bits of the residual stream.
    pub frac: u8,
    /// Where kernels get their constants from.
    pub constants: Constants,
    /// One line a clamped value.
    pub warnings: Vec<String>,
}

/// Fraction bits that the residual stream can have.
pub const FRAC: RangeInclusive<u8> = 8..=28;

impl Device {
    /// The machine, requests above a cap clamped with one warning each. Errors on a product that does
    /// not exist and on values that no clamp mends.
    pub fn machine(&self, name: &str) -> Result<Machine, CliError> {
        let mut product = Product::named(&self.product).ok_or_else(|| CliError::Config {
            what: format!("[device.{name}] product = {:?}", self.product),
            why: format!("there are {}", FAMILY.map(|(name, _)| name).join(", ")),
        })?;
        let mut warnings = Vec::new();
        let mut clamp = |what: &str, value: u64, (low, high): (u64, u64)| {
            let kept = value.clamp(low, high);
            if kept != value {
                warnings.push(format!(
                    "[device.{name}] {what} = {value}: {} has {low} to {high}; {kept} is used",
                    self.product
                ));
            }
            kept
        };
        if let Some(mib) = self.l2_mib {
            product.l2 = clamp("l2_mib", mib, CAPS.l2_mib) << 20;
        }
        let clock = clamp("clock_mhz", self.clock_mhz.into(), CAPS.clock_mhz) as u32;
        let bus = clamp("bus_bytes", self.bus_bytes.into(), CAPS.bus_bytes) as u32;
        if !CAPS.bus_widths.contains(&bus) {
            return Err(CliError::Config {
                what: format!("[device.{name}] bus_bytes = {bus}"),
                why: "the external bus moves 8, 16 or 32 bytes a cycle".into(),
            });
        }
        if !FRAC.contains(&self.frac) {
            return Err(CliError::Config {
                what: format!("[device.{name}] frac = {}", self.frac),
                why: format!("the residual stream has {} to {} fraction bits", FRAC.start(), FRAC.end()),
            });
        }
        Ok(Machine {
            product,
            rates: Rates { bus_bytes: bus, clock_mhz: clock },
            frac: self.frac,
            constants: self.constants,
            warnings,
        })
    }
}

impl Workspace {
    /// Reads a workspace: `file` if given, else `workspace.toml` in `dir` or the nearest folder above.
    pub fn load(dir: &Path, file: Option<&Path>) -> Result<Workspace, CliError> {
        let path = match file {
            Some(f) => dir.join(f),
            None => dir
                .canonicalize()
                .unwrap_or_else(|_| dir.into())
                .ancestors()
                .map(|d| d.join(FILE))
                .find(|p| p.is_file())
                .ok_or_else(|| CliError::NoWorkspace { dir: dir.into() })?,
        };
        let text =
            std::fs::read_to_string(&path).map_err(|source| CliError::Read { path: path.clone(), source })?;
        let root = path.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        let config = parse(&path, &text)?;
        Ok(Workspace { root, file: path, config })
    }

    /// A path of the file, relative to its folder.
    pub fn path(&self, p: &Path) -> PathBuf {
        self.root.join(p)
    }
}

/// Parses and cross-checks; an error shows the place in the text.
pub fn parse(path: &Path, text: &str) -> Result<Config, CliError> {
    let config: Config = toml::from_str(text).map_err(|e| {
        let at = e.span().unwrap_or(0..0);
        CliError::toml(path, text, e.message().trim().to_string(), at)
    })?;
    let missing = |kind: &str, name: &str, used_by: String, known: Vec<&String>| {
        let hint = crate::targets::nearest(name, known.into_iter().map(String::as_str));
        let at = text.find(&format!("{name:?}")).map_or(0..0, |i| i..i + name.len() + 2);
        let mut why = format!("{used_by} names the {kind} {name:?}, which the file does not have");
        if let Some(h) = hint {
            why += &format!("; is it {h:?}?");
        }
        CliError::toml(path, text, why, at)
    };
    addresses(path, text, &config)?;
    for (name, m) in &config.model {
        let by = format!("[model.{name}]");
        if !config.delivery.contains_key(&m.delivery) {
            return Err(missing("delivery", &m.delivery, by, config.delivery.keys().collect()));
        }
        if !config.recipe.contains_key(&m.recipe) {
            return Err(missing("recipe", &m.recipe, by, config.recipe.keys().collect()));
        }
        if !config.device.contains_key(&m.device) {
            return Err(missing("device", &m.device, by, config.device.keys().collect()));
        }
        if m.block == 0 || m.capacity == 0 || m.tokens == Some(0) || m.layers == Some(0) {
            return Err(CliError::Config {
                what: by,
                why: "block, capacity, tokens and layers are at least 1".into(),
            });
        }
        per_call(m.tokens_per_call, &by)?;
        if m.tokens_per_call > m.capacity {
            return Err(CliError::Config {
                what: format!("{by} tokens_per_call = {}", m.tokens_per_call),
                why: format!("the caches hold {} positions; raise `capacity` for more", m.capacity),
            });
        }
        if let Some(t) = m.perplexity.as_ref().filter(|t| t.tokens == 0 || t.tokens > m.capacity) {
            return Err(CliError::Config {
                what: format!("[model.{name}] perplexity.tokens = {}", t.tokens),
                why: format!("the caches hold 1 to {} positions; raise `capacity` for more", m.capacity),
            });
        }
        plain_name(name, by)?;
    }
    for (name, v) in &config.vectors {
        let by = format!("[vectors.{name}]");
        if !config.recipe.contains_key(&v.recipe) {
            return Err(missing("recipe", &v.recipe, by, config.recipe.keys().collect()));
        }
        if !config.device.contains_key(&v.device) {
            return Err(missing("device", &v.device, by, config.device.keys().collect()));
        }
        per_call(v.tokens_per_call, &by)?;
        if config.model.contains_key(name) {
            let why = format!("[model.{name}] has that name; their targets would be the same");
            return Err(CliError::Config { what: by, why });
        }
        plain_name(name, by)?;
    }
    Ok(config)
}

/// The most tokens a call: what any product's memory holds is far less, and code grows with them.
const MOST_TOKENS: u64 = 128;

/// Refuses calls that no kernel could take.
fn per_call(tokens: u64, by: &str) -> Result<(), CliError> {
    if (1..=MOST_TOKENS).contains(&tokens) {
        return Ok(());
    }
    Err(CliError::Config {
        what: format!("{by} tokens_per_call = {tokens}"),
        why: format!("a call takes 1 to {MOST_TOKENS} tokens"),
    })
}

/// Refuses addresses that can't be used, and variables that two deliveries would answer to.
fn addresses(path: &Path, text: &str, config: &Config) -> Result<(), CliError> {
    let mut variables: BTreeMap<String, &String> = BTreeMap::new();
    for (name, d) in &config.delivery {
        let wrong = |given: &Path, why: String| {
            let given = given.to_string_lossy();
            let at = text.find(&*given).map_or(0..0, |i| i..i + given.len());
            CliError::toml(path, text, format!("[delivery.{name}] {why}"), at)
        };
        if obtain::is_remote(&d.source) {
            let source = obtain::source(&d.source, d.allow_http);
            let source = source.map_err(|e| wrong(&d.source, e.to_string()))?;
            if source.file.is_some() && d.weights.is_some() {
                let why = "source names the weights file already; take it or `weights` away";
                return Err(wrong(&d.source, why.into()));
            }
        }
        for given in [&d.config, &d.tokenizer].into_iter().flatten().filter(|p| obtain::is_remote(p)) {
            obtain::file_source(given, d.allow_http).map_err(|e| wrong(given, e.to_string()))?;
        }
        if let Some(other) = variables.insert(obtain::variable(name), name) {
            return Err(CliError::Config {
                what: format!("[delivery.{name}]"),
                why: format!("[delivery.{other}] answers to {} too; rename one", obtain::variable(name)),
            });
        }
    }
    if let Some((name, v)) = config.vectors.iter().find(|(_, v)| obtain::is_remote(&v.source)) {
        return Err(CliError::Config {
            what: format!("[vectors.{name}] source = {:?}", v.source),
            why: "op vectors are read from a folder of this disk".into(),
        });
    }
    Ok(())
}

/// Refuses a name that could not stand in a target.
fn plain_name(name: &str, by: String) -> Result<(), CliError> {
    if name.contains(['.', ':', '[', ']', '*']) {
        let why = "its name may not hold . : [ ] or *, which targets are made of".into();
        return Err(CliError::Config { what: by, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
default = "decode"
[delivery.d]
source = "d"
[model.m]
description = "qwen3_5_35b_a3b"
delivery = "d"
recipe = "r"
device = "sim"
[recipe.r]
rules = []
[device.sim]
product = "qb16"
"#;

    fn error(text: &str) -> String {
        parse(Path::new("workspace.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_smallest_workspace_parses() {
        let c = parse(Path::new("w"), GOOD).unwrap();
        assert_eq!((c.model["m"].block, c.device["sim"].frac), (32, 20));
    }

    #[test]
    fn mistakes_name_their_line() {
        let table = [
            (GOOD.replace("source", "sauce"), "line 4", "unknown field `sauce`"),
            (GOOD.replace("delivery = \"d\"", "delivery = \"dd\""), "line 7", "is it \"d\"?"),
            (GOOD.replace("recipe = \"r\"", "recipe = \"x\""), "line 8", "the recipe \"x\""),
            (GOOD.replace("[device.sim]", "[device.sim"), "line 12", ""),
            (format!("{GOOD}[gates.router]\ncosine = 1.0\n"), "line 15", "unknown field `cosine`"),
            (GOOD.replace("\"d\"\n[model", "\"ftp://h/d\"\n[model"), "line 4", "only https, http and hf"),
            (GOOD.replace("\"d\"\n[model", "\"http://h/d\"\n[model"), "line 4", "not encrypted"),
            (GOOD.replace("\"d\"\n[model", "\"hf://d\"\n[model"), "line 4", "hf://org/repo"),
            (
                GOOD.replace("\"d\"\n[model", "\"https://h/x.pth\"\nweights = \"y.pth\"\n[model"),
                "line 4",
                "names the weights file already",
            ),
            (
                GOOD.replace("\"d\"\n[model", "\"d\"\nconfig = \"https://h/\"\n[model"),
                "line 5",
                "names no file",
            ),
            (format!("{GOOD}[delivery.D]\nsource = \"x\"\n"), "[delivery.d]", "MICA_DELIVERY_D"),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ntokens_a_call = 4"),
                "line 9",
                "unknown field `tokens_a_call`",
            ),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ntokens_per_call = 0"),
                "[model.m] tokens_per_call = 0",
                "1 to 128 tokens",
            ),
            (
                GOOD.replace("recipe = \"r\"", "recipe = \"r\"\ncapacity = 8\ntokens_per_call = 9"),
                "[model.m] tokens_per_call = 9",
                "the caches hold 8 positions",
            ),
            (format!("{GOOD}[gates.lmhead]\n"), "line 14", "unknown field `lmhead`"),
            (
                format!(
                    "{GOOD}[vectors.m]\nsource = \"\"\ndescription = \"\"\nrecipe = \"r\"\ndevice = \"sim\"\n"
                ),
                "[vectors.m]",
                "targets would be the same",
            ),
        ];
        for (text, line, words) in table {
            let e = error(&text);
            assert!(e.contains(line) && e.contains(words), "{e}");
        }
    }

    #[test]
    fn a_request_above_a_cap_is_clamped_with_one_warning_each() {
        let mut d = parse(Path::new("w"), GOOD).unwrap().device["sim"].clone();
        d.clock_mhz = 1400;
        d.bus_bytes = 64;
        let m = d.machine("sim").unwrap();
        assert_eq!((m.rates.clock_mhz, m.rates.bus_bytes), (1000, 32));
        assert_eq!(m.warnings.len(), 2);
        assert!(m.warnings[0].contains("clock_mhz = 1400"), "{:?}", m.warnings);
    }
}
