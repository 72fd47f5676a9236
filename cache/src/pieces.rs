//! A blob that several threads write at once, each its own pieces, hashed where they are written from: it is never
//! read back for its name.

use crate::Digest;
use crate::error::{CacheError, OrFail, locked};
use mica_digest::Pieces;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

/// From here on room is made for a blob before it is written.
const LARGE: u64 = 1 << 20;

/// Where the pieces of a blob go.
pub struct BlobPieces<'a> {
    file: &'a File,
    pieces: Pieces,
    /// Held while writing: one writer at a time is all that a file system lets do, and waits for it less idly.
    writing: Mutex<()>,
    failed: Mutex<Option<io::Error>>,
}

impl BlobPieces<'_> {
    /// Writes the bytes that lie `at` bytes into the blob. Every byte of the blob has to be written once, in any order.
    ///
    /// # Errors
    /// If the disk refuses; the blob is then lost, whatever follows.
    ///
    /// # Panics
    /// Bytes beyond the blob's end.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.pieces.add(at, bytes);
        let written = {
            let _turn = locked(&self.writing);
            self.file.write_all_at(bytes, at)
        };
        written.map_err(|e| {
            let shown = io::Error::new(e.kind(), e.to_string());
            locked(&self.failed).get_or_insert(e);
            shown
        })
    }
}

/// Lets `produce` write the pieces of `size` bytes to the file at `path`, which is empty; gives their digest.
pub(crate) fn write_pieces(
    file: &File,
    path: &Path,
    size: u64,
    produce: impl FnOnce(&BlobPieces<'_>) -> io::Result<()>,
) -> Result<Digest, CacheError> {
    reserve(file, size).or_fail("make room for", path)?;
    let blob =
        BlobPieces { file, pieces: Pieces::new(size), writing: Mutex::default(), failed: Mutex::default() };
    let produced = produce(&blob);
    // The disk's own error comes first: a producer may have hidden it or put it in other words.
    if let Some(source) = blob.failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(source).or_fail("write", path);
    }
    produced.map_err(|source| CacheError::Producer { source })?;
    blob.pieces.digest().ok_or_else(|| CacheError::Producer {
        source: io::Error::other(format!("not every one of {size} bytes was written once")),
    })
}

/// Has the file system set aside what a large blob takes, so that a full disk is told of before the work, and pieces
/// find their place whatever their order.
fn reserve(file: &File, size: u64) -> io::Result<()> {
    if size < LARGE {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(e.into()),
        // not every file system can; the writes will tell
        Err(_) | Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_even_if_the_producer_hides_it() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let path = Path::new("somewhere");
        let plain = write_pieces(&full, path, 1 << 20, |blob| {
            let told = blob.write(0, &[0; 1 << 20]);
            assert_eq!(told.as_ref().map_err(io::Error::kind), Err(io::ErrorKind::StorageFull));
            told
        });
        let hidden = write_pieces(&full, path, 1 << 20, |blob| {
            let _ = blob.write(0, &[0; 1 << 20]);
            Ok(())
        });
        for result in [plain, hidden] {
            let error = result.expect_err("full");
            assert!(error.is_full(), "{error:?}");
            assert!(error.to_string().contains("somewhere"));
        }
    }

    #[test]
    fn room_is_made_before_a_large_blob_is_written() {
        for (size, room) in [(LARGE - 1, 0), (LARGE, LARGE), (3 * LARGE, 3 * LARGE)] {
            let [file, probe] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
            let able = rustix::fs::fallocate(&probe, FallocateFlags::empty(), 0, 1).is_ok();
            let mut found = None;
            let made = write_pieces(&file, Path::new("somewhere"), size, |_| {
                found = Some(file.metadata()?.len());
                Ok(())
            });
            assert!(made.is_err(), "nothing was written");
            assert_eq!(found, Some(if able { room } else { 0 }), "{size}");
        }
    }

    #[test]
    fn what_was_not_written_is_told() {
        let file = tempfile::tempfile().expect("a file");
        let path = Path::new("somewhere");
        for pieces in [&[(0, 5)][..], &[(0, 6), (5, 5)], &[(0, 5), (0, 5)]] {
            let made = write_pieces(&file, path, 10, |blob| {
                pieces.iter().try_for_each(|&(at, len)| blob.write(at, &[1; 10][..len]))
            });
            assert!(matches!(made, Err(CacheError::Producer { .. })), "{pieces:?}");
        }
    }

    #[test]
    fn a_producer_that_fails_when_all_is_written_has_made_nothing() {
        let file = tempfile::tempfile().expect("a file");
        let made = write_pieces(&file, Path::new("somewhere"), 5, |blob| {
            blob.write(0, b"whole")?;
            Err(io::Error::other("the delivery changed meanwhile"))
        });
        let Err(CacheError::Producer { source }) = made else { panic!("{made:?}") };
        assert_eq!(source.to_string(), "the delivery changed meanwhile");
    }
}
