//! Runs the checked side and its reference step by step, states carried on each side by itself, and judges
//! every output. An output without a reference is refused, never passed over in silence.

use super::Refused;
use super::diverge::{self, Diverged};
use super::inputs::{Given, Tensors, row};
use super::predicates::{Judged, Predicates};
use super::twin::SimTwin;
use mica_models::decode::Carried;
use mica_models::eval::{Labelled, Options, Tensor, Weights, evaluate, values};
use mica_models::hir::function::is_within;
use mica_models::hir::{Dims, Dtype, Function, ValueId};
use mica_models::select::Selection;
use mica_models::twin::Twin;
use mica_score::Gate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::PoisonError;

/// The result that names the chosen experts.
const EXPERTS: &str = "expert_ids";

/// What an output, or what stands at a label, should be.
pub struct Expected {
    /// Output or label.
    pub name: String,
    /// Where it comes from, in words.
    pub source: String,
    /// The file and the key there.
    pub place: (PathBuf, String),
    /// The values, a step's each along the first axis, or of one step or of the last.
    pub tensor: Tensor,
}

/// All that does not change between runs.
pub struct Check<'a> {
    /// The function.
    pub selection: &'a Selection,
    /// The reference's weights, named as in the function.
    pub weights: &'a dyn Weights,
    /// The checked side, where it is not the evaluator.
    pub twin: Option<&'a SimTwin>,
    /// What has to hold.
    pub predicates: &'a Predicates,
    /// References from files.
    pub expected: &'a [Expected],
    /// Outputs that are not to be judged.
    pub skip: &'a [String],
    /// Whether the checked side takes the reference's experts instead of choosing.
    pub forced: bool,
}

/// One output of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Output {
    /// Output or label.
    pub name: String,
    /// Element kind that the model states.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Where its reference comes from.
    pub reference: String,
    /// The reference's norm at each step judged; of integers there is none.
    pub norms: Vec<f64>,
    /// What was judged.
    pub gates: Vec<Gate>,
}

/// One run: the dimensions at which it was made, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Dimensions pinned.
    pub dims: Dims,
    /// Steps.
    pub steps: usize,
    /// What it was run on.
    pub inputs: String,
    /// Outputs.
    pub outputs: Vec<Output>,
    /// Outputs that were not to be judged.
    pub skipped: Vec<String>,
    /// Where the sides part, if one judgement failed.
    pub diverged: Option<Diverged>,
}

impl Run {
    /// Whether everything that was judged passed.
    pub fn passed(&self) -> bool {
        self.outputs.iter().flat_map(|o| &o.gates).all(Gate::passed)
    }
}

