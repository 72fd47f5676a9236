//! Files that are being written. They live in one folder of the cache and leave it by a rename.
//!
//! A writer holds an exclusive `flock` on its file; the system drops the lock when the process ends,
//! however it ends. So a file whose lock is free belongs to nobody, and sweeping needs no ages and no
//! process ids.

use crate::error::{CacheError, OrFail};
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::{Builder, NamedTempFile};

/// How a temporary's name ends.
pub(crate) const SUFFIX: &str = ".tmp";

/// A file of our own in `dir`, with a name nobody else has, locked, readable as the umask says.
pub(crate) fn create(dir: &Path, prefix: &str, suffix: &str) -> Result<NamedTempFile, CacheError> {
    loop {
        let file = Builder::new()
            .prefix(prefix)
            .suffix(suffix)
            .rand_bytes(16)
            // The default is 0600, which would shut everyone else out of a shared cache.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)
            .or_fail("create a file in", dir)?;
        // A file system without locks gives no protection from a sweep, and no sweep either: see below.
        let _ = file.as_file().lock();
        // A sweep may have come between creation and lock; then the name is gone and we start again.
        let metadata = file.as_file().metadata().or_fail("examine", file.path())?;
        if metadata.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// A temporary file in `dir`, a folder of temporaries.
pub(crate) fn temporary(dir: &Path) -> Result<NamedTempFile, CacheError> {
    create(dir, "", SUFFIX)
}

/// The file at `path`, locked by us, if no living process holds it and it is still there.
pub(crate) fn claim(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => {}
        // Held by someone, or not known: hands off in both cases.
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
    }
    let linked = file.metadata().is_ok_and(|m| m.nlink() > 0);
    linked.then_some(file)
}

/// Removes the temporaries in `dir` whose names start with `prefix` and whose writers are dead; gives
/// how many.
pub(crate) fn sweep(dir: &Path, prefix: &str) -> Result<usize, CacheError> {
    let mut swept = 0;
    for entry in fs::read_dir(dir).or_fail("list", dir)? {
        let entry = entry.or_fail("list", dir)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(prefix) || !name.ends_with(SUFFIX) {
            continue;
        }
        let path = entry.path();
        // The claim is held until after the removal, or a writer that has just created the file could
        // lock it and believe it has a name.
        let Some(claim) = claim(&path) else { continue };
        match fs::remove_file(&path) {
            Ok(()) => swept += 1,
            // Renamed into place between our open and now, or not ours to remove: no harm.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(e) => return Err(e).or_fail("remove", &path),
        }
        drop(claim);
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_takes_dead_files_and_leaves_living_ones() {
        let dir = tempfile::tempdir().expect("tempdir");
        let living = temporary(dir.path()).expect("create");
        let (file, dead) = temporary(dir.path()).expect("create").keep().expect("keep");
        drop(file);
        fs::write(dir.path().join("readme"), "not a temporary").expect("write");
        assert_eq!(sweep(dir.path(), "").expect("sweep"), 1);
        assert!(!dead.exists());
        assert!(living.path().exists());
        assert!(dir.path().join("readme").exists());
    }

    #[test]
    fn a_file_swept_before_its_lock_is_noticed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("x.tmp");
        let writer = File::create(&path).expect("create");
        assert_eq!(sweep(dir.path(), "").expect("sweep"), 1);
        writer.lock().expect("lock");
        assert_eq!(writer.metadata().expect("stat").nlink(), 0);
        assert!(claim(&path).is_none());
    }

    #[test]
    fn the_mode_is_what_the_umask_leaves() {
        let dir = tempfile::tempdir().expect("tempdir");
        let plain = File::create(dir.path().join("plain")).expect("create");
        let ours = temporary(dir.path()).expect("create");
        let mode = |f: &File| f.metadata().expect("stat").permissions().mode();
        assert_eq!(mode(ours.as_file()), mode(&plain));
    }
}
