//! The action log: what was done, appended by each process to a segment of its own and read whole.
//!
//! No process waits for another and none writes to another's file. What can't be read is a miss. Knows
//! the events and the files; blobs are somebody else's.

use crate::compact;
use crate::error::{CacheError, OrFail, locked};
use crate::event::{Event, Lazy};
use crate::index::{Index, Tick, tick_of, ticks};
use crate::segment::{self, Writer};
use crate::{ActionKey, ActionRecord, Digest, Recipe};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// A use is noted once in this time, so that a run that does nothing writes nothing.
const USE_GRAIN: Duration = Duration::from_secs(24 * 3600);

/// The action log of one cache, as one workspace sees it.
pub(crate) struct Log {
    dir: PathBuf,
    temps: PathBuf,
    workspace: Digest,
    state: Mutex<State>,
}

struct State {
    index: Index,
    writer: Option<Writer>,
    /// Whether something was appended since the last sync.
    unsynced: bool,
    /// Uses that are not on disk yet.
    uses: Vec<(Tick, Event)>,
}

impl Log {
    pub(crate) fn open(dir: PathBuf, temps: PathBuf, workspace: Digest) -> Result<Self, CacheError> {
        fs::create_dir_all(&dir).or_fail("create", &dir)?;
        let index = load(&dir)?;
        let when = compact::When::Due { wasteful: index.is_wasteful() };
        let state = State { index, writer: None, unsynced: false, uses: Vec::new() };
        let log = Self { dir, temps, workspace, state: Mutex::new(state) };
        // A cache that can't be tidied can still be read.
        let _ = compact::compact(&log.dir, &log.temps, when);
        Ok(log)
    }

    /// Reads again what all processes have written.
    pub(crate) fn reload(&self) -> Result<(), CacheError> {
        let mut state = locked(&self.state);
        self.append_uses(&mut state)?;
        state.index = load(&self.dir)?;
        Ok(())
    }

    pub(crate) fn lookup(&self, key: &ActionKey, now: SystemTime) -> Option<ActionRecord> {
        let mut state = locked(&self.state);
        let record = state.index.record(self.workspace, key)?;
        if state.index.last_use(key).saturating_add(ticks(USE_GRAIN)) < tick_of(now) {
            let tick = state.index.next_tick(now);
            let used = Event::Used { key: *key };
            state.index.apply(tick, used.clone());
            state.uses.push((tick, used));
        }
        Some(record)
    }

    pub(crate) fn record(&self, key: &ActionKey, record: &ActionRecord) -> Result<(), CacheError> {
        self.write(|| Event::Record { key: *key, record: Lazy::new(record) })
    }

    pub(crate) fn forget(&self, key: &ActionKey) -> Result<(), CacheError> {
        self.write(|| Event::Forget { workspace: self.workspace, key: *key })
    }

    pub(crate) fn remember(&self, target: &str, recipe: &Recipe, now: SystemTime) -> Result<(), CacheError> {
        let recipe = Lazy::new(recipe);
        let mut state = locked(&self.state);
        let known = state.index.last(self.workspace, target).is_some_and(|held| {
            held.recipe.encoded() == recipe.encoded()
                && held.tick.saturating_add(ticks(USE_GRAIN)) >= tick_of(now)
        });
        if known {
            return Ok(());
        }
        let target = target.to_owned();
        let event = Event::Remember { workspace: self.workspace, target, recipe };
        self.write_in(&mut state, vec![event])
    }

    pub(crate) fn last(&self, target: &str) -> Option<Recipe> {
        locked(&self.state).index.last(self.workspace, target).and_then(|held| held.recipe.value())
    }

    /// Takes records away from everyone.
    pub(crate) fn drop_records(&self, keys: &[ActionKey]) -> Result<(), CacheError> {
        let events = keys.iter().map(|key| Event::Drop { key: *key }).collect();
        self.write_in(&mut locked(&self.state), events)
    }

