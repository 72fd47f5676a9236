//! A blob in hand: bytes that have been checked against their digest.

use crate::Digest;
use memmap2::Mmap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of a blob, mapped or, when small, in memory. A clone shares them. They stay readable
/// when the blob is removed from the cache meanwhile.
#[derive(Clone)]
pub struct Blob {
    digest: Digest,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Held(Arc<[u8]>),
    Mapped(Arc<Mmap>),
}

impl Blob {
    pub(crate) fn held(digest: Digest, bytes: Vec<u8>) -> Self {
        Self { digest, bytes: Bytes::Held(bytes.into()) }
    }

    pub(crate) fn mapped(digest: Digest, map: Mmap) -> Self {
        Self { digest, bytes: Bytes::Mapped(Arc::new(map)) }
    }

    /// Its name.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Held(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({}, {} bytes)", self.digest, self.len())
    }
}
