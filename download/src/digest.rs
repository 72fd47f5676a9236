//! SHA-256 of files as they come and as they lie.

use crate::error::DownloadError;
use crate::names::hex;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes handed over at a time.
pub(crate) const CHUNK: usize = 256 << 10;

/// A running SHA-256 that knows how many bytes went in.
#[derive(Default)]
pub(crate) struct Running {
    state: Sha256,
    pub bytes: u64,
}

impl Running {
    pub fn push(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub fn finish(self) -> String {
        hex(&self.state.finalize())
    }

    /// Takes a file in, from its start to byte `end`.
    pub fn push_file(&mut self, path: &Path, end: u64) -> Result<(), DownloadError> {
        let mut file = File::open(path).map_err(DownloadError::io(path))?.take(end);
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk).map_err(DownloadError::io(path))? {
                0 => return Ok(()),
                n => self.push(&chunk[..n]),
            }
        }
    }
}

/// A whole file's.
pub(crate) fn of_file(path: &Path) -> Result<String, DownloadError> {
    let mut running = Running::default();
    running.push_file(path, u64::MAX)?;
    Ok(running.finish())
}
