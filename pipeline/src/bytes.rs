//! The bytes behind a packed layer's digests: a delivery's maps, what lies in them in words, or blobs that pack stored.

use crate::action::BodyError;
use crate::delivery::OpenDelivery;
use crate::env::Env;
use crate::queries::Fetched;
use mica_cache::{Blob, CacheError, Digest};
use mica_fetch::{DeliveryFiles, TensorEntry};
use mica_pack::{Place, Resolved, Source};
use mica_quantize::{QuantizeError, TensorBytes};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;

enum Kept {
    Delivered(Delivered, Place),
    Stored(Blob),
}

/// A delivered tensor, and where each of its extents starts in it: experts that lie apart are many.
struct Delivered {
    entry: TensorEntry,
    starts: Vec<u64>,
}

impl Delivered {
    fn new(entry: &TensorEntry) -> Delivered {
        let starts = entry.extents.iter().scan(0, |end, extent| {
            let start = *end;
            *end += extent.len;
            Some(start)
        });
        Delivered { entry: entry.clone(), starts: starts.collect() }
    }
}

/// Tensors by digest, for one stage body.
pub struct DeliveredBytes<'a> {
    delivery: &'a OpenDelivery,
    kept: HashMap<Digest, Kept>,
}

impl<'a> DeliveredBytes<'a> {
    /// The tensors of a part: those that lie in the delivery, and those that packing stored, by their digests and their
    /// blobs'.
    pub fn new(
        env: &Env,
        delivery: &'a OpenDelivery,
        fetched: &Fetched,
        delivered: impl IntoIterator<Item = (Digest, Place)>,
        stored: impl IntoIterator<Item = (Digest, Digest)>,
    ) -> Result<DeliveredBytes<'a>, BodyError> {
        let mut kept = HashMap::new();
        for (digest, place) in delivered {
            if let (Entry::Vacant(free), Some(entry)) = (kept.entry(digest), fetched.place(place.tensor())) {
                free.insert(Kept::Delivered(Delivered::new(entry), place));
            }
        }
        for (tensor, blob) in stored {
            if let Entry::Vacant(e) = kept.entry(tensor) {
                e.insert(Kept::Stored(env.cache.get(blob)?.ok_or(BodyError::Lost(blob))?));
            }
        }
        Ok(DeliveredBytes { delivery, kept })
    }

    /// Fails where a delivery file is no longer what it was when its digests were taken.
    pub fn unchanged(&self) -> Result<(), BodyError> {
        self.kept.values().try_for_each(|p| match p {
            Kept::Delivered(tensor, _) => {
                self.delivery.unchanged(&tensor.entry).map_err(BodyError::environment)
            }
            Kept::Stored(_) => Ok(()),
        })
    }

    /// The cause of a failed write of a stage's output: the disk, or the stage itself.
    pub fn blame(&self, e: CacheError) -> BodyError {
        match e {
            CacheError::Producer { source } => BodyError::stage(source),
            e => e.into(),
        }
    }

    fn delivered(&self, tensor: &Delivered, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let mut joined = Vec::new();
        // the last extent that starts at the range's start or before holds it, unless the range is empty
        let first = tensor.starts.partition_point(|&start| start <= range.start).saturating_sub(1);
        for (x, &start) in tensor.entry.extents.iter().zip(&tensor.starts).skip(first) {
            let (from, to) = (range.start.max(start), range.end.min(start + x.len));
            if start >= range.end {
                break;
            }
            if from >= to {
                continue;
            }
            let file = self.delivery.files.bytes(x.file).map_err(io::Error::other)?;
            let at = x.offset + from - start;
            let piece = file.get(at as usize..(at + to - from) as usize).ok_or_else(|| {
                io::Error::other(format!("{} became shorter", self.delivery.files.path(x.file).display()))
            })?;
            if from == range.start && to == range.end {
                return Ok(Cow::Borrowed(piece));
            }
            joined.extend_from_slice(piece);
        }
        Ok(Cow::Owned(joined))
    }
}

/// What is wrong with a weight, named as the delivery has it: its publisher knows no packed layer.
pub fn in_delivery(e: QuantizeError, resolved: &Resolved) -> QuantizeError {
    let element = |role: &str, index| resolved.role(role)?.delivered(index);
    let scale = |role: &str, index| resolved.role(role)?.delivered_scale(index);
    e.delivered(element, scale)
}

impl TensorBytes for DeliveredBytes<'_> {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        match self.kept.get(&source.digest) {
            Some(Kept::Delivered(tensor, place)) => {
                place.read(range, |stored| self.delivered(tensor, stored))
            }
            Some(Kept::Stored(blob)) => Ok(Cow::Borrowed(&blob[range.start as usize..range.end as usize])),
            None => Err(io::Error::other(format!("nothing is called {}", source.digest))),
        }
    }

    fn words(&self, source: &Source, range: Range<u64>) -> io::Result<Option<Cow<'_, [u8]>>> {
        match self.kept.get(&source.digest) {
            Some(Kept::Delivered(tensor, Place::InWords(words))) => {
                words.words(range, |stored| self.delivered(tensor, stored))
            }
            _ => Ok(None),
        }
    }
}
