//! A validation: one function on the device and in float64 on the same inputs, and its gates.
//!
//! Parts follow each other as in the model: what the device left of one goes into the next on the device,
//! what the evaluator left goes into the next of the evaluator.

mod evidence;

use super::reference::{bytes, floats};
use super::segment::{Kernels, Simulation, constants};
use super::source::{self, Captured};
use super::view::{self, function};
use super::{
    Db, ModelInput, Result, blob, compile, compiled, load, need, output, planned, quantized, retriable,
    target,
};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::error::NodeError;
use crate::graph::{Call, Job};
use crate::host::{Feed, encoded};
use crate::validations::{Hidden, Trial};
use mica_cache::{Blob, Recipe, encode};
use mica_compile::Seams;
use mica_device::NUMERICS;
use mica_device::object::{Kernel, Object};
use mica_models::decode::Carried;
use mica_models::eval::{self, Data, Tensor};
use mica_models::hir::Function;
use mica_quantize::Dequantized;
use mica_score::validation::judge;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The kind of a validation's report.
pub const KIND: &str = "validation-report";

type Body<T> = std::result::Result<T, BodyError>;

/// The validation that a model input stands for. Nodes of it are asked of no other.
fn trial(db: &dyn Db, model: ModelInput) -> Arc<Trial> {
    match model.trial(db) {
        Some(t) => t.clone(),
        None => panic!("{} is no validation", model.name(db)),
    }
}

/// States and caches that a vector starts from, by the names of its file and of the function.
const STATES: [(&str, &str); 2] =
    [("state_in.conv_state", "conv_state"), ("state_in.recurrent_state", "recurrent_state")];
const CACHES: [(&str, &str); 2] = [("state_in.key_cache", "k_cache"), ("state_in.value_cache", "v_cache")];

/// What the first part is given, by digest; read only where it is run.
struct Start<'a> {
    hidden: Option<Captured<'a>>,
    states: Vec<(&'static str, Captured<'a>)>,
    caches: Vec<(&'static str, Captured<'a>)>,
}

/// The same as numbers.
struct Given {
    /// `[steps, hidden]`; empty where the part takes ids.
    hidden: Vec<f64>,
    /// As the function takes them.
    states: BTreeMap<&'static str, Vec<f64>>,
    /// `[positions, heads, dim]` a cache.
    rows: BTreeMap<&'static str, Vec<f64>>,
    /// Positions before the first step.
    prior: u64,
}

impl<'a> Start<'a> {
    fn of(db: &'a dyn Db, model: ModelInput, trial: &Trial, recipe: Recipe) -> Result<(Start<'a>, Recipe)> {
        let mut recipe = recipe;
        let mut start = Start { hidden: None, states: Vec::new(), caches: Vec::new() };
        match &trial.hidden {
            Hidden::Ids => {}
            Hidden::Seeded(s) => {
                recipe = recipe.param("hidden", format!("uniform, seed {}, range {}", s.seed, s.range));
            }
            Hidden::Captured(name) => {
                let found = source::captured(db, model, name.clone())?;
                let hidden = found.ok_or_else(|| NodeError::Stage {
                    target: format!("fetch:{}", model.name(db)),
                    message: format!("there is no captured {name}"),
                })?;
                recipe = recipe.input("hidden", hidden.digest);
                start.hidden = Some(hidden);
            }
        }
        for (list, names) in [(&mut start.states, STATES), (&mut start.caches, CACHES)] {
            for (file, ours) in names {
                if let Some(c) = source::captured(db, model, file.into())? {
                    recipe = recipe.input(ours, c.digest);
                    list.push((ours, c));
                }
            }
        }
        Ok((start, recipe))
    }

