//! What consecutive tokens start from, and the part of it that some of them, or one call, are given.
//!
//! States and rows are bytes by name here: how a kernel takes them is not known.

use mica_device::object::Entry;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a run of some consecutive tokens starts from.
#[derive(Clone, Default)]
pub struct Feed<'a> {
    /// Token ids.
    pub ids: &'a [i64],
    /// Position of the first.
    pub first: u64,
    /// Residuals for kernels that take one, the tokens' one after the other.
    pub hidden: Option<&'a [u8]>,
    /// Forced expert ids, `[tokens, k]` for each share of the edge in order; `None` lets the device choose.
    pub forced: Option<Vec<&'a [i64]>>,
    /// States by name (`conv_state`); zero where absent.
    pub states: BTreeMap<String, &'a [u8]>,
    /// Rows that the caches (`k_cache`) hold already, in blocks, for kernels of one part.
    pub rows: BTreeMap<String, Vec<&'a [u8]>>,
}

impl<'a> Feed<'a> {
    /// What some of the tokens start from, but for what those before them leave.
    pub(super) fn part(&self, tokens: Range<usize>) -> Feed<'a> {
        let all = self.ids.len().max(1);
        let of = |n: usize| tokens.start * (n / all)..tokens.end * (n / all);
        Feed {
            ids: &self.ids[tokens.clone()],
            first: self.first + tokens.start as u64,
            hidden: self.hidden.map(|h| &h[of(h.len())]),
            forced: self.forced.as_ref().map(|f| f.iter().map(|ids| &ids[of(ids.len())]).collect()),
            ..self.clone()
        }
    }
}

/// The forced ids of one call's tokens, −1 where the device chooses.
pub(super) fn forced(e: &Entry, feed: &Feed<'_>, call: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; e.bytes as usize];
    for (share, (_, offset, what)) in e.shares.iter().enumerate() {
        let k = what.shape.iter().product::<u64>() as usize;
        if let Some(ids) = feed.forced.as_ref().map(|f| &f[share][call * k..(call + 1) * k]) {
            for (j, &id) in ids.iter().enumerate() {
                let at = *offset as usize + j * 4;
                bytes[at..at + 4].copy_from_slice(&(id as i32).to_le_bytes());
            }
        }
    }
    bytes
}
