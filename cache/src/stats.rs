//! Counts: of what this process did with the cache, and of what lies in it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What lies in the cache, and what this process did with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blobs on disk.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Action records that hold.
    pub records: u64,
    /// Targets, of all workspaces, whose last recipe is known.
    pub targets: u64,
    /// Files of the action log.
    pub segments: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// What this process did.
    pub session: Session,
}

/// What this process did with the cache since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Look-ups of action records.
    pub lookups: u64,
    /// Those that found one.
    pub hits: u64,
    /// Blobs written.
    pub stored: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Blobs that were there already.
    pub reused: u64,
    /// Their bytes.
    pub reused_bytes: u64,
    /// Blobs found corrupt and removed.
    pub corrupt: u64,
}

/// The counters behind [`Session`], shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    lookups: AtomicU64,
    hits: AtomicU64,
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    reused: AtomicU64,
    reused_bytes: AtomicU64,
    corrupt: AtomicU64,
}

impl Tally {
    pub(crate) fn looked_up(&self, hit: bool) {
        self.lookups.fetch_add(1, Relaxed);
        self.hits.fetch_add(u64::from(hit), Relaxed);
    }

    pub(crate) fn stored(&self, bytes: u64) {
        self.stored.fetch_add(1, Relaxed);
        self.stored_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn reused(&self, bytes: u64) {
        self.reused.fetch_add(1, Relaxed);
        self.reused_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn corrupt(&self) {
        self.corrupt.fetch_add(1, Relaxed);
    }

    pub(crate) fn session(&self) -> Session {
        Session {
            lookups: self.lookups.load(Relaxed),
            hits: self.hits.load(Relaxed),
            stored: self.stored.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
            reused: self.reused.load(Relaxed),
            reused_bytes: self.reused_bytes.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
        }
    }
}
