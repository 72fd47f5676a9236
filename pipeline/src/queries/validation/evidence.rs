//! What a validation's score compares: the device's runs, the evaluator's, and the published values, named
//! by digest first and read only where they are judged.

use super::super::not_finite::Tallies;
use super::super::reference::{floats, integers};
use super::super::segment::Note;
use super::super::source::{self, Captured};
use super::super::{Db, ModelInput, Result, compile, compiled, load, need, output, planned};
use super::{Body, expected, tried};
use crate::action::{BodyError, Outcome};
use crate::env::Env;
use crate::graph::{Call, TrialFacts};
use crate::host::{Shape, values};
use crate::validations::{self, Hidden, Subject, Trial};
use mica_cache::{Digest, Recipe};
use mica_device::format::Format;
use mica_device::object::Object;
use mica_fetch::CaptureMap;
use mica_score::decode::{Counters, Precision, Source};
use mica_score::validation::{Choices, Evidence, Item, Layer, Published, Twice, What};
use std::ops::Range;

/// The results that are judged: what each is, its name, and its capture's.
fn results(
    subject: Subject,
    names: &CaptureMap,
    full: bool,
    layer: usize,
) -> Vec<(What, &'static str, String)> {
    let mixer = if full { &names.self_attn_output } else { &names.linear_attn_output };
    let components = || {
        [
            (What::Routed, "routed", names.routed_output.of(layer)),
            (What::Shared, "shared", names.shared_output.of(layer)),
            (What::Gate, "gate", names.shared_gate.of(layer)),
        ]
    };
    match subject {
        Subject::Router => vec![(What::Scores, "weights", names.topk_weights.of(layer))],
        Subject::Routed => vec![(What::Output, "hidden", names.routed_output.of(layer))],
        Subject::Moe => {
            let output = (What::Output, "hidden", names.moe_output.of(layer));
            std::iter::once(output).chain(components()).collect()
        }
        Subject::Mixer { .. } => vec![(What::Output, "hidden", mixer.of(layer))],
        Subject::Layers(_) => {
            let output = (What::Output, "hidden", names.layer_output.of(layer));
            let mixer = (What::Mixer, "mixer", mixer.of(layer));
            [output, mixer].into_iter().chain(components()).collect()
        }
        Subject::Embed => vec![(What::Output, "hidden", names.embedding.as_str().into())],
        Subject::Head => vec![(What::Output, "logits", names.logits.as_str().into())],
    }
}

/// One part's outcomes and captures.
struct Part<'a> {
    layer: usize,
    full: bool,
    object: Option<Digest>,
    expected: Outcome,
    runs: Vec<Outcome>,
    captured: Vec<(What, &'static str, Option<Captured<'a>>)>,
    states: [Option<Captured<'a>>; 4],
    choices: Option<Captured<'a>>,
}

/// Everything by digest.
pub struct Gathered<'a> {
    parts: Vec<Part<'a>>,
    tallies: Tallies,
    published: Published,
    unit: f64,
    prompt: usize,
}

