//! Blobs by digest: one file each, written under a temporary name and renamed into place.
//!
//! Knows nothing of actions. What is in place is whole as far as its size goes; whether its bytes are
//! right is found out on the first read.

use crate::Digest;
use crate::blob::Blob;
use crate::error::{CacheError, OrFail, locked};
use crate::pieces::{BlobPieces, write_pieces};
use crate::stamps::Stamp;
use crate::stats::Tally;
use crate::temp;
use memmap2::Mmap;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

/// Up to here a blob is read rather than mapped, and checked on every read.
const SMALL: u64 = 16 << 10;
/// From here on hashing on many threads is worth its start.
const LARGE: usize = 8 << 20;
/// A blob that is stored again shows it is wanted; its time is renewed if older than this.
const FRESH: Duration = Duration::from_secs(600);

/// How a large blob may be hashed on its first read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashing {
    /// On the calling thread alone.
    #[default]
    Plain,
    /// On rayon's threads if above 8 MiB. Not for callers that hold what other rayon jobs wait for.
    Rayon,
}

/// The blobs under one folder.
pub(crate) struct Blobs {
    dir: PathBuf,
    temps: PathBuf,
    /// Which files have had their bytes checked in this process, as they were then.
    checked: Mutex<HashMap<Digest, Stamp>>,
    /// Corrupt blobs that could not be removed: to be replaced, whatever their size.
    distrusted: Mutex<HashSet<Digest>>,
    pub(crate) tally: Tally,
}

impl Blobs {
    pub(crate) fn open(dir: PathBuf, temps: PathBuf) -> Result<Self, CacheError> {
        fs::create_dir_all(&dir).or_fail("create", &dir)?;
        Ok(Self {
            dir,
            temps,
            checked: Mutex::default(),
            distrusted: Mutex::default(),
            tally: Tally::default(),
        })
    }

    /// Where the blob is or would be.
    pub(crate) fn path(&self, d: Digest) -> PathBuf {
        let hex = d.to_hex();
        self.dir.join(&hex[..2]).join(&hex[2..])
    }

    pub(crate) fn contains(&self, d: Digest, size: u64) -> bool {
        fs::metadata(self.path(d)).is_ok_and(|m| m.is_file() && m.len() == size)
    }

    pub(crate) fn put(&self, bytes: &[u8]) -> Result<Digest, CacheError> {
        let digest = blake3::hash(bytes);
        let size = bytes.len() as u64;
        if self.keep_existing(digest, size) {
            return Ok(digest);
        }
        let temp = temp::temporary(&self.temps)?;
        temp.as_file().write_all(bytes).or_fail("write", temp.path())?;
        self.place(temp, digest, size)?;
        Ok(digest)
    }

