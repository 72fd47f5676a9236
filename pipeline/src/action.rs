//! The one place where a stage's result is looked up, made and published.
//!
//! A dry run and a real run come through the same function, so what `-n` says would run is what runs.
//! It knows recipes, records and blobs; it knows no stage and no salsa.

use crate::cut;
use crate::env::Env;
use crate::error::{NodeError, with_causes};
use crate::events::{Event, Status};
use mica_cache::{ActionKey, ActionRecord, Digest, Output, Recipe};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// The value of a node: its outputs by name, and the stage's small note. Equal outcomes let nothing
/// downstream run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    outputs: Arc<[Output]>,
    note: Arc<[u8]>,
}

impl Outcome {
    /// The output of a name.
    pub fn find(&self, name: &str) -> Option<&Output> {
        self.outputs.iter().find(|o| o.name == name)
    }

    /// The digest of an output that the stage always makes.
    pub fn digest(&self, name: &str) -> Digest {
        match self.find(name) {
            Some(o) => o.digest,
            None => panic!("a stage promised the output {name:?} and made {:?}", self.outputs),
        }
    }

    /// All outputs, in the stage's order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The stage's note.
    pub fn note(&self) -> &[u8] {
        &self.note
    }
}

/// Why a body failed.
#[derive(Debug)]
pub enum BodyError {
    /// On its inputs: running it again gives the same.
    Stage(String),
    /// On its surroundings: never kept.
    Environment(String),
    /// An input blob that the cache should have is gone or corrupt; making it again mends this.
    Lost(Digest),
}

impl BodyError {
    /// A stage's own error.
    pub fn stage(e: impl std::fmt::Display) -> BodyError {
        BodyError::Stage(e.to_string())
    }
    /// An error of the surroundings.
    pub fn environment(e: impl std::fmt::Display) -> BodyError {
        BodyError::Environment(e.to_string())
    }
}

impl From<mica_cache::CacheError> for BodyError {
    fn from(e: mica_cache::CacheError) -> BodyError {
        BodyError::Environment(with_causes(&e))
    }
}

/// What a body hands back: outputs already stored as blobs, and a note.
#[derive(Default)]
pub struct Produced {
    outputs: Vec<Output>,
    note: Vec<u8>,
}

impl Produced {
    /// Stores an output.
    pub fn put(&mut self, env: &Env, name: &str, bytes: &[u8]) -> Result<Digest, BodyError> {
        let digest = env.cache.put(bytes)?;
        self.stored(name, digest, bytes.len() as u64);
        Ok(digest)
    }
    /// Names an output that is stored already.
    pub fn stored(&mut self, name: &str, digest: Digest, size: u64) {
        self.outputs.push(Output { name: name.into(), digest, size });
    }
    /// How many outputs there are so far.
    pub fn count(&self) -> usize {
        self.outputs.len()
    }
    /// Keeps a note.
    pub fn note(&mut self, note: Vec<u8>) {
        self.note = note;
    }
}

/// What is asked of [`action`].
pub struct Request<'a> {
    /// Target name.
    pub target: &'a str,
    /// Everything that the result depends on.
    pub recipe: Recipe,
    /// Memory that the body takes, for the budget.
    pub memory: u64,
    /// Bytes of the inputs, for the events.
    pub bytes_in: u64,
}

