//! Integers packed into 32-bit words, unpacked to the canonical form: int8 containers, scales and zero
//! points with a matrix's rows outermost.
//!
//! A stored integer is unsigned; its canonical value is that less half the range, and zero points are
//! shifted alike, so (q − zero) is what the publisher means. Knows bytes and shapes, no tensor's name.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;

/// How words are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packing {
    /// compressed-tensors: `[rows, cols]`, neighbours along a row; zero points `[rows, groups]`, neighbours
    /// along a column. Lowest bits first, the last word padded.
    CompressedTensors,
    /// GPTQ: `[cols, rows]`, neighbours along the columns' axis; zero points `[groups, rows]`, neighbours
    /// along the rows' axis. Lowest bits first.
    Gptq {
        /// Zero points are stored less one.
        zero_less_one: bool,
    },
    /// AWQ: `[cols, rows]` and `[groups, rows]`, neighbours along the rows' axis, in the order that AWQ packs a word in.
    Awq,
}

/// The neighbour that each four bits of a word of AWQ's hold, lowest bits first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// From stored tensors to the canonical ones, a matrix at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpack {
    /// How words are filled.
    pub packing: Packing,
    /// Of an integer: 4 or 8.
    pub bits: u32,
    /// Rows of a matrix: its outputs.
    pub rows: u64,
    /// Columns of a matrix: its inputs.
    pub cols: u64,
    /// Scales of a row.
    pub groups: u64,
    /// Whether the delivery says that there are no zero points; stored ones then have to say so too.
    pub symmetric: bool,
}

/// A zero point that cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadZero {
    /// `[row, group]`.
    pub place: [u64; 2],
    /// As stored.
    pub stored: u8,
    pub reason: &'static str,
}

impl Unpack {
    /// Integers in a word.
    pub(crate) fn per_word(&self) -> u64 {
        u64::from(32 / self.bits)
    }

    /// Shape `[.., rows, groups]` of the scales of a weight of this shape.
    pub(crate) fn scaled(&self, shape: &[u64]) -> Vec<u64> {
        [&shape[..shape.len() - 1], &[self.groups]].concat()
    }

    /// Whether the scales are stored with the groups outermost.
    pub(crate) fn transposed(&self) -> bool {
        self.packing != Packing::CompressedTensors
    }

