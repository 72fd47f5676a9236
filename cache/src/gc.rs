//! Choosing what to remove: what no record of use needs, then what is cheapest to lose.
//!
//! The choice is a pure function of the records, the blobs and the options. A wrong choice costs work,
//! never a wrong answer: whatever is gone is a miss.

use crate::blobs::Listed;
use crate::cache::Cache;
use crate::error::CacheError;
use crate::index::{Index, Tick, tick_of, ticks};
use crate::{ActionKey, ActionRecord, Digest};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What [`Cache::gc`] may remove.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// The time it is.
    pub now: SystemTime,
    /// A record used within this time is kept.
    pub keep: Duration,
    /// A record is kept if some workspace's target was built from it last, within this time.
    pub keep_targets: Duration,
    /// A kept record's state-class blobs are kept if it was used within this time.
    pub keep_state: Duration,
    /// A blob younger than this is kept whatever the records say: its own may be about to be written.
    pub grace: Duration,
    /// If more than so many bytes would be left, more goes: state-class blobs first, then whole records,
    /// those of targets last; the least recently used first.
    pub max_bytes: Option<u64>,
    /// Say what would go, and remove nothing.
    pub dry_run: bool,
}

impl GcOptions {
    /// What was stored after this is young.
    fn young_since(&self) -> SystemTime {
        self.now.checked_sub(self.grace).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            now: SystemTime::now(),
            keep: 14 * DAY,
            keep_targets: 60 * DAY,
            keep_state: 3 * DAY,
            grace: HOUR,
            max_bytes: None,
            dry_run: false,
        }
    }
}

/// What [`Cache::gc`] removed, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Whether it only says so.
    pub dry_run: bool,
    /// The removed blobs, in the order of their digests.
    pub removed: Vec<Digest>,
    /// Their bytes.
    pub removed_bytes: u64,
    /// How many of them only state-class outputs named.
    pub removed_state: u64,
    /// The dropped records, in the order of their keys.
    pub dropped: Vec<ActionKey>,
    /// Blobs left.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}

pub(crate) fn gc(cache: &Cache, options: &GcOptions) -> Result<GcReport, CacheError> {
    // Blobs before records: a blob stored in between is not listed, and so not removed.
    let blobs = cache.blobs.list()?;
    cache.log.reload()?;
    let plan = plan(&cache.log.index(), &blobs, options);
    if options.dry_run {
        return Ok(plan.report(true));
    }
    // Records before blobs: no record is left that names what we have removed ourselves.
    cache.log.drop_records(&plan.dropped)?;
    let mut done = Plan { remove: Vec::with_capacity(plan.remove.len()), ..plan };
    for doomed in plan.remove {
        // Looked at once more: it may have been stored again since it was listed.
        if cache.blobs.remove_older(doomed.blob.digest, options.young_since())? {
            done.remove.push(doomed);
        } else {
            done.kept.push(doomed.blob);
        }
    }
    cache.log.flush()?;
    cache.log.compact()?;
    Ok(done.report(false))
}

/// What is to go and what stays.
struct Plan {
    dropped: Vec<ActionKey>,
    remove: Vec<Doomed>,
    kept: Vec<Listed>,
}

struct Doomed {
    blob: Listed,
    /// Whether only state-class outputs ever named it.
    state: bool,
}

impl Plan {
    fn report(&self, dry_run: bool) -> GcReport {
        GcReport {
            dry_run,
            removed: self.remove.iter().map(|doomed| doomed.blob.digest).collect(),
            removed_bytes: self.remove.iter().map(|doomed| doomed.blob.size).sum(),
            removed_state: self.remove.iter().filter(|doomed| doomed.state).count() as u64,
            dropped: self.dropped.clone(),
            kept: self.kept.len() as u64,
            kept_bytes: self.kept.iter().map(|blob| blob.size).sum(),
        }
    }
}

/// How much a blob is needed: not at all, by a record's state, by its other outputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    State,
    Output,
}

/// A record and what speaks for it.
struct Candidate {
    key: ActionKey,
    record: ActionRecord,
    used: Tick,
    is_target: bool,
    keeps_state: bool,
}

impl Candidate {
    /// Its state-class blobs, or its others.
    fn blobs(&self, state: bool) -> impl Iterator<Item = Digest> {
        self.record.outputs.iter().filter(move |o| o.is_state() == state).map(|o| o.digest)
    }
}

