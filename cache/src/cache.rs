//! The cache of one workspace: blobs, and the records that name them, under one folder.
//!
//! ```text
//! root/blobs-1/ab/…   one file a blob, named by its digest
//! root/log-1/….seg    the action log
//! root/tmp/….tmp      what is being written
//! ```
//!
//! The number is the format's version; another version uses another folder and leaves this one alone.

use crate::blob::Blob;
use crate::blobs::{Blobs, Hashing};
use crate::error::{CacheError, OrFail};
use crate::gc::{self, GcOptions, GcReport};
use crate::log::Log;
use crate::pieces::BlobPieces;
use crate::stats::{Session, Stats};
use crate::verify::{self, VerifyReport};
use crate::{ActionKey, ActionRecord, Digest, Recipe, temp};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A cache on disk. Any number of threads and processes may use one at the same time.
pub struct Cache {
    pub(crate) blobs: Blobs,
    pub(crate) log: Log,
}

impl Cache {
    /// Opens the cache in `root`, creating it if need be, for the workspace called "".
    ///
    /// # Errors
    /// If its folders can neither be found nor created, or its log can't be read.
    pub fn open(root: &Path) -> Result<Cache, CacheError> {
        Self::open_for(root, "")
    }

    /// Opens the cache in `root` for a workspace. Results are shared by all workspaces; what was
    /// forgotten and what a target was last built from are the workspace's own. Its name is not stored,
    /// only a digest of it.
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn open_for(root: &Path, workspace: &str) -> Result<Cache, CacheError> {
        let temps = root.join("tmp");
        fs::create_dir_all(&temps).or_fail("create", &temps)?;
        // A cache that can't be swept can still be used.
        let _ = temp::sweep(&temps, "");
        let blobs = Blobs::open(root.join("blobs-1"), temps.clone())?;
        let workspace =
            Digest::from(blake3::derive_key("mica-cache 2026 workspace v1", workspace.as_bytes()));
        let log = Log::open(root.join("log-1"), temps, workspace)?;
        Ok(Cache { blobs, log })
    }

    /// Stores `bytes`; gives their name. A blob of that name and size that is there already is kept.
    ///
    /// # Errors
    /// If the disk refuses; then nothing of it is left.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, CacheError> {
        self.blobs.put(bytes)
    }

    /// Stores a blob of `size` bytes whose pieces `f` writes, from any threads and in any order; gives its name.
    ///
    /// # Errors
    /// [`CacheError::Producer`] if `f` fails by itself or leaves bytes out, else as [`Cache::put`]. Nothing of it is left.
    pub fn put_pieces(
        &self,
        size: u64,
        f: impl FnOnce(&BlobPieces<'_>) -> io::Result<()>,
    ) -> Result<Digest, CacheError> {
        self.blobs.put_pieces(size, f)
    }

    /// The blob called `d`, checked against its name on the first read in this process, on this thread
    /// alone. A corrupt blob is removed and is `None`, as a missing one is.
    ///
    /// # Errors
    /// If the disk refuses to give what is there.
    pub fn get(&self, d: Digest) -> Result<Option<Blob>, CacheError> {
        self.get_with(d, Hashing::Plain)
    }

    /// As [`Cache::get`], with a choice of how a large blob is checked.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn get_with(&self, d: Digest, hashing: Hashing) -> Result<Option<Blob>, CacheError> {
        self.blobs.get(d, hashing)
    }

    /// The file of the blob called `d`, where there is one, for messages; what it holds is not looked at.
    #[must_use]
    pub fn file(&self, d: Digest) -> Option<PathBuf> {
        Some(self.blobs.path(d)).filter(|path| path.is_file())
    }

    /// Whether the blob called `d` is there and has this size: one stat, no read.
    #[must_use]
    pub fn contains(&self, d: Digest, size: u64) -> bool {
        self.blobs.contains(d, size)
    }

    /// The record of an action, unless this workspace has forgotten it. Its blobs may be gone: ask
    /// [`Cache::contains`] before trusting it.
    #[must_use]
    pub fn lookup(&self, key: &ActionKey) -> Option<ActionRecord> {
        let found = self.log.lookup(key, SystemTime::now());
        self.blobs.tally.looked_up(found.is_some());
        found
    }

    /// Records an action; its blobs must be stored already. It is written at once, so that it outlives
    /// this process, and synced by [`Cache::flush`].
    ///
    /// # Errors
    /// If the log can't be written; then the action is not recorded.
    pub fn record(&self, key: &ActionKey, record: &ActionRecord) -> Result<(), CacheError> {
        self.log.record(key, record)
    }

    /// Makes this workspace forget the result of an action until it is recorded again. Others keep it.
    ///
    /// # Errors
    /// If the log can't be written.
    pub fn forget(&self, key: &ActionKey) -> Result<(), CacheError> {
        self.log.forget(key)
    }

    /// Remembers what a target of this workspace was built from.
    ///
    /// # Errors
    /// If the log can't be written.
    pub fn remember(&self, target: &str, recipe: &Recipe) -> Result<(), CacheError> {
        self.log.remember(target, recipe, SystemTime::now())
    }

    /// What a target of this workspace was last built from.
    #[must_use]
    pub fn last(&self, target: &str) -> Option<Recipe> {
        self.log.last(target)
    }

    /// Writes what is pending and syncs the log. Does nothing if nothing was recorded.
    ///
    /// # Errors
    /// If the disk refuses; a later call tries again.
    pub fn flush(&self) -> Result<(), CacheError> {
        self.log.flush()
    }

    /// Takes note of what other processes have recorded since this one opened the cache.
    ///
    /// # Errors
    /// If the log can't be read.
    pub fn reload(&self) -> Result<(), CacheError> {
        self.log.reload()
    }

    /// What this process did so far.
    #[must_use]
    pub fn session(&self) -> Session {
        self.blobs.tally.session()
    }

    /// What lies in the cache. Looks at every blob's folder entry.
    ///
    /// # Errors
    /// If a folder can't be listed.
    pub fn stats(&self) -> Result<Stats, CacheError> {
        self.log.reload()?;
        let blobs = self.blobs.list()?;
        let (segments, log_bytes) = self.log.size()?;
        let (records, targets) = self.log.index().counts();
        Ok(Stats {
            blobs: blobs.len() as u64,
            blob_bytes: blobs.iter().map(|b| b.size).sum(),
            records,
            targets,
            segments,
            log_bytes,
            session: self.session(),
        })
    }

    /// Reads and checks every blob; removes corrupt ones, and the records that name a missing one.
    /// `progress` is told the bytes done and the bytes in all.
    ///
    /// # Errors
    /// If a folder can't be listed or the log can't be written.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, CacheError> {
        verify::verify(self, progress)
    }

    /// Removes what nobody has needed for long, as the options say.
    ///
    /// # Errors
    /// If a folder can't be listed, a blob can't be removed or the log can't be written. What was
    /// removed until then stays removed, and is a miss.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, CacheError> {
        gc::gc(self, options)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // Notes of use only, and nobody left to tell: without them gc thinks a record older than it is.
        let _ = self.log.write_uses();
    }
}