    /// Containers `[rows, cols]` of some rows of a matrix, from all of its words. The rows start and end where words do
    /// ([`aligned`](Unpack::aligned)).
    pub(crate) fn containers(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, all that the function asks for.
            unsafe { self.containers_avx2(words, rows, out) };
            return;
        }
        self.containers_portable(words, rows, out);
    }

    /// The same compiled for registers of 256 bits.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn containers_avx2(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        self.containers_portable(words, rows, out);
    }

    #[inline(always)]
    fn containers_portable(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        match self.bits {
            8 => self.containers_of::<4>(words, rows, out),
            _ => self.containers_of::<8>(words, rows, out),
        }
    }

    /// Whether [`row_words`](Unpack::row_words) are to be had without taking words apart: eight neighbours along a row.
    pub(crate) fn has_row_words(&self) -> bool {
        self.bits == 4 && self.cols.is_multiple_of(8) && self.packing != Packing::Awq
    }

    /// Words `[rows, cols / 8]` of some rows of a matrix, as they are stored, from all of its words.
    pub(crate) fn row_words<'b>(&self, words: Cow<'b, [u8]>, rows: Range<usize>) -> Cow<'b, [u8]> {
        let row = self.cols as usize / 2;
        let place = rows.start * row..rows.end * row;
        match (self.packing, words) {
            (Packing::Gptq { .. }, words) => {
                let blocks = words.as_chunks::<4>().0.chunks_exact(self.rows as usize);
                let mut out = vec![0; place.len()];
                for (block, words) in blocks.enumerate() {
                    for (out, word) in out.chunks_exact_mut(row).zip(&words[rows.clone()]) {
                        out[block * 4..][..4].copy_from_slice(word);
                    }
                }
                Cow::Owned(out)
            }
            (_, Cow::Borrowed(words)) => Cow::Borrowed(&words[place]),
            (_, Cow::Owned(words)) => Cow::Owned(words[place].to_vec()),
        }
    }

    #[inline(always)]
    fn containers_of<const PER: usize>(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        let cols = self.cols as usize;
        match self.packing {
            Packing::CompressedTensors => {
                let row = cols.div_ceil(PER) * 4;
                let words = words[rows.start * row..rows.end * row].chunks_exact(row);
                out.chunks_exact_mut(cols).zip(words).for_each(|(out, words)| along_row::<PER>(words, out));
            }
            Packing::Gptq { .. } => {
                for (block, words) in words.as_chunks().0.chunks_exact(self.rows as usize).enumerate() {
                    for (out, &word) in out.chunks_exact_mut(cols).zip(&words[rows.clone()]) {
                        out[block * PER..][..PER].copy_from_slice(&integers::<PER>(word));
                    }
                }
            }
            Packing::Awq => self.across_rows::<PER>(words, rows, cols, &AWQ_ORDER, out),
        }
    }

    /// Zero points `[rows, groups]` of some rows of a matrix, from all of its words; the rows as in
    /// [`containers`](Unpack::containers).
    pub(crate) fn zeros(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) -> Result<(), BadZero> {
        match self.bits {
            8 => self.zeros_of::<4>(words, rows.clone(), out),
            _ => self.zeros_of::<8>(words, rows.clone(), out),
        }
        let groups = self.groups as usize;
        let largest = (1u8 << (self.bits - 1)) - 1;
        for (at, zero) in out.iter_mut().enumerate() {
            let bad = |zero: u8, reason| {
                let stored = zero.wrapping_add(1 << (self.bits - 1));
                Err(BadZero {
                    place: [(rows.start + at / groups) as u64, (at % groups) as u64],
                    stored,
                    reason,
                })
            };
            let stored = *zero;
            if self.packing == (Packing::Gptq { zero_less_one: true }) {
                if stored == largest {
                    return bad(
                        stored,
                        "is stored less one, and one more does not fit its bits: readers differ on it",
                    );
                }
                *zero = stored.wrapping_add(1);
            }
            if self.symmetric && *zero != 0 {
                return bad(stored, "is no middle of the range, and the delivery is said to be symmetric");
            }
        }
        Ok(())
    }

    fn zeros_of<const PER: usize>(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        let groups = self.groups as usize;
        match self.packing {
            Packing::CompressedTensors => self.across_columns::<PER>(words, rows, out),
            Packing::Gptq { .. } => {
                self.across_rows::<PER>(words, rows, groups, &[0, 1, 2, 3, 4, 5, 6, 7], out);
            }
            Packing::Awq => self.across_rows::<PER>(words, rows, groups, &AWQ_ORDER, out),
        }
    }

    /// Scales `[rows, groups]`, of `width` bytes each, of some rows of a matrix, from all of its `[groups, rows]`.
    pub(crate) fn scales(&self, stored: &[u8], width: usize, rows: Range<usize>, out: &mut [u8]) {
        let places = rows.flat_map(|row| (0..self.groups as usize).map(move |group| (row, group)));
        for (out, (row, group)) in out.chunks_exact_mut(width).zip(places) {
            out.copy_from_slice(&stored[(group * self.rows as usize + row) * width..][..width]);
        }
    }

    /// The least rows that contain these and start and end where words do, whatever is unpacked.
    pub(crate) fn aligned(&self, rows: Range<u64>) -> Range<u64> {
        let per = self.per_word();
        rows.start / per * per..rows.end.next_multiple_of(per).min(self.rows)
    }

    /// Integers `[rows, groups]` whose neighbours in a word are in a column, stored row by row.
    fn across_columns<const PER: usize>(&self, words: &[u8], rows: Range<usize>, out: &mut [u8]) {
        let cols = self.groups as usize;
        let words = words.as_chunks().0.chunks_exact(cols).skip(rows.start / PER);
        for (out, words) in out.chunks_mut(PER * cols).zip(words) {
            for (col, &word) in words.iter().enumerate() {
                for (out, value) in out.chunks_exact_mut(cols).zip(integers::<PER>(word)) {
                    out[col] = value;
                }
            }
        }
    }

    /// Integers stored `[cols, rows]` with neighbours in a word along the rows' axis, as `[rows, cols]`.
    fn across_rows<const PER: usize>(
        &self,
        words: &[u8],
        rows: Range<usize>,
        cols: usize,
        order: &[usize; 8],
        out: &mut [u8],
    ) {
        let blocks = self.rows as usize / PER;
        let words = words.as_chunks().0;
        for (block, out) in (rows.start / PER..).zip(out.chunks_exact_mut(PER * cols)) {
            for col in 0..cols {
                for (&neighbour, value) in order.iter().zip(integers::<PER>(words[col * blocks + block])) {
                    out[neighbour * cols + col] = value;
                }
            }
        }
    }
}

