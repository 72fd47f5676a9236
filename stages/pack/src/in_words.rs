//! Canonical tensors that lie in a delivery in words: what they are unpacked from, and how any stretch of one is
//! read without the rest.
//!
//! It must not know where words are kept; they are lent.

use crate::resolve::{ResolvedRole, Virtual};
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
    fn rows(&self) -> u64 {
        self.unpack.rows
    }

    /// Bytes of a canonical row.
    fn row_bytes(&self) -> u64 {
        match self.canonical {
            Canonical::Containers => self.unpack.cols,
            Canonical::Scales(width) => self.unpack.groups * width,
            Canonical::Zeros => self.unpack.groups,
        }
    }

    /// Some canonical rows of a matrix from all of what is stored of it. The rows start and end where words do.
    fn unpack(&self, stored: &[u8], rows: Range<u64>, out: &mut [u8]) -> Result<(), BadZero> {
        let rows = rows.start as usize..rows.end as usize;
        match self.canonical {
            Canonical::Containers => self.unpack.containers(stored, rows, out),
            Canonical::Scales(width) => self.unpack.scales(stored, width as usize, rows, out),
            Canonical::Zeros => return self.unpack.zeros(stored, rows, out),
        }
        Ok(())
    }

    /// Puts bytes `range` of the canonical tensor into `buffer`, which is only made longer, and tells their place there;
    /// `stored` gives all that is stored of a matrix. Only rows that the range touches are unpacked.
    pub(crate) fn fill<'b, E>(
        &self,
        range: Range<u64>,
        mut stored: impl FnMut(usize) -> Result<Cow<'b, [u8]>, E>,
        buffer: &mut Vec<u8>,
    ) -> Result<Range<usize>, Unread<E>> {
        let row = self.row_bytes();
        let matrix = self.rows() * row;
        let (mut at, mut filled, mut skip) = (range.start, 0, 0);
        while at < range.end {
            let number = at / matrix;
            let start = number * matrix;
            let end = range.end.min(start + matrix);
            let rows = self.unpack.aligned((at - start) / row..(end - start).div_ceil(row));
            if filled == 0 {
                // later matrices of the range start with it
                skip = (at - start - rows.start * row) as usize;
            }
            let words = stored(number as usize).map_err(Unread::Stored)?;
            let next = filled + ((rows.end - rows.start) * row) as usize;
            if buffer.len() < next {
                buffer.resize(next, 0);
            }
            self.unpack(&words, rows, &mut buffer[filled..next])
                .map_err(|bad| Unread::Zero { matrix: number as usize, bad })?;
            (at, filled) = (end, next);
        }
        Ok(skip..skip + (range.end - range.start) as usize)
    }

    /// Bytes `range` of the canonical tensor; `stored` lends ranges of the delivered one's bytes.
    ///
    /// # Errors
    /// What `stored` says; `InvalidData` for a zero point that packing would have refused.
    pub fn read<'b>(
        &self,
        range: Range<u64>,
        mut stored: impl FnMut(Range<u64>) -> io::Result<Cow<'b, [u8]>>,
    ) -> io::Result<Vec<u8>> {
        let matrix = self.stored_bytes();
        let mut buffer = Vec::new();
        let lent = |number: usize| stored(number as u64 * matrix..(number as u64 + 1) * matrix);
        let place = self.fill(range, lent, &mut buffer).map_err(|unread| match unread {
            Unread::Stored(e) => e,
            Unread::Zero { bad, .. } => io::Error::new(io::ErrorKind::InvalidData, bad.reason),
        })?;
        buffer.truncate(place.end);
        buffer.drain(..place.start);
        Ok(buffer)
    }

    /// The words of integers `range`, whole rows of one matrix: eight a word along a row, each plus 8, the first in the low
    /// bits. `None` where integers have eight bits or words have to be taken apart for it; [`read`](InWords::read) gives
    /// them then.
    ///
    /// # Errors
    /// What `stored` says.
    pub fn words<'b>(
        &self,
        range: Range<u64>,
        stored: impl FnOnce(Range<u64>) -> io::Result<Cow<'b, [u8]>>,
    ) -> io::Result<Option<Cow<'b, [u8]>>> {
        let (cols, rows, matrix) = (self.unpack.cols, self.rows(), self.stored_bytes());
        let number = range.start / (cols * rows);
        let within = range.start / cols - number * rows..range.end / cols - number * rows;
        let whole = range.start.is_multiple_of(cols) && range.end.is_multiple_of(cols) && within.end <= rows;
        if self.canonical != Canonical::Containers || !whole || !self.unpack.has_row_words() {
            return Ok(None);
        }
        let stored = stored(number * matrix..(number + 1) * matrix)?;
        Ok(Some(self.unpack.row_words(stored, within.start as usize..within.end as usize)))
    }

    /// Bytes of the canonical tensor.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.pieces.len().max(1) as u64 * self.rows() * self.row_bytes()
    }

    /// Bytes that are stored of a matrix.
    fn stored_bytes(&self) -> u64 {
        let elements = self.tensor.shape.iter().product::<u64>();
        elements * self.tensor.dtype.bytes() / self.tensor.pieces.len().max(1) as u64
    }
}

/// Why a range could not be read.
pub(crate) enum Unread<E> {
    /// What is stored could not be had.
    Stored(E),
    /// A zero point that cannot be taken.
    Zero {
        /// Whose it is.
        matrix: usize,
        bad: BadZero,
    },
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
