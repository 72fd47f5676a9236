//! The bytes of a delivery's files, mapped read-only when they are first asked for.
//!
//! The only place that touches a delivery's file system after the listing. Knows file numbers, not
//! tensors.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memmap2::Mmap;

use crate::error::FetchError;
use crate::listing::Listing;

/// Access to the files of one [`Listing`], by their number.
pub trait DeliveryFiles: Sync {
    /// The whole file.
    ///
    /// # Errors
    /// If the file cannot be read or is no longer what it was.
    fn bytes(&self, file: u32) -> Result<&[u8], FetchError>;

    /// What the file is called, for messages.
    fn path(&self, file: u32) -> PathBuf;
}

/// A delivery directory; each file is mapped on first use, and known by the stamp it had on opening.
#[derive(Debug)]
pub struct MappedDelivery {
    dir: PathBuf,
    files: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    metadata: Metadata,
    map: OnceLock<Mmap>,
}

impl MappedDelivery {
    /// Stamps every file of the listing. Opens and reads none.
    ///
    /// # Errors
    /// If a file is gone, or has another size than the listing says.
    pub fn open(dir: &Path, listing: &Listing) -> Result<Self, FetchError> {
        let open = |entry: &crate::listing::FileEntry| {
            let path = dir.join(&entry.name);
            let metadata = stat(&path)?;
            if metadata.len() != entry.size {
                return Err(FetchError::Changed { path, what: "its size since it was listed" });
            }
            Ok(Mapped { path, metadata, map: OnceLock::new() })
        };
        let files = listing.files.iter().map(open).collect::<Result<_, _>>()?;
        Ok(MappedDelivery { dir: dir.to_owned(), files })
    }

    /// The delivery's directory, as given to [`MappedDelivery::open`].
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the file system said about the file on opening: the stamp that all its bytes go by.
    ///
    /// # Errors
    /// If the listing has no such file.
    pub fn metadata(&self, file: u32) -> Result<&Metadata, FetchError> {
        self.file(file).map(|f| &f.metadata)
    }

    /// Whether the file is still the one that was opened. To be asked after a file's bytes were used and
    /// before the result is published: an edit in between shows in the stamp.
    ///
    /// # Errors
    /// [`FetchError::Changed`] with what changed; [`FetchError::Io`] if the file is gone.
    pub fn verify_unchanged(&self, file: u32) -> Result<(), FetchError> {
        let file = self.file(file)?;
        file.compare(&stat(&file.path)?)
    }

    fn file(&self, file: u32) -> Result<&Mapped, FetchError> {
        let found = usize::try_from(file).ok().and_then(|i| self.files.get(i));
        found.ok_or(FetchError::NoSuchFile { file, files: self.files.len() })
    }
}

impl DeliveryFiles for MappedDelivery {
    fn bytes(&self, file: u32) -> Result<&[u8], FetchError> {
        let file = self.file(file)?;
        if let Some(map) = file.map.get() {
            return Ok(map);
        }
        let map = file.map()?;
        // Two threads may map at once; one map is dropped, both show the same file.
        Ok(file.map.get_or_init(|| map))
    }

    fn path(&self, file: u32) -> PathBuf {
        match self.file(file) {
            Ok(file) => file.path.clone(),
            Err(_) => self.dir.join(format!("(file {file})")),
        }
    }
}

impl Mapped {
    fn map(&self) -> Result<Mmap, FetchError> {
        let failed = |e: io::Error| FetchError::io(&self.path, &e);
        let file = File::open(&self.path).map_err(failed)?;
        self.compare(&file.metadata().map_err(failed)?)?;
        // SAFETY: the map is read-only and private to this value. Another process that writes the file in
        // place can change bytes under the slice: no code here relies on a byte read twice being the same,
        // and `verify_unchanged` finds such a write before a result is kept. One that cuts the file short
        // ends this process with SIGBUS, as with every program that maps its input; nothing is half-written
        // then, since this crate never writes.
        unsafe { Mmap::map(&file) }.map_err(failed)
    }