/// A row's integers from its words; the last word may have too many. Byte by byte, which the compiler turns into vectors.
#[inline(always)]
fn along_row<const PER: usize>(words: &[u8], out: &mut [u8]) {
    if PER == 4 {
        for (out, byte) in out.iter_mut().zip(words) {
            *out = byte ^ 0x80;
        }
        return;
    }
    let (pairs, rest) = out.as_chunks_mut();
    let last = words.get(pairs.len()).copied();
    for (pair, &byte) in pairs.iter_mut().zip(words) {
        *pair = nibbles(byte);
    }
    if let (Some(out), Some(byte)) = (rest.first_mut(), last) {
        *out = nibbles(byte)[0];
    }
}

/// A byte's two integers, the low bits' first, less half their range.
#[inline(always)]
fn nibbles(byte: u8) -> [u8; 2] {
    [(byte & 15).wrapping_sub(8), (byte >> 4).wrapping_sub(8)]
}

/// The integers of a word, lowest bits first, less half their range: eight of 4 bits or four of 8.
fn integers<const PER: usize>(word: [u8; 4]) -> [u8; PER] {
    let mut out = [0; PER];
    let word = u64::from(u32::from_le_bytes(word));
    let all = if PER == 4 {
        word ^ 0x8080_8080
    } else {
        let pairs = (word | (word << 16)) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs | (pairs << 8)) & 0x00ff_00ff_00ff_00ff;
        let nibbles = (bytes | (bytes << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // the set top bits lend, so that no byte borrows from the next
        const TOP: u64 = 0x8080_8080_8080_8080;
        ((nibbles | TOP) - 0x0808_0808_0808_0808) ^ TOP
    };
    out.copy_from_slice(&all.to_le_bytes()[..PER]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(packing: Packing, bits: u32, rows: u64, cols: u64, groups: u64) -> Unpack {
        Unpack { packing, bits, rows, cols, groups, symmetric: false }
    }

    fn signed(bytes: Vec<u8>) -> Vec<i8> {
        bytes.into_iter().map(|b| b as i8).collect()
    }

    const GPTQ: Packing = Packing::Gptq { zero_less_one: false };

    #[test]
    fn a_word() {
        assert_eq!(signed(integers::<8>([0x10, 0x32, 0x54, 0xf8]).to_vec()), [-8, -7, -6, -5, -4, -3, 0, 7]);
        assert_eq!(signed(integers::<4>([0, 1, 128, 255]).to_vec()), [-128, -127, 0, 127]);
    }

    /// Every packing by its definition, one integer at a time.
    #[test]
    fn every_place() {
        for (packing, bits, rows, cols) in [
            (Packing::CompressedTensors, 4, 3, 16),
            (Packing::CompressedTensors, 4, 3, 13),
            (Packing::CompressedTensors, 8, 5, 6),
            (GPTQ, 4, 16, 24),
            (GPTQ, 8, 8, 12),
            (Packing::Awq, 4, 16, 5),
        ] {
            let unpack = of(packing, bits, rows, cols, 1);
            let per = unpack.per_word();
            let words = match packing {
                Packing::CompressedTensors => rows * cols.div_ceil(per),
                _ => rows * cols / per,
            };
            for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                let (word, place) = match packing {
                    Packing::CompressedTensors => (row * cols.div_ceil(per) + col / per, col % per),
                    Packing::Gptq { .. } => (col / per * rows + row, col % per),
                    Packing::Awq => {
                        (col * (rows / per) + row / per, [0, 4, 1, 5, 2, 6, 3, 7][(row % per) as usize])
                    }
                };
                let mut stored = vec![0; words as usize * 4];
                let value = ((1u32 << bits) - 1) << (place * u64::from(bits));
                stored[word as usize * 4..][..4].copy_from_slice(&value.to_le_bytes());
                let mut out = vec![0; (rows * cols) as usize];
                unpack.containers(&stored, 0..rows as usize, &mut out);
                let out = signed(out);
                let half = 1i32 << (bits - 1);
                let expected = |at| if at == row * cols + col { half - 1 } else { -half };
                assert!(
                    out.iter().enumerate().all(|(at, &q)| i32::from(q) == expected(at as u64)),
                    "{packing:?} {row} {col}"
                );
            }
        }
    }

    /// Words of rows hold the containers, each plus 8.
    #[test]
    fn words_of_some_rows() {
        let stored: Vec<u8> =
            (0..16 * 24 / 2).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for packing in [Packing::CompressedTensors, GPTQ] {
            let unpack = of(packing, 4, 16, 24, 1);
            assert!(unpack.has_row_words());
            for rows in [0..16, 3..5, 15..16, 4..4] {
                let mut containers = vec![0; rows.len() * 24];
                unpack.containers_portable(&stored, rows.clone(), &mut containers);
                let plus = |q: u8| q.wrapping_add(8);
                let pairs: Vec<u8> = containers
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&[low, high]| plus(low) | (plus(high) << 4))
                    .collect();
                for words in [Cow::Borrowed(&stored[..]), Cow::Owned(stored.clone())] {
                    assert_eq!(*unpack.row_words(words, rows.clone()), pairs, "{packing:?} {rows:?}");
                }
            }
        }
        assert!(!of(Packing::Awq, 4, 16, 24, 1).has_row_words(), "a word has eight rows");
        assert!(!of(Packing::CompressedTensors, 4, 3, 12, 1).has_row_words(), "rows end within words");
        assert!(!of(Packing::CompressedTensors, 8, 3, 16, 1).has_row_words());
    }

    #[test]
    fn zero_points() {
        let words = |nibbles: [u32; 8]| nibbles.iter().rev().fold(0u32, |w, n| (w << 4) | n).to_le_bytes();
        let stored = words([0, 1, 2, 7, 8, 9, 14, 13]);
        let unpacked = |unpack: Unpack, stored: &[u8]| {
            let mut zeros = vec![0; 8];
            unpack.zeros(stored, 0..8, &mut zeros).map(|()| signed(zeros))
        };
        let zeros = |packing| unpacked(of(packing, 4, 8, 16, 1), &stored);
        assert_eq!(zeros(GPTQ), Ok(vec![-8, -7, -6, -1, 0, 1, 6, 5]));
        assert_eq!(zeros(Packing::CompressedTensors), Ok(vec![-8, -7, -6, -1, 0, 1, 6, 5]));
        assert_eq!(zeros(Packing::Gptq { zero_less_one: true }), Ok(vec![-7, -6, -5, 0, 1, 2, 7, 6]));
        assert_eq!(zeros(Packing::Awq), Ok(vec![-8, 0, -7, 1, -6, 6, -1, 5]));

        let last = words([7, 7, 7, 15, 7, 7, 7, 7]);
        let v1 = of(Packing::Gptq { zero_less_one: true }, 4, 8, 16, 1);
        let bad = unpacked(v1, &last).unwrap_err();
        assert_eq!((bad.place, bad.stored), ([3, 0], 15));
        let symmetric = Unpack { symmetric: true, ..v1 };
        let bad = unpacked(symmetric, &words([7, 6, 7, 7, 7, 7, 7, 7])).unwrap_err();
        assert_eq!((bad.place, bad.stored), ([1, 0], 6));
        assert_eq!(unpacked(symmetric, &words([7; 8])), Ok(vec![0; 8]));

        // of some rows, and of eight bits
        let two = Unpack { rows: 16, ..v1 };
        let bad = two.zeros(&[words([7; 8]), last].concat(), 8..16, &mut [0; 8]).unwrap_err();
        assert_eq!((bad.place, bad.stored), ([8 + 3, 0], 15));
        let wide = of(GPTQ, 8, 4, 16, 1);
        let mut zeros = vec![0; 4];
        wide.zeros(&[0, 1, 128, 255], 0..4, &mut zeros).unwrap();
        assert_eq!(signed(zeros), [-128, -127, 0, 127]);
        let bad = Unpack { symmetric: true, ..wide }.zeros(&[128, 129, 128, 128], 0..4, &mut [0; 4]);
        assert_eq!(bad.map_err(|bad| (bad.place, bad.stored)), Err(([1, 0], 129)));
    }

    /// Rows that end within a word.
    #[test]
    fn few_rows() {
        let unpack = of(Packing::CompressedTensors, 4, 3, 16, 1);
        assert_eq!([unpack.aligned(1..2), unpack.aligned(0..3)], [0..3, 0..3]);
        let mut zeros = vec![0; 3];
        unpack.zeros(&[0x10, 0x02, 0, 0], 0..3, &mut zeros).unwrap();
        assert_eq!(signed(zeros), [-8, -7, -6]);
    }

    #[test]
    fn groups_and_rows_change_places() {
        let unpack = of(GPTQ, 4, 3, 32, 2);
        let mut scales = [0; 12];
        unpack.scales(b"aabbccddeeff", 2, 0..3, &mut scales);
        assert_eq!(&scales, b"aaddbbeeccff");
        // Two groups of eight rows: [group][row], as [row][group].
        let unpack = of(GPTQ, 4, 8, 32, 2);
        let stored = [0x7654_3210u32.to_le_bytes(), 0xfedc_ba98u32.to_le_bytes()].concat();
        let mut zeros = vec![0; 16];
        unpack.zeros(&stored, 0..8, &mut zeros).unwrap();
        assert_eq!(signed(zeros)[..6], [-8, 0, -7, 1, -6, 2]);
    }
}