    fn read(&self, trial: &Trial, width: usize) -> Body<Given> {
        let mut given =
            Given { hidden: Vec::new(), states: BTreeMap::new(), rows: BTreeMap::new(), prior: 0 };
        match (&self.hidden, &trial.hidden) {
            (Some(c), _) => given.hidden = c.floats()?.values,
            (None, Hidden::Seeded(s)) => given.hidden = s.values(trial.steps * width),
            _ => {}
        }
        for (name, c) in &self.states {
            let a = c.floats()?;
            let published_conv = *name == "conv_state" && a.shape.len() == 2;
            let values = if published_conv { evidence::conv_state(&a.values, a.shape[1]) } else { a.values };
            given.states.insert(name, values);
        }
        for (name, c) in &self.caches {
            let a = c.floats()?;
            let [heads, positions, dim] = a.shape[..] else {
                return Err(BodyError::Stage(format!("{name} has the shape {:?}", a.shape)));
            };
            given.prior = positions as u64;
            given.rows.insert(name, evidence::rows(&a.values, [heads, positions, dim], 0..positions));
        }
        Ok(given)
    }
}

/// The float64 evaluator on a part: per-step results by name, `state.NAME` after each step, and
/// `rows.NAME` appended to each cache.
#[salsa::tracked(returns(clone))]
pub fn expected(db: &dyn Db, model: ModelInput, part: usize) -> Result<Outcome> {
    retriable(db);
    let trial = trial(db, model);
    let (facts, target) = target(db, model, Job::Expected(part))?;
    let (function, function_digest) = need(&target, function(db, model, part))?;
    let segment = need(&target, quantized(db, model, part))?.digest("segment");
    let plan = need(&target, planned(db, model, part))?;
    let recipe = Recipe::new("reference", eval::NUMERICS_VERSION)
        .param("validation steps", trial.steps)
        .input("function", function_digest)
        .input("plan", plan.digest)
        .input("constants", segment);
    let (start, mut recipe) = Start::of(db, model, &trial, recipe)?;
    let below = match below(&facts.trial, part) {
        None => None,
        Some(b) => Some(need(&target, expected(db, model, b))?),
    };
    if let Some(b) = &below {
        recipe = recipe.input("hidden of the part before", b.digest("hidden"));
    }
    let ids = ids(db, model, &trial)?;
    if let Some((_, digest)) = &ids {
        recipe = recipe.input("ids", *digest);
    }
    let width = need(&target, view::stack(db, model))?.facts.hidden as usize;
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let segment = blob(env, segment)?;
        let weights = Dequantized::new(&plan.plan, &segment).map_err(BodyError::stage)?;
        let given = start.read(&trial, width)?;
        let hidden = match &below {
            Some(b) => floats(&output(env, b, "hidden")?),
            None => given.hidden,
        };
        let mut carried = Carried::new(&function);
        for (name, values) in given.states {
            let shape = carried.states.get(name).map_or_else(Vec::new, |t| t.shape.clone());
            carried.seed(name, Tensor { shape, data: Data::F64(values) }).map_err(BodyError::stage)?;
        }
        for (name, rows) in &given.rows {
            carried.append(name, rows).map_err(BodyError::stage)?;
        }
        let mut outputs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for step in 0..trial.steps {
            let id = ids.as_ref().map(|(ids, _)| ids[step]);
            let row = hidden.get(step * width..(step + 1) * width);
            let own = own_inputs(&function, id, given.prior + step as u64, row);
            // stored values are rounded where the function says so
            let options = eval::Options { round: true, ..eval::Options::default() };
            let results = carried.step(&function, own, &weights, options).map_err(BodyError::stage)?;
            for (name, value) in results {
                let cache = name.strip_suffix("_row").map(|n| format!("{n}_cache"));
                let name = match cache.filter(|c| carried.caches.contains_key(c)) {
                    Some(cache) => format!("rows.{cache}"),
                    None if carried.states.contains_key(&name) => format!("state.{name}"),
                    None => name,
                };
                outputs.entry(name).or_default().extend(bytes(&value));
            }
        }
        let mut made = Produced::default();
        for (name, bytes) in &outputs {
            made.put(env, name, bytes)?;
        }
        Ok(made)
    })
}

