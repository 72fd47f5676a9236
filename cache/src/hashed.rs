//! Hashing what is written while it is written, so that a large blob is never read back for its name.

use crate::Digest;
use crate::error::{CacheError, OrFail};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Lets `produce` write to `sink`, the file at `path`; gives the digest and the size of what arrived there.
pub(crate) fn write_hashed(
    sink: impl Write,
    path: &Path,
    produce: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(Digest, u64), CacheError> {
    let mut hashed = Hashed { sink, hasher: blake3::Hasher::new(), size: 0, failed: None };
    let mut buffer = BufWriter::with_capacity(128 << 10, &mut hashed);
    let produced = produce(&mut buffer).and_then(|()| buffer.flush());
    drop(buffer.into_parts());
    // The disk's own error comes first: a producer may have hidden it or put it in other words.
    if let Some(source) = hashed.failed {
        return Err(source).or_fail("write", path);
    }
    produced.map_err(|source| CacheError::Producer { source })?;
    Ok((hashed.hasher.finalize(), hashed.size))
}

/// A writer that hashes what went through, and remembers a failure even if its user doesn't.
struct Hashed<W> {
    sink: W,
    hasher: blake3::Hasher,
    size: u64,
    failed: Option<io::Error>,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.sink.write(bytes) {
            Ok(n) => {
                self.hasher.update(&bytes[..n]);
                self.size += n as u64;
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let shown = io::Error::new(e.kind(), e.to_string());
                self.failed.get_or_insert(e);
                Err(shown)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_even_if_the_producer_hides_it() {
        let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let path = Path::new("somewhere");
        let plain = write_hashed(full(), path, |w| w.write_all(&[0; 1 << 20]));
        let hidden = write_hashed(full(), path, |w| {
            let _ = w.write_all(&[0; 1 << 20]);
            Ok(())
        });
        for result in [plain, hidden] {
            let error = result.expect_err("full");
            assert!(error.is_full(), "{error:?}");
            assert!(error.to_string().contains("somewhere"));
        }
    }
}