    fn compare(&self, now: &Metadata) -> Result<(), FetchError> {
        let was = &self.metadata;
        let what = if (was.dev(), was.ino()) != (now.dev(), now.ino()) {
            "another file took its place"
        } else if was.len() != now.len() {
            "its size"
        } else if (was.mtime(), was.mtime_nsec()) != (now.mtime(), now.mtime_nsec()) {
            "its modification time"
        } else if (was.ctime(), was.ctime_nsec()) != (now.ctime(), now.ctime_nsec()) {
            "its change time"
        } else {
            return Ok(());
        };
        Err(FetchError::Changed { path: self.path.clone(), what })
    }
}

/// The metadata of a regular file, symbolic links followed (download caches are full of them).
fn stat(path: &Path) -> Result<Metadata, FetchError> {
    let metadata = std::fs::metadata(path).map_err(|e| FetchError::io(path, &e))?;
    if metadata.is_file() { Ok(metadata) } else { Err(FetchError::NotAFile { path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::listing::{ListOptions, list};
    use crate::testing::{NewTensor, write_safetensors};

    fn delivery() -> (tempfile::TempDir, Listing) {
        let dir = tempfile::tempdir().unwrap();
        write_safetensors(&dir.path().join("model.safetensors"), &[NewTensor::f32("a", &[2], &[1.0, 2.0])]);
        let listing = list(dir.path(), &ListOptions::default()).unwrap();
        (dir, listing)
    }

    /// What is done to the file after opening, whether mapped before or not.
    fn after(mapped: bool, edit: impl Fn(&Path)) -> Result<(), FetchError> {
        let (dir, listing) = delivery();
        let files = MappedDelivery::open(dir.path(), &listing).unwrap();
        if mapped {
            files.bytes(0).unwrap();
            files.verify_unchanged(0).unwrap();
        }
        edit(&dir.path().join("model.safetensors"));
        if mapped { files.verify_unchanged(0) } else { files.bytes(0).map(|_| ()) }
    }

    #[test]
    fn an_edit_after_opening_shows() {
        let touch = |path: &Path| {
            let later = fs::metadata(path).unwrap().modified().unwrap() + std::time::Duration::from_secs(2);
            File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
        };
        let replace = |path: &Path| {
            let other = path.with_extension("new");
            fs::copy(path, &other).unwrap();
            fs::rename(&other, path).unwrap();
        };
        let grow = |path: &Path| fs::write(path, [0; 1000]).unwrap();
        for mapped in [false, true] {
            let touched = after(mapped, touch).unwrap_err();
            assert!(touched.to_string().contains("modification time"), "{touched}");
            let replaced = after(mapped, replace).unwrap_err();
            assert!(replaced.to_string().contains("another file"), "{replaced}");
            let grown = after(mapped, grow).unwrap_err();
            assert!(grown.to_string().contains("its size"), "{grown}");
            let gone = after(mapped, |path| fs::remove_file(path).unwrap()).unwrap_err();
            assert!(matches!(gone, FetchError::Io { kind: io::ErrorKind::NotFound, .. }), "{gone}");
            assert!(touched.is_environment() && gone.is_environment());
        }
    }

    #[test]
    fn a_size_that_differs_from_the_listing() {
        let (dir, mut listing) = delivery();
        listing.files[0].size += 1;
        let error = MappedDelivery::open(dir.path(), &listing).unwrap_err();
        assert!(matches!(error, FetchError::Changed { .. }), "{error}");
    }

    #[test]
    fn an_unknown_file_number() {
        let (dir, listing) = delivery();
        let files = MappedDelivery::open(dir.path(), &listing).unwrap();
        assert_eq!(files.bytes(7).unwrap_err(), FetchError::NoSuchFile { file: 7, files: 1 });
    }
}
