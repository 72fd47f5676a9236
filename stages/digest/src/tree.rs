//! The shape of BLAKE3's tree: which ranges are subtrees, and how they come together. Lengths and chaining values only.

use crate::CHUNK;
use blake3::Hash;
use blake3::hazmat::{ChainingValue, Mode, left_subtree_len, max_subtree_len};
use blake3::hazmat::{merge_subtrees_non_root, merge_subtrees_root};
use std::collections::HashMap;
use std::ops::Range;

/// A subtree that is hashed.
pub(crate) struct Node {
    pub range: Range<u64>,
    pub value: ChainingValue,
}

/// What a piece of a content falls into.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Subtrees, the largest that there are; never the root.
    pub whole: Vec<Range<u64>>,
    /// At most two: parts of chunks.
    pub partial: Vec<Range<u64>>,
}

/// Cuts a piece of a content of `len` bytes.
pub(crate) fn parts(piece: Range<u64>, len: u64) -> Parts {
    let (mut whole, mut partial) = (Vec::new(), Vec::new());
    let mut at = piece.start;
    while at < piece.end {
        let left = piece.end - at;
        let chunk_end = (at / CHUNK + 1) * CHUNK;
        let ends_chunk = piece.end >= chunk_end || piece.end == len;
        if !at.is_multiple_of(CHUNK) || !ends_chunk || len <= CHUNK {
            let end = piece.end.min(chunk_end);
            partial.push(at..end);
            at = end;
            continue;
        }
        // a power of two of chunks, or the content's last chunk
        let most = max_subtree_len(at).unwrap_or_else(|| left_subtree_len(len));
        let chunks = left / CHUNK;
        let some = if chunks == 0 {
            left
        } else {
            most.min(1 << (u64::BITS - 1 - (chunks * CHUNK).leading_zeros()))
        };
        whole.push(at..at + some);
        at += some;
    }
    Parts { whole, partial }
}

/// The digest of a content of more than a chunk from subtrees that cover it; `None` where they don't.
pub(crate) fn root(nodes: &HashMap<u64, Node>, len: u64, mode: Mode<'_>) -> Option<Hash> {
    let left = left_subtree_len(len);
    let [left, right] = [value(nodes, 0..left, mode)?, value(nodes, left..len, mode)?];
    Some(merge_subtrees_root(&left, &right, mode))
}

fn value(nodes: &HashMap<u64, Node>, range: Range<u64>, mode: Mode<'_>) -> Option<ChainingValue> {
    if let Some(node) = nodes.get(&range.start).filter(|node| node.range == range) {
        return Some(node.value);
    }
    let len = range.end - range.start;
    if len <= CHUNK {
        return None;
    }
    let middle = range.start + left_subtree_len(len);
    let left = value(nodes, range.start..middle, mode)?;
    let right = value(nodes, middle..range.end, mode)?;
    Some(merge_subtrees_non_root(&left, &right, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece, the content's length, and what it falls into: subtrees in KiB, and parts of chunks.
    type Case = ([u64; 2], u64, &'static [[u64; 2]], &'static [[u64; 2]]);

    #[test]
    fn pieces_fall_into_the_largest_subtrees() {
        let cases: &[Case] = &[
            ([0, 16384], 16384, &[[0, 8], [8, 16]], &[]),
            ([0, 16384], 16385, &[[0, 16]], &[]),
            ([3072, 13312], 65536, &[[3, 4], [4, 8], [8, 12], [12, 13]], &[]),
            ([1000, 5000], 65536, &[[1, 2], [2, 4]], &[[1000, 1024], [4096, 5000]]),
            ([4096, 5120], 5120, &[[4, 5]], &[]),
            ([100, 200], 65536, &[], &[[100, 200]]),
            ([0, 1000], 1000, &[], &[[0, 1000]]),
        ];
        for &(piece, len, whole, partial) in cases {
            let ranges = |ends: &[[u64; 2]], unit| ends.iter().map(|e| e[0] * unit..e[1] * unit).collect();
            let expected = Parts { whole: ranges(whole, CHUNK), partial: ranges(partial, 1) };
            assert_eq!(parts(piece[0]..piece[1], len), expected, "{piece:?} of {len}");
        }
        let last = parts(4096..5000, 5000);
        assert_eq!(last.whole.first(), Some(&(4096..5000)), "the last chunk may be short");
    }
}
