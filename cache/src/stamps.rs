//! The stat memo: what was found in a file, under the file's stamp. It spares reading, never decides.
//!
//! A stamp can be trusted only if a later change must give another one. So nothing is kept for a file
//! that was changed just before it was looked at: a change after that could fall into the same tick of
//! the file system's clock.

use crate::error::{CacheError, OrFail, locked};
use crate::{Digest, codec, temp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of the memo's envelope.
const KIND: &str = "stamp memo 1";
/// A file is racy if it changed this shortly before it was scanned: the coarsest clock is FAT's, 2 s.
const RACY_NS: i128 = 2_000_000_000;
const DAY_NS: i128 = 24 * 3600 * 1_000_000_000;
/// A file nobody asked about for so many days is forgotten.
const KEEP_DAYS: u32 = 180;

/// What the file system says of a file's identity and last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// The file system.
    pub dev: u64,
    /// The file in it.
    pub ino: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was last changed, in nanoseconds since 1970.
    pub mtime_ns: i128,
    /// When its inode was last changed; unlike the other, nobody can set it.
    pub ctime_ns: i128,
}

impl Stamp {
    /// The stamp in `metadata`.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a file with this stamp, looked at at `scanned`, may change without the stamp changing.
    #[must_use]
    pub fn is_racy(&self, scanned: SystemTime) -> bool {
        self.mtime_ns.max(self.ctime_ns) > nanos(scanned) - RACY_NS
    }
}

fn nanos(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// A file: device and inode.
type FileId = (u64, u64);

/// What is known of one file, under its one stamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    /// The day it was last asked about, since 1970.
    day: u32,
    /// By the bytes of the part's digest, which have an order.
    values: BTreeMap<[u8; 32], Digest>,
}

/// Digests of parts of files, by stamp and part, kept in one file.
pub struct StampMemo {
    path: PathBuf,
    loaded: SystemTime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<FileId, Known>,
    /// Files whose entry was used or set in this run: ours, if another process has another.
    touched: HashSet<FileId>,
    changed: bool,
}

impl StampMemo {
    /// The memo kept at `path`. If there is none, or not a whole one, it is empty.
    #[must_use]
    pub fn load(path: &Path) -> Self {
        let loaded = SystemTime::now();
        let state = State { known: read(path), ..State::default() };
        Self { path: path.to_owned(), loaded, state: Mutex::new(state) }
    }

    /// What was found for the part called `what` of the file with this stamp.
    #[must_use]
    pub fn get(&self, stamp: &Stamp, what: &Digest) -> Option<Digest> {
        let mut state = locked(&self.state);
        let today = day(self.loaded);
        let id = (stamp.dev, stamp.ino);
        let known = state.known.get_mut(&id).filter(|known| known.stamp == *stamp)?;
        let found = known.values.get(what.as_bytes()).copied()?;
        let aged = known.day < today;
        known.day = known.day.max(today);
        state.changed |= aged;
        state.touched.insert(id);
        Some(found)
    }

    /// Keeps what was found for a part of a file that was scanned after this memo was loaded; its
    /// loading stands for the time of the scan. The caller has read the file and found the stamp
    /// unchanged afterwards. A racy stamp is not kept.
    pub fn put(&self, stamp: Stamp, what: Digest, digest: Digest) {
        self.put_scanned(stamp, what, digest, self.loaded);
    }

    /// As [`StampMemo::put`], for a scan at a known time, so that a long-lived process need not treat
    /// every file changed since its start as racy.
    pub fn put_scanned(&self, stamp: Stamp, what: Digest, digest: Digest, scanned: SystemTime) {
        if stamp.is_racy(scanned) {
            return;
        }
        let mut state = locked(&self.state);
        let id = (stamp.dev, stamp.ino);
        let day = day(self.loaded);
        let fresh = || Known { stamp, day, values: BTreeMap::new() };
        let known = state.known.entry(id).or_insert_with(fresh);
        if known.stamp != stamp {
            // The file changed: what was found in the old one is of no more use.
            *known = fresh();
        }
        known.day = known.day.max(day);
        let changed = known.values.insert(*what.as_bytes(), digest) != Some(digest);
        state.changed |= changed;
        state.touched.insert(id);
    }

