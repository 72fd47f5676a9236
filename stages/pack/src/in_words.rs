//! Canonical tensors that lie in a delivery in words: what they are unpacked from, and how any stretch of one is
//! read without the rest.
//!
//! It must not know where words are kept; they are lent.

use crate::packed::{Digest, PackedLayer};
use crate::resolve::{Resolved, ResolvedRole, Virtual};
use crate::words::{BadZero, Unpack};
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// Which of a weight's canonical tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canonical {
    /// int8 containers `[rows, cols]` of each matrix.
    Containers,
    /// Scales `[rows, groups]` of so many bytes each.
    Scales(u64),
    /// Zero points `[rows, groups]`.
    Zeros,
}

/// A canonical tensor that is not in the delivery, and the one that is there in its stead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InWords {
    /// As delivered, a matrix a piece.
    pub tensor: Virtual,
    unpack: Unpack,
    canonical: Canonical,
}

impl InWords {
    pub(crate) fn containers(role: &ResolvedRole, unpack: &Unpack) -> InWords {
        InWords { tensor: role.data.clone(), unpack: *unpack, canonical: Canonical::Containers }
    }

    /// `None` where scales lie as they should.
    pub(crate) fn scales(role: &ResolvedRole, unpack: &Unpack) -> Option<InWords> {
        let tensor = role.scale.clone().filter(|_| unpack.transposed())?;
        let canonical = Canonical::Scales(tensor.dtype.bytes());
        Some(InWords { tensor, unpack: *unpack, canonical })
    }

    /// `None` where there are none, or none in words.
    pub(crate) fn zeros(role: &ResolvedRole, unpack: &Unpack) -> Option<InWords> {
        let tensor = role.zero.clone().filter(|zero| zero.dtype != crate::Dtype::I8)?;
        Some(InWords { tensor, unpack: *unpack, canonical: Canonical::Zeros })
    }

    /// Rows of a matrix.
    pub(crate) fn rows(&self) -> u64 {
        self.unpack.rows
    }

    /// Bytes of a canonical row.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self.canonical {
            Canonical::Containers => self.unpack.cols,
            Canonical::Scales(width) => self.unpack.groups * width,
            Canonical::Zeros => self.unpack.groups,
        }
    }

    /// Some canonical rows of a matrix from all of what is stored of it. The rows start and end where words do.
    pub(crate) fn unpack(&self, stored: &[u8], rows: Range<u64>, out: &mut [u8]) -> Result<(), BadZero> {
        let rows = rows.start as usize..rows.end as usize;
        match self.canonical {
            Canonical::Containers => self.unpack.containers(stored, rows, out),
            Canonical::Scales(width) => self.unpack.scales(stored, width as usize, rows, out),
            Canonical::Zeros => return self.unpack.zeros(stored, rows, out),
        }
        Ok(())
    }

    /// Bytes `range` of the canonical tensor; `stored` lends ranges of the delivered one's bytes. Only rows that the
    /// range touches are unpacked.
    ///
    /// # Errors
    /// What `stored` says; `InvalidData` for a zero point that packing would have refused.
    pub fn read<'b>(
        &self,
        range: Range<u64>,
        mut stored: impl FnMut(Range<u64>) -> io::Result<Cow<'b, [u8]>>,
    ) -> io::Result<Vec<u8>> {
        let (rows, row) = (self.rows(), self.row_bytes());
        let elements = self.tensor.shape.iter().product::<u64>();
        let matrices = self.tensor.pieces.len().max(1) as u64;
        let matrix = elements * self.tensor.dtype.bytes() / matrices;
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let number = at / (rows * row);
            let start = number * rows * row;
            let end = range.end.min(start + rows * row);
            let within = self.unpack.aligned((at - start) / row..(end - start).div_ceil(row));
            let words = stored(number * matrix..(number + 1) * matrix)?;
            let (skip, first) = ((at - start - within.start * row) as usize, out.len());
            out.resize(first + ((within.end - within.start) * row) as usize, 0);
            self.unpack(&words, within, &mut out[first..])
                .map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad.reason))?;
            out.drain(first..first + skip);
            out.truncate(first + (end - at) as usize);
            at = end;
        }
        Ok(out)
    }
}

/// The canonical tensors of one weight of which the delivery has words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleInWords {
    /// The integers.
    pub data: InWords,
    /// The scales; `None` where they lie as they should.
    pub scale: Option<InWords>,
    /// The zero points; `None` where there are none, or none in words.
    pub zero: Option<InWords>,
}

impl RoleInWords {
    /// Those of a role; `None` where it is not packed in words.
    pub fn of(role: &ResolvedRole) -> Option<RoleInWords> {
        let unpack = role.unpack.as_ref()?;
        let data = InWords::containers(role, unpack);
        Some(RoleInWords { data, scale: InWords::scales(role, unpack), zero: InWords::zeros(role, unpack) })
    }
}

/// The tensors of a packed layer that its delivery has in words, by the digests that the layer names them by.
/// `layer` is what [`pack`](crate::pack) made of `resolved`.
pub fn in_words(resolved: &Resolved, layer: &PackedLayer) -> Vec<(Digest, InWords)> {
    let mut found = Vec::new();
    for (role, tensor) in resolved.roles.iter().zip(&layer.tensors) {
        let Some(lies) = RoleInWords::of(role) else { continue };
        let of =
            |source: &Option<crate::Source>, lies: Option<InWords>| Some((source.as_ref()?.digest, lies?));
        found.push((tensor.data.digest, lies.data));
        found.extend(of(&tensor.scale, lies.scale));
        found.extend(of(&tensor.zero, lies.zero));
    }
    found
}
