//! The query graph: every node of a build is one memoized query, and its value is an outcome of digests.
//!
//! Queries are short: resolve what is needed, name the action by all it depends on, and hand a pure stage
//! function to [`crate::action`]. Only these files know salsa. A query reads `Retry` first and always, so
//! that bumping it asks every action again after a failure of the surroundings.

mod compile;
mod input;
mod kernel;
mod not_finite;
mod pack;
mod perplexity;
mod quantize;
mod reference;
mod score;
mod segment;
mod source;
mod timing;
mod validation;
mod view;

pub use compile::{KIND as OBJECT_KIND, exported};
pub use input::{CaptureFacts, ConfigInput, DeliveryInput, ModelInput, Retry, RunSettings, Text};
pub use kernel::KIND as KERNEL_KIND;
pub use kernel::linked;
pub use pack::packed;
pub use perplexity::surprised;
use perplexity::tokenized;
pub use quantize::{FIGURES as FIGURES_KIND, quantized};
pub use reference::{Ground, ground, referenced};
pub use score::{KIND as SCORE_KIND, Report, scored};
pub use segment::simulated;
pub use source::{Fetched, facts, fetched, planned, token_ids};
pub use timing::{KIND as TIMING_KIND, timed};
pub use validation::{KIND as VALIDATION_KIND, expected, judged, tried};
pub use view::{resolved, stack, unrounded};

pub use compile::compiled;
pub use kernel::whole;

use crate::action::{BodyError, Outcome};
use crate::delivery::OpenDelivery;
use crate::env::Env;
use crate::error::NodeError;
use crate::graph::{self, Facts, Job};
use mica_cache::{Blob, Digest};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a query returns.
pub type Result<T> = std::result::Result<T, NodeError>;

/// The database as queries see it.
#[salsa::db]
pub trait Db: salsa::Database {
    /// What is at hand and never part of a result.
    fn env(&self) -> &Env;
    /// The bytes behind a delivery's digests.
    fn delivery(&self, name: &str) -> &OpenDelivery;
}

/// The database of one build.
#[salsa::db]
#[derive(Clone)]
pub struct BuildDb {
    env: Arc<Env>,
    deliveries: Arc<BTreeMap<String, OpenDelivery>>,
    // last, so that it is dropped after what its memos may refer to
    storage: salsa::Storage<Self>,
}

#[salsa::db]
impl salsa::Database for BuildDb {}

#[salsa::db]
impl Db for BuildDb {
    fn env(&self) -> &Env {
        &self.env
    }
    fn delivery(&self, name: &str) -> &OpenDelivery {
        &self.deliveries[name]
    }
}

impl BuildDb {
    /// A database over open deliveries.
    pub fn new(env: Arc<Env>, deliveries: Arc<BTreeMap<String, OpenDelivery>>) -> BuildDb {
        BuildDb { env, deliveries, storage: salsa::Storage::default() }
    }
}

/// Asks for a node. Its value stays in the memo; only its success is told.
pub fn node(db: &dyn Db, model: ModelInput, job: Job) -> Result<()> {
    match job {
        Job::Fetch(p) => fetched(db, model, p).map(drop),
        Job::Pack(p) => packed(db, model, p).map(drop),
        Job::Quantize(p) => quantized(db, model, p).map(drop),
        Job::Compile(k, call) => compile::compiled_kind(db, model, k, call).map(drop),
        Job::Link(call) => linked(db, model, call).map(drop),
        Job::Reference(p, b) => referenced(db, model, p, b).map(drop),
        Job::Segment(p, r, b) => simulated(db, model, p, r, b).map(drop),
        Job::Kernel => whole(db, model).map(drop),
        Job::Timing => timed(db, model).map(drop),
        Job::Score => scored(db, model).map(drop),
        // with its blob read, so that a lost one is this node's error, which the build mends
        Job::Tokenize => source::token_ids(db, model).map(drop),
        Job::Perplexity => surprised(db, model).map(drop),
        Job::Expected(p) => expected(db, model, p).map(drop),
        Job::Trial(p, run) => tried(db, model, p, run).map(drop),
        Job::Judge => judged(db, model).map(drop),
    }
}

/// The model whose weights and programs a model runs: another's, where it is a model on a held-out text.
fn weights_of(db: &dyn Db, model: ModelInput) -> ModelInput {
    model.text(db).as_ref().map_or(model, |(_, base)| *base)
}

/// Reads the retry round, so that the caller is asked again when it is bumped.
fn retriable(db: &dyn Db) {
    Retry::get(db).round(db);
}

/// The target name of a job of a model.
fn target(db: &dyn Db, model: ModelInput, job: Job) -> Result<(Arc<Facts>, String)> {
    let facts = facts(db, model)?;
    let name = graph::name(&facts, job);
    Ok((facts, name))
}

/// What a node needs, its lack seen from the node.
fn need<T>(target: &str, found: Result<T>) -> Result<T> {
    found.map_err(|e| e.seen_by(target))
}

/// A blob that an action made. A blob that is gone or corrupt is reported so that the build makes it again.
fn blob(env: &Env, d: Digest) -> std::result::Result<Blob, BodyError> {
    env.cache.get(d)?.ok_or(BodyError::Lost(d))
}

/// A blob's decoded value.
fn load<T: DeserializeOwned>(env: &Env, kind: &str, d: Digest) -> std::result::Result<T, BodyError> {
    mica_cache::decode(kind, &blob(env, d)?).map_err(BodyError::environment)
}

/// The blob of an output.
fn output(env: &Env, outcome: &Outcome, name: &str) -> std::result::Result<Blob, BodyError> {
    blob(env, outcome.digest(name))
}