/// Looks a result up, or makes and publishes it: blobs first, then the record that names them.
pub fn action(
    env: &Env,
    request: Request<'_>,
    body: impl FnOnce() -> Result<Produced, BodyError>,
) -> Result<Outcome, NodeError> {
    let Request { target, recipe, memory, bytes_in } = request;
    if env.stopped() {
        return Err(NodeError::Stopped { target: target.into() });
    }
    let key = recipe.key();
    let environment = |message: String| NodeError::Environment { target: target.into(), message };
    let report = |status, why: Option<&str>, wall_ms, outputs: &[Output]| {
        env.considered(&Event::Action {
            target,
            stage: &recipe.stage,
            status,
            key: Some(key.to_string()),
            why,
            wall_ms,
            bytes_in,
            bytes_out: outputs.iter().map(|o| o.size).sum(),
        });
    };
    let why = match decide(env, target, &recipe, &key) {
        Decision::Reuse(record) => {
            if !env.dry {
                env.cache.remember(target, &recipe).map_err(|e| environment(with_causes(&e)))?;
            }
            report(Status::Cached, None, 0, &record.outputs);
            return Ok(Outcome { outputs: record.outputs.into(), note: record.note.into() });
        }
        Decision::Run(why) => why,
    };
    if env.dry {
        report(Status::WouldRun, Some(&why), 0, &[]);
        return Err(NodeError::WouldRun { target: target.into() });
    }
    let _permit = env.budget.acquire(memory);
    env.progress.started(target);
    let start = Instant::now();
    let cuts = cut::count();
    let made = catch_unwind(AssertUnwindSafe(body));
    let wall_ms = start.elapsed().as_millis() as u64;
    env.progress.finished(target);
    let produced = match made {
        Ok(Err(BodyError::Lost(blob))) => {
            return Err(NodeError::Lost { target: target.into(), blob: blob.to_string() });
        }
        // names the file, if it is one of a delivery
        Ok(Err(BodyError::Environment(message))) => return Err(environment(message)),
        // whatever else a body makes or says of zeros that nobody wrote
        _ if cut::count() != cuts => return Err(environment(shorter(env, &recipe.inputs))),
        Ok(Ok(p)) => p,
        Ok(Err(BodyError::Stage(message))) => {
            return Err(NodeError::Stage { target: target.into(), message });
        }
        Err(panic) => match panic.downcast::<salsa::Cancelled>() {
            // a cancellation is a consequence; the query that caused it reports itself
            Ok(_) => return Err(NodeError::Stopped { target: target.into() }),
            Err(panic) => {
                let message = format!("the stage panicked: {}", panic_text(&*panic));
                return Err(NodeError::Stage { target: target.into(), message });
            }
        },
    };
    let record = ActionRecord { outputs: produced.outputs, wall_ms, note: produced.note };
    env.cache
        .record(&key, &record)
        .and_then(|()| env.cache.remember(target, &recipe))
        .map_err(|e| environment(with_causes(&e)))?;
    report(Status::Ran, Some(&why), wall_ms, &record.outputs);
    Ok(Outcome { outputs: record.outputs.into(), note: record.note.into() })
}

/// What is said of a cut: the delivery file or the blob that is shorter now, where one is found.
fn shorter(env: &Env, inputs: &[(String, Digest)]) -> String {
    if let Some(file) = env.shorter() {
        return format!("{}: {}", file.display(), cut::MESSAGE);
    }
    // a blob whose stamp has changed is hashed again, and dropped if it is not what it was
    let had = inputs.iter().filter_map(|(name, d)| Some((name, *d, env.cache.file(*d)?)));
    let mut lost = had.filter(|(_, d, _)| matches!(env.cache.get(*d), Ok(None)));
    match lost.next() {
        Some((name, _, file)) => format!("{} ({name}): {}", file.display(), cut::MESSAGE),
        None => cut::MESSAGE.into(),
    }
}

enum Decision {
    Reuse(ActionRecord),
    Run(String),
}

/// Whether the action runs, and why.
fn decide(env: &Env, target: &str, recipe: &Recipe, key: &ActionKey) -> Decision {
    if env.force {
        return Decision::Run("forced by -B".into());
    }
    match env.cache.lookup(key) {
        Some(record) => match record.outputs.iter().find(|o| !env.cache.contains(o.digest, o.size)) {
            None => Decision::Reuse(record),
            Some(lost) => Decision::Run(format!("its output {} is not in the cache", lost.name)),
        },
        None => Decision::Run(match env.cache.last(target) {
            None => "first build".into(),
            Some(old) => match recipe.first_difference(&old) {
                Some(d) => d.to_string(),
                None => "invalidated".into(),
            },
        }),
    }
}

