//! A delivery that is being written: a hidden folder beside the place that it is for, which it takes by a rename once
//! it is whole.
//!
//! It is removed when its writing fails, and when SIGINT or SIGTERM ends the command, and with it those folders above
//! that were made for it and hold nothing else. Its writer holds a `flock` on it,
//! which the system drops however the process ends, so a folder whose lock is free is nobody's, and [`sweep`] takes it
//! away. It must not know what is written there.

use crate::progress::say;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How the folders' names begin.
const PREFIX: &str = ".synth-partial-";

/// Folders that were made for one below them. Dropped before they are kept, those of them that are empty are removed.
pub struct Parents(Vec<PathBuf>);

impl Parents {
    /// Makes the folder and those above it that are not there.
    ///
    /// # Errors
    /// The system's, if one can't be made; then none of them is left.
    pub fn make(dir: &Path) -> io::Result<Parents> {
        let mut made = Parents(Vec::new());
        // the empty path is the folder we are in
        let missing: Vec<&Path> =
            dir.ancestors().take_while(|p| *p != Path::new("") && !p.is_dir()).collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Ok(()) => made.0.push(dir.to_path_buf()),
                // somebody else made it, or it is a way over one that we made (`new/..`)
                Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(made)
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        remove_empty(&self.0);
    }
}

/// Removes folders, each of which may hold the next; one that holds anything else is somebody's by now.
fn remove_empty(dirs: &[PathBuf]) {
    dirs.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
}

/// A folder of our own. Dropped before it is published, it is removed.
pub struct Partial {
    dir: PathBuf,
    parents: Parents,
    /// Whether the folder has left its name. Whoever holds this decides what becomes of it: its writer or a signal,
    /// which never lets go.
    published: Arc<Mutex<bool>>,
    _claim: File,
}

impl Partial {
    /// A new folder in `parent`, for which `parents` were made; SIGINT and SIGTERM remove them from now on before they
    /// end the process.
    ///
    /// # Errors
    /// The system's, if it can't be made.
    pub fn new(parent: &Path, parents: Parents) -> io::Result<Partial> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (dir, claim) = claimed(parent)?;
        let published = Arc::new(Mutex::new(false));
        let (theirs, hidden, above) = (Arc::clone(&published), dir.clone(), parents.0.clone());
        thread::spawn(move || {
            let Some(signal) = signals.forever().next() else { return };
            let published = locked(&theirs);
            if !*published {
                match remove_while_written(&hidden).map(|()| remove_empty(&above)) {
                    Ok(()) => say("stopped; nothing is left behind"),
                    Err(e) => say(&format!("stopped; {} is left behind: {e}", hidden.display())),
                }
            }
            // ends the process with the lock held, so that no one tells of files that are gone
            let _ = emulate_default_handler(signal);
        });
        Ok(Partial { dir, parents, published, _claim: claim })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Whether the folder will be able to take the place of `out`: an empty one is renamed to it.
    ///
    /// # Errors
    /// The system's, where it will not, as of a file, a folder that something is mounted on, or a name that is too long.
    pub fn fits(&self, out: &Path) -> io::Result<()> {
        let was_there = out.is_dir();
        let parent = self.dir.parent().unwrap_or(Path::new("."));
        // swept away as ours, should this process be killed here
        let trial = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        fs::rename(trial.path(), out)?;
        // the name is not ours any more; what it had been is put back
        let _ = trial.keep();
        if was_there { Ok(()) } else { fs::remove_dir(out) }
    }

    /// Gives the folder the name that it is for: a new one, or that of an empty folder.
    ///
    /// # Errors
    /// The system's; then nothing is left of it.
    pub fn publish(mut self, out: &Path) -> io::Result<()> {
        let mut published = locked(&self.published);
        fs::rename(&self.dir, out)?;
        *published = true;
        self.parents.0.clear();
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !*locked(&self.published) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn locked(published: &Mutex<bool>) -> MutexGuard<'_, bool> {
    published.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with a name nobody else has, locked.
fn claimed(parent: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let claim = match File::open(dir.path()) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        // a file system without locks gives no protection from a sweep, and no sweep either
        let _ = claim.lock();
        // a sweep may have come between creation and lock; then we start again
        if dir.path().is_dir() {
            return Ok((dir.keep(), claim));
        }
    }
}

/// Removes a folder that another thread may still put files into.
fn remove_while_written(dir: &Path) -> io::Result<()> {
    for _ in 0..100 {
        match fs::remove_dir_all(dir) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => thread::sleep(Duration::from_millis(10)),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            done => return done,
        }
    }
    fs::remove_dir_all(dir)
}