fn plan(index: &Index, blobs: &[Listed], options: &GcOptions) -> Plan {
    let since = |span: Duration| tick_of(options.now).saturating_sub(ticks(span));
    let targets: HashSet<ActionKey> = index
        .all_last()
        .filter(|held| held.tick >= since(options.keep_targets))
        .filter_map(|held| Some(held.recipe.value()?.key()))
        .collect();
    let (mut kept, mut dropped): (Vec<_>, Vec<_>) = index
        .records()
        .map(|(key, record)| {
            let used = index.last_use(&key);
            let keeps_state = used >= since(options.keep_state);
            Candidate { key, record, used, is_target: targets.contains(&key), keeps_state }
        })
        .partition(|c| c.is_target || c.used >= since(options.keep));
    let young: HashSet<Digest> =
        blobs.iter().filter(|b| b.modified > options.young_since()).map(|b| b.digest).collect();
    let state_only: HashSet<Digest> = {
        let needs = needs(kept.iter().chain(&dropped).map(|c| (&c.record, true)));
        needs.into_iter().filter(|(_, need)| *need == Need::State).map(|(d, _)| d).collect()
    };
    if let Some(max) = options.max_bytes {
        shrink(&mut kept, &mut dropped, blobs, &young, max);
    }
    let needed = needs(kept.iter().map(|c| (&c.record, c.keeps_state)));
    let mut dropped: Vec<_> = dropped.iter().map(|c| c.key).collect();
    dropped.sort_by_key(|key| *key.0.as_bytes());
    let (kept, rest): (Vec<_>, Vec<_>) = blobs
        .iter()
        .copied()
        .partition(|b: &Listed| needed.contains_key(&b.digest) || young.contains(&b.digest));
    let doom = |blob: Listed| Doomed { blob, state: state_only.contains(&blob.digest) };
    Plan { dropped, remove: rest.into_iter().map(doom).collect(), kept }
}

/// The blobs that records need, with or without their state.
fn needs<'a>(records: impl Iterator<Item = (&'a ActionRecord, bool)>) -> HashMap<Digest, Need> {
    let mut needs = HashMap::new();
    for (record, with_state) in records {
        for output in &record.outputs {
            let need = if output.is_state() { Need::State } else { Need::Output };
            if need == Need::Output || with_state {
                let held = needs.entry(output.digest).or_insert(need);
                *held = need.max(*held);
            }
        }
    }
    needs
}

