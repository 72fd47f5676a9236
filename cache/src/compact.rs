//! Merging the log segments of processes that ended into one.
//!
//! Only segments whose lock is free are touched; a living writer's is left alone. The merged segment is
//! whole and in place before the old ones go, so a process killed at any moment leaves the same records,
//! perhaps twice.

use crate::error::{CacheError, OrFail};
use crate::index::Index;
use crate::log::{read_into, sync_folder};
use crate::segment;
use crate::temp;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// From so many free segments on, opening them costs more than merging them once.
const MANY: usize = 16;

/// Whether to merge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// If there are many free segments, or if the log is wasteful, as its reader found, and they are too.
    Due { wasteful: bool },
    /// In any case.
    Now,
}

/// Merges the free segments in `dir`, by way of a temporary in `temps`.
pub(crate) fn compact(dir: &Path, temps: &Path, when: When) -> Result<(), CacheError> {
    let segments = segment::list(dir)?;
    // The locks are held until the old segments are gone, so that no two processes merge the same.
    let claimed: Vec<_> =
        segments.iter().filter_map(|path| temp::claim(path).map(|lock| (path, lock))).collect();
    let partial = claimed.len() < segments.len();
    let due = match when {
        When::Now => !claimed.is_empty(),
        When::Due { wasteful } => claimed.len() >= MANY || (wasteful && !claimed.is_empty()),
    };
    if !due {
        return Ok(());
    }
    // Read under the locks: a writer may have added to its segment up to the moment it ended.
    let index = read(&claimed)?;
    if when != When::Now && claimed.len() < MANY && !index.is_wasteful() {
        return Ok(());
    }
    write(index, partial, dir, temps)?;
    for (path, _lock) in &claimed {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).or_fail("remove", path),
        }
    }
    Ok(())
}

type Claimed<'a> = (&'a std::path::PathBuf, fs::File);

fn read(claimed: &[Claimed<'_>]) -> Result<Index, CacheError> {
    let mut index = Index::default();
    for (path, _lock) in claimed {
        if let Some(bytes) = segment::content(path)? {
            read_into(&mut index, path, bytes);
        }
    }
    Ok(index)
}

fn write(index: Index, partial: bool, dir: &Path, temps: &Path) -> Result<(), CacheError> {
    let bodies: Vec<_> = index.into_events(partial).iter().map(|(tick, event)| event.body(*tick)).collect();
    if bodies.is_empty() {
        return Ok(());
    }
    let temp = temp::temporary(temps)?;
    // The temporary's name is like no other's, and so is the segment's.
    let place = dir.join(temp.path().with_extension("seg").file_name().unwrap_or_default());
    let bytes = segment::frames(&place, 0, bodies.iter().map(Vec::as_slice));
    temp.as_file().write_all(&bytes).or_fail("write", temp.path())?;
    // The only copy from here on: it must be on the disk before the others leave it.
    temp.as_file().sync_data().or_fail("sync", temp.path())?;
    temp.persist_noclobber(&place).map_err(|failed| failed.error).or_fail("rename a segment to", &place)?;
    sync_folder(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Lazy};
    use crate::segment::Writer;
    use crate::{ActionKey, ActionRecord, Digest};

    struct Place {
        root: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("tempdir");
            for name in ["log", "tmp"] {
                fs::create_dir(root.path().join(name)).expect("create");
            }
            Self { root }
        }

        fn compact(&self, when: When) {
            compact(&self.root.path().join("log"), &self.root.path().join("tmp"), when).expect("compact");
        }

        /// A segment with the records `keys`, its writer alive.
        fn segment(&self, keys: std::ops::Range<u64>) -> Writer {
            let mut writer = Writer::create(&self.root.path().join("log")).expect("create");
            let bodies: Vec<_> = keys.map(|n| event(n).body(n)).collect();
            writer.append(bodies.iter().map(Vec::as_slice)).expect("append");
            writer
        }

        fn files(&self) -> usize {
            segment::list(&self.root.path().join("log")).expect("list").len()
        }

        fn records(&self) -> usize {
            let mut index = Index::default();
            for path in segment::list(&self.root.path().join("log")).expect("list") {
                read_into(&mut index, &path, fs::read(&path).expect("read"));
            }
            index.records().count()
        }
    }

    fn event(n: u64) -> Event {
        Event::Record { key: key(n), record: Lazy::new(&ActionRecord::default()) }
    }

    fn key(n: u64) -> ActionKey {
        ActionKey(Digest::from_bytes(std::array::from_fn(|i| n.to_le_bytes()[i % 8])))
    }

    #[test]
    fn a_living_writer_keeps_its_segment_and_goes_on() {
        let place = Place::new();
        let mut living = place.segment(0..1);
        drop((place.segment(1..3), place.segment(3..5)));
        place.compact(When::Now);
        assert_eq!((place.files(), place.records()), (2, 5));
        living.append([&event(9).body(9)[..]]).expect("append");
        drop(living);
        place.compact(When::Now);
        assert_eq!((place.files(), place.records()), (1, 6));
    }

    #[test]
    fn merging_waits_until_it_is_due() {
        let place = Place::new();
        for n in 1..MANY as u64 {
            drop(place.segment(n..n + 1));
            place.compact(When::Due { wasteful: false });
        }
        assert_eq!(place.files(), MANY - 1);
        drop(place.segment(99..100));
        place.compact(When::Due { wasteful: false });
        assert_eq!((place.files(), place.records()), (1, MANY));
    }

    #[test]
    fn one_segment_full_of_old_news_is_due() {
        let place = Place::new();
        for _ in 0..3 {
            drop(place.segment(0..8000));
        }
        place.compact(When::Due { wasteful: true });
        assert_eq!((place.files(), place.records()), (1, 8000));
        place.compact(When::Due { wasteful: true });
        assert_eq!((place.files(), place.records()), (1, 8000));
    }

    #[test]
    fn an_empty_log_leaves_no_file() {
        let place = Place::new();
        drop(place.segment(0..0));
        place.compact(When::Now);
        assert_eq!(place.files(), 0);
    }

    #[test]
    fn a_failed_merge_leaves_the_old_segments() {
        let place = Place::new();
        drop((place.segment(0..2), place.segment(2..4)));
        fs::remove_dir(place.root.path().join("tmp")).expect("remove");
        let merged = compact(&place.root.path().join("log"), &place.root.path().join("tmp"), When::Now);
        assert!(merged.is_err());
        assert_eq!((place.files(), place.records()), (2, 4));
    }
}
