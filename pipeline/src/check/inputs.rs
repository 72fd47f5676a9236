//! What a checked function is run on, and what its outputs are compared with where that comes from files: a
//! run's steps, cut from tensors that have a step's values each along their first axis.

use super::Refused;
use super::published::{self, Captures};
use super::run::Expected;
use super::subject::Subject;
use mica_fetch::CaptureMap;
use mica_models::decode::Carried;
use mica_models::eval::{Data, Tensor};
use mica_models::hir::{Dims, Function};
use mica_models::inputs::random_inputs;
use mica_models::{Part, Selection};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The activation whose value is the number of tokens before.
const POSITION: &str = "pos";

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A tensor in a file as the command takes it: `[NAME=]FILE:KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileKey {
    /// The activation, output or label that it is for.
    pub name: Option<String>,
    /// A safetensors file, or the index (`.json`) of generated tensors.
    pub file: PathBuf,
    /// The tensor's name there.
    pub key: String,
}

impl std::str::FromStr for FileKey {
    type Err = String;
    fn from_str(text: &str) -> Result<FileKey, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (Some(name.to_string()), rest),
            None => (None, text),
        };
        // a key may hold a colon, and so may a folder before the file's ending
        let endings = [".safetensors:", ".json:"];
        let end = endings.iter().filter_map(|e| rest.find(e).map(|at| at + e.len() - 1)).min();
        match end.or_else(|| rest.find(':')) {
            Some(at) if at > 0 && at + 1 < rest.len() => {
                Ok(FileKey { name, file: rest[..at].into(), key: rest[at + 1..].into() })
            }
            _ => {
                Err("expected [NAME=]FILE:KEY, as in hidden=x.safetensors:model.layers.3:float_input".into())
            }
        }
    }
}

/// What the steps of a run are given.
pub struct Given {
    /// What is carried, as it is before the first step.
    pub carried: Carried,
    /// The other activations of each step.
    pub steps: Vec<Tensors>,
    /// In words.
    pub what: String,
}

/// Where inputs come from.
pub enum From<'a> {
    /// Files.
    Files(&'a [FileKey]),
    /// A seed.
    Random(u64),
    /// The delivery's captures.
    Real,
}

impl Given {
    /// The inputs of `steps` steps at these dimensions. What is carried and not given starts as zeros; the
    /// position is that of the cache.
    ///
    /// # Errors
    /// A tensor that is missing, of no use, or of a wrong shape.
    pub fn new(s: &Subject<'_>, from: &From<'_>, dims: &Dims, steps: usize) -> Result<Given, Refused> {
        let f = &s.selection.function;
        let (found, what) = match from {
            From::Files(list) => (files(f, list)?, "files".to_string()),
            From::Random(seed) => (random(f, dims, *seed, steps)?, format!("random, seed {seed}")),
            From::Real => real(s)?,
        };
        let mut given = Given { carried: Carried::new(f), steps: vec![Tensors::new(); steps], what };
        for (name, tensor) in found {
            given.place(f, &name, tensor)?;
        }
        given.fill(f, dims)?;
        Ok(given)
    }

    /// Puts a tensor where it belongs: a start of what is carried, or a value a step.
    fn place(&mut self, f: &Function, name: &str, tensor: Tensor) -> Result<(), Refused> {
        let Some(p) = f.activations().find(|p| p.name == name) else {
            let known: Vec<&str> = f.activations().map(|p| p.name.as_str()).collect();
            return Err(Refused(format!(
                "`{}` takes no `{name}`, expected one of: {}",
                f.name,
                known.join(", ")
            )));
        };
        let rank = p.ty.shape.len();
        if self.carried.states.contains_key(name) && tensor.shape.len() == rank {
            return self.carried.seed(name, tensor).map_err(Refused::because);
        }
        if self.carried.caches.contains_key(name) && tensor.shape.len() == rank {
            return self.carried.append(name, &by_position(&tensor)).map_err(Refused::because);
        }
        let steps = self.steps.len();
        for (i, step) in self.steps.iter_mut().enumerate() {
            let value = match tensor.shape.len() {
                r if r == rank && (steps == 1 || rank == 0) => tensor.clone(),
                r if r == rank + 1 && tensor.shape[0] >= steps => row(&tensor, i),
                _ => {
                    return Err(Refused(format!(
                        "`{name}` is {:?}, expected {} or that many a step ({steps} steps asked)",
                        tensor.shape, p.ty
                    )));
                }
            };
            step.insert(name.to_string(), value);
        }
        Ok(())
    }

    /// Positions that were not given follow from the cache; caches that were not given are empty, unless a
    /// dimension says otherwise.
    fn fill(&mut self, f: &Function, dims: &Dims) -> Result<(), Refused> {
        let start = self.carried.ctx_len();
        if let Some((name, &wanted)) = dims.iter().find(|(_, n)| **n != start as u64) {
            return Err(Refused(format!(
                "{name} is {wanted} by --dim, and the inputs have {start}; give a cache of {wanted} rows, or \
                 --inputs random"
            )));
        }
        if f.activations().any(|a| a.name == POSITION) {
            for (i, step) in self.steps.iter_mut().enumerate() {
                step.entry(POSITION.into()).or_insert_with(|| Tensor::scalar((start + i) as i64));
            }
        }
        Ok(())
    }
}

/// The tensors of files by activation; one without a name is for the first activation that has none yet.
fn files(f: &Function, list: &[FileKey]) -> Result<Vec<(String, Tensor)>, Refused> {
    let named: Vec<&str> = list.iter().filter_map(|k| k.name.as_deref()).collect();
    let mut free = f.activations().map(|p| p.name.as_str()).filter(|n| !named.contains(n));
    list.iter()
        .map(|k| {
            let name = match &k.name {
                Some(name) => name.clone(),
                None => free.next().map(str::to_string).ok_or_else(|| {
                    Refused(format!("{}:{} is one input too many for `{}`", k.file.display(), k.key, f.name))
                })?,
            };
            Ok((name, published::tensor(&k.file, &k.key)?))
        })
        .collect()
}

/// Random inputs: what is carried once, everything else anew for each step.
fn random(f: &Function, dims: &Dims, seed: u64, steps: usize) -> Result<Vec<(String, Tensor)>, Refused> {
    let carried = Carried::new(f);
    let is_carried = |n: &str| carried.states.contains_key(n) || carried.caches.contains_key(n);
    let mut all: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    for step in 0..steps as u64 {
        let drawn = random_inputs(f, dims, seed.wrapping_add(step)).map_err(Refused::because)?;
        for (name, tensor) in drawn {
            // the position follows from the cache
            if name != POSITION && (step == 0 || !is_carried(&name)) {
                all.entry(name).or_default().push(tensor);
            }
        }
    }
    let one = |(name, mut each): (String, Vec<Tensor>)| match is_carried(&name) {
        true => (name, each.remove(0)),
        false => (name, stack(&each)),
    };
    Ok(all.into_iter().map(one).collect())
}

/// The delivery's captured inputs of the selected function: its part's, or its module's within the layer.
fn real(s: &Subject<'_>) -> Result<(Vec<(String, Tensor)>, String), Refused> {
    let (captures, names) = s.captures()?;
    let (name, key) = real_key(&s.selection, &names).ok_or_else(|| {
        Refused(format!("no captured input is known for {}; give it with --input", s.selection))
    })?;
    let tensor = captures.tensor(&key)?;
    Ok((vec![(name, tensor)], format!("captured, {key}")))
}

/// Activation and capture of a selected function's input.
fn real_key(s: &Selection, names: &CaptureMap) -> Option<(String, String)> {
    let name = s.function.activations().next()?.name.clone();
    let key = match (s.part, s.scope.as_str()) {
        (Part::Embed, _) => names.input_ids.as_str().to_string(),
        (Part::Head, _) => names.final_norm_input.as_str().to_string(),
        (Part::Layer(i), "") => names.layer_input.of(i),
        (Part::Layer(i), "linear_attn" | "self_attn") => names.mixer_input.of(i),
        (Part::Layer(i), "mlp" | "mlp.gate") => names.moe_input.of(i),
        _ => return None,
    };
    Some((name, key))
}

/// What captures say of a selected function's outputs, by output: those that they have.
pub fn real_expected(s: &Subject<'_>) -> Result<Vec<Expected>, Refused> {
    let (captures, names) = s.captures()?;
    let selection = &s.selection;
    let outputs: Vec<(&str, String)> = match (selection.part, selection.scope.as_str()) {
        (Part::Embed, _) => vec![("hidden", names.embedding.as_str().into())],
        (Part::Head, _) => {
            vec![("normed", names.head_input.as_str().into()), ("logits", names.logits.as_str().into())]
        }
        (Part::Layer(i), "") => vec![
            ("hidden", names.layer_output.of(i)),
            routed("expert_ids", &names, i),
            routed("router_logits", &names, i),
        ],
        (Part::Layer(i), "linear_attn") => vec![("hidden", names.linear_attn_output.of(i))],
        (Part::Layer(i), "self_attn") => vec![("hidden", names.self_attn_output.of(i))],
        (Part::Layer(i), "mlp") => {
            let hidden = match selection.function.name.as_str() {
                "moe" => names.moe_output.of(i),
                "shared_expert" => names.shared_output.of(i),
                _ => names.routed_output.of(i),
            };
            vec![("hidden", hidden), routed("expert_ids", &names, i), routed("router_logits", &names, i)]
        }
        (Part::Layer(i), "mlp.gate") => vec![
            ("weights", names.topk_weights.of(i)),
            routed("expert_ids", &names, i),
            routed("router_logits", &names, i),
        ],
        _ => Vec::new(),
    };
    let there =
        outputs.into_iter().filter(|(o, key)| selection.function.result(o).is_some() && captures.has(key));
    there
        .map(|(o, key)| {
            let by = if captures.is_self_made() { " by our own evaluator" } else { "" };
            let (name, source) = (o.to_string(), format!("captured{by}, {key}"));
            let tensor = captures.tensor(&key)?;
            Ok(Expected { name, source, place: (captures.path().into(), key), tensor })
        })
        .collect()
}

fn routed(output: &'static str, names: &CaptureMap, layer: usize) -> (&'static str, String) {
    match output {
        "expert_ids" => (output, names.topk_indices.of(layer)),
        _ => (output, names.router_logits.of(layer)),
    }
}

/// Entry `i` of the first axis.
pub fn row(t: &Tensor, i: usize) -> Tensor {
    let n: usize = t.shape[1..].iter().product();
    match &t.data {
        Data::F64(v) => Tensor::f64(&t.shape[1..], v[i * n..(i + 1) * n].to_vec()),
        Data::I64(v) => Tensor::i64(&t.shape[1..], v[i * n..(i + 1) * n].to_vec()),
    }
}

/// Tensors of one shape along a new first axis.
fn stack(each: &[Tensor]) -> Tensor {
    let shape = [&[each.len()], &each[0].shape[..]].concat();
    match &each[0].data {
        Data::F64(_) => {
            Tensor::f64(&shape, each.iter().flat_map(|t| t.as_f64().unwrap_or_default().to_vec()).collect())
        }
        Data::I64(_) => {
            Tensor::i64(&shape, each.iter().flat_map(|t| t.as_i64().unwrap_or_default().to_vec()).collect())
        }
    }
}

/// A cache `[heads, positions, dim]` as the rows `[positions, heads, dim]` that were appended to it.
fn by_position(t: &Tensor) -> Vec<f64> {
    let ([heads, positions, dim], Some(data)) = (&t.shape[..], t.as_f64()) else { return Vec::new() };
    let at = |p: usize, h: usize| &data[(h * positions + p) * dim..][..*dim];
    (0..*positions).flat_map(|p| (0..*heads).flat_map(move |h| at(p, h).to_vec())).collect()
}

/// Whether a file has captures of a selection's labels beside a key: `model.layers.3` of
/// `model.layers.3:float_output`.
pub fn capture_prefix(key: &str) -> Option<&str> {
    key.strip_suffix(":float_output")
}

/// The capture of a label's output, if the file has it.
pub fn labelled(captures: &Captures, prefix: &str, label: &str) -> Option<Tensor> {
    let key = format!("{prefix}.{label}:float_output");
    if label.is_empty() || !captures.has(&key) {
        return None;
    }
    captures.tensor(&key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_hold_colons() {
        let table = [
            ("x.safetensors:key", None, "x.safetensors", "key"),
            (
                "hidden=a/x.safetensors:model.layers.0:float_input",
                Some("hidden"),
                "a/x.safetensors",
                "model.layers.0:float_input",
            ),
            ("b:c/x.json:input.layers.0.hidden", None, "b:c/x.json", "input.layers.0.hidden"),
            ("plain:key", None, "plain", "key"),
        ];
        for (text, name, file, key) in table {
            let found: FileKey = text.parse().unwrap();
            assert_eq!(
                (found.name.as_deref(), found.file.to_str(), found.key.as_str()),
                (name, Some(file), key)
            );
        }
        for text in ["x.safetensors", "x.safetensors:", ":key", ""] {
            assert!(text.parse::<FileKey>().unwrap_err().contains("[NAME=]FILE:KEY"), "{text}");
        }
    }

    #[test]
    fn a_cache_is_appended_by_position() {
        let cache = Tensor::f64(&[2, 3, 1], vec![1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
        assert_eq!(by_position(&cache), [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    }
}