impl<'a> Gathered<'a> {
    /// Asks for all that is compared.
    pub fn new(db: &'a dyn Db, model: ModelInput, trial: &Trial, target: &str) -> Result<Gathered<'a>> {
        let stack = need(target, super::super::stack(db, model))?;
        let facts = model.captures(db).clone();
        let default = CaptureMap::default();
        let names = facts.as_ref().map_or(&default, |f| &f.names);
        let find = |name: String| match facts {
            Some(_) => source::captured(db, model, name),
            None => Ok(None),
        };
        let nothing = TrialFacts { parts: Vec::new(), runs: 0 };
        let run = trial.facts.trial.as_ref().unwrap_or(&nothing);
        let mut parts = Vec::new();
        let mut same_weights = true;
        for &p in &run.parts {
            same_weights &= !need(target, planned(db, model, p))?.quantizes;
            let layer = p.saturating_sub(1);
            let full = validations::is_full(&stack, layer);
            let mut captured = Vec::new();
            for (what, ours, name) in results(trial.subject, names, full, layer) {
                captured.push((what, ours, find(name)?));
            }
            let stateful = matches!(trial.subject, Subject::Mixer { .. } | Subject::Layers(_));
            let state = |steps: String, last: String| match (stateful, find(steps)?) {
                (false, _) => Ok(None),
                (true, Some(c)) => Ok(Some(c)),
                (true, None) if trial.cut => Ok(None),
                (true, None) => find(last),
            };
            parts.push(Part {
                layer,
                full,
                object: match run.runs {
                    0 => None,
                    _ => Some(need(target, compiled(db, model, p, Call::One))?.digest("object")),
                },
                expected: need(target, expected(db, model, p))?,
                runs: (0..run.runs).map(|r| need(target, tried(db, model, p, r))).collect::<Result<_>>()?,
                captured,
                states: [
                    state(names.conv_state_steps.of(layer), names.conv_state.of(layer))?,
                    state(names.recurrent_state_steps.of(layer), names.recurrent_state.of(layer))?,
                    state(String::new(), names.key_cache.of(layer))?,
                    state(String::new(), names.value_cache.of(layer))?,
                ],
                choices: find(names.topk_indices.of(layer))?,
            });
        }
        let absent = |why: &str| match model.oracle(db) {
            Source::Published => Published::Absent(why.into()),
            Source::SelfMade => Published::NotAsked(why.into()),
        };
        let published = match &facts {
            None => absent("the delivery has no captures"),
            Some(f) if f.source == Source::SelfMade => absent("the captures were made by our own evaluator"),
            Some(_) if matches!(trial.hidden, Hidden::Seeded(_)) => Published::Absent(
                "what goes in was not captured, so what comes out is of other inputs".into(),
            ),
            Some(f) if same_weights && f.precision != Precision::BF16 => Published::SameWeights,
            Some(_) => Published::Other,
        };
        let prompt = match (&trial.hidden, &facts) {
            (Hidden::Ids, Some(_)) => need(target, source::token_ids(db, model))?.ids.len(),
            _ => 0,
        };
        let names = run.parts.iter().map(|&p| (p, trial.facts.parts[p].as_str()));
        let tallies = Tallies::of(db, model, names, target)?;
        Ok(Gathered { parts, tallies, published, unit: (-f64::from(model.frac(db))).exp2(), prompt })
    }

    /// The recipe with all of it as inputs.
    pub fn named(&self, recipe: Recipe) -> Recipe {
        let mut recipe = recipe.param("published", format!("{:?}", self.published)).param("unit", self.unit);
        let add = |recipe: Recipe, what: &str, o: &Outcome| {
            o.outputs().iter().fold(recipe, |r, x| r.input(&format!("{} of {what}", x.name), x.digest))
        };
        recipe = self.tallies.named(recipe);
        for p in &self.parts {
            let part = format!("part {}", p.layer);
            recipe = add(recipe, &format!("{part} reference"), &p.expected);
            for (r, run) in p.runs.iter().enumerate() {
                let what = format!("{part} run {r}");
                recipe = add(recipe, &what, run).input(&format!("note of {what}"), blake3::hash(run.note()));
            }
            if let Some(object) = p.object {
                recipe = recipe.input(&format!("{part} object"), object);
            }
            for (what, _, c) in &p.captured {
                if let Some(c) = c {
                    recipe = recipe.input(&format!("{part} captured {}", what.word()), c.digest);
                }
            }
            let others = p.states.iter().zip(STATES.map(|(what, _)| what.word()));
            for (c, what) in others.chain([(&p.choices, "choices")]) {
                if let Some(c) = c {
                    recipe = recipe.input(&format!("{part} captured {what}"), c.digest);
                }
            }
        }
        recipe
    }

    /// Reads all of it.
    pub fn read(&self, env: &Env, trial: &Trial) -> Body<Evidence> {
        let mut evidence = Evidence {
            setting: trial.setting.clone(),
            layers: Vec::new(),
            published: self.published.clone(),
            counters: None,
            non_finite_weights: self.tallies.read(env)?,
            twice: Vec::new(),
            next_ids: Vec::new(),
            residual_unit: self.unit,
        };
        for p in &self.parts {
            evidence.layers.push(p.read(env, trial, self.prompt)?);
            for run in &p.runs {
                let c = Note::of(run)?.counters;
                let all = evidence.counters.get_or_insert_with(Counters::default);
                all.saturations += c.saturations;
                all.f16_overflows += c.f16_overflows;
                all.non_finite += c.non_finite;
            }
            if let [whole, pieces @ ..] = &p.runs[..]
                && !pieces.is_empty()
            {
                evidence.twice.extend(twice(env, whole, pieces)?);
            }
        }
        Ok(evidence)
    }
}

/// States and cached rows: what each is and its name among the outputs.
const STATES: [(What, &str); 4] = [
    (What::ConvState, "state.conv_state"),
    (What::RecurrentState, "state.recurrent_state"),
    (What::KeyRows, "rows.k_cache"),
    (What::ValueRows, "rows.v_cache"),
];

impl Part<'_> {
    fn read(&self, env: &Env, trial: &Trial, prompt: usize) -> Body<Layer> {
        let steps = trial.steps;
        let mut layer = Layer {
            index: self.layer,
            full: self.full,
            items: Vec::new(),
            choices: self.choices(env, steps)?,
        };
        for (what, name, captured) in &self.captured {
            if self.expected.find(name).is_none() {
                continue;
            }
            let evaluator = floats(&output(env, &self.expected, name)?);
            let width = evaluator.len() / steps.max(1);
            let rows = if prompt > 0 { prompt } else { steps };
            let mut published = match captured {
                Some(c) => Some(first_rows(c.floats()?.values, rows, width)),
                None => None,
            };
            if trial.subject == Subject::Embed {
                // as a bfloat16 run of the published model stores its rows, whatever was captured
                let stored = |v: &mut f64| *v = half::bf16::from_f64(*v).to_f64();
                published.iter_mut().flatten().for_each(stored);
            }
            layer.items.push(Item {
                what: *what,
                width,
                device: self.device(env, name)?,
                evaluator,
                published,
            });
        }
        let object: Option<Object> = self.object.map(|d| load(env, compile::KIND, d)).transpose()?;
        for ((what, name), captured) in STATES.iter().zip(&self.states) {
            if !matches!(trial.subject, Subject::Mixer { .. } | Subject::Layers(_))
                || self.expected.find(name).is_none()
            {
                continue;
            }
            let all = floats(&output(env, &self.expected, name)?);
            let one = all.len() / steps.max(1);
            let is_state = name.starts_with("state.");
            // a state is judged after the last step, rows are judged each
            let evaluator = if is_state { all[all.len() - one..].to_vec() } else { all };
            let published = captured.as_ref().map(|c| published_state(c, *what, steps)).transpose()?;
            let device = match &object {
                None => Vec::new(),
                Some(o) => self.device_state(env, o, name)?,
            };
            layer.items.push(Item { what: *what, width: one, device, evaluator, published });
        }
        Ok(layer)
    }

