//! The numbers: every element is a function of the seed, a name and the element's index alone, so that any
//! part of a tensor can be made at any time, by any number of threads.
//!
//! A name's words are the outputs of SplitMix64 started from the seed plus the name's FNV-1a hash. A
//! uniform value takes the top 24 bits of its word; 8-bit integers share a word by eight, 4-bit ones by
//! sixteen, the lowest bits first.

use half::{bf16, f16};
use std::ops::Range;

/// The words of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(u64);

/// SplitMix64's increment.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stream {
    /// The words of `name` under a seed.
    pub fn new(seed: u64, name: &str) -> Stream {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        Stream(name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv).wrapping_add(seed))
    }

    /// Word `i`.
    pub fn word(self, i: u64) -> u64 {
        let z = self.0.wrapping_add(i.wrapping_add(1).wrapping_mul(STEP));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Word `i` as a number of [−1, 1), exact in float32.
    fn unit(self, i: u64) -> f32 {
        // 24 bits, less their middle, times 2^-23
        ((self.word(i) >> 40) as i32 - (1 << 23)) as f32 * f32::from_bits(0x3400_0000)
    }
}

/// A float format of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

/// Elements that are distributed otherwise than the rest of their tensor: those whose place in each run of
/// `every` elements is in a range.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// Elements after which they come again.
    pub every: u64,
    /// Their places in such a run.
    pub places: Range<u64>,
    /// Half the width.
    pub scale: f32,
    /// The middle.
    pub offset: f32,
}

/// Which 4-bit integers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Those from −7 to 7, zero twice as often as each other, so that their mean is zero.
    Centred,
    /// All from −8 to 7 alike; their mean is −½.
    All,
}

impl Codes {
    /// Sixteen codes, each plus 8, of a random word.
    fn of(self, word: u64) -> u64 {
        const LOWEST: u64 = 0x1111_1111_1111_1111;
        match self {
            Codes::All => word,
            // a nibble of 0, which is −8, becomes 8, which is 0
            Codes::Centred => {
                let any = word | word >> 1 | word >> 2 | word >> 3;
                word | (!any & LOWEST) << 3
            }
        }
    }
}

/// What the elements of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// `scale · v + offset`, v uniform in [−1, 1): the product rounded, then the sum, then to the format.
    Uniform {
        /// Half the width.
        scale: f32,
        /// The middle.
        offset: f32,
        /// Stored as.
        float: Float,
        /// Elements that are distributed otherwise; the first that has an element decides.
        apart: Vec<Apart>,
    },
    /// Uniform 8-bit integers.
    Bytes,
    /// 4-bit integers in 8-bit containers.
    Nibbles(Codes),
    /// The same, plus 8, eight in a 32-bit word, the first in the lowest bits.
    Packed(Codes),
    /// Given 64-bit integers.
    Given(Vec<i64>),
}

impl Values {
    /// Bytes that an index of [`Values::fill`] must be a multiple of.
    pub const GRAIN: usize = 16;

    /// Fills `out` with the bytes from `at` on, a multiple of the grain, of a tensor that begins at element
    /// `first` of its stream, a multiple of 16.
    pub fn fill(&self, stream: Stream, first: u64, at: u64, out: &mut [u8]) {
        match self {
            Values::Uniform { scale, offset, float, apart } => {
                let value = |i: u64| {
                    let own = apart.iter().find(|a| a.places.contains(&(i % a.every)));
                    let (scale, offset) = own.map_or((*scale, *offset), |a| (a.scale, a.offset));
                    scale * stream.unit(i) + offset
                };
                match float {
                    Float::Bf16 => put(out, first + at / 2, |i| bf16::from_f32(value(i)).to_le_bytes()),
                    Float::F16 => put(out, first + at / 2, |i| f16::from_f32(value(i)).to_le_bytes()),
                    Float::F32 => put(out, first + at / 4, |i| value(i).to_le_bytes()),
                }
            }
            Values::Bytes => put(out, (first + at) / 8, |i| stream.word(i).to_le_bytes()),
            Values::Nibbles(codes) => put(out, (first + at) / 16, |i| {
                let word = codes.of(stream.word(i));
                std::array::from_fn::<u8, 16, _>(|j| (word >> (4 * j) & 15).wrapping_sub(8) as u8)
            }),
            Values::Packed(codes) => {
                put(out, first / 16 + at / 8, |i| codes.of(stream.word(i)).to_le_bytes());
            }
            Values::Given(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
            }
        }
    }
}