/// Removes the folders in `parent` that no living process holds, and says so.
///
/// # Errors
/// The system's, if `parent` can't be listed. A folder that can't be removed is told and left.
pub fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !is_ours || !entry.file_type()?.is_dir() {
            continue;
        }
        let path = entry.path();
        let Ok(claim) = File::open(&path) else { continue };
        // held by someone, or not known: hands off in both cases
        if claim.try_lock().is_err() {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => say(&format!("removed {}, left by a run that was killed", path.display())),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => say(&format!(
                "warning: {} was left by a run that was killed and can't be removed: {e}",
                path.display()
            )),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_folders_of_the_dead_alone() {
        let parent = tempfile::tempdir().unwrap();
        let living = Partial::new(parent.path(), Parents(Vec::new())).unwrap();
        fs::write(living.path().join("file"), "bytes").unwrap();
        let dead = parent.path().join(format!("{PREFIX}dead"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("file"), "bytes").unwrap();
        let others = parent.path().join("delivery");
        fs::create_dir(&others).unwrap();
        fs::write(parent.path().join(format!("{PREFIX}file")), "no folder").unwrap();
        sweep(parent.path()).unwrap();
        assert!(!dead.exists() && others.exists() && living.path().join("file").exists());
        assert!(parent.path().join(format!("{PREFIX}file")).exists());
    }

    #[test]
    fn a_place_that_can_not_be_taken_is_known_beforehand() {
        let parent = tempfile::tempdir().unwrap();
        let partial = Partial::new(parent.path(), Parents(Vec::new())).unwrap();
        let [new, empty, full, file, long] =
            ["new", "empty", "full", "file", &"n".repeat(256)].map(|n| parent.path().join(n));
        [&empty, &full].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        [&full.join("a"), &file].into_iter().for_each(|file| fs::write(file, "bytes").unwrap());
        for (out, fits) in [(&new, true), (&empty, true), (&full, false), (&file, false), (&long, false)] {
            assert_eq!(partial.fits(out).is_ok(), fits, "{}", out.display());
        }
        assert!(partial.fits(&parent.path().join("full/..")).is_err());
        let mut left: Vec<_> = fs::read_dir(parent.path()).unwrap().map(|e| e.unwrap().path()).collect();
        left.retain(|path| path != partial.path());
        left.sort();
        assert_eq!(left, [empty, file, full], "nothing is left of the trials");
    }

    #[test]
    fn folders_above_go_with_it_unless_they_were_there_or_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let [mine, parent] = ["mine", "mine/new/../a/b"].map(|n| dir.path().join(n));
        fs::create_dir(&mine).unwrap();
        let made = || Partial::new(&parent, Parents::make(&parent).unwrap()).unwrap();
        drop(made());
        assert_eq!(fs::read_dir(&mine).unwrap().count(), 0, "only what was there before");
        // what somebody else puts there stays
        let partial = made();
        fs::write(mine.join("a/note"), "not ours").unwrap();
        drop(partial);
        assert!(mine.join("a/note").exists() && !mine.join("a/b").exists() && !mine.join("new").exists());
        // and so does what was published
        made().publish(&parent.join("out")).unwrap();
        assert!(mine.join("a/b/out").is_dir());
        // one that can't be made leaves none
        let too_long = dir.path().join("c").join("n".repeat(256));
        assert!(Parents::make(&too_long).is_err());
        assert!(!dir.path().join("c").exists());
    }

    #[test]
    fn a_folder_is_published_or_removed() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("out");
        let partial = Partial::new(parent.path(), Parents(Vec::new())).unwrap();
        fs::write(partial.path().join("file"), "bytes").unwrap();
        let hidden = partial.path().to_path_buf();
        partial.publish(&out).unwrap();
        assert!(out.join("file").exists() && !hidden.exists());
        // a folder that is not empty takes no other's place
        let again = Partial::new(parent.path(), Parents(Vec::new())).unwrap();
        let hidden = again.path().to_path_buf();
        assert!(again.publish(&out).is_err());
        assert!(!hidden.exists() && out.join("file").exists());
    }
}
