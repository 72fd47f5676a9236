//! What can go wrong with the store itself. A miss or a corrupt file is not an error; it is a miss.

use crate::Digest;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A failure of the store: of the disk under it, or of whoever feeds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The file system refused.
    #[error("cannot {action} {path:?}")]
    Io {
        /// What was tried, as a verb: "create", "write", "rename".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The closure that was to write a blob gave up by itself; the disk is not at fault.
    #[error("what was to be stored could not be produced")]
    Producer {
        /// The closure's own error.
        #[source]
        source: io::Error,
    },
    /// The file system took every byte without complaint and then holds another number of them.
    #[error("blob {digest} has {found} bytes on disk where {expected} were written ({path:?})")]
    Short {
        /// The temporary that came out short.
        path: PathBuf,
        /// What was to be stored.
        digest: Digest,
        /// Bytes handed to the system.
        expected: u64,
        /// Bytes it says it has.
        found: u64,
    },
    /// Something that the store did not make stands where a blob is to be stored.
    #[error("{path:?} is {what}: move it away")]
    InTheWay {
        /// What has to go.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
}

impl CacheError {
    /// Whether the disk or the quota is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// Adds the facts to an I/O error: `file.sync().or_fail("sync", path)?`.
pub(crate) trait OrFail<T> {
    fn or_fail(self, action: &'static str, path: &Path) -> Result<T, CacheError>;
}

impl<T> OrFail<T> for io::Result<T> {
    fn or_fail(self, action: &'static str, path: &Path) -> Result<T, CacheError> {
        self.map_err(|source| CacheError::Io { action, path: path.to_owned(), source })
    }
}

/// Locks. A thread that panicked meanwhile left a whole value: every guarded change is one insertion.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
