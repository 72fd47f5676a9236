//! Rows of dwords into the device's vectors: sixteen rows at a time, transposed, every dword changed on its way where
//! the delivery orders its integers otherwise.
//!
//! The processor's registers transpose sixteen rows of sixteen dwords at once where it has AVX-512, eight of eight where it
//! has AVX2, and the same goes dword by dword elsewhere and where few are left. The bytes are the same.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use mica_device::layout;

/// Rows of a sub-block, and dwords of a vector.
const LANES: usize = layout::LANES as usize;

/// A vector of the segment.
type Vector = [u8; 64];

/// What rows are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Bytes that stay in their order.
    Bytes,
    /// Words of eight integers of four bits each, plus 8, the first in the low bits.
    Words,
    /// Integers of four bits in bytes of their own.
    Containers,
}

/// Rows of `row` bytes each into vectors `[step][sub-block of 16 rows]` of one dword a row. What rows and columns lack of
/// whole sub-blocks and dwords is zero; every byte of `out` is written.
pub(crate) fn interleave(kind: Rows, rows: &[u8], row: usize, padded: usize, out: &mut [u8]) {
    let count = padded / LANES;
    let vectors: &mut [Vector] = out.as_chunks_mut().0;
    let steps = vectors.len() / count;
    let mut made = Vec::new();
    for (number, block) in rows.chunks(LANES * row).enumerate() {
        let column = Column { number, count };
        let as_it_lies = kind != Rows::Containers && row == steps * 4 && block.len() == LANES * row;
        if as_it_lies {
            match kind {
                Rows::Words => sub_block::<true>(block, steps, column, vectors),
                _ => sub_block::<false>(block, steps, column, vectors),
            }
            continue;
        }
        made.clear();
        made.resize(LANES * steps * 4, 0);
        for (row, made) in block.chunks_exact(row).zip(made.chunks_exact_mut(steps * 4)) {
            dwords(kind, row, made);
        }
        sub_block::<false>(&made, steps, column, vectors);
    }
}

/// A row's dwords as the device has them, into zeros.
fn dwords(kind: Rows, row: &[u8], made: &mut [u8]) {
    match kind {
        Rows::Bytes => made[..row.len()].copy_from_slice(row),
        Rows::Words => {
            for (made, &word) in made.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
                *made = of_word(u32::from_le_bytes(word)).to_le_bytes();
            }
        }
        Rows::Containers => {
            let made = made.as_chunks_mut().0;
            let (whole, tail) = row.as_chunks();
            for (made, &eight) in made.iter_mut().zip(whole) {
                *made = of_containers(eight).to_le_bytes();
            }
            if let (false, Some(made)) = (tail.is_empty(), made.get_mut(whole.len())) {
                let mut eight = [0; 8];
                eight[..tail.len()].copy_from_slice(tail);
                *made = of_containers(eight).to_le_bytes();
            }
        }
    }
}

/// Eight containers as a dword: byte j holds column j in its low nibble and column 4 + j in its high one.
fn of_containers(eight: [u8; 8]) -> u32 {
    let eight = u64::from_le_bytes(eight) & 0x0f0f_0f0f_0f0f_0f0f;
    eight as u32 | (eight >> 28) as u32
}

/// The same of a word that has its first column lowest, each integer plus 8.
fn of_word(word: u32) -> u32 {
    // four nibbles to the low halves of four bytes
    let spread = |four: u32| {
        let pairs = (four | (four << 8)) & 0x00ff_00ff;
        (pairs | (pairs << 4)) & 0x0f0f_0f0f
    };
    // less 8 modulo 16
    let word = word ^ 0x8888_8888;
    spread(word & 0xffff) | (spread(word >> 16) << 4)
}

/// Which of a step's vectors a sub-block fills.
#[derive(Clone, Copy)]
struct Column {
    number: usize,
    count: usize,
}

impl Column {
    /// The place of a step's vector.
    fn at(self, step: usize) -> usize {
        step * self.count + self.number
    }
}

/// Writes sixteen rows of `steps` dwords, one row after the other, into the vectors of a tile.
fn sub_block<const WORDS: bool>(rows: &[u8], steps: usize, column: Column, out: &mut [Vector]) {
    // what the loads and stores below rest on
    assert!(rows.len() == LANES * steps * 4 && out.len() == steps * column.count);
    assert!(column.number < column.count);
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_there() {
            // SAFETY: the processor has all that the function asks for.
            return unsafe { avx512::sub_block::<WORDS>(rows, steps, column, out) };
        }
        if avx2::is_there() {
            // SAFETY: the processor has all that the function asks for.
            return unsafe { avx2::sub_block::<WORDS>(rows, steps, column, out) };
        }
    }
    portable::<WORDS>(rows, steps, 0, column, out);
}

