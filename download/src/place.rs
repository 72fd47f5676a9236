//! The disk: free bytes, whole files put in place, folders locked.

use crate::error::DownloadError;
use crate::watch::Watch;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Age at which an unfinished file is a dead process's.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// What is left alone of a disk's free bytes, so that the system has room for its own.
const RESERVE: u64 = 64 << 20;

/// Refuses what would not fit into the file system of `dir`, of which only some upper part has to exist.
pub(crate) fn room(dir: &Path, needed: u64, choose: &'static str) -> Result<(), DownloadError> {
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(dir);
    let stat = rustix::fs::statvfs(there).map_err(|e| DownloadError::io(there)(e.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize).saturating_sub(RESERVE);
    if needed <= free {
        return Ok(());
    }
    Err(DownloadError::NoSpace { dir: there.into(), needed, free, choose })
}

/// Makes a folder and those above it.
pub(crate) fn folder(dir: &Path) -> Result<(), DownloadError> {
    fs::create_dir_all(dir).map_err(DownloadError::io(dir))
}

/// The folder that a file is in.
pub(crate) fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// A name that no other process and no other thread uses.
pub(crate) fn unique(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{n}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Puts a complete file in its place, durably: whoever sees the name sees all of it.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), DownloadError> {
    File::open(from).and_then(|f| f.sync_all()).map_err(DownloadError::io(from))?;
    let dir = above(to);
    folder(dir)?;
    fs::rename(from, to).map_err(DownloadError::io(to))?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(DownloadError::io(dir))
}

/// Writes a small file in one step.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), DownloadError> {
    folder(above(path))?;
    let temporary = unique(path);
    let written = File::create(&temporary).and_then(|mut f| f.write_all(bytes));
    let done = written.map_err(DownloadError::io(&temporary)).and_then(|()| publish(&temporary, path));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// Removes what killed processes have left in a folder, and nobody has touched for so long that no living one
/// can be at it: a lock may do nothing.
pub(crate) fn sweep(dir: &Path, left: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|m| m.modified()).ok();
        let old = modified.and_then(|m| m.elapsed().ok()).is_some_and(|age| age > LEFT_BEHIND);
        if old && entry.file_name().to_str().is_some_and(&left) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A lock that ends with the process at the latest. It spares two processes the same work; nothing is
/// wrong without it, so a file system that knows no locks is no error.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] Option<File>);

/// Waits until no other process has the lock.
pub(crate) fn lock(path: &Path, what: &str, watch: &dyn Watch) -> Result<Lock, DownloadError> {
    folder(above(path))?;
    let opened = File::options().create(true).truncate(false).write(true).open(path);
    let file = opened.map_err(DownloadError::io(path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            watch.note(&format!("waiting for another process that is downloading {what}"));
            if file.lock().is_err() {
                return Ok(Lock(None));
            }
        }
        Err(TryLockError::Error(_)) => return Ok(Lock(None)),
    }
    Ok(Lock(Some(file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Silent;

    #[test]
    fn a_disk_that_is_too_small_is_named_with_what_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("not/yet");
        assert!(room(&below, 1, "x").is_ok());
        let said = room(&below, 1 << 60, "HF_HUB_CACHE").unwrap_err().to_string();
        assert!(said.contains(&(1u64 << 60).to_string()) && said.contains("HF_HUB_CACHE"), "{said}");
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b");
        write(&file, b"one").unwrap();
        write(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
    }

    #[test]
    fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = lock(&path, "x", &Silent).unwrap();
        let second = std::thread::spawn({
            let path = path.clone();
            move || lock(&path, "x", &Silent).map(|_| ())
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!second.is_finished(), "two hold the lock at once");
        drop(first);
        second.join().unwrap().unwrap();
    }
}