/// `out` from items `start` on, the last cut off where it does not fit.
fn put<const N: usize>(out: &mut [u8], start: u64, item: impl Fn(u64) -> [u8; N]) {
    let (whole, rest) = out.as_chunks_mut::<N>();
    let items = whole.len() as u64;
    for (i, out) in (start..).zip(whole) {
        *out = item(i);
    }
    rest.copy_from_slice(&item(start + items)[..rest.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_splitmix64() {
        // the published known answers, for a stream whose start is the seed itself
        for (seed, expected) in [(0, 0xe220_a839_7b1d_cdaf), (1_234_567, 6_457_827_717_110_365_317)] {
            assert_eq!(Stream(seed).word(0), expected);
        }
    }

    #[test]
    fn parts_are_parts_of_the_whole() {
        let s = Stream::new(3, "a");
        let apart = vec![Apart { every: 7, places: 2..4, scale: 2.0, offset: 8.0 }];
        let uniform = |float| Values::Uniform { scale: 0.5, offset: 0.25, float, apart: apart.clone() };
        let kinds = [uniform(Float::Bf16), uniform(Float::F16), uniform(Float::F32), Values::Bytes];
        let codes = [Values::Nibbles(Codes::All), Values::Packed(Codes::Centred)];
        for v in kinds.into_iter().chain(codes).chain([Values::Given((0..60).collect())]) {
            let mut whole = vec![0; 480];
            v.fill(s, 32, 0, &mut whole);
            for at in (0..480).step_by(Values::GRAIN) {
                let mut part = vec![0; 480 - at - at % 3];
                v.fill(s, 32, at as u64, &mut part);
                assert_eq!(part, whole[at..at + part.len()], "{v:?} {at}");
            }
        }
    }

    #[test]
    fn elements_apart_are_where_they_are_said_to_be() {
        let apart = vec![Apart { every: 7, places: 2..4, scale: 2.0, offset: 8.0 }];
        let values = Values::Uniform { scale: 0.5, offset: 0.25, float: Float::F32, apart };
        let mut bytes = vec![0; 4 * 64];
        values.fill(Stream::new(3, "a"), 16, 0, &mut bytes);
        for (i, b) in (16u64..).zip(bytes.as_chunks::<4>().0) {
            let large = f32::from_le_bytes(*b) >= 6.0;
            assert_eq!(large, (2..4).contains(&(i % 7)), "{i}");
        }
    }

    #[test]
    fn packed_is_the_containers_plus_eight() {
        let s = Stream::new(3, "a");
        for (codes, least) in [(Codes::All, -8i8), (Codes::Centred, -7)] {
            let (mut containers, mut packed) = (vec![0; 256], vec![0; 128]);
            Values::Nibbles(codes).fill(s, 16, 0, &mut containers);
            Values::Packed(codes).fill(s, 16, 0, &mut packed);
            for (i, &q) in containers.iter().enumerate() {
                let word = u32::from_le_bytes(packed[i / 8 * 4..][..4].try_into().unwrap());
                assert_eq!(i32::from(q as i8), (word >> (4 * (i % 8)) & 15) as i32 - 8);
            }
            assert_eq!(containers.iter().map(|&q| q as i8).min(), Some(least));
            assert!(containers.contains(&7));
        }
    }

    #[test]
    fn centred_codes_have_no_direction() {
        let mean = |codes: Codes| {
            let mut containers = vec![0; 1 << 16];
            Values::Nibbles(codes).fill(Stream::new(3, "a"), 0, 0, &mut containers);
            containers.iter().map(|&q| f64::from(q as i8)).sum::<f64>() / f64::from(1 << 16)
        };
        // a standard error of 0.017
        assert!((mean(Codes::All) + 0.5).abs() < 0.07, "{}", mean(Codes::All));
        assert!(mean(Codes::Centred).abs() < 0.07, "{}", mean(Codes::Centred));
    }
}