    /// Writes the memo if it changed, together with what others wrote since it was loaded.
    ///
    /// # Errors
    /// If the file can't be written; the old one is then still whole.
    pub fn save(&self) -> Result<(), CacheError> {
        let mut state = locked(&self.state);
        if !state.changed {
            return Ok(());
        }
        merge(&mut state, read(&self.path));
        let today = day(self.loaded);
        state.known.retain(|_, known| known.day.saturating_add(KEEP_DAYS) >= today);
        let sorted: BTreeMap<&FileId, &Known> = state.known.iter().collect();
        let bytes = codec::encode(KIND, &sorted);
        let dir = self.path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        fs::create_dir_all(dir).or_fail("create", dir)?;
        // The folder may be anybody's; only names that start with the memo's own are ours to sweep.
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = format!("{name}.");
        let _ = temp::sweep(dir, &prefix);
        let temp = temp::create(dir, &prefix, temp::SUFFIX)?;
        temp.as_file().write_all(&bytes).or_fail("write", temp.path())?;
        temp.persist(&self.path).map_err(|e| e.error).or_fail("rename the stamp memo to", &self.path)?;
        state.changed = false;
        Ok(())
    }
}

fn day(time: SystemTime) -> u32 {
    u32::try_from(nanos(time) / DAY_NS).unwrap_or(0)
}

fn read(path: &Path) -> HashMap<FileId, Known> {
    fs::read(path).ok().and_then(|bytes| codec::decode(KIND, &bytes).ok()).unwrap_or_default()
}

