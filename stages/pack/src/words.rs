//! Integers packed into 32-bit words, unpacked to the canonical form: int8 containers, scales and zero
//! points with a matrix's rows outermost.
//!
//! A stored integer is unsigned; its canonical value is that less half the range, and zero points are
//! shifted alike, so (q − zero) is what the publisher means. Knows bytes and shapes, no tensor's name.

use serde::{Deserialize, Serialize};

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

    /// Containers `[rows, cols]` of one matrix's words.
    pub(crate) fn containers(&self, words: &[u8]) -> Vec<u8> {
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        match self.packing {
            Packing::CompressedTensors => self.along_rows(words, rows, cols),
            Packing::Gptq { .. } => {
                let per = self.per_word() as usize;
                let mut out = vec![0; rows * cols];
                for (block, words) in words.as_chunks().0.chunks_exact(rows).enumerate() {
                    for (row, &word) in words.iter().enumerate() {
                        let place = row * cols + block * per;
                        out[place..place + per].copy_from_slice(&self.word(word)[..per]);
                    }
                }
                out
            }
            Packing::Awq => self.across_rows(words, rows, cols, &AWQ_ORDER),
        }
    }

    /// Zero points `[rows, groups]` of one matrix's words.
    pub(crate) fn zeros(&self, words: &[u8]) -> Result<Vec<u8>, BadZero> {
        let (rows, groups) = (self.rows as usize, self.groups as usize);
        let mut zeros = match self.packing {
            Packing::CompressedTensors => self.across_columns(words, rows, groups),
            Packing::Gptq { .. } => self.across_rows(words, rows, groups, &[0, 1, 2, 3, 4, 5, 6, 7]),
            Packing::Awq => self.across_rows(words, rows, groups, &AWQ_ORDER),
        };
        let largest = (1u8 << (self.bits - 1)) - 1;
        for (at, zero) in zeros.iter_mut().enumerate() {
            let bad = |zero: u8, reason| {
                let stored = zero.wrapping_add(1 << (self.bits - 1));
                Err(BadZero { place: [(at / groups) as u64, (at % groups) as u64], stored, reason })
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
        Ok(zeros)
    }

    /// A matrix's scales `[groups, rows]` of `width` bytes each as `[rows, groups]`.
    pub(crate) fn scales(&self, stored: &[u8], width: usize) -> Vec<u8> {
        let (rows, groups) = (self.rows as usize, self.groups as usize);
        let mut out = Vec::with_capacity(stored.len());
        for row in 0..rows {
            for group in 0..groups {
                out.extend_from_slice(&stored[(group * rows + row) * width..][..width]);
            }
        }
        out
    }

    /// Integers `[rows, cols]` whose neighbours in a word are in a row.
    fn along_rows(&self, words: &[u8], rows: usize, cols: usize) -> Vec<u8> {
        let per = self.per_word() as usize;
        let mut out = vec![0; rows * cols];
        let words = words.as_chunks().0.chunks_exact(cols.div_ceil(per));
        for (row, words) in out.chunks_exact_mut(cols).zip(words) {
            for (place, &word) in row.chunks_mut(per).zip(words) {
                place.copy_from_slice(&self.word(word)[..place.len()]);
            }
        }
        out
    }

    /// Integers `[rows, cols]` whose neighbours in a word are in a column, stored row by row.
    fn across_columns(&self, words: &[u8], rows: usize, cols: usize) -> Vec<u8> {
        let per = self.per_word() as usize;
        let mut out = vec![0; rows * cols];
        for (block, words) in words.as_chunks().0.chunks_exact(cols).enumerate() {
            for (col, &word) in words.iter().enumerate() {
                for (at, value) in self.word(word).into_iter().enumerate().take(per.min(rows - block * per)) {
                    out[(block * per + at) * cols + col] = value;
                }
            }
        }
        out
    }

    /// Integers stored `[cols, rows]` with neighbours in a word along the rows' axis, as `[rows, cols]`.
    fn across_rows(&self, words: &[u8], rows: usize, cols: usize, order: &[usize; 8]) -> Vec<u8> {
        let per = self.per_word() as usize;
        let blocks = rows / per;
        let words = words.as_chunks().0;
        let mut out = vec![0; rows * cols];
        for block in 0..blocks {
            for col in 0..cols {
                let values = self.word(words[col * blocks + block]);
                for (&neighbour, &value) in order.iter().zip(&values[..per]) {
                    out[(block * per + neighbour) * cols + col] = value;
                }
            }
        }
        out
    }

    /// The integers of a word, lowest bits first, less half their range.
    fn word(&self, word: [u8; 4]) -> [u8; 8] {
        let word = u64::from(u32::from_le_bytes(word));
        if self.bits == 8 {
            return (word ^ 0x8080_8080).to_le_bytes();
        }
        let pairs = (word | (word << 16)) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs | (pairs << 8)) & 0x00ff_00ff_00ff_00ff;
        let nibbles = (bytes | (bytes << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // The set top bits lend, so that no byte borrows from the next.
        const TOP: u64 = 0x8080_8080_8080_8080;
        (((nibbles | TOP) - 0x0808_0808_0808_0808) ^ TOP).to_le_bytes()
    }
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
        let unpack = of(GPTQ, 4, 1, 8, 1);
        assert_eq!(signed(unpack.word([0x10, 0x32, 0x54, 0xf8]).to_vec()), [-8, -7, -6, -5, -4, -3, 0, 7]);
        let unpack = of(GPTQ, 8, 1, 4, 1);
        assert_eq!(signed(unpack.word([0, 1, 128, 255])[..4].to_vec()), [-128, -127, 0, 127]);
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
                let out = signed(unpack.containers(&stored));
                let half = 1i32 << (bits - 1);
                let expected = |at| if at == row * cols + col { half - 1 } else { -half };
                assert!(
                    out.iter().enumerate().all(|(at, &q)| i32::from(q) == expected(at as u64)),
                    "{packing:?} {row} {col}"
                );
            }
        }
    }

    #[test]
    fn zero_points() {
        let words = |nibbles: [u32; 8]| nibbles.iter().rev().fold(0u32, |w, n| (w << 4) | n).to_le_bytes();
        let stored = words([0, 1, 2, 7, 8, 9, 14, 13]);
        let zeros = |packing| of(packing, 4, 8, 16, 1).zeros(&stored).map(signed);
        assert_eq!(zeros(GPTQ), Ok(vec![-8, -7, -6, -1, 0, 1, 6, 5]));
        assert_eq!(zeros(Packing::CompressedTensors), Ok(vec![-8, -7, -6, -1, 0, 1, 6, 5]));
        assert_eq!(zeros(Packing::Gptq { zero_less_one: true }), Ok(vec![-7, -6, -5, 0, 1, 2, 7, 6]));
        assert_eq!(zeros(Packing::Awq), Ok(vec![-8, 0, -7, 1, -6, 6, -1, 5]));

        let last = words([7, 7, 7, 15, 7, 7, 7, 7]);
        let v1 = of(Packing::Gptq { zero_less_one: true }, 4, 8, 16, 1);
        let bad = v1.zeros(&last).unwrap_err();
        assert_eq!((bad.place, bad.stored), ([3, 0], 15));
        let bad = Unpack { symmetric: true, ..v1 }.zeros(&words([7, 6, 7, 7, 7, 7, 7, 7])).unwrap_err();
        assert_eq!((bad.place, bad.stored), ([1, 0], 6));
        assert_eq!(Unpack { symmetric: true, ..v1 }.zeros(&words([7; 8])), Ok(vec![0; 8]));
    }

    #[test]
    fn groups_and_rows_change_places() {
        let unpack = of(GPTQ, 4, 3, 32, 2);
        assert_eq!(unpack.scales(b"aabbccddeeff", 2), b"aaddbbeeccff");
        // Two groups of eight rows: [group][row], as [row][group].
        let unpack = of(GPTQ, 4, 8, 32, 2);
        let stored = [0x7654_3210u32.to_le_bytes(), 0xfedc_ba98u32.to_le_bytes()].concat();
        let zeros = signed(unpack.zeros(&stored).unwrap());
        assert_eq!(zeros[..6], [-8, 0, -7, 1, -6, 2]);
    }
}
