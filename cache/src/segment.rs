//! One file of the action log: frames appended by one writer, each checked by itself.
//!
//! ```text
//! frame = sync 4 bytes | body length u32 | check 8 bytes | body
//! ```
//!
//! The check covers the body, the place of the frame and the name of its file, so bytes that moved, or a
//! body that contains the image of a frame, are never taken for a frame. A reader that meets anything
//! else looks for the next frame that checks; a torn tail is the common case of that. What a body means
//! is not known here.

use crate::error::{CacheError, OrFail};
use crate::temp;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a segment's name ends.
pub(crate) const SUFFIX: &str = ".seg";
const SYNC: [u8; 4] = [0xf5, b'm', b'c', 0xc1];
const HEAD: usize = 16;
/// Larger than any body; a length above it is damage.
const MAX_BODY: usize = 64 << 20;

/// Makes the checks of the segment with a certain name.
struct Checker([u8; 32]);

impl Checker {
    fn of(path: &Path) -> Self {
        let stem = path.file_stem().unwrap_or_default().as_encoded_bytes();
        Self(blake3::derive_key("mica-cache 2026 segment check v1", stem))
    }

    fn check(&self, place: u64, body: &[u8]) -> [u8; 8] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&place.to_le_bytes()).update(body);
        let mut sum = [0; 8];
        sum.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        sum
    }
}

/// The frames of `bodies` for a segment called `path`, starting at `place`.
pub(crate) fn frames<'a>(path: &Path, place: u64, bodies: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let checker = Checker::of(path);
    let mut out = Vec::new();
    for body in bodies {
        debug_assert!(body.len() <= MAX_BODY);
        let check = checker.check(place + out.len() as u64, body);
        out.extend_from_slice(&SYNC);
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&check);
        out.extend_from_slice(body);
    }
    out
}

/// Shows the place of every whole body in `bytes`, the content of the segment called `path`.
pub(crate) fn read_frames(path: &Path, bytes: &[u8], mut show: impl FnMut(Range<usize>)) {
    let checker = Checker::of(path);
    let mut at = 0;
    while at + HEAD <= bytes.len() {
        if let Some(body) = frame_at(&checker, bytes, at) {
            at = body.end;
            show(body);
        } else {
            let next = bytes[at + 1..].windows(SYNC.len()).position(|w| w == SYNC);
            let Some(next) = next else { break };
            at += 1 + next;
        }
    }
}

fn frame_at(checker: &Checker, bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let (sync, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (check, rest) = rest.split_first_chunk::<8>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if *sync != SYNC || len > MAX_BODY {
        return None;
    }
    let body = rest.get(..len)?;
    (checker.check(at as u64, body) == *check).then_some(at + HEAD..at + HEAD + len)
}

/// The segments in `dir`, in the order of their names.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, CacheError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).or_fail("list", dir)? {
        let path = entry.or_fail("list", dir)?.path();
        // a folder of that name is none of ours
        if path.to_string_lossy().ends_with(SUFFIX) && !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The one who appends to a segment. Its lock says that the writer lives.
pub(crate) struct Writer {
    file: Arc<File>,
    path: PathBuf,
    end: u64,
}

impl Writer {
    /// Starts a segment in `dir` under a name that nobody else has.
    pub(crate) fn create(dir: &Path) -> Result<Self, CacheError> {
        let (file, path) = temp::create(dir, "", SUFFIX)?.keep().map_err(|kept| CacheError::Io {
            action: "keep",
            path: dir.to_owned(),
            source: kept.error,
        })?;
        Ok(Self { file: Arc::new(file), path, end: 0 })
    }

    /// Appends `bodies` in one write. After a failure the next append takes the same place, so that a
    /// frame written half is overwritten.
    pub(crate) fn append<'a>(
        &mut self,
        bodies: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), CacheError> {
        let bytes = frames(&self.path, self.end, bodies);
        self.file.write_all_at(&bytes, self.end).or_fail("append to", &self.path)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Whether the segment still has a name. Another process may have been told to clear the cache.
    pub(crate) fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() > 0)
    }

    /// The file, for a sync without a lock on the writer, and its path.
    pub(crate) fn handle(&self) -> (Arc<File>, PathBuf) {
        (Arc::clone(&self.file), self.path.clone())
    }
}