    /// Writes what is pending and asks the disk to keep it.
    pub(crate) fn flush(&self) -> Result<(), CacheError> {
        let unsynced = {
            let mut state = locked(&self.state);
            self.append_uses(&mut state)?;
            std::mem::take(&mut state.unsynced).then(|| state.writer.as_ref().map(Writer::handle)).flatten()
        };
        let Some((file, path)) = unsynced else { return Ok(()) };
        // Without the lock: a sync may take long, and others have work to do.
        let synced = file.sync_data().or_fail("sync", &path).and_then(|()| sync_folder(&self.dir));
        if synced.is_err() {
            locked(&self.state).unsynced = true;
        }
        synced
    }

    /// Writes the uses that are pending, and syncs nothing.
    pub(crate) fn write_uses(&self) -> Result<(), CacheError> {
        self.append_uses(&mut locked(&self.state))
    }

    /// Merges the segments of the dead into one.
    pub(crate) fn compact(&self) -> Result<(), CacheError> {
        compact::compact(&self.dir, &self.temps, compact::When::Now)
    }

    /// The index, held still.
    pub(crate) fn index(&self) -> IndexGuard<'_> {
        IndexGuard(locked(&self.state))
    }

    /// Files and bytes of the log.
    pub(crate) fn size(&self) -> Result<(u64, u64), CacheError> {
        let segments = segment::list(&self.dir)?;
        let bytes = segments.iter().filter_map(|path| fs::metadata(path).ok()).map(|m| m.len()).sum();
        Ok((segments.len() as u64, bytes))
    }

    fn write(&self, event: impl FnOnce() -> Event) -> Result<(), CacheError> {
        self.write_in(&mut locked(&self.state), vec![event()])
    }

    /// Appends, and only then believes: what is not on disk is not in memory either.
    fn write_in(&self, state: &mut State, events: Vec<Event>) -> Result<(), CacheError> {
        let now = SystemTime::now();
        let events: Vec<_> = events.into_iter().map(|event| (state.index.next_tick(now), event)).collect();
        self.append(state, &events)?;
        for (tick, event) in events {
            state.index.apply(tick, event);
        }
        Ok(())
    }

    fn append_uses(&self, state: &mut State) -> Result<(), CacheError> {
        let uses = std::mem::take(&mut state.uses);
        let appended = self.append(state, &uses);
        if appended.is_err() {
            state.uses = uses;
        }
        appended
    }

    fn append(&self, state: &mut State, events: &[(Tick, Event)]) -> Result<(), CacheError> {
        if events.is_empty() {
            return Ok(());
        }
        let bodies: Vec<_> = events.iter().map(|(tick, event)| event.body(*tick)).collect();
        // The first event of this process, or the cache was cleared under it.
        if state.writer.as_ref().is_none_or(|writer| !writer.is_linked()) {
            state.writer = None;
        }
        let writer = match &mut state.writer {
            Some(writer) => writer,
            none => none.insert(Writer::create(&self.dir)?),
        };
        writer.append(bodies.iter().map(Vec::as_slice))?;
        state.unsynced = true;
        Ok(())
    }
}

/// The index under its lock; nothing is recorded while it lives.
pub(crate) struct IndexGuard<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for IndexGuard<'_> {
    type Target = Index;

    fn deref(&self) -> &Index {
        &self.0.index
    }
}

/// Adds the events of one segment to `index`. A body that is no event of ours is passed over.
pub(crate) fn read_into(index: &mut Index, path: &Path, bytes: Vec<u8>) {
    let bytes = Arc::new(bytes);
    segment::read_frames(path, &bytes, |body| {
        if let Ok((tick, event)) = Event::read(&bytes, body) {
            index.apply(tick, event);
        }
    });
}

/// Makes the names in `dir` last.
pub(crate) fn sync_folder(dir: &Path) -> Result<(), CacheError> {
    File::open(dir).and_then(|dir| dir.sync_all()).or_fail("sync", dir)
}