    /// Runs whose outputs, one after the other, are the steps': the pieces where there are pieces.
    fn pieces(&self) -> &[Outcome] {
        if self.runs.len() > 1 { &self.runs[1..] } else { &self.runs }
    }

    fn device(&self, env: &Env, name: &str) -> Body<Vec<f64>> {
        let mut all = Vec::new();
        for run in self.pieces() {
            let note = Note::of(run)?;
            let shape = note.shapes.get(name);
            let shape =
                shape.ok_or_else(|| BodyError::Stage(format!("a simulation has no output {name}")))?;
            all.extend(values(&output(env, run, name)?, shape));
        }
        Ok(all)
    }

    fn device_state(&self, env: &Env, object: &Object, name: &str) -> Body<Vec<f64>> {
        let edge = match name.split_once('.') {
            Some(("state", state)) => format!("{state}.out"),
            _ => name.trim_start_matches("rows.").replace("_cache", "_row") + ".out",
        };
        let what = object.edges.iter().find(|e| e.name == edge);
        let (format, frac) = what.map_or((Format::F32, 0), |e| (e.format, e.frac));
        let shape = Shape { format, frac, elements: 0 };
        let mut all = Vec::new();
        for run in self.pieces() {
            if name.starts_with("state.") {
                all.clear();
            }
            // a kernel that does not read the state or cache has a plain output in its place, a call after
            // the other
            match run.find(name) {
                Some(_) => all.extend(values(&output(env, run, name)?, &shape)),
                None => {
                    let plain = values(&output(env, run, edge.trim_end_matches(".out"))?, &shape);
                    let one = what.map_or(0, |e| e.shape.iter().product::<u64>() as usize).min(plain.len());
                    let from = if name.starts_with("state.") { plain.len() - one } else { 0 };
                    all.extend_from_slice(&plain[from..]);
                }
            }
        }
        Ok(all)
    }

