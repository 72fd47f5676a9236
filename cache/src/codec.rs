//! The wire encoding of everything this crate stores, and the only place that knows it: bincode 2.
//!
//! [`encode`] wraps a value in an envelope that says what it is and proves that it is whole:
//!
//! ```text
//! "mica" | format u16 | kind length u16 | kind | check 16 bytes | payload
//! ```
//!
//! The check is BLAKE3 over all other fields. It is tested before a byte of the payload is decoded, so
//! damage is found as damage and never reaches the decoder.

use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: &[u8; 4] = b"mica";
const FORMAT: u16 = 1;
const CHECK: usize = 16;
/// Room for most values, so that a buffer seldom moves.
const USUAL: usize = 1 << 10;
const CHECK_DOMAIN: &str = "mica-cache 2026 envelope check v1";

/// Why bytes are not the value that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end before the envelope does.
    #[error("the envelope is cut off")]
    Truncated,
    /// These are not bytes of ours.
    #[error("no mica envelope")]
    Magic,
    /// Written by another version of the format.
    #[error("format {found} where {FORMAT} is read")]
    Version {
        /// The version it says it is.
        found: u16,
    },
    /// A value of another kind.
    #[error("a {found:?} where a {expected:?} is read")]
    Kind {
        /// The kind asked for.
        expected: String,
        /// The kind it says it is.
        found: String,
    },
    /// Some byte is not what was written.
    #[error("the check does not match")]
    Check,
    /// Larger than any value stored this way may be.
    #[error("{bytes} bytes of payload are too many")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Whole, yet not a value of the type asked for.
    #[error("not a value of the type: {message}")]
    Payload {
        /// What the decoder said.
        message: String,
    },
    /// Whole, yet with bytes left over.
    #[error("{bytes} bytes follow the value")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// Encodes `value` in an envelope of the given `kind` (a short name of its type and version).
///
/// # Panics
/// If the type's own `Serialize` fails, or `kind` is longer than 65,535 bytes: faults of the program.
pub fn encode<T: Serialize>(kind: &str, value: &T) -> Vec<u8> {
    let kind_len = u16::try_from(kind.len()).expect("a kind is a short name");
    let mut out = Vec::with_capacity(USUAL);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&kind_len.to_le_bytes());
    out.extend_from_slice(kind.as_bytes());
    let head = out.len();
    out.extend_from_slice(&[0; CHECK]);
    append_payload(value, &mut out);
    let sum = check(&out[..head], &out[head + CHECK..]);
    out[head..head + CHECK].copy_from_slice(&sum);
    out
}

/// Decodes what [`encode`] made of a value of this `kind`.
///
/// # Errors
/// Whenever `bytes` is anything else, by so much as a bit.
pub fn decode<T: DeserializeOwned>(kind: &str, bytes: &[u8]) -> Result<T, CodecError> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(CodecError::Truncated)?;
    let (format, rest) = rest.split_first_chunk::<2>().ok_or(CodecError::Truncated)?;
    let (kind_len, rest) = rest.split_first_chunk::<2>().ok_or(CodecError::Truncated)?;
    if magic != MAGIC {
        return Err(CodecError::Magic);
    }
    let found = u16::from_le_bytes(*format);
    if found != FORMAT {
        return Err(CodecError::Version { found });
    }
    let kind_len = usize::from(u16::from_le_bytes(*kind_len));
    let (found, rest) = rest.split_at_checked(kind_len).ok_or(CodecError::Truncated)?;
    if found != kind.as_bytes() {
        let found = String::from_utf8_lossy(found).into_owned();
        return Err(CodecError::Kind { expected: kind.to_owned(), found });
    }
    let (sum, payload) = rest.split_first_chunk::<CHECK>().ok_or(CodecError::Truncated)?;
    if check(&bytes[..8 + kind_len], payload) != *sum {
        return Err(CodecError::Check);
    }
    from_payload(payload)
}

fn check(head: &[u8], payload: &[u8]) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new_derive_key(CHECK_DOMAIN);
    hasher.update(head).update(payload);
    let mut sum = [0; CHECK];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK]);
    sum
}

/// The bare encoding, for those who frame and check it themselves.
pub(crate) fn to_payload<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    append_payload(value, &mut out);
    out
}

fn append_payload<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(value, out, bincode::config::standard())
        .expect("plain data can be encoded");
}

/// Decodes the bare encoding; all of `payload` must be used.
pub(crate) fn from_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<T, CodecError> {
    match first_of_payload(payload)? {
        (value, []) => Ok(value),
        (_, rest) => Err(CodecError::Trailing { bytes: rest.len() }),
    }
}