/// The words of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(s), _) => s,
        (None, Some(s)) => s,
        _ => "without words",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_cache::{Cache, StampMemo};
    use std::cell::Cell;
    use std::path::Path;

    fn env(dir: &Path) -> Env {
        let cache = Cache::open(&dir.join("cache")).unwrap();
        Env::new(cache, StampMemo::load(&dir.join("stamps")), 1 << 20)
    }

    fn ask(env: &Env, version: u32, runs: &Cell<u32>) -> Result<Outcome, NodeError> {
        let recipe = Recipe::new("double", version).param("n", 21);
        action(env, Request { target: "double:n", recipe, memory: 1, bytes_in: 0 }, || {
            runs.set(runs.get() + 1);
            let mut made = Produced::default();
            made.put(env, "out", b"42")?;
            Ok(made)
        })
    }

    #[test]
    fn a_result_is_made_once_and_found_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let runs = Cell::new(0);
        let first = ask(&env(dir.path()), 1, &runs).unwrap();
        let again = ask(&env(dir.path()), 1, &runs).unwrap();
        assert_eq!((runs.get(), first == again), (1, true));
        assert_eq!(first.digest("out"), blake3::hash(b"42"));
    }

    #[test]
    fn a_dry_run_takes_the_same_decision_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let runs = Cell::new(0);
        let dry = || {
            let mut e = env(dir.path());
            e.dry = true;
            e
        };
        let e = dry();
        assert_eq!(ask(&e, 1, &runs), Err(NodeError::WouldRun { target: "double:n".into() }));
        assert_eq!(e.why("double:n").as_deref(), Some("first build"));
        ask(&env(dir.path()), 1, &runs).unwrap();
        assert!(ask(&dry(), 1, &runs).is_ok());
        let e = dry();
        assert!(ask(&e, 2, &runs).is_err());
        let why = e.why("double:n").unwrap();
        assert!(why.contains("stage version") && why.contains('1') && why.contains('2'), "{why}");
        assert_eq!(runs.get(), 1);
    }

    #[test]
    fn a_lost_output_a_forced_build_and_a_forgotten_result_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let runs = Cell::new(0);
        let out = ask(&env(dir.path()), 1, &runs).unwrap().digest("out").to_string();
        let blobs = walk(&dir.path().join("cache"));
        let blob = blobs.iter().find(|p| p.to_string_lossy().replace('/', "").contains(&out[2..])).unwrap();
        std::fs::remove_file(blob).unwrap();
        let e = env(dir.path());
        ask(&e, 1, &runs).unwrap();
        assert_eq!(e.why("double:n").as_deref(), Some("its output out is not in the cache"));
        let mut e = env(dir.path());
        e.force = true;
        ask(&e, 1, &runs).unwrap();
        let e = env(dir.path());
        e.cache.forget(&e.cache.last("double:n").unwrap().key()).unwrap();
        ask(&e, 1, &runs).unwrap();
        assert_eq!(e.why("double:n").as_deref(), Some("invalidated"));
        assert_eq!(runs.get(), 4);
    }

    #[test]
    fn no_failure_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let fail = |e: fn() -> Result<Produced, BodyError>| {
            let env = env(dir.path());
            let recipe = Recipe::new("double", 1).param("n", 21);
            action(&env, Request { target: "t", recipe, memory: 1, bytes_in: 0 }, e).unwrap_err()
        };
        let stage = fail(|| Err(BodyError::stage("wrong")));
        assert_eq!(stage, NodeError::Stage { target: "t".into(), message: "wrong".into() });
        assert!(matches!(fail(|| Err(BodyError::environment("full"))), NodeError::Environment { .. }));
        assert!(matches!(fail(|| Err(BodyError::Lost(blake3::hash(b"")))), NodeError::Lost { .. }));
        assert!(
            matches!(fail(|| panic!("boom")), NodeError::Stage { message, .. } if message.contains("boom"))
        );
        let runs = Cell::new(0);
        ask(&env(dir.path()), 1, &runs).unwrap();
        assert_eq!(runs.get(), 1);
    }

    fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
        }
        found
    }
}