    fn choices(&self, env: &Env, steps: usize) -> Body<Option<Choices>> {
        if self.expected.find("expert_ids").is_none() {
            return Ok(None);
        }
        let evaluator = integers(&output(env, &self.expected, "expert_ids")?);
        let k = evaluator.len() / steps.max(1);
        let published = match &self.choices {
            Some(c) => Some(first_rows(c.integers()?.values, steps, k)),
            None => None,
        };
        let device = if self.runs.is_empty() { Vec::new() } else { self.device(env, "expert_ids")? };
        let device = device.into_iter().map(|id| id as i64).collect();
        Ok(Some(Choices { k, device, evaluator, published }))
    }
}

fn first_rows<T>(mut values: Vec<T>, rows: usize, width: usize) -> Vec<T> {
    values.truncate(rows * width);
    values
}

/// A captured state after the last step, or the rows of a captured cache's last steps.
fn published_state(c: &Captured<'_>, what: What, steps: usize) -> Body<Vec<f64>> {
    let a = c.floats()?;
    let last = |rank: usize| match a.shape.len() > rank {
        // after every step
        true => a.row(steps.saturating_sub(1)).map(<[f64]>::to_vec),
        false => Some(a.values.clone()),
    };
    let short = || BodyError::Stage(format!("the captured {} has the shape {:?}", what.word(), a.shape));
    match what {
        What::ConvState => {
            let taps = *a.shape.last().ok_or_else(short)?;
            Ok(conv_state(&last(2).ok_or_else(short)?, taps))
        }
        What::RecurrentState => last(3).ok_or_else(short),
        _ => match a.shape[..] {
            [heads, positions, dim] if positions >= steps => {
                Ok(rows(&a.values, [heads, positions, dim], positions - steps..positions))
            }
            _ => Err(short()),
        },
    }
}

/// The published convolution state `[C, taps]`, newest last, as the function has it: `[taps − 1, C]`.
pub fn conv_state(published: &[f64], taps: usize) -> Vec<f64> {
    let channels = published.len() / taps.max(1);
    (1..taps).flat_map(|t| (0..channels).map(move |c| published[c * taps + t])).collect()
}

/// Positions of a cache `[heads, positions, dim]` as rows `[positions, heads, dim]`.
pub fn rows(cache: &[f64], [heads, positions, dim]: [usize; 3], wanted: Range<usize>) -> Vec<f64> {
    let at = |p: usize, h: usize| (h * positions + p) * dim;
    wanted
        .flat_map(|p| (0..heads).flat_map(move |h| cache[at(p, h)..at(p, h) + dim].iter().copied()))
        .collect()
}

/// Everything that the run of all steps and the runs of one each left, bytes beside bytes.
fn twice(env: &Env, whole: &Outcome, pieces: &[Outcome]) -> Body<Vec<Twice>> {
    let mut all = Vec::new();
    for o in whole.outputs() {
        let mut joined = Vec::new();
        for p in pieces {
            if o.name.starts_with("state.") {
                joined.clear();
            }
            joined.extend_from_slice(&output(env, p, &o.name)?);
        }
        all.push(Twice {
            what: o.name.clone(),
            pieces: joined,
            whole: output(env, whole, &o.name)?.to_vec(),
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_states_are_laid_out_as_the_functions_take_them() {
        // two channels, three taps
        assert_eq!(conv_state(&[0.0, 1.0, 2.0, 10.0, 11.0, 12.0], 3), [1.0, 11.0, 2.0, 12.0]);
        // two heads, three positions, one element
        let cache = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
        assert_eq!(rows(&cache, [2, 3, 1], 1..3), [1.0, 11.0, 2.0, 12.0]);
    }
}