    pub(crate) fn put_pieces(
        &self,
        size: u64,
        produce: impl FnOnce(&BlobPieces<'_>) -> io::Result<()>,
    ) -> Result<Digest, CacheError> {
        let temp = temp::temporary(&self.temps)?;
        let digest = write_pieces(temp.as_file(), temp.path(), size, produce)?;
        if !self.keep_existing(digest, size) {
            self.place(temp, digest, size)?;
        }
        Ok(digest)
    }

    /// Whether the blob is there already, with the right size. Tells gc that it is wanted.
    fn keep_existing(&self, d: Digest, size: u64) -> bool {
        let path = self.path(d);
        let Ok(metadata) = fs::metadata(&path) else { return false };
        if !metadata.is_file() || metadata.len() != size || locked(&self.distrusted).contains(&d) {
            return false;
        }
        let now = SystemTime::now();
        let fresh = metadata.modified().is_ok_and(|m| now.duration_since(m).is_ok_and(|age| age < FRESH));
        if !fresh {
            // Only the owner may; for others the blob stays old, and at worst a gc makes it a miss.
            let _ = File::open(&path).and_then(|file| file.set_modified(now));
        }
        self.tally.reused(size);
        true
    }

    /// Moves a complete temporary to its place.
    fn place(&self, temp: NamedTempFile, digest: Digest, size: u64) -> Result<(), CacheError> {
        let found = temp.as_file().metadata().or_fail("examine", temp.path())?.len();
        if found != size {
            return Err(CacheError::Short { path: temp.path().to_owned(), digest, expected: size, found });
        }
        let path = self.path(digest);
        temp.persist(&path).or_else(|failed| {
            make_way(&path, failed.error)?;
            failed.file.persist(&path).or_else(|again| Err(again.error).or_fail("rename a blob to", &path))
        })?;
        locked(&self.distrusted).remove(&digest);
        self.tally.stored(size);
        Ok(())
    }

    pub(crate) fn get(&self, d: Digest, hashing: Hashing) -> Result<Option<Blob>, CacheError> {
        let path = self.path(d);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if is_nothing(&e) => return Ok(None),
            Err(e) => return Err(e).or_fail("open", &path),
        };
        let metadata = file.metadata().or_fail("examine", &path)?;
        if !metadata.is_file() {
            self.discard(d, &path);
            return Ok(None);
        }
        if metadata.len() <= SMALL {
            let mut bytes = Vec::with_capacity(metadata.len() as usize);
            file.read_to_end(&mut bytes).or_fail("read", &path)?;
            if blake3::hash(&bytes) != d {
                self.discard(d, &path);
                return Ok(None);
            }
            return Ok(Some(Blob::held(d, bytes)));
        }
        // SAFETY: a blob is only ever replaced or unlinked as a whole, never written in place, by this
        // crate; the mapping is read-only and keeps the file's pages alive.
        let map = unsafe { Mmap::map(&file) }.or_fail("map", &path)?;
        let stamp = Stamp::of(&metadata);
        if locked(&self.checked).get(&d) != Some(&stamp) {
            // No lock is held here: rayon may run anything at all while it waits.
            let mut hasher = blake3::Hasher::new();
            match hashing {
                Hashing::Rayon if map.len() > LARGE => hasher.update_rayon(&map),
                Hashing::Plain | Hashing::Rayon => hasher.update(&map),
            };
            if hasher.finalize() != d {
                self.discard(d, &path);
                return Ok(None);
            }
            locked(&self.checked).insert(d, stamp);
        }
        Ok(Some(Blob::mapped(d, map)))
    }

    /// A corrupt blob: out of the way, so that the next writer puts a right one in its place.
    fn discard(&self, d: Digest, path: &Path) {
        self.tally.corrupt();
        locked(&self.checked).remove(&d);
        if fs::remove_file(path).or_else(|_| fs::remove_dir(path)).is_err() {
            locked(&self.distrusted).insert(d);
        }
    }

    /// Removes the empty folder that stands in a blob's place; gives whether the place is free now.
    pub(crate) fn clear(&self, taken: &Taken) -> bool {
        self.tally.corrupt();
        fs::remove_dir(&taken.path).is_ok()
    }

    /// Removes a blob if it is there; gives whether it was.
    pub(crate) fn remove(&self, d: Digest) -> Result<bool, CacheError> {
        let path = self.path(d);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if is_nothing(&e) => Ok(false),
            Err(e) => Err(e).or_fail("remove", &path),
        }
    }

    /// Removes a blob unless it was stored, perhaps again, after `time`; gives whether it did.
    pub(crate) fn remove_older(&self, d: Digest, time: SystemTime) -> Result<bool, CacheError> {
        let modified = fs::metadata(self.path(d)).and_then(|m| m.modified());
        if modified.is_ok_and(|modified| modified > time) {
            return Ok(false);
        }
        self.remove(d)
    }

    /// All blobs, in the order of their digests.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, CacheError> {
        Ok(self.survey()?.0)
    }

    /// All blobs, and all folders that stand in the place of one, each in the order of their digests.
    pub(crate) fn survey(&self) -> Result<(Vec<Listed>, Vec<Taken>), CacheError> {
        let (mut found, mut taken) = (Vec::new(), Vec::new());
        for shard in fs::read_dir(&self.dir).or_fail("list", &self.dir)? {
            let shard = shard.or_fail("list", &self.dir)?.path();
            let Some(head) = shard.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
            if !shard.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&shard).or_fail("list", &shard)? {
                let entry = entry.or_fail("list", &shard)?;
                let tail = entry.file_name();
                let Ok(digest) = Digest::from_hex(format!("{head}{}", tail.to_string_lossy())) else {
                    continue;
                };
                // Gone since it was listed: another process's gc.
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() {
                    taken.push(Taken { digest, path: entry.path() });
                    continue;
                }
                let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Listed { digest, size: metadata.len(), modified });
            }
        }
        found.sort_by_key(|b| *b.digest.as_bytes());
        taken.sort_by_key(|t| *t.digest.as_bytes());
        Ok((found, taken))
    }
}

