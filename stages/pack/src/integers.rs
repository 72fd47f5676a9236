//! The name of a weight's integers: by their words where every one has four bits, else by their containers. So the same
//! integers have one name in whatever form they are delivered, and the most usual form has it already: its words are
//! compressed-tensors' own, eight integers a word along a row.
//!
//! A piece is made and hashed on one thread and then forgotten.

use crate::contents::Contents;
use crate::error::{PackError, PackFailure};
use crate::in_words::{InWords, Unread};
use crate::packed::Source;
use crate::resolve::{ResolvedRole, Virtual};
use crate::words::{Packing, Unpack};
use mica_dtype::Dtype;
use rayon::prelude::*;
use std::borrow::Cow;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Canonical bytes that a thread makes and hashes at a time; they stay in the processor's cache meanwhile.
const PIECE: u64 = 512 << 10;
/// Integers of four bits in a word.
const PER_WORD: u64 = 8;

/// Names the containers that a delivery has.
pub(crate) fn in_containers<C: Contents>(
    role: &ResolvedRole,
    contents: &mut C,
) -> Result<Source, PackFailure<C::Error>> {
    let stored = stored(role, &role.data, contents)?;
    let (dtype, shape) = (role.data.dtype, role.data.shape.clone());
    let named = four_bits(role, &shape, &Containers::Delivered(&stored), contents)?;
    drop(stored);
    match named {
        Some(digest) => Ok(Source { digest, dtype, shape }),
        None => {
            let digest = contents.digest(&role.data).map_err(failed(role))?;
            Ok(Source { digest, dtype, shape })
        }
    }
}

/// Names the integers that a delivery has in words.
pub(crate) fn in_words<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &mut C,
) -> Result<Source, PackFailure<C::Error>> {
    let (dtype, shape) = (Dtype::I8, role.shape.clone());
    let own = unpack.packing == Packing::CompressedTensors
        && unpack.bits == 4
        && Some(&role.data.shape) == words_shape(&shape).as_ref();
    if own {
        let digest = contents.digest(&role.data).map_err(failed(role))?;
        return Ok(Source { digest, dtype, shape });
    }
    let words = InWords::containers(role, unpack);
    let stored = stored(role, &role.data, contents)?;
    match four_bits(role, &shape, &Containers::InWords(&words, &stored), contents)? {
        Some(digest) => Ok(Source { digest, dtype, shape }),
        None => Ok(named(role, &words, dtype, &shape, contents)?.0),
    }
}

/// Shape of the words of integers of this shape, if they fill words.
fn words_shape(shape: &[u64]) -> Option<Vec<u64>> {
    let (&cols, rows) = shape.split_last()?;
    cols.is_multiple_of(PER_WORD).then(|| [rows, &[cols / PER_WORD]].concat())
}

/// Where containers come from; what is stored, a piece of the tensor each.
enum Containers<'a> {
    Delivered(&'a [Cow<'a, [u8]>]),
    InWords(&'a InWords, &'a [Cow<'a, [u8]>]),
}

impl Containers<'_> {
    /// A stretch of all of them, in `buffer` if it has to be put together.
    fn range<'b>(&'b self, range: Range<u64>, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        match self {
            Containers::Delivered(stored) => {
                let range = range.start as usize..range.end as usize;
                let size = stored.first().map_or(1, |piece| piece.len()).max(1);
                let first = range.start / size;
                if range.end <= (first + 1) * size {
                    return &stored[first][range.start - first * size..range.end - first * size];
                }
                buffer.clear();
                for number in first..range.end.div_ceil(size) {
                    let at = number * size;
                    let within = range.start.max(at) - at..range.end.min(at + size) - at;
                    buffer.extend_from_slice(&stored[number][within]);
                }
                buffer
            }
            Containers::InWords(words, stored) => {
                let lent = |number: usize| Ok::<_, Infallible>(Cow::Borrowed(&stored[number][..]));
                match words.fill(range, lent, buffer) {
                    Ok(place) => &buffer[place],
                    Err(_) => unreachable!("all is lent, and containers are no zero points"),
                }
            }
        }
    }
}