/// One step's activations that are not carried.
fn own_inputs(
    function: &Function,
    id: Option<i64>,
    position: u64,
    row: Option<&[f64]>,
) -> BTreeMap<String, Tensor> {
    let value = |name: &str| match name {
        "token" => id.map(Tensor::scalar),
        "pos" => Some(Tensor::scalar(position as i64)),
        "hidden" => row.map(|r| Tensor::f64(&[r.len()], r.to_vec())),
        _ => None,
    };
    function.activations().filter_map(|p| Some((p.name.clone(), value(&p.name)?))).collect()
}

/// The part that leaves what `part` takes.
fn below(trial: &Option<crate::graph::TrialFacts>, part: usize) -> Option<usize> {
    let parts = &trial.as_ref()?.parts;
    let at = parts.iter().position(|&p| p == part)?;
    at.checked_sub(1).map(|b| parts[b])
}

/// Ids of a part that takes ids: the prompt's, then every row of the table.
fn ids(db: &dyn Db, model: ModelInput, trial: &Trial) -> Result<Option<(Vec<i64>, mica_cache::Digest)>> {
    if trial.hidden != Hidden::Ids {
        return Ok(None);
    }
    let vocab = view::stack(db, model)?.facts.vocab as i64;
    let mut ids: Vec<i64> = match model.captures(db) {
        Some(_) => source::token_ids(db, model)?.ids.clone(),
        None => Vec::new(),
    };
    ids.extend(0..vocab);
    let bytes: Vec<u8> = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
    Ok(Some((ids, blake3::hash(&bytes))))
}

/// A part on the device: its per-call outputs by name, `state.NAME` after the last call, and `rows.NAME`
/// appended to each cache. Run 0 makes all steps; run `n` makes step `n − 1` alone, from the state that the
/// run before it left and that went through the host.
#[salsa::tracked(returns(clone))]
pub fn tried(db: &dyn Db, model: ModelInput, part: usize, run: usize) -> Result<Outcome> {
    retriable(db);
    let trial = trial(db, model);
    let (facts, target) = target(db, model, Job::Trial(part, run))?;
    let object = need(&target, compiled(db, model, part, Call::One))?.digest("object");
    let constants_digest = need(&target, quantized(db, model, part))?.digest("segment");
    let steps: Range<usize> = if run == 0 { 0..trial.steps } else { run - 1..run };
    // a step on its own is a call on its own
    let mut several = None;
    if facts.per_call > 1 && run == 0 {
        several = Some(need(&target, compiled(db, model, part, Call::Several))?.digest("object"));
    }
    let product = model.product(db);
    let recipe = Recipe::new("simulate", mica_simulate::VERSION)
        .numerics(NUMERICS)
        .param("validation steps", format!("{steps:?}"))
        .param("l2", product.l2)
        .param("lrm", product.lrm())
        .param("constants", model.constants(db).text())
        .input("object", object)
        .input("constants", constants_digest);
    let recipe = match several {
        Some(s) => recipe.param("tokens a call", facts.per_call).input("object of several tokens", s),
        None => recipe,
    };
    let (start, mut recipe) = Start::of(db, model, &trial, recipe)?;
    let below = match below(&facts.trial, part) {
        None => None,
        Some(b) => Some(need(&target, tried(db, model, b, run))?),
    };
    if let Some(b) = &below {
        recipe = recipe.input("hidden of the part before", b.digest("hidden"));
    }
    let before = if run > 1 { Some(need(&target, tried(db, model, part, run - 1))?) } else { None };
    for o in before.iter().flat_map(|b| b.outputs()).filter(|o| o.name.starts_with("state.")) {
        recipe = recipe.input(&format!("{} of the step before", o.name), o.digest);
    }
    let ids = ids(db, model, &trial)?;
    if let Some((_, digest)) = &ids {
        recipe = recipe.input("ids", *digest);
    }
    let width = need(&target, view::stack(db, model))?.facts.hidden as usize;
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let linked = |digest| -> Body<Kernel> {
            let object: Object = load(env, compile::KIND, digest)?;
            mica_compile::link_with(&[&object], product, Seams::Segment, model.constants(db))
                .map_err(BodyError::stage)
        };
        let kernel = linked(object)?;
        let several = several.map(linked).transpose()?;
        let digests = [constants_digest];
        let constants = constants(env, &digests)?;
        let given = start.read(&trial, width)?;
        let hidden: Option<Vec<u8>> = match (&below, given.hidden.is_empty()) {
            (Some(b), _) => Some(output(env, b, "hidden")?.to_vec()),
            (None, true) => None,
            (None, false) => {
                let rows = given.hidden.get(steps.start * width..steps.end * width).ok_or_else(|| {
                    BodyError::Stage(format!("there are fewer input rows than the {} steps", steps.end))
                })?;
                Some(edge(&kernel, "hidden.in", rows)?)
            }
        };
        let states = states(env, &kernel, &given, before.as_ref())?;
        let mut rows = BTreeMap::new();
        for (name, values) in &given.rows {
            rows.insert((*name).to_string(), edge(&kernel, &format!("{name}.in"), values)?);
        }
        let nothing = vec![0; steps.len()];
        let feed = Feed {
            ids: ids.as_ref().map_or(&nothing[..], |(ids, _)| &ids[steps.clone()]),
            first: given.prior + steps.start as u64,
            hidden: hidden.as_deref(),
            forced: None,
            states: states.iter().map(|(n, b)| (n.clone(), b.as_slice())).collect(),
            rows: rows.iter().map(|(n, b)| (n.clone(), vec![b.as_slice()])).collect(),
        };
        let kernels = match &several {
            Some(many) => Kernels { kernel: many, tokens: facts.per_call, rest: Some(&kernel) },
            None => Kernels::one(&kernel),
        };
        let parts = std::slice::from_ref(&facts.parts[part]);
        Simulation { env, product, kernels, parts, constants: (&digests, &constants) }.run(&feed)
    })
}