/// Adds what another process has saved. Of a file that this run has looked at, this run knows better.
fn merge(state: &mut State, theirs: HashMap<FileId, Known>) {
    for (id, other) in theirs {
        match state.known.get_mut(&id) {
            Some(ours) if ours.stamp == other.stamp => {
                ours.day = ours.day.max(other.day);
                for (what, digest) in other.values {
                    ours.values.entry(what).or_insert(digest);
                }
            }
            Some(_) if state.touched.contains(&id) => {}
            _ => {
                state.known.insert(id, other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn d(text: &str) -> Digest {
        blake3::hash(text.as_bytes())
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("stamps");
        (dir, path)
    }

    /// A file of the given inode, last changed an hour ago.
    fn stamp(ino: u64) -> Stamp {
        let ns = nanos(SystemTime::now() - Duration::from_secs(3600));
        Stamp { dev: 1, ino, size: 7, mtime_ns: ns, ctime_ns: ns }
    }

    #[test]
    fn a_value_is_of_one_stamp_and_one_part() {
        let (_dir, path) = place();
        let s = stamp(1);
        let memo = StampMemo::load(&path);
        memo.put(s, d("rows"), d("value"));
        memo.save().expect("save");
        let memo = StampMemo::load(&path);
        assert_eq!(memo.get(&s, &d("rows")), Some(d("value")));
        assert_eq!(memo.get(&s, &d("columns")), None);
        let others = [
            Stamp { dev: 2, ..s },
            Stamp { ino: 2, ..s },
            Stamp { size: 8, ..s },
            Stamp { mtime_ns: s.mtime_ns + 1, ..s },
            Stamp { ctime_ns: s.ctime_ns + 1, ..s },
        ];
        for other in others {
            assert_eq!(memo.get(&other, &d("rows")), None, "{other:?}");
        }
    }

    #[test]
    fn the_stamp_of_a_file_changes_with_it() {
        let (_dir, path) = place();
        fs::write(&path, "one").expect("write");
        let before = Stamp::of(&fs::metadata(&path).expect("stat"));
        fs::write(&path, "three").expect("write");
        let after = Stamp::of(&fs::metadata(&path).expect("stat"));
        assert_eq!((before.ino, before.size, after.size), (after.ino, 3, 5));
        assert_ne!(before, after);
        // Just written, so racy, and never kept.
        let memo = StampMemo::load(&path.with_extension("memo"));
        memo.put(after, d("w"), d("v"));
        assert_eq!(memo.get(&after, &d("w")), None);
    }

    #[test]
    fn a_stamp_is_as_fine_as_the_file_system_tells() {
        let (_dir, path) = place();
        fs::write(&path, "one").expect("write");
        for at in [Duration::new(1_000_000, 7), Duration::new(1_000_000, 8)] {
            fs::File::open(&path).and_then(|f| f.set_modified(UNIX_EPOCH + at)).expect("age");
            let metadata = fs::metadata(&path).expect("stat");
            let stamp = Stamp::of(&metadata);
            assert_eq!(stamp.mtime_ns, nanos(metadata.modified().expect("a time")));
            assert!(stamp.ctime_ns > stamp.mtime_ns, "nobody can set it: {stamp:?}");
            assert_eq!(stamp.dev, metadata.dev());
        }
        assert_eq!(nanos(UNIX_EPOCH - Duration::from_secs(2)), -2_000_000_000);
    }

    #[test]
    fn racy_stamps_are_not_kept() {
        let (_dir, path) = place();
        let scanned = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |seconds: i128| (1_000_000 + seconds) * 1_000_000_000;
        // Seconds from the scan to the change of content and of inode; whether it is kept.
        let cases = [
            (-3600, -3600, true),
            (-3, -3, true),
            (-2, -2, true),
            (-1, -3600, false),
            (-3600, -1, false),
            (0, 0, false),
            (3600, -3600, false),
            (-3600, 3600, false),
        ];
        for (mtime, ctime, kept) in cases {
            let memo = StampMemo::load(&path);
            let stamp = Stamp { dev: 1, ino: 1, size: 0, mtime_ns: at(mtime), ctime_ns: at(ctime) };
            memo.put_scanned(stamp, d("w"), d("v"), scanned);
            assert_eq!(memo.get(&stamp, &d("w")).is_some(), kept, "{mtime} {ctime}");
        }
        // without a time of the scan, that of the loading stands for it
        let memo =
            StampMemo { loaded: SystemTime::now() - Duration::from_secs(3600), ..StampMemo::load(&path) };
        let stamp = Stamp { mtime_ns: nanos(memo.loaded) + 1, ..stamp(1) };
        memo.put(stamp, d("w"), d("v"));
        assert_eq!(memo.get(&stamp, &d("w")), None);
    }

    #[test]
    fn a_changed_file_replaces_what_was_known() {
        let (_dir, path) = place();
        let (old, new) = (stamp(1), Stamp { size: 8, ..stamp(1) });
        let memo = StampMemo::load(&path);
        memo.put(old, d("w"), d("old"));
        memo.put(stamp(2), d("w"), d("other file"));
        memo.save().expect("save");
        let memo = StampMemo::load(&path);
        memo.put(new, d("w"), d("new"));
        memo.save().expect("save");
        let memo = StampMemo::load(&path);
        assert_eq!((memo.get(&old, &d("w")), memo.get(&new, &d("w"))), (None, Some(d("new"))));
        assert_eq!(read(&path).len(), 2);
    }

    #[test]
    fn two_processes_keep_each_others_finds() {
        let (_dir, path) = place();
        let (one, two, both) = (stamp(1), stamp(2), stamp(3));
        let (a, b) = (StampMemo::load(&path), StampMemo::load(&path));
        a.put(one, d("w"), d("1"));
        a.put(both, d("left"), d("3l"));
        b.put(two, d("w"), d("2"));
        b.put(both, d("right"), d("3r"));
        a.save().expect("save");
        b.save().expect("save");
        let memo = StampMemo::load(&path);
        assert_eq!(memo.get(&one, &d("w")), Some(d("1")));
        assert_eq!(memo.get(&two, &d("w")), Some(d("2")));
        assert_eq!(memo.get(&both, &d("left")), Some(d("3l")));
        assert_eq!(memo.get(&both, &d("right")), Some(d("3r")));
    }

    #[test]
    fn the_latest_to_look_at_a_file_knows_better() {
        let (_dir, path) = place();
        let (old, new) = (stamp(1), Stamp { size: 8, ..stamp(1) });
        let first = StampMemo::load(&path);
        first.put(old, d("w"), d("old"));
        first.save().expect("save");
        let (idle, busy) = (StampMemo::load(&path), StampMemo::load(&path));
        busy.put(new, d("w"), d("new"));
        busy.save().expect("save");
        // It holds the old entry and never looked at the file.
        idle.put(stamp(2), d("w"), d("2"));
        idle.save().expect("save");
        assert_eq!(StampMemo::load(&path).get(&new, &d("w")), Some(d("new")));
        // one that found the file as it knew it has looked at it
        let (finds, other) = (StampMemo::load(&path), StampMemo::load(&path));
        other.put(old, d("w"), d("old"));
        other.save().expect("save");
        assert_eq!(finds.get(&new, &d("w")), Some(d("new")));
        finds.put(stamp(3), d("w"), d("3"));
        finds.save().expect("save");
        assert_eq!(StampMemo::load(&path).get(&new, &d("w")), Some(d("new")));
    }

    #[test]
    fn every_damage_is_an_empty_memo() {
        let (_dir, path) = place();
        let memo = StampMemo::load(&path);
        memo.put(stamp(1), d("w"), d("v"));
        memo.save().expect("save");
        let good = fs::read(&path).expect("read");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            for bytes in [&bad[..], &good[..at]] {
                fs::write(&path, bytes).expect("damage");
                assert!(locked(&StampMemo::load(&path).state).known.is_empty(), "at {at}");
            }
        }
    }

    #[test]
    fn a_run_that_learns_nothing_writes_nothing() {
        let (_dir, path) = place();
        let memo = StampMemo::load(&path);
        memo.save().expect("save");
        assert!(!path.exists());
        let s = stamp(1);
        memo.put(s, d("w"), d("v"));
        memo.save().expect("save");
        let before = Stamp::of(&fs::metadata(&path).expect("stat"));
        let memo = StampMemo::load(&path);
        memo.put(s, d("w"), d("v"));
        assert!(memo.get(&s, &d("w")).is_some());
        memo.save().expect("save");
        assert_eq!(Stamp::of(&fs::metadata(&path).expect("stat")), before);
        // what it learned it writes once, whatever it is told again
        memo.put(stamp(2), d("w"), d("v"));
        memo.put(s, d("w"), d("v"));
        memo.save().expect("save");
        let after = Stamp::of(&fs::metadata(&path).expect("stat"));
        assert_ne!(after, before);
        memo.save().expect("save");
        assert_eq!(Stamp::of(&fs::metadata(&path).expect("stat")), after);
    }

    #[test]
    fn files_nobody_asks_about_are_forgotten() {
        let (_dir, path) = place();
        let memo = StampMemo::load(&path);
        memo.put(stamp(1), d("w"), d("v"));
        memo.put(stamp(2), d("w"), d("v"));
        let today = day(SystemTime::now());
        locked(&memo.state).known.get_mut(&(1, 1)).expect("known").day = today - KEEP_DAYS - 1;
        locked(&memo.state).known.get_mut(&(1, 2)).expect("known").day = today - KEEP_DAYS;
        memo.save().expect("save");
        assert_eq!(read(&path).into_keys().collect::<Vec<_>>(), [(1, 2)]);
    }

    #[test]
    fn whoever_asks_about_a_file_has_it_remembered_longer() {
        let (dir, path) = place();
        let s = stamp(1);
        let asks: [fn(&StampMemo, Stamp); 2] =
            [|memo, s| assert!(memo.get(&s, &d("w")).is_some()), |memo, s| memo.put(s, d("more"), d("v"))];
        for ask in asks {
            let memo = StampMemo::load(&dir.path().join("none"));
            memo.put(s, d("w"), d("v"));
            let today = day(memo.loaded);
            locked(&memo.state).known.get_mut(&(1, 1)).expect("known").day = today - 100;
            fs::write(&path, codec::encode(KIND, &locked(&memo.state).known)).expect("write");
            let (asking, idle) = (StampMemo::load(&path), StampMemo::load(&path));
            ask(&asking, s);
            asking.save().expect("save");
            assert_eq!(read(&path)[&(1, 1)].day, today);
            // who has not asked takes the other's word for it
            idle.put(stamp(2), d("w"), d("v"));
            idle.save().expect("save");
            assert_eq!(read(&path)[&(1, 1)].day, today);
        }
    }

    #[test]
    fn a_folder_for_the_memo_is_made() {
        let (dir, _) = place();
        let path = dir.path().join("state").join("stamps");
        let memo = StampMemo::load(&path);
        memo.put(stamp(1), d("w"), d("v"));
        memo.save().expect("save");
        assert_eq!(read(&path).len(), 1);
    }

    #[test]
    fn a_memo_that_cannot_be_written_is_an_error_and_the_old_one_whole() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("file"), "in the way").expect("write");
        let memo = StampMemo::load(&dir.path().join("file").join("stamps"));
        memo.put(stamp(1), d("w"), d("v"));
        assert!(memo.save().is_err());
        assert_eq!(fs::read(dir.path().join("file")).expect("read"), b"in the way");
    }

    #[test]
    fn a_dead_writers_temporary_is_swept_and_nothing_else() {
        let (dir, path) = place();
        let (dead, others) = (dir.path().join("stamps.x.tmp"), dir.path().join("report.tmp"));
        fs::write(&dead, "half").expect("write");
        fs::write(&others, "not ours").expect("write");
        let memo = StampMemo::load(&path);
        memo.put(stamp(1), d("w"), d("v"));
        memo.save().expect("save");
        assert!(!dead.exists() && others.exists() && path.exists());
    }
}
