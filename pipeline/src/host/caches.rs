//! Caches that grow by a row a token: which entries they are, and where the rows of a position lie in them.
//!
//! Who calls the kernel, and what is in a row, is not known here.

use super::entries::{base, find};
use super::feed::Feed;
use super::layout::Layout;
use mica_device::object::{Entry, Kernel};
use mica_simulate::SimError;

/// A cache entry and the rows entry that feeds it.
pub(super) struct Cache<'k> {
    pub cache: &'k Entry,
    pub rows: &'k Entry,
    /// A token's rows.
    pub layout: Layout,
}

/// Caches that grow by a row a token.
pub(super) fn caches(kernel: &Kernel, tokens: u64) -> Vec<Cache<'_>> {
    let given = kernel.entries.iter().filter(|e| e.direction.is_given());
    given
        .filter_map(|cache| {
            let rows =
                base(cache).strip_suffix("_cache").and_then(|n| find(kernel, &format!("{n}_row.out")))?;
            Some(Cache { cache, rows, layout: Layout::new(rows, tokens) })
        })
        .collect()
}

impl Cache<'_> {
    /// Checks that rows of so many positions fit.
    pub fn room(&self, positions: u64) -> Result<(), SimError> {
        let short = self.cache.shares.iter().find(|(_, _, share)| share.shape[1] < positions);
        short.map_or(Ok(()), |(_, _, share)| {
            let (position, rows) = (positions - 1, share.shape[1]);
            Err(SimError::PastCache { edge: self.cache.name.clone(), position, rows })
        })
    }

    /// The cache with the rows that it holds at the start.
    pub fn held(&self, feed: &Feed<'_>) -> Vec<u8> {
        let mut cache = vec![0; self.cache.bytes as usize];
        let held = feed.rows.get(base(self.cache)).into_iter().flatten();
        let held = held.flat_map(|block| block.chunks_exact(self.layout.bytes as usize));
        for (position, row) in held.enumerate() {
            self.append(&mut cache, row, position as u64);
        }
        cache
    }

    /// Puts the rows of one token, `[heads, dim]` a share, at a position of the caches `[heads, capacity, dim]`.
    pub fn append(&self, to_all: &mut [u8], row: &[u8], position: u64) {
        for ((_, cache_at, cache), rows) in self.cache.shares.iter().zip(&self.layout.shares) {
            let (heads, capacity) = (cache.shape[0], cache.shape[1]);
            let dim = (rows.bytes / heads) as usize;
            for head in 0..heads {
                let from = rows.at as usize + head as usize * dim;
                let to = (*cache_at + (head * capacity + position) * dim as u64) as usize;
                to_all[to..to + dim].copy_from_slice(&row[from..from + dim]);
            }
        }
    }
}