/// The digest of the words of containers of this shape, if every integer has four bits and they fill words.
fn four_bits<C: Contents>(
    role: &ResolvedRole,
    shape: &[u64],
    containers: &Containers<'_>,
    contents: &C,
) -> Result<Option<crate::Digest>, PackFailure<C::Error>> {
    let Some(words) = words_shape(shape) else { return Ok(None) };
    let pieces = contents.pieces(Dtype::I32, &words).map_err(failed(role))?;
    let cuts: Vec<Range<u64>> = pieces.cuts(PIECE).collect();
    let wider = AtomicBool::new(false);
    cuts.into_par_iter().for_each_init(Default::default, |(buffer, made): &mut (Vec<u8>, Vec<u8>), cut| {
        if wider.load(Ordering::Relaxed) {
            return;
        }
        let integers = containers.range(cut.start * 2..cut.end * 2, buffer);
        made.resize((cut.end - cut.start) as usize, 0);
        if narrow(integers, made) {
            pieces.add(cut.start, made);
        } else {
            wider.store(true, Ordering::Relaxed);
        }
    });
    if wider.into_inner() {
        return Ok(None);
    }
    Ok(Some(pieces.digest().expect("the cuts are the whole content")))
}

/// Containers as the bytes of their words, two a byte; `false` if one has more than four bits.
fn narrow(containers: &[u8], out: &mut [u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, all that the function asks for.
        return unsafe { narrow_avx2(containers, out) };
    }
    narrow_portable(containers, out)
}

/// The same compiled for registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn narrow_avx2(containers: &[u8], out: &mut [u8]) -> bool {
    narrow_portable(containers, out)
}

#[inline(always)]
fn narrow_portable(containers: &[u8], out: &mut [u8]) -> bool {
    /// Bytes that are looked at between two looks at whether it is worth going on.
    const SOME: usize = 4096;
    let mut blocks = containers.chunks(2 * SOME).zip(out.chunks_mut(SOME));
    blocks.all(|(containers, out)| {
        let mut wide = 0;
        for (out, &pair) in out.iter_mut().zip(containers.as_chunks().0) {
            // plus 8, −8..=7 is 0..=15
            let pair = u16::from_le_bytes(pair);
            let low = (pair as u8).wrapping_add(8);
            let high = ((pair >> 8) as u8).wrapping_add(8);
            wide |= (low | high) & 0xf0;
            *out = (low & 15) | (high << 4);
        }
        wide == 0
    })
}

/// All that is stored of a tensor, a piece each.
fn stored<'c, C: Contents>(
    role: &ResolvedRole,
    tensor: &Virtual,
    contents: &'c C,
) -> Result<Vec<Cow<'c, [u8]>>, PackFailure<C::Error>> {
    tensor.pieces.iter().map(|name| contents.bytes(&tensor.piece(name)).map_err(failed(role))).collect()
}

/// The canonical tensor by content, and whether any byte of it is not 0.
pub(crate) fn named<C: Contents>(
    role: &ResolvedRole,
    words: &InWords,
    dtype: Dtype,
    shape: &[u64],
    contents: &C,
) -> Result<(Source, bool), PackFailure<C::Error>> {
    let pieces = contents.pieces(dtype, shape).map_err(failed(role))?;
    let stored = stored(role, &words.tensor, contents)?;
    let lent = |number: usize| Ok::<_, Infallible>(Cow::Borrowed(&stored[number][..]));
    let cuts: Vec<Range<u64>> = pieces.cuts(PIECE).collect();
    let work = cuts.into_par_iter().map_init(Vec::new, |buffer, cut| {
        let at = cut.start;
        let place = words.fill(cut, lent, buffer)?;
        let bytes = &buffer[place];
        pieces.add(at, bytes);
        Ok(bytes.iter().any(|&byte| byte != 0))
    });
    let mut any = false;
    // in order, so that the first that is wrong is the one told of
    for piece in work.collect::<Vec<Result<bool, Unread<Infallible>>>>() {
        any |= piece.map_err(|unread| match unread {
            Unread::Stored(never) => match never {},
            Unread::Zero { matrix, bad } => PackFailure::Pack(PackError::ZeroPoint {
                role: role.role.clone(),
                tensor: words.tensor.pieces[matrix].clone(),
                row: bad.place[0],
                group: bad.place[1],
                stored: bad.stored,
                reason: bad.reason,
            }),
        })?;
    }
    let digest = pieces.digest().expect("the cuts are the whole content");
    Ok((Source { digest, dtype, shape: shape.to_vec() }, any))
}

