//! The digest of a content that comes in pieces, from any thread and in any order.
//!
//! BLAKE3 is a tree over chunks of 1024 bytes: a subtree is hashed where its bytes are, while they are in the processor's
//! cache, and only 32 bytes of each go to where the tree is put together. The digest is that of the whole content in
//! one. What the content is, and where the bytes go otherwise, is not known here.

mod tree;

use blake3::hazmat::{ContextKey, HasherExt, Mode, hash_derive_key_context};
use blake3::{CHUNK_LEN, Hash, Hasher};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tree::{Node, parts, root};

const CHUNK: u64 = CHUNK_LEN as u64;

/// What the digest is of: plain bytes, or bytes within a context ([`blake3::derive_key`]).
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Derived(ContextKey),
}

impl Kind {
    fn hasher(&self) -> Hasher {
        match self {
            Kind::Plain => Hasher::new(),
            Kind::Derived(key) => Hasher::new_from_context_key(key),
        }
    }

    fn mode(&self) -> Mode<'_> {
        match self {
            Kind::Plain => Mode::Hash,
            Kind::Derived(key) => Mode::DeriveKeyMaterial(key),
        }
    }
}

/// A content of known length, of which some pieces have come.
pub struct Pieces {
    kind: Kind,
    /// Bytes of the heading, which come before what pieces are counted from.
    heading: u64,
    /// Bytes of all.
    len: u64,
    come: Mutex<Come>,
}

#[derive(Default)]
struct Come {
    bytes: u64,
    /// Hashed subtrees by their starts.
    nodes: HashMap<u64, Node>,
    /// Chunks that cross the ends of pieces, by their starts.
    partial: HashMap<u64, Partial>,
    /// Whether bytes of such a chunk came twice.
    twice: bool,
}

/// A chunk of which only some bytes have come.
#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    come: Vec<Range<u64>>,
}

impl Pieces {
    /// A content of `len` bytes.
    pub fn new(len: u64) -> Pieces {
        Pieces { kind: Kind::Plain, heading: 0, len, come: Mutex::default() }
    }

    /// A content of `len` bytes behind a heading, in a context: the digest is that of a hasher made by
    /// [`Hasher::new_derive_key`] that takes the heading and then the content.
    pub fn derived(context: &str, heading: &[u8], len: u64) -> Pieces {
        let kind = Kind::Derived(hash_derive_key_context(context));
        let before = heading.len() as u64;
        let pieces = Pieces { kind, heading: before, len: before + len, come: Mutex::default() };
        pieces.come_at(0, heading);
        pieces
    }

    /// Ranges of about `size` bytes that together are the whole content, cut where subtrees of that size start; pieces
    /// that are cut so are hashed fastest.
    pub fn cuts(&self, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (heading, len) = (self.heading, self.len);
        let size = size.max(CHUNK).next_power_of_two();
        (heading / size..len.div_ceil(size)).filter_map(move |number| {
            let (start, end) = ((number * size).max(heading), ((number + 1) * size).min(len));
            (start < end).then(|| start - heading..end - heading)
        })
    }

    /// Takes the bytes that lie `at` bytes into the content. Every byte has to come once.
    ///
    /// # Panics
    /// Bytes beyond the content's end.
    pub fn add(&self, at: u64, bytes: &[u8]) {
        self.come_at(self.heading + at, bytes);
    }

    fn come_at(&self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        assert!(end <= self.len, "bytes {start}..{end} of a content of {}", self.len);
        let within =
            |range: &Range<u64>| &bytes[(range.start - start) as usize..(range.end - start) as usize];
        let parts = parts(start..end, self.len);
        let nodes: Vec<Node> = parts.whole.iter().map(|range| self.node(range, within(range))).collect();
        let mut come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
        come.bytes += bytes.len() as u64;
        come.nodes.extend(nodes.into_iter().map(|node| (node.range.start, node)));
        for range in &parts.partial {
            let chunk = range.start / CHUNK * CHUNK;
            let len = CHUNK.min(self.len - chunk);
            let held = come.partial.entry(chunk).or_default();
            held.bytes.resize(len as usize, 0);
            held.bytes[(range.start - chunk) as usize..(range.end - chunk) as usize]
                .copy_from_slice(within(range));
            let twice = held.come.iter().any(|other| other.start < range.end && range.start < other.end);
            held.come.push(range.clone());
            let all = held.come.iter().map(|range| range.end - range.start).sum::<u64>() == len;
            come.twice |= twice;
            if all && self.len > CHUNK {
                let held = come.partial.remove(&chunk).unwrap_or_default();
                let node = self.node(&(chunk..chunk + len), &held.bytes);
                come.nodes.insert(chunk, node);
            }
        }
    }

    /// The node over a range that is a subtree but not the root.
    fn node(&self, range: &Range<u64>, bytes: &[u8]) -> Node {
        let value = self.kind.hasher().set_input_offset(range.start).update(bytes).finalize_non_root();
        Node { range: range.clone(), value }
    }

    /// The digest; `None` where not every byte came once.
    pub fn digest(self) -> Option<Hash> {
        let come = self.come.into_inner().unwrap_or_else(PoisonError::into_inner);
        if come.bytes != self.len || come.twice {
            return None;
        }
        if self.len <= CHUNK {
            let held = come.partial.get(&0).map_or(&[][..], |held| &held.bytes);
            return Some(self.kind.hasher().update(held).finalize());
        }
        root(&come.nodes, self.len, self.kind.mode())
    }
}

#[cfg(test)]
mod tests;
