//! Where the tensors of a packed layer lie in a delivery: as they should be, or in words.
//!
//! It must not know where a delivery is kept; its bytes are lent.

use crate::convert::keeps_order;
use crate::in_words::{InWords, RoleInWords};
use crate::packed::{Digest, PackedLayer, Source};
use crate::resolve::{Resolved, Virtual};
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// Where a packed layer's tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the delivery, as it should be.
    AsItIs(Virtual),
    /// In the delivery in words.
    InWords(InWords),
}

impl Place {
    /// The delivered tensor.
    pub fn tensor(&self) -> &Virtual {
        match self {
            Place::AsItIs(tensor) => tensor,
            Place::InWords(words) => &words.tensor,
        }
    }

    /// Bytes of the canonical tensor.
    pub fn bytes(&self) -> u64 {
        match self {
            Place::AsItIs(tensor) => tensor.shape.iter().product::<u64>() * tensor.dtype.bytes(),
            Place::InWords(words) => words.bytes(),
        }
    }

    /// Bytes `range` of the canonical tensor; `stored` lends ranges of the delivered one's bytes.
    ///
    /// # Errors
    /// What `stored` says; `InvalidData` for a zero point that packing would have refused.
    pub fn read<'b>(
        &self,
        range: Range<u64>,
        mut stored: impl FnMut(Range<u64>) -> io::Result<Cow<'b, [u8]>>,
    ) -> io::Result<Cow<'b, [u8]>> {
        match self {
            Place::AsItIs(_) => stored(range),
            Place::InWords(words) => words.read(range, stored).map(Cow::Owned),
        }
    }
}

/// The tensors of a packed layer that its delivery has, by the digests that the layer names them by; what packing stored
/// is not among them. `layer` is what [`pack`](crate::pack()) made of `resolved`.
pub fn places(resolved: &Resolved, layer: &PackedLayer) -> Vec<(Digest, Place)> {
    let mut found = Vec::new();
    for (role, tensor) in resolved.roles.iter().zip(&layer.tensors) {
        let words = RoleInWords::of(role);
        let words = words.as_ref();
        let mut add = |source: Option<&Source>, words: Option<&InWords>, delivered: Option<&Virtual>| {
            let Some(source) = source else { return };
            let place = match words {
                Some(words) => Some(Place::InWords(words.clone())),
                None => delivered.cloned().map(Place::AsItIs),
            };
            found.extend(place.map(|place| (source.digest, place)));
        };
        let stored = role.converter.as_ref().is_some_and(|converter| !keeps_order(converter));
        add(Some(&tensor.data), words.map(|w| &w.data), (!stored).then_some(&role.data));
        add(tensor.scale.as_ref(), words.and_then(|w| w.scale.as_ref()), role.scale.as_ref());
        add(tensor.zero.as_ref(), words.and_then(|w| w.zero.as_ref()), role.zero.as_ref());
    }
    found
}