/// States that a run starts from: those that the step before left, else the vector's.
fn states(
    env: &crate::env::Env,
    kernel: &Kernel,
    given: &Given,
    before: Option<&Outcome>,
) -> Body<BTreeMap<String, Vec<u8>>> {
    let mut states = BTreeMap::new();
    match before {
        Some(b) => {
            for o in b.outputs() {
                if let Some(name) = o.name.strip_prefix("state.") {
                    let bytes: Blob = blob(env, o.digest)?;
                    states.insert(name.to_string(), bytes.to_vec());
                }
            }
        }
        None => {
            for (name, values) in &given.states {
                states.insert((*name).to_string(), edge(kernel, &format!("{name}.in"), values)?);
            }
        }
    }
    Ok(states)
}

/// Values as an edge of the kernel holds them.
fn edge(kernel: &Kernel, name: &str, values: &[f64]) -> Body<Vec<u8>> {
    let entry = kernel.entries.iter().find(|e| e.name == name);
    let what = entry.and_then(|e| e.shares.first());
    match what {
        Some((_, _, what)) => encoded(values, what.format, what.frac).map_err(|e| {
            BodyError::Stage(format!(
                "`{name}`: {e}; a device with fewer fraction bits (`frac`) holds larger values"
            ))
        }),
        None => Err(BodyError::Stage(format!("the kernel has no edge {name}"))),
    }
}

/// The gates of a validation: output `report`.
#[salsa::tracked(returns(clone))]
pub fn judged(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let trial = trial(db, model);
    let (_, target) = target(db, model, Job::Judge)?;
    let gathered = evidence::Gathered::new(db, model, &trial, &target)?;
    let mut recipe = Recipe::new("score", mica_score::VERSION)
        .param("validation", format!("{:?}", trial.kind))
        .param("setting", &trial.setting)
        .param("bounds", format!("{:?}", bounds_of(&trial)));
    recipe = gathered.named(recipe);
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let evidence = gathered.read(env, &trial)?;
        let report = judge(trial.kind, &trial.bounds, &evidence).map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &report))?;
        Ok(made)
    })
}

/// The bounds of this validation alone, so that changing another's leaves the score as it is.
fn bounds_of(trial: &Trial) -> String {
    trial.bounds.of(trial.kind)
}