/// Decodes one value in the bare encoding; gives also the bytes after it.
pub(crate) fn first_of_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, &[u8]), CodecError> {
    use bincode::config::standard;
    use bincode::serde::decode_from_slice as from;
    // bincode takes its limit as a constant and counts decoded sizes, which are at most 16 times the
    // encoded ones (a u128 in one byte). So a length that lies can ask for that much and no more.
    let decoded = match payload.len() {
        0..=0x1000 => from(payload, standard().with_limit::<0x1_0000>()),
        0x1001..=0x1_0000 => from(payload, standard().with_limit::<0x10_0000>()),
        0x1_0001..=0x10_0000 => from(payload, standard().with_limit::<0x100_0000>()),
        0x10_0001..=0x100_0000 => from(payload, standard().with_limit::<0x1000_0000>()),
        0x100_0001..=0x1000_0000 => from(payload, standard().with_limit::<0x1_0000_0000>()),
        bytes => return Err(CodecError::TooLarge { bytes }),
    };
    let (value, used) = decoded.map_err(|e| CodecError::Payload { message: e.to_string() })?;
    Ok((value, &payload[used..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActionRecord, Digest, Output, Recipe};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Wide = (u128, i128, Option<Vec<String>>, BTreeMap<String, Vec<f64>>, char, bool);

    #[test]
    fn the_envelope_is_laid_out_as_documented() {
        let value = Recipe::new("pack", 1).input("w", blake3::hash(b"w"));
        let (head, payload) = (b"mica\x01\0\x06\0recipe", to_payload(&value));
        let expected = [&head[..], &check(head, &payload), &payload].concat();
        assert_eq!(encode("recipe", &value), expected);
    }

    #[test]
    fn every_changed_byte_is_an_error() {
        let value = Recipe::new("pack", 1).param("a", "b").input("w", blake3::hash(b"w"));
        let good = encode("recipe", &value);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode::<Recipe>("recipe", &bad).is_err(), "byte {at} bit {bit}");
            }
        }
        assert_eq!(decode::<Recipe>("recipe", &good), Ok(value));
    }

    #[test]
    fn every_truncation_and_every_addition_is_an_error() {
        let good = encode("pair", &(1u8, "two"));
        for len in 0..good.len() {
            assert!(decode::<(u8, String)>("pair", &good[..len]).is_err(), "length {len}");
        }
        let longer = [&good[..], b"\0"].concat();
        assert_eq!(decode::<(u8, String)>("pair", &longer), Err(CodecError::Check));
    }

    #[test]
    fn the_error_says_what_is_wrong() {
        let good = encode("pair", &(9u8, 2u8));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode::<(u8, u8)>("pair", &bytes)
        };
        assert_eq!(decode::<u8>("pair", b"mic"), Err(CodecError::Truncated));
        assert_eq!(with(0, b'M'), Err(CodecError::Magic));
        assert_eq!(with(4, 9), Err(CodecError::Version { found: 9 }));
        assert_eq!(with(8, b'f'), Err(CodecError::Kind { expected: "pair".into(), found: "fair".into() }));
        assert_eq!(with(good.len() - 1, 7), Err(CodecError::Check));
        assert_eq!(decode::<u8>("pair", &good), Err(CodecError::Trailing { bytes: 1 }));
        assert!(matches!(decode::<String>("pair", &good), Err(CodecError::Payload { .. })));
    }

    #[test]
    fn a_length_that_lies_asks_for_little() {
        // A string of 2^62 bytes, and a vector of as many, in ten bytes of otherwise well-formed payload.
        let mut payload = vec![253];
        payload.extend_from_slice(&(1u64 << 62).to_le_bytes());
        assert!(matches!(from_payload::<String>(&payload), Err(CodecError::Payload { .. })));
        assert!(matches!(from_payload::<Vec<u64>>(&payload), Err(CodecError::Payload { .. })));
        assert!(matches!(from_payload::<Vec<Vec<String>>>(&payload), Err(CodecError::Payload { .. })));
    }

    #[test]
    fn sizes_around_each_limit_round_trip() {
        for len in [0xfff, 0x1000, 0x1001, 0xffff, 0x1_0001, 0x10_0001] {
            // One-byte integers that decode to sixteen bytes each: the worst ratio there is.
            let value: Vec<u128> = vec![7; len];
            assert_eq!(decode::<Vec<u128>>("v", &encode("v", &value)).as_ref(), Ok(&value), "{len}");
        }
    }

    fn records() -> impl Strategy<Value = ActionRecord> {
        let output = (".*", any::<[u8; 32]>(), any::<u64>()).prop_map(|(name, bytes, size)| Output {
            name,
            digest: Digest::from_bytes(bytes),
            size,
        });
        (proptest::collection::vec(output, 0..4), any::<u64>(), any::<Vec<u8>>())
            .prop_map(|(outputs, wall_ms, note)| ActionRecord { outputs, wall_ms, note })
    }

    proptest! {
        #[test]
        fn records_round_trip(record in records()) {
            prop_assert_eq!(decode::<ActionRecord>("record", &encode("record", &record)), Ok(record));
        }

        #[test]
        fn wide_values_round_trip(value in any::<Wide>()) {
            let back = decode::<Wide>("wide", &encode("wide", &value)).expect("round trip");
            // NaN is not equal to itself; its bits are.
            prop_assert_eq!(to_payload(&back), to_payload(&value));
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in any::<Vec<u8>>()) {
            prop_assert!(decode::<ActionRecord>("record", &bytes).is_err());
            // The bare decoder may take it for a value; it must not panic or allocate without end.
            let _ = from_payload::<ActionRecord>(&bytes);
            let _ = from_payload::<Wide>(&bytes);
        }
    }
}