/// Reads all segments. If some come or go meanwhile, as in a compaction elsewhere, reads again: half of
/// such a change could show a record without the word against it.
fn load(dir: &Path) -> Result<Index, CacheError> {
    const TRIES: usize = 4;
    let mut index = Index::default();
    for _ in 0..TRIES {
        index = Index::default();
        let segments = segment::list(dir)?;
        for path in &segments {
            if let Some(bytes) = segment::content(path)? {
                read_into(&mut index, path, bytes);
            }
        }
        if segments == segment::list(dir)? {
            break;
        }
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Output;

    fn open(root: &Path) -> Log {
        open_as(root, "w")
    }

    fn open_as(root: &Path, workspace: &str) -> Log {
        fs::create_dir_all(root.join("tmp")).expect("create");
        Log::open(root.join("log"), root.join("tmp"), blake3::hash(workspace.as_bytes())).expect("open")
    }

    fn key(n: u64) -> ActionKey {
        Recipe::new("stage", 1).param("n", n).key()
    }

    fn record(n: u64) -> ActionRecord {
        let output = Output { name: "out".into(), digest: blake3::hash(&n.to_le_bytes()), size: n };
        ActionRecord { outputs: vec![output], wall_ms: n, note: vec![n as u8] }
    }

    fn get(log: &Log, n: u64) -> Option<u64> {
        log.lookup(&key(n), SystemTime::now()).map(|found| {
            assert_eq!(found, record(found.wall_ms), "a record is whole or absent");
            found.wall_ms
        })
    }

    fn segments(root: &Path) -> Vec<PathBuf> {
        segment::list(&root.join("log")).expect("list")
    }

    #[test]
    fn two_writers_on_one_folder_are_both_seen() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (a, b) = (open(dir.path()), open(dir.path()));
        a.record(&key(1), &record(1)).expect("record");
        b.record(&key(2), &record(2)).expect("record");
        a.record(&key(3), &record(3)).expect("record");
        assert_eq!((get(&a, 2), get(&b, 2)), (None, Some(2)));
        let c = open(dir.path());
        assert_eq!([1, 2, 3].map(|n| get(&c, n)), [Some(1), Some(2), Some(3)]);
        a.reload().expect("reload");
        assert_eq!([1, 2, 3].map(|n| get(&a, n)), [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn forgetting_is_of_one_workspace_and_until_the_next_record() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (ours, theirs) = (open_as(dir.path(), "ours"), open_as(dir.path(), "theirs"));
        ours.record(&key(1), &record(1)).expect("record");
        ours.forget(&key(1)).expect("forget");
        ours.forget(&key(2)).expect("forget of what was never there");
        theirs.reload().expect("reload");
        assert_eq!((get(&ours, 1), get(&theirs, 1)), (None, Some(1)));
        assert_eq!(get(&open_as(dir.path(), "ours"), 1), None);
        ours.record(&key(1), &record(7)).expect("record");
        assert_eq!((get(&ours, 1), get(&open_as(dir.path(), "ours"), 1)), (Some(7), Some(7)));
    }

    #[test]
    fn forgetting_survives_compaction() {
        let dir = tempfile::tempdir().expect("tempdir");
        open(dir.path()).record(&key(1), &record(1)).expect("record");
        open(dir.path()).forget(&key(1)).expect("forget");
        open(dir.path()).compact().expect("compact");
        assert_eq!(segments(dir.path()).len(), 1);
        assert_eq!(get(&open(dir.path()), 1), None);
        assert_eq!(get(&open_as(dir.path(), "another"), 1), Some(1));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_a_miss_or_the_right_value() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = open(dir.path());
        for n in 0..4 {
            log.record(&key(n), &record(n)).expect("record");
        }
        log.remember("t", &Recipe::new("stage", 1), SystemTime::now()).expect("remember");
        drop(log);
        open(dir.path()).record(&key(9), &record(9)).expect("record in another segment");
        let files = segments(dir.path());
        let sizes: Vec<_> = files.iter().map(|p| fs::metadata(p).expect("stat").len()).collect();
        let path = &files[usize::from(sizes[0] < sizes[1])];
        let good = fs::read(path).expect("read");
        let damaged = (0..good.len()).flat_map(|at| {
            let mut changed = good.clone();
            changed[at] ^= 1 << (at % 8);
            [(changed, 3), (good[..at].to_vec(), 0)]
        });
        for (bytes, least) in damaged {
            fs::write(path, &bytes).expect("damage");
            let log = open(dir.path());
            let found: Vec<_> = (0..4).filter_map(|n| get(&log, n).map(|value| (n, value))).collect();
            assert!(found.len() >= least && found.iter().all(|(n, value)| n == value), "{found:?}");
            assert!(log.last("t").is_none_or(|recipe| recipe == Recipe::new("stage", 1)));
            assert_eq!(get(&log, 9), Some(9), "the other segment is whole");
        }
    }

    #[test]
    fn a_damaged_log_takes_new_records_and_heals() {
        let dir = tempfile::tempdir().expect("tempdir");
        open(dir.path()).record(&key(1), &record(1)).expect("record");
        fs::write(&segments(dir.path())[0], [0xf5; 1000]).expect("damage");
        let log = open(dir.path());
        assert_eq!(get(&log, 1), None);
        log.record(&key(1), &record(1)).expect("record");
        drop(log);
        open(dir.path()).compact().expect("compact");
        assert_eq!((segments(dir.path()).len(), get(&open(dir.path()), 1)), (1, Some(1)));
    }

    #[test]
    fn a_run_that_only_looks_writes_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let recipe = Recipe::new("stage", 1);
        let log = open(dir.path());
        log.record(&key(1), &record(1)).expect("record");
        log.remember("t", &recipe, SystemTime::now()).expect("remember");
        drop(log);
        let before = open(dir.path()).size().expect("size");
        let log = open(dir.path());
        assert_eq!(get(&log, 1), Some(1));
        log.remember("t", &recipe, SystemTime::now()).expect("remember");
        log.flush().expect("flush");
        assert_eq!(log.size().expect("size"), before);
    }

    #[test]
    fn a_use_is_noted_once_a_day() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = open(dir.path());
        log.record(&key(1), &record(1)).expect("record");
        let later = SystemTime::now() + 3 * USE_GRAIN;
        for _ in 0..3 {
            assert!(log.lookup(&key(1), later).is_some());
        }
        assert_eq!(locked(&log.state).uses.len(), 1);
        log.flush().expect("flush");
        drop(log);
        assert!(open(dir.path()).index().last_use(&key(1)) >= tick_of(later));
    }

    #[test]
    fn targets_are_of_a_workspace_and_the_last_recipe_wins() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (ours, theirs) = (open_as(dir.path(), "ours"), open_as(dir.path(), "theirs"));
        let recipe = |n| Recipe::new("stage", n);
        let now = SystemTime::now();
        ours.remember("t", &recipe(1), now).expect("remember");
        ours.remember("t", &recipe(2), now).expect("remember");
        theirs.remember("t", &recipe(3), now).expect("remember");
        let again = open_as(dir.path(), "ours");
        assert_eq!((again.last("t"), again.last("u")), (Some(recipe(2)), None));
        assert_eq!(open_as(dir.path(), "theirs").last("t"), Some(recipe(3)));
    }

    #[test]
    fn a_log_cleared_under_a_running_process_goes_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = open(dir.path());
        log.record(&key(1), &record(1)).expect("record");
        fs::remove_file(&segments(dir.path())[0]).expect("remove");
        log.record(&key(2), &record(2)).expect("record");
        assert_eq!(get(&open(dir.path()), 2), Some(2));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_and_not_believed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = open(dir.path());
        fs::remove_dir(dir.path().join("log")).expect("remove");
        let error = log.record(&key(1), &record(1)).expect_err("no folder");
        assert!(error.to_string().contains("log"), "{error}");
        assert_eq!(get(&log, 1), None);
    }
}
