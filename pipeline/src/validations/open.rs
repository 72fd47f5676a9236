//! The validations of a workspace: op vectors opened, and one input of the database a validation.

use super::{
    Case, Descriptions, HIDDEN, Hidden, OF_MODELS, OF_VECTORS, Seeded, Subject, Trial, Vector, facts,
};
use crate::delivery::OpenDelivery;
use crate::error::CliError;
use crate::queries::{self, BuildDb, CaptureFacts, Db, DeliveryInput, ModelInput, RunSettings};
use crate::workspace::{Machine, Workspace};
use mica_fetch::CaptureMap;
use mica_quantize::{ComponentFormat, Recipe};
use mica_score::Thresholds;
use mica_score::decode::{Precision, Source};
use mica_score::validation::{Bounds, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows of a cache in the op vectors' kernels; the longest vector has seven.
const CAPACITY: u64 = 64;

/// Steps on seeded inputs, where what goes in was not captured.
const SEEDED_STEPS: usize = 8;

/// Opened op vectors.
#[derive(Default)]
pub struct Opened {
    /// Mixers and steps by the name of the delivery that each is; cases of one vector share theirs, as do two
    /// sets over one folder.
    vectors: BTreeMap<String, (Vec<String>, usize)>,
}

/// The name of the delivery that a case's vector is: its tensors' names are those of the subject's scope.
fn delivery_name(source: &std::path::Path, case: &Case) -> String {
    format!("{}/{}:{}", source.display(), case.vector, case.subject.scope())
}

impl Opened {
    /// Opens the vectors of a workspace, adding them to its deliveries.
    pub fn read(
        workspace: &Workspace,
        deliveries: &mut BTreeMap<String, OpenDelivery>,
    ) -> Result<Opened, CliError> {
        let mut opened = Opened::default();
        for (set, v) in &workspace.config.vectors {
            let dir = workspace.path(&v.source);
            let all = Descriptions::read(set, &dir)?;
            for case in OF_VECTORS {
                let name = delivery_name(&v.source, case);
                if let std::collections::btree_map::Entry::Vacant(e) = opened.vectors.entry(name.clone()) {
                    let vector = Vector::open(set, &dir, &all, case)?;
                    e.insert((vector.mixers, vector.steps));
                    deliveries.insert(name, vector.delivery);
                }
            }
        }
        Ok(opened)
    }

    /// The validations of the op vectors.
    pub fn of_vectors(
        &self,
        db: &BuildDb,
        workspace: &Workspace,
        deliveries: &BTreeMap<&str, DeliveryInput>,
        machines: &BTreeMap<&String, Machine>,
    ) -> Vec<ModelInput> {
        let config = &workspace.config;
        let mut inputs = Vec::new();
        for (set, v) in &config.vectors {
            let recipe = Arc::new(config.recipe[&v.recipe].clone());
            let machine = &machines[&v.device];
            for case in OF_VECTORS.iter().filter(|c| c.kind != Kind::Reference || !quantizes(&recipe)) {
                let delivery = delivery_name(&v.source, case);
                let (mixers, captured) = &self.vectors[&delivery];
                let steps = case.steps.map_or(*captured, |s| s.min(*captured));
                let layer = case.subject.layer(mixers);
                let name = format!("{set}.{}", case.name);
                let input = deliveries[delivery.as_str()];
                let trial = Trial {
                    kind: case.kind,
                    subject: case.subject,
                    layer,
                    facts: Arc::new(facts(
                        name.clone(),
                        case,
                        layer,
                        mixers,
                        per_call(v.tokens_per_call, steps),
                    )),
                    hidden: Hidden::Captured(HIDDEN.into()),
                    steps,
                    cut: case.steps.is_some(),
                    setting: format!(
                        "{}; {}",
                        setting(case, steps, width(db, input), mixers.len()),
                        v.recipe
                    ),
                    bounds: config.gates.validations(),
                    #[cfg(test)]
                    broken: None,
                };
                let captures = CaptureFacts {
                    source: match Db::delivery(db, &delivery).self_made {
                        Some(_) => Source::SelfMade,
                        None => Source::Published,
                    },
                    precision: Precision::F64,
                    names: CaptureMap::default(),
                };
                let run = RunSettings {
                    tokens: 0,
                    block: 1,
                    capacity: CAPACITY,
                    whole_tokens: 0,
                    per_call: v.tokens_per_call,
                    stored_rounding: false,
                };
                inputs.push(ModelInput::new(
                    db,
                    name,
                    v.description.clone(),
                    input,
                    recipe.clone(),
                    false,
                    Arc::new(machine.product.clone()),
                    Arc::new(machine.rates.clone()),
                    machine.frac,
                    machine.constants,
                    Arc::new(run),
                    None,
                    None,
                    Some(Arc::new(captures)),
                    Source::Published,
                    Arc::new(Thresholds::default()),
                    Some(Arc::new(trial)),
                ));
            }
        }
        inputs
    }
}

/// The validations of a model's own weights.
pub fn of_model(db: &BuildDb, model: ModelInput, bounds: &Bounds) -> queries::Result<Vec<ModelInput>> {
    let stack = queries::stack(db, model)?;
    let mixers: Vec<String> = stack.layers.iter().map(|&k| stack.kinds[k].name.clone()).collect();
    let captures = model.captures(db);
    let names = captures.as_ref().map_or_else(CaptureMap::default, |c| c.names.clone());
    let mut inputs = Vec::new();
    let has = |c: &&Case| match c.subject {
        Subject::Router | Subject::Routed | Subject::Moe => stack.facts.experts > 0,
        Subject::Mixer { .. } => mixers.iter().any(|m| m == c.subject.word()),
        Subject::Layers(span) => !span.layers(&mixers).is_empty(),
        _ => true,
    };
    for case in OF_MODELS.iter().filter(has) {
        let layer = case.subject.layer(&mixers);
        let name = format!("{}.{}", model.name(db), case.name);
        let rows = |name: String| {
            let entry = model.delivery(db).captures(db).as_ref().and_then(|i| i.find(&name));
            match entry.and_then(|e| e.shape.first()) {
                Some(&rows) if rows > 0 => (Hidden::Captured(name), rows as usize),
                _ => (Hidden::Seeded(Seeded { seed: 1, range: 1 }), SEEDED_STEPS),
            }
        };
        let mut run = RunSettings::clone(model.run(db));
        let (hidden, steps, setting) = match case.subject {
            Subject::Embed => {
                // the table's rows are judged as the published run stores them
                run.stored_rounding = true;
                let prompt = match captures {
                    Some(_) => run.tokens,
                    None => 0,
                };
                let all = prompt + stack.facts.vocab;
                let setting = format!("{} tokens, vocab {}", stack.facts.vocab, stack.facts.vocab);
                (Hidden::Ids, all as usize, setting)
            }
            Subject::Head => {
                let (hidden, steps) = rows(names.head_input.as_str().into());
                (hidden, steps, format!("{steps} tokens, vocab {}", stack.facts.vocab))
            }
            Subject::Mixer { .. } => {
                let (hidden, steps) = rows(names.mixer_input.of(layer));
                let steps = case.steps.map_or(steps, |s| s.min(steps));
                let of = setting(case, steps, stack.facts.hidden, 1);
                (hidden, steps, format!("{of}, layer {layer}"))
            }
            Subject::Layers(span) => {
                let (hidden, steps) = rows(match layer.checked_sub(1) {
                    Some(below) => names.layer_output.of(below),
                    None => names.embedding.as_str().into(),
                });
                let steps = case.steps.map_or(steps, |s| s.min(steps));
                let of = setting(case, steps, stack.facts.hidden, span.layers(&mixers).len());
                (hidden, steps, format!("{of}, layer {layer}, {steps} tokens"))
            }
            _ => {
                let (hidden, steps) = rows(names.moe_input.of(layer));
                (hidden, steps, format!("layer {layer}, {steps} tokens"))
            }
        };
        let trial = Trial {
            kind: case.kind,
            subject: case.subject,
            layer,
            facts: Arc::new(facts(name.clone(), case, layer, &mixers, per_call(run.per_call, steps))),
            cut: case.steps.is_some() && matches!(hidden, Hidden::Captured(_)),
            hidden,
            steps,
            setting,
            bounds: *bounds,
            #[cfg(test)]
            broken: None,
        };
        inputs.push(model.run_as(db, name, run, None, Some(trial)));
    }
    Ok(inputs)
}

/// Tokens a call of a run of so many steps.
fn per_call(said: u64, steps: usize) -> u64 {
    said.min(steps as u64).max(1)
}

/// Whether a recipe makes integers of floats: results published of the floats are then of other weights.
fn quantizes(recipe: &Recipe) -> bool {
    let integer = |f: &ComponentFormat| matches!(f, ComponentFormat::I4 { .. } | ComponentFormat::I8 { .. });
    recipe.rules.iter().any(|r| integer(&r.format))
}

fn width(db: &BuildDb, delivery: DeliveryInput) -> u64 {
    let text = delivery.config(db).text(db);
    text.get("hidden_size").and_then(serde_json::Value::as_u64).unwrap_or_default()
}

/// What the walkthrough prints behind a validation's name.
fn setting(case: &Case, steps: usize, width: u64, layers: usize) -> String {
    match case.kind {
        Kind::Attention => format!("embed={width}, hidden={width}, tokens={steps}"),
        Kind::Deltanet | Kind::Resume => format!("hidden={width}, steps={steps}"),
        Kind::LinearLayer | Kind::AttentionLayer | Kind::Hybrid => format!("n={layers}, hidden={width}"),
        _ => format!("hidden={width}, tokens={steps}"),
    }
}