/// The content of a segment; `None` if it is gone, which a compaction elsewhere may cause.
pub(crate) fn content(path: &Path) -> Result<Option<Vec<u8>>, CacheError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).or_fail("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Vec<Vec<u8>> {
        // The second body is the image of a frame, sync and all.
        let image = frames(Path::new("x.seg"), 0, [&b"forged"[..]]);
        vec![b"first".to_vec(), image, Vec::new(), vec![0xf5; 9], b"last".to_vec()]
    }

    fn read(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        read_frames(Path::new("x.seg"), bytes, |body| found.push(bytes[body].to_vec()));
        found
    }

    fn whole() -> Vec<u8> {
        frames(Path::new("x.seg"), 0, bodies().iter().map(Vec::as_slice))
    }

    fn is_subsequence(part: &[Vec<u8>], all: &[Vec<u8>]) -> bool {
        let mut rest = all.iter();
        part.iter().all(|body| rest.any(|other| other == body))
    }

    #[test]
    fn frames_round_trip() {
        assert_eq!(read(&whole()), bodies());
        assert!(read(b"").is_empty());
    }

    #[test]
    fn a_changed_byte_costs_one_frame_at_most() {
        for at in 0..whole().len() {
            for bit in 0..8 {
                let mut bad = whole();
                bad[at] ^= 1 << bit;
                let found = read(&bad);
                assert_eq!(found.len(), bodies().len() - 1, "byte {at} bit {bit}");
                assert!(is_subsequence(&found, &bodies()), "byte {at} bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn a_torn_tail_costs_what_was_torn() {
        for len in 0..whole().len() {
            let found = read(&whole()[..len]);
            assert_eq!(found, bodies()[..found.len()], "length {len}");
        }
    }

    #[test]
    fn removed_and_inserted_bytes_never_make_a_frame() {
        for at in 0..whole().len() {
            let mut less = whole();
            less.remove(at);
            assert!(is_subsequence(&read(&less), &bodies()), "without byte {at}");
            let mut more = whole();
            more.insert(at, 0xf5);
            assert!(is_subsequence(&read(&more), &bodies()), "one more at {at}");
        }
    }

    #[test]
    fn a_folder_is_no_segment() {
        let dir = tempfile::tempdir().expect("tempdir");
        let writer = Writer::create(dir.path()).expect("create");
        std::fs::create_dir(dir.path().join("folder.seg")).expect("a folder among them");
        assert_eq!(list(dir.path()).expect("list"), [writer.path]);
    }

    #[test]
    fn a_segment_under_another_name_is_nothing() {
        let mut found = 0;
        read_frames(Path::new("y.seg"), &whole(), |_| found += 1);
        assert_eq!(found, 0);
    }

    #[test]
    fn a_failed_append_is_overwritten_by_the_next() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut writer = Writer::create(dir.path()).expect("create");
        writer.append([&b"one"[..]]).expect("append");
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let good = std::mem::replace(&mut writer.file, Arc::new(full));
        let error = writer.append([&b"two"[..]]).expect_err("full");
        assert!(error.is_full(), "{error:?}");
        // What a disk that fills up leaves: the first part of the frame.
        good.write_all_at(&SYNC, writer.end).expect("write");
        writer.file = good;
        writer.append([&b"three"[..]]).expect("append");
        let mut found = Vec::new();
        let bytes = fs::read(&writer.path).expect("read");
        read_frames(&writer.path, &bytes, |b| found.push(bytes[b].to_vec()));
        assert_eq!(found, [b"one".to_vec(), b"three".to_vec()]);
    }
}