/// Gives up state, then records, until what is left fits into `max` bytes or nothing more can go.
fn shrink(
    kept: &mut Vec<Candidate>,
    dropped: &mut Vec<Candidate>,
    blobs: &[Listed],
    young: &HashSet<Digest>,
    max: u64,
) {
    // How many kept outputs need each blob; a young one stays in any case.
    let sizes: HashMap<Digest, u64> = blobs.iter().map(|b| (b.digest, b.size)).collect();
    let mut uses: HashMap<Digest, usize> = young.iter().map(|d| (*d, 1)).collect();
    for candidate in kept.iter() {
        let state = candidate.keeps_state.then(|| candidate.blobs(true)).into_iter().flatten();
        for digest in candidate.blobs(false).chain(state) {
            *uses.entry(digest).or_default() += 1;
        }
    }
    let size = |d: &Digest| sizes.get(d).copied().unwrap_or(0);
    let mut left: u64 = uses.keys().map(size).sum();
    let mut release = |digest: Digest| -> u64 {
        let count = uses.entry(digest).or_insert(1);
        *count -= 1;
        if *count == 0 { size(&digest) } else { 0 }
    };
    kept.sort_by_key(|c| (c.is_target, c.used, *c.key.0.as_bytes()));
    for candidate in kept.iter_mut().filter(|c| c.keeps_state) {
        if left <= max {
            return;
        }
        candidate.keeps_state = false;
        left -= candidate.blobs(true).map(&mut release).sum::<u64>();
    }
    let mut first_kept = 0;
    while left > max && first_kept < kept.len() {
        left -= kept[first_kept].blobs(false).map(&mut release).sum::<u64>();
        first_kept += 1;
    }
    dropped.extend(kept.drain(..first_kept));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Lazy};
    use crate::{Output, Recipe};
    use std::time::UNIX_EPOCH;

    const NOW: SystemTime = UNIX_EPOCH;

    /// An index and blobs to plan on, all times in days before [`World::now`].
    #[derive(Default)]
    struct World {
        index: Index,
        blobs: Vec<Listed>,
    }

    impl World {
        fn now() -> SystemTime {
            NOW + 1000 * DAY
        }

        /// An action last used `age` days ago, with outputs of 10 bytes each, as old.
        fn action(mut self, name: &str, age: u32, outputs: &[&str]) -> Self {
            let outputs: Vec<_> = outputs
                .iter()
                .map(|text| Output { name: (*text).into(), digest: blake3::hash(text.as_bytes()), size: 10 })
                .collect();
            for output in &outputs {
                self = self.blob(&output.name, age);
            }
            let record = ActionRecord { outputs, ..ActionRecord::default() };
            let tick = tick_of(Self::now() - age * DAY);
            self.index
                .apply(tick, Event::Record { key: Recipe::new(name, 1).key(), record: Lazy::new(&record) });
            self
        }

        fn blob(mut self, text: &str, age: u32) -> Self {
            let digest = blake3::hash(text.as_bytes());
            if self.blobs.iter().all(|b| b.digest != digest) {
                self.blobs.push(Listed { digest, size: 10, modified: Self::now() - age * DAY });
            }
            self
        }

        fn target(mut self, name: &str, age: u32) -> Self {
            let (workspace, recipe) = (blake3::hash(b"w"), Lazy::new(&Recipe::new(name, 1)));
            let event = Event::Remember { workspace, target: name.into(), recipe };
            self.index.apply(tick_of(Self::now() - age * DAY), event);
            self
        }

        /// Which of these blobs would go, and how many records.
        fn goes(&self, options: &GcOptions, names: &[&str]) -> (Vec<String>, usize) {
            let plan = plan(&self.index, &self.blobs, options);
            let gone =
                |name: &&&str| plan.remove.iter().any(|d| d.blob.digest == blake3::hash(name.as_bytes()));
            (names.iter().filter(gone).map(|name| (*name).to_owned()).collect(), plan.dropped.len())
        }
    }

    fn options() -> GcOptions {
        GcOptions { now: World::now(), ..GcOptions::default() }
    }

    #[test]
    fn what_is_not_needed_goes() {
        let world = World::default()
            .action("old", 20, &["o1", "shared"])
            .action("new", 10, &["n1", "shared", "state 10"])
            .action("newest", 1, &["m1", "state 1"])
            .action("old target", 20, &["t1", "state 20"])
            .action("oldest target", 100, &["u1"])
            .target("old target", 20)
            .target("oldest target", 90)
            .target("never ran", 1)
            .blob("orphan", 2)
            .blob("young orphan", 0);
        let names = [
            "o1",
            "shared",
            "n1",
            "state 10",
            "m1",
            "state 1",
            "t1",
            "state 20",
            "u1",
            "orphan",
            "young orphan",
        ];
        let (gone, records) = world.goes(&options(), &names);
        assert_eq!(gone, ["o1", "state 10", "state 20", "u1", "orphan"]);
        assert_eq!(records, 2);
        let plan = plan(&world.index, &world.blobs, &options());
        let report = plan.report(true);
        assert_eq!((report.removed_bytes, report.removed_state), (50, 2));
        assert_eq!((report.kept, report.kept_bytes), (6, 60));
    }

    #[test]
    fn a_blob_that_is_state_here_and_output_there_is_an_output() {
        let mut world = World::default().action("a", 10, &["state x"]);
        let output = Output { name: "residual".into(), digest: blake3::hash(b"state x"), size: 10 };
        let record = ActionRecord { outputs: vec![output], ..ActionRecord::default() };
        let event = Event::Record { key: Recipe::new("b", 1).key(), record: Lazy::new(&record) };
        world.index.apply(tick_of(World::now() - 10 * DAY), event);
        assert_eq!(world.goes(&options(), &["state x"]), (vec![], 0));
    }

    #[test]
    fn a_use_keeps_a_record() {
        let mut world = World::default().action("a", 20, &["x"]);
        let used = Event::Used { key: Recipe::new("a", 1).key() };
        world.index.apply(tick_of(World::now() - DAY), used);
        assert_eq!(world.goes(&options(), &["x"]), (vec![], 0));
    }

    #[test]
    fn a_limit_takes_state_first_then_the_oldest_then_targets() {
        let world = World::default()
            .action("a", 2, &["a1", "state a", "shared"])
            .action("b", 1, &["b1", "state b", "shared"])
            .action("t", 5, &["t1"])
            .target("t", 5);
        let names = ["a1", "b1", "state a", "state b", "shared", "t1"];
        let cases: [(u64, &[&str], usize); 8] = [
            (60, &[], 0),
            (59, &["state a"], 0),
            (50, &["state a"], 0),
            (40, &["state a", "state b"], 0),
            (30, &["a1", "state a", "state b"], 1),
            (20, &["a1", "b1", "state a", "state b", "shared"], 2),
            (10, &["a1", "b1", "state a", "state b", "shared"], 2),
            (9, &["a1", "b1", "state a", "state b", "shared", "t1"], 3),
        ];
        for (max, blobs, records) in cases {
            let found = world.goes(&GcOptions { max_bytes: Some(max), ..options() }, &names);
            assert_eq!(found, (blobs.iter().map(|b| (*b).to_owned()).collect(), records), "{max} bytes");
        }
    }

    #[test]
    fn young_blobs_stay_even_over_the_limit() {
        let world = World::default().action("a", 0, &["a1"]).blob("orphan", 0);
        let found = world.goes(&GcOptions { max_bytes: Some(0), ..options() }, &["a1", "orphan"]);
        assert_eq!(found.0, Vec::<String>::new());
    }
}