pub(crate) fn failed<E>(role: &ResolvedRole) -> impl Fn(E) -> PackFailure<E> {
    move |error| PackFailure::Contents { role: role.role.clone(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemoryDelivery;
    use mica_models::analysis::WeightUse;

    #[test]
    fn containers_of_four_bits_are_words() {
        let all: Vec<u8> = (0..256u16).map(|n| (n % 16) as u8).map(|n| n.wrapping_sub(8)).collect();
        let mut words = vec![0; 128];
        for narrow in [narrow, narrow_portable] {
            assert!(narrow(&all, &mut words));
            assert_eq!(words[..8], [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
            for (at, wider) in [(0, 8), (1, 0xf7), (100, 0x80), (255, 0x7f)] {
                let mut one = all.clone();
                one[at] = wider;
                assert!(!narrow(&one, &mut words), "{wider:#x} at {at}");
            }
        }
    }

    /// Words are the name where they are those of the integers along a row; others have the name that the integers have in
    /// containers, even where their shape is the same or their rows end within a word.
    #[test]
    fn words_are_the_name_or_unpacked_for_it() {
        for (packing, cols, own) in [
            (Packing::CompressedTensors, 16, true),
            (Packing::CompressedTensors, 12, false),
            (Packing::Awq, 16, false),
        ] {
            let unpack = Unpack { packing, bits: 4, rows: 16, cols, groups: 1, symmetric: true };
            let of = |name: &str, dtype, shape: &[u64], unpack| ResolvedRole {
                role: "w".into(),
                weight_use: WeightUse::Matrix,
                data: Virtual { pieces: vec![name.into()], dtype, shape: shape.into() },
                scale: None,
                zero: None,
                unpack,
                order: None,
                stated: None,
                converter: None,
                shape: vec![16, cols],
            };
            let mut delivery = MemoryDelivery::default();
            let stored: Vec<u8> = (0..128).collect();
            delivery.insert("words", Dtype::I32, &[16, 2], stored.clone());
            let role = of("words", Dtype::I32, &[16, 2], Some(unpack));
            let Ok(words) = delivery.digest(&role.data);
            let named = in_words(&role, &unpack, &mut delivery).unwrap();
            assert_eq!((named.dtype, &named.shape[..]), (Dtype::I8, &[16, cols][..]));
            assert_eq!(named.digest == words, own, "{packing:?} {cols}");

            let lent = |r: Range<u64>| Ok(Cow::Borrowed(&stored[r.start as usize..r.end as usize]));
            let containers = InWords::containers(&role, &unpack).read(0..16 * cols, lent).unwrap();
            delivery.insert("containers", Dtype::I8, &[16, cols], containers.clone());
            let role = of("containers", Dtype::I8, &[16, cols], None);
            assert_eq!(in_containers(&role, &mut delivery).unwrap(), named, "{packing:?} {cols}");
            for at in 0..containers.len() {
                let mut other = containers.clone();
                other[at] = (other[at] as i8 >> 1 ^ 1) as u8;
                let changed = other != containers;
                delivery.insert("containers", Dtype::I8, &[16, cols], other);
                assert_eq!(
                    in_containers(&role, &mut delivery).unwrap() != named,
                    changed,
                    "{packing:?} {at}"
                );
            }
        }
    }

    #[test]
    fn stretches_of_pieces() {
        let stored = [Cow::Borrowed(&b"abcd"[..]), Cow::Borrowed(b"efgh"), Cow::Borrowed(b"ijkl")];
        let containers = Containers::Delivered(&stored);
        let mut buffer = Vec::new();
        for (range, expected) in
            [(0..4, "abcd"), (1..3, "bc"), (3..5, "de"), (2..11, "cdefghijk"), (4..8, "efgh")]
        {
            assert_eq!(containers.range(range, &mut buffer), expected.as_bytes());
        }
    }
}