/// Whether an error says that there is no file: none of that name, or none can be, since a file stands where its folder
/// would.
fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Takes away what kept a blob from being renamed to `path`: the folder that is not there yet is made, an empty one in
/// the blob's own place is removed.
fn make_way(path: &Path, refused: io::Error) -> Result<(), CacheError> {
    let in_the_way = |path: &Path, what| Err(CacheError::InTheWay { path: path.to_owned(), what });
    let shard = path.parent().unwrap_or(path);
    match refused.kind() {
        io::ErrorKind::NotFound => fs::create_dir_all(shard).or_fail("create", shard),
        io::ErrorKind::NotADirectory => in_the_way(shard, "a file where a folder of blobs belongs"),
        io::ErrorKind::IsADirectory => match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                in_the_way(path, "a folder where a blob belongs, and not empty")
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).or_fail("remove", path),
            _ => Ok(()),
        },
        _ => Err(refused).or_fail("rename a blob to", path),
    }
}

/// A folder in the place of a blob.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) digest: Digest,
    pub(crate) path: PathBuf,
}

/// A blob as the folder shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().expect("tempdir");
        let temps = dir.path().join("tmp");
        fs::create_dir(&temps).expect("create");
        let blobs = Blobs::open(dir.path().join("blobs"), temps).expect("open");
        (dir, blobs)
    }

    fn get(blobs: &Blobs, d: Digest) -> Option<Vec<u8>> {
        blobs.get(d, Hashing::Plain).expect("get").map(|b| b.to_vec())
    }

    fn temporaries(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path().join("tmp")).expect("list").count()
    }

    /// Both sides of each threshold in this module.
    fn sizes() -> [usize; 6] {
        [0, 1, SMALL as usize, SMALL as usize + 1, LARGE, LARGE + 1]
    }

    #[test]
    fn round_trips_at_every_threshold() {
        let (dir, blobs) = store();
        for size in sizes() {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let d = blobs.put(&bytes).expect("put");
            assert!(blobs.contains(d, size as u64));
            assert!(!blobs.contains(d, size as u64 + 1));
            for hashing in [Hashing::Rayon, Hashing::Plain] {
                let blob = blobs.get(d, hashing).expect("get").expect("there");
                assert_eq!((blob.digest(), &blob[..]), (d, &bytes[..]));
                locked(&blobs.checked).clear();
            }
            let pieces = blobs.put_pieces(size as u64, |blob| {
                (0..).zip(bytes.chunks(1000)).try_for_each(|(n, piece)| blob.write(n * 1000, piece))
            });
            assert_eq!(pieces.expect("put_pieces"), d);
        }
        let listed = blobs.list().expect("list");
        assert!(listed.is_sorted_by_key(|blob| *blob.digest.as_bytes()), "{listed:?}");
        let mut found: Vec<u64> = listed.iter().map(|blob| blob.size).collect();
        found.sort_unstable();
        assert_eq!(found, sizes().map(|size| size as u64));
        assert_eq!(temporaries(&dir), 0);
        // once by its bytes, and once more in pieces
        let (session, bytes) = (blobs.tally.session(), found.iter().sum::<u64>());
        assert_eq!((session.stored, session.stored_bytes), (6, bytes));
        assert_eq!((session.reused, session.reused_bytes), (6, bytes));
    }

    #[test]
    fn what_is_no_blob_is_not_listed() {
        let (_dir, blobs) = store();
        let d = blobs.put(b"a blob").expect("put");
        fs::write(blobs.dir.join("note"), "not ours").expect("write");
        fs::write(blobs.path(d).with_extension("other"), "not ours").expect("write");
        let listed = blobs.list().expect("list");
        assert_eq!(listed.iter().map(|blob| blob.digest).collect::<Vec<_>>(), [d]);
    }

    #[test]
    fn a_folder_is_no_blob_whatever_its_size() {
        let (dir, blobs) = store();
        let size = fs::metadata(dir.path().join("tmp")).expect("examine").len();
        let bytes = vec![5; size as usize];
        let d = blake3::hash(&bytes);
        fs::create_dir_all(blobs.path(d)).expect("a folder in its place");
        assert!(!blobs.contains(d, size));
        assert!(blobs.list().expect("list").is_empty());
        blobs.put(&bytes).expect("an empty folder makes way");
        assert_eq!(get(&blobs, d), Some(bytes));
    }

    #[test]
    fn an_empty_folder_in_a_blob_s_place_is_found_on_the_first_read() {
        let (_dir, blobs) = store();
        let d = blake3::hash(b"forty two");
        fs::create_dir_all(blobs.path(d)).expect("a folder in its place");
        assert_eq!(get(&blobs, d), None);
        assert!(!blobs.path(d).exists(), "moved out of the way");
        assert_eq!(blobs.tally.session().corrupt, 1);
    }

    #[test]
    fn what_somebody_keeps_in_a_blob_s_place_is_named_and_left() {
        let (_dir, blobs) = store();
        let d = blake3::hash(b"forty two");
        let note = blobs.path(d).join("note");
        fs::create_dir_all(blobs.path(d)).expect("a folder in its place");
        fs::write(&note, "not ours").expect("write");
        assert_eq!(get(&blobs, d), None);
        let refused = blobs.put(b"forty two").expect_err("there is no place for it").to_string();
        assert!(
            refused.contains(&format!("{:?}", blobs.path(d))) && refused.ends_with("move it away"),
            "{refused}"
        );
        assert!(note.exists());
        // and a file where the folder of blobs belongs
        let shard = blobs.path(d).parent().expect("a folder of blobs").to_owned();
        fs::remove_dir_all(&shard).expect("remove");
        fs::write(&shard, "not ours").expect("write");
        assert_eq!(get(&blobs, d), None);
        assert!(!blobs.remove(d).expect("nothing to remove"));
        let refused = blobs.put(b"forty two").expect_err("there is no place for it").to_string();
        assert!(refused.starts_with(&format!("{shard:?} is a file")), "{refused}");
    }

    #[test]
    fn what_is_shorter_than_it_was_said_to_be_takes_no_place() {
        let (_dir, blobs) = store();
        let temp = temp::temporary(&blobs.temps).expect("a temporary");
        temp.as_file().write_all(b"who").expect("write");
        let refused = blobs.place(temp, blake3::hash(b"whole"), 5);
        assert!(matches!(refused, Err(CacheError::Short { expected: 5, found: 3, .. })), "{refused:?}");
        assert!(blobs.list().expect("list").is_empty());
    }

    #[test]
    fn a_missing_blob_is_a_miss() {
        let (_dir, blobs) = store();
        assert_eq!(get(&blobs, blake3::hash(b"nothing")), None);
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_a_miss_and_heals() {
        let (_dir, blobs) = store();
        let good = b"forty two";
        let d = blobs.put(good).expect("put");
        let path = blobs.path(d);
        let mut damaged: Vec<Vec<u8>> = (0..good.len()).map(|n| good[..n].to_vec()).collect();
        damaged.push(b"forty two and more".to_vec());
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x10;
            damaged.push(bad);
        }
        let count = damaged.len() as u64;
        for bad in damaged {
            fs::write(&path, &bad).expect("damage");
            assert_eq!(get(&blobs, d), None, "{bad:?}");
            assert!(!path.exists(), "moved out of the way");
            blobs.put(good).expect("put");
            assert_eq!(get(&blobs, d).as_deref(), Some(&good[..]));
        }
        assert_eq!(blobs.tally.session().corrupt, count);
    }

    #[test]
    fn a_large_corrupt_blob_is_found_on_the_first_read() {
        for hashing in [Hashing::Plain, Hashing::Rayon] {
            let (_dir, blobs) = store();
            let d = blobs.put(&vec![7; LARGE + 9]).expect("put");
            let mut bad = vec![7; LARGE + 9];
            bad[LARGE] = 8;
            fs::write(blobs.path(d), &bad).expect("damage");
            assert!(blobs.get(d, hashing).expect("get").is_none());
            assert!(!blobs.path(d).exists(), "moved out of the way");
            assert_eq!(blobs.tally.session().corrupt, 1);
        }
    }

    #[test]
    fn a_blob_replaced_after_its_first_read_is_checked_again() {
        let (_dir, blobs) = store();
        let d = blobs.put(&vec![7; 1 << 16]).expect("put");
        assert!(get(&blobs, d).is_some());
        let other = blobs.path(d).with_extension("other");
        fs::write(&other, vec![8; 1 << 16]).expect("write");
        fs::rename(&other, blobs.path(d)).expect("rename");
        assert_eq!(get(&blobs, d), None);
    }

    #[test]
    fn a_blob_of_the_wrong_size_is_replaced() {
        let (_dir, blobs) = store();
        let d = blobs.put(b"whole").expect("put");
        fs::write(blobs.path(d), "who").expect("damage");
        assert!(!blobs.contains(d, 5));
        blobs.put(b"whole").expect("put");
        assert_eq!(get(&blobs, d).as_deref(), Some(&b"whole"[..]));
        fs::write(blobs.path(d), "who").expect("damage");
        blobs.put_pieces(5, |blob| blob.write(0, b"whole")).expect("put_pieces");
        assert!(blobs.contains(d, 5));
    }

    #[test]
    fn a_blob_in_hand_survives_its_removal() {
        let (_dir, blobs) = store();
        let d = blobs.put(&vec![3; 1 << 16]).expect("put");
        let blob = blobs.get(d, Hashing::Plain).expect("get").expect("there");
        assert!(blobs.remove(d).expect("remove"));
        assert!(!blobs.remove(d).expect("remove"));
        assert_eq!(&blob.clone()[..], &vec![3; 1 << 16][..]);
    }

    #[test]
    fn storing_again_renews_an_old_blob() {
        let (_dir, blobs) = store();
        let d = blobs.put(b"wanted").expect("put");
        let old = SystemTime::now() - Duration::from_secs(90_000);
        File::open(blobs.path(d)).and_then(|f| f.set_modified(old)).expect("age");
        blobs.put(b"wanted").expect("put");
        let modified = blobs.list().expect("list")[0].modified;
        assert!(modified > old + Duration::from_secs(80_000));
        // one that was stored a moment ago is left as it is
        let recent = SystemTime::now() - Duration::from_secs(60);
        File::open(blobs.path(d)).and_then(|f| f.set_modified(recent)).expect("age");
        let before = blobs.list().expect("list")[0].modified;
        blobs.put(b"wanted").expect("put");
        assert_eq!(blobs.list().expect("list")[0].modified, before);
    }

    #[test]
    fn a_producer_that_fails_leaves_nothing() {
        let (dir, blobs) = store();
        let failed = blobs.put_pieces(8, |blob| {
            blob.write(0, b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(matches!(failed, Err(CacheError::Producer { .. })));
        assert_eq!(temporaries(&dir), 0);
        assert!(blobs.list().expect("list").is_empty());
    }

    #[test]
    fn a_corrupt_blob_that_could_not_be_removed_is_not_kept() {
        let (_dir, blobs) = store();
        let d = blobs.put(b"right").expect("put");
        fs::write(blobs.path(d), "wrong").expect("damage");
        blobs.discard(d, &blobs.dir.join("not there"));
        blobs.put(b"right").expect("put");
        assert_eq!(get(&blobs, d).as_deref(), Some(&b"right"[..]));
        assert!(locked(&blobs.distrusted).is_empty());
    }

    #[test]
    fn a_refused_temporary_is_an_error_with_its_path() {
        let (dir, blobs) = store();
        // Works for root too, whom permissions don't stop.
        fs::remove_dir(dir.path().join("tmp")).expect("remove");
        let error = blobs.put(b"x").expect_err("no place for a temporary");
        assert!(error.to_string().contains("tmp"), "{error}");
        assert!(!error.is_full());
        assert!(blobs.list().expect("list").is_empty());
    }
}
