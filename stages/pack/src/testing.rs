//! A delivery in memory, for tests: tensors by name that can be put in, taken out and renamed.

use crate::contents::Contents;
use crate::error::PackFailure;
use crate::names::{Names, TensorInfo};
use crate::pack::pack;
use crate::packed::{Digest, PackedLayer, Source};
use crate::place::places;
use crate::resolve::{Virtual, resolve};
use crate::scheme::Scheme;
use mica_digest::Pieces;
use mica_dtype::Dtype;
use mica_models::stack::{Part, Stack};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ops::Range;

/// Tensors by name, and those that packing has given a digest.
#[derive(Clone, Default)]
pub struct MemoryDelivery {
    /// The tensors.
    pub tensors: BTreeMap<String, (TensorInfo, Vec<u8>)>,
    /// How integers are packed.
    pub scheme: Option<Scheme>,
    by_digest: HashMap<Digest, Vec<u8>>,
}

impl MemoryDelivery {
    /// The tensors of a safetensors file.
    ///
    /// # Panics
    /// On a file that is none.
    pub fn from_safetensors(file: &[u8]) -> MemoryDelivery {
        let file = safetensors::SafeTensors::deserialize(file).expect("a safetensors file");
        let mut delivery = MemoryDelivery::default();
        for (name, view) in file.tensors() {
            let dtype = view.dtype().to_string().parse().expect("a dtype of a delivery");
            let shape: Vec<u64> = view.shape().iter().map(|&n| n as u64).collect();
            delivery.insert(&name, dtype, &shape, view.data().to_vec());
        }
        delivery
    }

    /// Puts a tensor in, in place of one of the same name.
    ///
    /// # Panics
    /// Where the bytes are not the shape's.
    pub fn insert(&mut self, name: &str, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) {
        assert_eq!(shape.iter().product::<u64>() * dtype.bytes(), bytes.len() as u64, "{name}");
        self.tensors.insert(name.into(), (TensorInfo { dtype, shape: shape.into() }, bytes));
    }

    /// Takes a tensor out.
    ///
    /// # Panics
    /// Where there is none.
    pub fn remove(&mut self, name: &str) -> (TensorInfo, Vec<u8>) {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Gives every tensor the name that `to` makes of its own.
    pub fn rename(&mut self, to: impl Fn(&str) -> String) {
        self.tensors =
            std::mem::take(&mut self.tensors).into_iter().map(|(name, t)| (to(&name), t)).collect();
    }

    /// The bytes of a tensor that packing has given a digest; `None` of one that lies in words.
    pub fn content(&self, source: &Source) -> Option<&[u8]> {
        self.by_digest.get(&source.digest).map(Vec::as_slice)
    }

    /// The pieces' bytes in order.
    pub fn joined(&self, tensor: &Virtual) -> Vec<u8> {
        let piece = |name: &String| self.tensors[name].1.as_slice();
        tensor.pieces.iter().map(piece).collect::<Vec<_>>().concat()
    }

    /// A part's packed layer, whose tensors' contents are known from then on ([`content`](MemoryDelivery::content)).
    ///
    /// # Errors
    /// What packing says.
    pub fn packed(&mut self, stack: &Stack, part: Part) -> Result<PackedLayer, PackFailure<Infallible>> {
        let resolved = resolve(self, stack, part).map_err(PackFailure::Pack)?;
        let layer = pack(&resolved, self)?;
        for (digest, place) in places(&resolved, &layer) {
            let stored = self.joined(place.tensor());
            let lent = |r: Range<u64>| Ok(Cow::Borrowed(&stored[r.start as usize..r.end as usize]));
            let bytes = place.read(0..place.bytes(), lent).expect("what packing has read");
            let bytes = bytes.into_owned();
            self.by_digest.insert(digest, bytes);
        }
        Ok(layer)
    }

    fn keep(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Digest {
        let Ok(pieces) = self.pieces(dtype, shape);
        pieces.add(0, &bytes);
        let digest = pieces.digest().expect("as many bytes as the shape says");
        self.by_digest.insert(digest, bytes);
        digest
    }
}

impl Names for MemoryDelivery {
    fn find(&self, name: &str) -> Option<TensorInfo> {
        self.tensors.get(name).map(|(info, _)| info.clone())
    }

    fn all(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.tensors.keys().map(String::as_str))
    }

    fn scheme(&self) -> Option<&Scheme> {
        self.scheme.as_ref()
    }
}

impl Contents for MemoryDelivery {
    type Error = Infallible;

    fn digest(&mut self, tensor: &Virtual) -> Result<Digest, Self::Error> {
        let bytes = self.joined(tensor);
        Ok(self.keep(tensor.dtype, &tensor.shape, bytes))
    }

    fn bytes(&self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Self::Error> {
        Ok(Cow::Owned(self.joined(tensor)))
    }

    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> Result<Pieces, Self::Error> {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        Ok(Pieces::derived("a tensor in memory", format!("{dtype} {shape:?} ").as_bytes(), bytes))
    }

    fn store(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Result<Digest, Self::Error> {
        Ok(self.keep(dtype, shape, bytes))
    }
}
