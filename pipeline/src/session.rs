//! One build from a workspace: deliveries opened, the database filled, the graph drawn.

use crate::delivery::{OpenDelivery, read};
use crate::env::Env;
use crate::error::CliError;
use crate::graph::{Facts, Graph};
use crate::queries::{
    self, BuildDb, CaptureFacts, ConfigInput, Db, DeliveryInput, ModelInput, Retry, RunSettings, Text,
};
use crate::validations::{Opened, of_model};
use crate::workspace::{Captures, Machine, Maker, Model, Precision, Workspace, default_capacity};
use mica_cache::{Cache, StampMemo};
use mica_fetch::DeliveryFiles;
use mica_score::decode::{Precision as ScoredPrecision, Source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the logits of a block of a held-out text: nobody looks at its blocks, so there are no more than
/// memory asks for.
const TEXT_LOGITS: u64 = 64 << 20;

/// Memory that stage bodies may take together.
const MEMORY: u64 = 4 << 30;

/// A workspace, ready to build.
pub struct Session {
    /// The database; its environment is shared.
    pub db: BuildDb,
    /// Models, in the order of the graph's indices.
    pub models: Vec<ModelInput>,
    /// Their facts.
    pub facts: Vec<Arc<Facts>>,
    /// Nodes.
    pub graph: Graph,
    /// What the workspace says that can't be had as it says it.
    pub warnings: Vec<String>,
}

/// The cache folder: as given, else the workspace's, else `.mica` beside the file.
pub fn cache_dir(workspace: &Workspace, given: Option<&Path>) -> PathBuf {
    match (given, &workspace.config.cache) {
        (Some(dir), _) => dir.into(),
        (None, Some(dir)) => workspace.path(dir),
        (None, None) => workspace.root.join(".mica"),
    }
}

/// An environment over the workspace's cache. The workspace's file names it among those that share the
/// cache, so that what one forgets is not forgotten by others.
pub fn environment(workspace: &Workspace, cache: Option<&Path>) -> Result<Env, CliError> {
    let dir = cache_dir(workspace, cache);
    let file = workspace.file.canonicalize().unwrap_or_else(|_| workspace.file.clone());
    let opened = Cache::open_for(&dir, &file.to_string_lossy())?;
    Ok(Env::new(opened, StampMemo::load(&dir.join("stamps")), MEMORY))
}

impl Session {
    /// The environment of the build.
    pub fn env(&self) -> &Env {
        Db::env(&self.db)
    }

    /// Opens everything that the workspace names. Headers are read, tensors are not.
    pub fn open(workspace: &Workspace, env: Env) -> Result<Session, CliError> {
        let config = &workspace.config;
        let used: Vec<&String> = config.model.values().map(|m| &m.delivery).collect();
        let mut deliveries = BTreeMap::new();
        for (name, d) in config.delivery.iter().filter(|(n, _)| used.contains(n)) {
            deliveries.insert(name.clone(), OpenDelivery::open(workspace, name, d)?);
        }
        let vectors = Opened::read(workspace, &mut deliveries)?;
        for d in deliveries.values() {
            let files = (0..d.listing.files.len() as u32)
                .filter_map(|f| Some((d.files.path(f), d.files.metadata(f).ok()?.len())));
            env.delivers(files);
        }
        let deliveries = Arc::new(deliveries);
        let db = BuildDb::new(Arc::new(env), deliveries.clone());
        Retry::new(&db, 0);
        let mut inputs = BTreeMap::new();
        let mut configs = Vec::new();
        for (name, d) in deliveries.iter() {
            inputs.insert(name.as_str(), delivery_input(&db, name, d, &mut configs)?);
        }
        let mut session = Session {
            db,
            models: Vec::new(),
            facts: Vec::new(),
            graph: Graph::default(),
            warnings: Vec::new(),
        };
        let mut machines = BTreeMap::new();
        for (name, device) in &config.device {
            let users = config.model.values().map(|m| &m.device);
            if users.chain(config.vectors.values().map(|v| &v.device)).any(|d| d == name) {
                let mut machine = device.machine(name)?;
                session.warnings.append(&mut machine.warnings);
                machines.insert(name, machine);
            }
        }
        for (name, m) in &config.model {
            let open = &deliveries[&m.delivery];
            let captures = config.delivery[&m.delivery].captures.as_ref();
            let captures = captures.map(|c| capture_facts(c, open));
            if let Some(label) = &open.self_made
                && config.delivery[&m.delivery].captures.as_ref().is_some_and(|c| c.made_by != Maker::Own)
            {
                session.warn(format!(
                    "[delivery.{}] captures: the file says that it was made by {label}, and is taken so",
                    m.delivery
                ));
            }
            if let (Some(c), Some(&file)) = (&captures, open.listing.captures.first())
                && open.captures.as_ref().is_some_and(|i| i.find(c.names.input_ids.as_str()).is_none())
            {
                session.warn(format!(
                    "[delivery.{}] captures: {} has no {}, so there are no tokens to decode",
                    m.delivery,
                    open.files.path(file).display(),
                    c.names.input_ids.as_str()
                ));
            }
            let machine = &machines[&m.device];
            let model = ModelInput::new(
                &session.db,
                name.clone(),
                m.description.clone(),
                inputs[m.delivery.as_str()],
                Arc::new(config.recipe[&m.recipe].clone()),
                m.allow_non_finite,
                Arc::new(machine.product.clone()),
                Arc::new(machine.rates.clone()),
                machine.frac,
                machine.constants,
                Arc::new(run_settings(name, m, open, captures.as_ref())?),
                m.layers,
                None,
                captures.map(Arc::new),
                m.oracle.into(),
                Arc::new(config.gates.decode),
                None,
            );
            let facts = queries::facts(&session.db, model)
                .map_err(|e| CliError::Delivery { delivery: m.delivery.clone(), message: e.to_string() })?;
            for part in 0..facts.parts.len() {
                // what can't be planned is told where it is asked for
                let Ok(planned) = queries::planned(&session.db, model, part) else { continue };
                for o in &planned.overruled {
                    let (recipe, delivery) = (&m.recipe, &m.delivery);
                    session.warn(format!(
                        "[recipe.{recipe}] {:?} {}: [delivery.{delivery}] is quantized already; {} is used",
                        o.pattern, o.asked, o.used
                    ));
                }
            }
            let longest = queries::stack(&session.db, model).map_or(m.capacity, |s| s.facts.max_positions);
            // one that nobody stated is no claim
            if m.capacity > longest.max(default_capacity()) {
                return Err(CliError::Config {
                    what: format!("[model.{name}] capacity = {}", m.capacity),
                    why: format!("the model's config ends at {longest} positions"),
                });
            }
            session.models.push(model);
            session.facts.push(facts);
        }
        session.texts(workspace)?;
        session.validations(workspace, &vectors, &inputs, &machines)?;
        session.graph = Graph::new(&session.facts);
        Ok(session)
    }

    /// Warns of something, once, however many models it is of.
    fn warn(&mut self, what: String) {
        if !self.warnings.contains(&what) {
            self.warnings.push(what);
        }
    }

    /// Adds the models on their held-out texts, under names of their own.
    fn texts(&mut self, workspace: &Workspace) -> Result<(), CliError> {
        for (i, (name, m)) in workspace.config.model.iter().enumerate() {
            let Some(held_out) = &m.perplexity else { continue };
            let path = workspace.path(&held_out.text);
            let text = String::from_utf8(read(&path)?).map_err(|e| CliError::Config {
                what: format!("[model.{name}] perplexity.text"),
                why: format!("{}: not UTF-8: {e}", path.display()),
            })?;
            let file = held_out.text.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let model = self.models[i];
            let failed = |e: crate::error::NodeError| CliError::Delivery {
                delivery: m.delivery.clone(),
                message: e.to_string(),
            };
            let db = &self.db;
            let vocab = queries::stack(db, model).map_err(failed)?.facts.vocab;
            let run = RunSettings {
                tokens: held_out.tokens,
                block: m.block.max(TEXT_LOGITS / (8 * vocab.max(1))),
                whole_tokens: held_out.tokens,
                ..RunSettings::clone(model.run(db))
            };
            let text = Text { text, name: file, bounds: workspace.config.gates.validations() };
            let on_text = model.run_as(db, format!("{name}.perplexity"), run, Some(text), None);
            self.facts.push(queries::facts(&self.db, on_text).map_err(failed)?);
            self.models.push(on_text);
        }
        Ok(())
    }

    /// Adds the walkthrough's validations: those of the op vectors, and those of each model's own weights.
    fn validations(
        &mut self,
        workspace: &Workspace,
        vectors: &Opened,
        inputs: &BTreeMap<&str, DeliveryInput>,
        machines: &BTreeMap<&String, Machine>,
    ) -> Result<(), CliError> {
        let mut trials = vectors.of_vectors(&self.db, workspace, inputs, machines);
        let whole = workspace.config.model.values().enumerate().filter(|(_, m)| m.layers.is_none());
        for (i, m) in whole {
            let of_model = of_model(&self.db, self.models[i], &workspace.config.gates.validations());
            let failed = |e: crate::error::NodeError| CliError::Delivery {
                delivery: m.delivery.clone(),
                message: e.to_string(),
            };
            trials.extend(of_model.map_err(failed)?);
        }
        for trial in trials {
            if let Some(t) = trial.trial(&self.db) {
                self.facts.push(t.facts.clone());
                self.models.push(trial);
            }
        }
        Ok(())
    }
}

fn delivery_input(
    db: &BuildDb,
    name: &str,
    d: &OpenDelivery,
    configs: &mut Vec<ConfigInput>,
) -> Result<DeliveryInput, CliError> {
    let text = &d.config.text;
    let config = configs.iter().find(|c| c.text(db) == text).copied().unwrap_or_else(|| {
        let config = ConfigInput::new(db, text.clone());
        configs.push(config);
        config
    });
    let tokenizer = d.tokenizer.as_ref().map(|p| read(p).map(|b| blake3::hash(&b))).transpose()?;
    Ok(DeliveryInput::new(
        db,
        name.to_string(),
        d.index.clone(),
        d.stamps.clone().into(),
        config,
        d.scheme.clone(),
        d.captures.clone(),
        tokenizer,
    ))
}

impl From<Maker> for Source {
    fn from(maker: Maker) -> Source {
        match maker {
            Maker::Published => Source::Published,
            Maker::Own => Source::SelfMade,
        }
    }
}

/// What is known of captures. A file that says itself that it is our own is so, whatever the workspace says.
fn capture_facts(c: &Captures, open: &OpenDelivery) -> CaptureFacts {
    CaptureFacts {
        source: match open.self_made {
            Some(_) => Source::SelfMade,
            None => c.made_by.into(),
        },
        precision: match c.precision {
            Precision::F64 => ScoredPrecision::F64,
            Precision::F32 => ScoredPrecision::F32,
            Precision::Bf16 => ScoredPrecision::BF16,
        },
        names: c.names.clone(),
    }
}

/// How many tokens are run: as many as asked for, at most as many as were captured and as the caches hold.
fn run_settings(
    name: &str,
    m: &Model,
    open: &OpenDelivery,
    captures: Option<&CaptureFacts>,
) -> Result<RunSettings, CliError> {
    let captured = match (captures, &open.captures) {
        (Some(c), Some(index)) => index.find(c.names.input_ids.as_str()).map_or(0, |e| e.elements()),
        _ => 0,
    };
    let tokens = m.tokens.map_or(captured, |t| t.min(captured));
    if tokens > m.capacity {
        return Err(CliError::Config {
            what: format!("[model.{name}] capacity = {}", m.capacity),
            why: format!("{tokens} tokens are run; raise the capacity or lower `tokens`"),
        });
    }
    let of_bf16_run = captures.is_some_and(|c| c.precision == ScoredPrecision::BF16);
    Ok(RunSettings {
        tokens,
        block: m.block,
        capacity: m.capacity,
        whole_tokens: m.whole_tokens,
        per_call: m.tokens_per_call,
        stored_rounding: m.stored_rounding.unwrap_or(of_bf16_run),
    })
}