/// Steps from `first` on, dword by dword.
fn portable<const WORDS: bool>(rows: &[u8], steps: usize, first: usize, column: Column, out: &mut [Vector]) {
    let rows: &[[u8; 4]] = rows.as_chunks().0;
    for step in first..steps {
        let vector: &mut [[u8; 4]] = out[column.at(step)].as_chunks_mut().0;
        for (row, to) in vector.iter_mut().enumerate() {
            let dword = rows[row * steps + step];
            *to = if WORDS { of_word(u32::from_le_bytes(dword)).to_le_bytes() } else { dword };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of no pattern.
    fn noise(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    type SubBlock = unsafe fn(&[u8], usize, Column, &mut [Vector]);

    /// Every way that this processor has.
    fn ways<const WORDS: bool>() -> Vec<SubBlock> {
        let mut ways: Vec<SubBlock> = vec![|rows, steps, column, out| {
            portable::<WORDS>(rows, steps, 0, column, out);
        }];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::is_there() {
                // SAFETY: just asked.
                ways.push(|a, b, c, d| unsafe { avx2::sub_block::<WORDS>(a, b, c, d) });
            }
            if avx512::is_there() {
                // SAFETY: just asked.
                ways.push(|a, b, c, d| unsafe { avx512::sub_block::<WORDS>(a, b, c, d) });
            }
        }
        ways
    }

    fn every_dword_in_its_place<const WORDS: bool>() {
        for (steps, count) in [(1, 1), (7, 2), (8, 1), (16, 4), (37, 3), (64, 1)] {
            let rows = noise(count * LANES * steps * 4);
            for way in ways::<WORDS>() {
                let mut out = vec![[0xa5; 64]; steps * count];
                for (number, rows) in rows.chunks_exact(LANES * steps * 4).enumerate() {
                    // SAFETY: the lengths are as they should be, and the processor has what the way needs.
                    unsafe { way(rows, steps, Column { number, count }, &mut out) };
                }
                for (at, found) in out.as_flattened().as_chunks().0.iter().enumerate() {
                    let (vector, lane) = (at / LANES, at % LANES);
                    let (step, number) = (vector / count, vector % count);
                    let dword = rows.as_chunks().0[(number * LANES + lane) * steps + step];
                    let dword = u32::from_le_bytes(dword);
                    let expected = if WORDS { of_word(dword) } else { dword };
                    assert_eq!(u32::from_le_bytes(*found), expected, "{steps} steps, {count} sub-blocks");
                }
            }
        }
    }

    #[test]
    fn bytes_lie_in_their_places_whatever_the_processor() {
        every_dword_in_its_place::<false>();
    }

    #[test]
    fn words_lie_in_their_places_whatever_the_processor() {
        every_dword_in_its_place::<true>();
    }

    /// Words of any integers become the dwords of their containers, also where rows or columns are missing.
    #[test]
    fn words_lie_as_containers_do() {
        for (rows, cols, padded) in [(16, 64, 16), (3, 8, 16), (64, 256, 64), (40, 24, 48)] {
            let words = noise(rows * cols / 2);
            let integers = words.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            let containers: Vec<u8> = integers.map(|integer| integer.wrapping_sub(8)).collect();
            let [mut from_words, mut from_containers] = [0xa5, 0x5a].map(|b| vec![b; padded * cols / 2]);
            interleave(Rows::Words, &words, cols / 2, padded, &mut from_words);
            interleave(Rows::Containers, &containers, cols, padded, &mut from_containers);
            assert_eq!(from_words, from_containers, "{rows} {cols}");
        }
        let eight = [0, 1, 2, 3, 4, 5, 6, 0xff];
        assert_eq!(of_containers(eight), u32::from_le_bytes([0x40, 0x51, 0x62, 0xf3]));
    }

    /// A row that ends within a dword ends in zeros, and so does a sub-block that lacks rows.
    #[test]
    fn what_is_missing_is_zero() {
        let mut out = [0xa5; 2 * 64];
        interleave(Rows::Bytes, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 5, 16, &mut out);
        let mut expected = [0; 2 * 64];
        expected[..8].copy_from_slice(&[1, 2, 3, 4, 6, 7, 8, 9]);
        [expected[64], expected[68]] = [5, 10];
        assert_eq!(out, expected);
        interleave(Rows::Containers, &[1, 2, 3, 4, 5, 6, 7, 8, 0xff], 9, 16, &mut out);
        let mut expected = [0; 2 * 64];
        expected[..4].copy_from_slice(&[0x51, 0x62, 0x73, 0x84]);
        expected[64] = 0x0f;
        assert_eq!(out, expected);
    }
}