impl Check<'_> {
    fn function(&self) -> &Function {
        &self.selection.function
    }

    fn expected(&self, name: &str) -> Option<&Expected> {
        self.expected.iter().find(|e| e.name == name)
    }

    /// Outputs, then labels, that are judged, with their values' types.
    fn judged(&self) -> Result<Vec<(String, ValueId)>, Refused> {
        let f = self.function();
        for name in self.skip.iter().chain(self.expected.iter().map(|e| &e.name)) {
            if f.result(name).is_none() && (self.skip.contains(name) || f.output_of(name).is_none()) {
                let outputs: Vec<&str> = f.results.iter().map(|(n, _)| n.as_str()).collect();
                return Err(Refused(format!(
                    "`{}` has no output `{name}` and nothing stands at a label of that name, expected one of: {}",
                    f.name,
                    outputs.join(", ")
                )));
            }
        }
        let outputs = f.results.iter().filter(|(n, _)| !self.skip.contains(n)).cloned();
        let labels = self.expected.iter().filter(|e| f.result(&e.name).is_none());
        let labels = labels.filter_map(|e| Some((e.name.clone(), f.output_of(&e.name)?)));
        let all: Vec<(String, ValueId)> = outputs.chain(labels).collect();
        let unjudged = all.iter().map(|(n, _)| n.as_str()).filter(|n| self.expected(n).is_none());
        let unjudged: Vec<&str> = unjudged.collect();
        if self.twin.is_none() && !unjudged.is_empty() {
            return Err(Refused(format!(
                "nothing says what {} should be: give --expected NAME=FILE:KEY, check the --twin against the \
                 evaluator, or say --skip {}",
                unjudged.join(", "),
                unjudged.join(",")
            )));
        }
        if all.is_empty() {
            return Err(Refused("every output is skipped, so there is nothing to judge".into()));
        }
        Ok(all)
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// Outputs without a reference, values of other shapes, inputs that do not fit, what the device refuses.
    pub fn run(&self, given: Given, dims: Dims) -> Result<Run, Refused> {
        let f = self.function();
        let wanted = self.judged()?;
        let mut judged: BTreeMap<String, Judged> = BTreeMap::new();
        let (mut found, mut reference) = (given.carried.clone(), given.carried.clone());
        let (steps, mut failed) = (given.steps.len(), None);
        for (step, own) in given.steps.into_iter().enumerate() {
            let inputs = |c: &Carried| c.inputs().into_iter().chain(own.clone()).collect::<Tensors>();
            let asked = wanted.iter().any(|(n, _)| self.expected(n).is_none()) && self.twin.is_some();
            let routed = self.forced && self.expected(EXPERTS).is_none();
            let r = match asked || routed {
                false => None,
                true => {
                    let made = evaluate(f, &inputs(&reference), self.weights, Options::default());
                    Some(carry(&mut reference, made.map_err(Refused::because)?)?)
                }
            };
            let forced = self.forced_ids(step, steps, r.as_ref())?;
            let before = inputs(&found);
            let (results, shown) = self.checked(&before, forced)?;
            let y = carry(&mut found, results)?;
            for (name, v) in &wanted {
                let Some(want) = self.reference(name, step, steps, r.as_ref())? else { continue };
                let Some(got) = y.get(name).or_else(|| shown.get(name)) else {
                    return Err(Refused(format!("the checked side does not show `{name}`")));
                };
                let dtype = f.ty(*v).dtype;
                judged
                    .entry(name.clone())
                    .or_default()
                    .step(self.predicates, got, &want, dtype, step)
                    .map_err(|e| Refused(format!("`{name}` cannot be judged: {e}")))?;
                if failed.is_none() && !self.predicates.agree(&want, got, dtype) {
                    failed = Some((step, before.clone()));
                }
            }
        }
        let diverged = failed.map(|(step, inputs)| diverge::find(self, step, &inputs));
        let outputs = wanted.iter().map(|(name, v)| self.output(name, *v, judged.remove(name)));
        Ok(Run {
            dims,
            steps,
            inputs: given.what,
            outputs: outputs.collect::<Result<_, _>>()?,
            skipped: self.skip.to_vec(),
            diverged,
        })
    }

    fn output(&self, name: &str, v: ValueId, judged: Option<Judged>) -> Result<Output, Refused> {
        let judged = judged.ok_or_else(|| Refused(format!("`{name}` was judged at no step")))?;
        let ty = self.function().ty(v);
        let own = || "the evaluator, float64".to_string();
        Ok(Output {
            name: name.into(),
            dtype: ty.dtype.to_string(),
            shape: ty.known_shape().unwrap_or_default(),
            reference: self.expected(name).map_or_else(own, |e| e.source.clone()),
            gates: judged.gates(),
            norms: judged.norms,
        })
    }

    /// One step of the checked side: its results, and what it shows at the labels that are asked for.
    fn checked(&self, inputs: &Tensors, forced: Option<Vec<i64>>) -> Result<(Tensors, Tensors), Refused> {
        let f = self.function();
        let labels: Vec<&str> =
            self.expected.iter().map(|e| e.name.as_str()).filter(|n| f.result(n).is_none()).collect();
        if let Some(twin) = self.twin {
            *twin.forced().lock().unwrap_or_else(PoisonError::into_inner) = forced;
            let results = twin.call(&f.name, inputs).map_err(Refused::because)?;
            let shown = match labels.is_empty() {
                true => Tensors::new(),
                false => twin.labelled(&f.name, inputs).unwrap_or_default(),
            };
            return Ok((results, shown));
        }
        let options = Options { forced_ids: forced.as_deref(), ..Options::default() };
        if labels.is_empty() {
            let results = evaluate(f, inputs, self.weights, options).map_err(Refused::because)?;
            return Ok((results, Tensors::new()));
        }
        let (results, seen) = values(f, inputs, self.weights, options).map_err(Refused::because)?;
        let at =
            |l: &str| seen.iter().rev().find(|v: &&Labelled| is_within(&v.label, l)).map(|v| v.value.clone());
        Ok((results, labels.into_iter().filter_map(|l| Some((l.to_string(), at(l)?))).collect()))
    }

    /// The reference's experts of a step, where they are forced.
    fn forced_ids(
        &self,
        step: usize,
        steps: usize,
        r: Option<&Tensors>,
    ) -> Result<Option<Vec<i64>>, Refused> {
        if !self.forced {
            return Ok(None);
        }
        let ids = self.reference(EXPERTS, step, steps, r)?;
        let ids = ids.and_then(|t| t.as_i64().map(<[i64]>::to_vec));
        let none = || Refused(format!("`{}` chooses no experts that could be forced", self.function().name));
        ids.map(Some).ok_or_else(none)
    }

    /// What an output should be at a step; `None` where only the last step's value is known.
    fn reference(
        &self,
        name: &str,
        step: usize,
        steps: usize,
        r: Option<&Tensors>,
    ) -> Result<Option<Tensor>, Refused> {
        let Some(e) = self.expected(name) else { return Ok(r.and_then(|r| r.get(name)).cloned()) };
        let f = self.function();
        let rank = f.result(name).or_else(|| f.output_of(name)).map_or(0, |v| f.ty(v).shape.len());
        match e.tensor.shape.len() {
            n if n == rank + 1 && e.tensor.shape[0] >= steps => Ok(Some(row(&e.tensor, step))),
            n if n == rank => Ok((step + 1 == steps).then(|| e.tensor.clone())),
            _ => Err(Refused(format!(
                "{} is {:?}, and `{name}` has {rank} axes; expected its value, or one a step for {steps} steps",
                e.source, e.tensor.shape
            ))),
        }
    }

    /// The element kind by which inner values are judged.
    pub fn inner_dtype(&self) -> Dtype {
        let f = self.function();
        f.results.iter().map(|(_, v)| f.ty(*v).dtype).find(|d| d.is_float()).unwrap_or(Dtype::F32)
    }
}

fn carry(carried: &mut Carried, results: Tensors) -> Result<Tensors, Refused> {
    for (name, value) in &results {
        carried.keep(name, value).map_err(Refused::because)?;
    }
    Ok(results)
}
