//! The bytes of an edge as numbers, and numbers as the bytes that an edge holds.
//!
//! A format is all that is known of an edge here.

use mica_device::format::Format;
use serde::{Deserialize, Serialize};

/// What lies in an output: enough to read it as numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
    /// Elements of one token.
    pub elements: u64,
}

/// Stored elements as float64; every value of every format is one exactly.
pub fn values(bytes: &[u8], shape: &Shape) -> Vec<f64> {
    let four = || bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
    let two = || bytes.chunks_exact(2).map(|c| [c[0], c[1]]);
    match shape.format {
        Format::F32 => four().map(|c| f32::from_le_bytes(c).into()).collect(),
        Format::Fx32 => {
            let unit = (-f64::from(shape.frac)).exp2();
            four().map(|c| f64::from(i32::from_le_bytes(c)) * unit).collect()
        }
        Format::I32 => four().map(|c| i32::from_le_bytes(c).into()).collect(),
        Format::F16 => two().map(|c| half::f16::from_le_bytes(c).to_f64()).collect(),
        Format::Bf16 => two().map(|c| half::bf16::from_le_bytes(c).to_f64()).collect(),
        Format::I8 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
    }
}

/// Values as an edge of a format holds them, to nearest, ties to even.
///
/// # Errors
/// A finite value outside the format's range, or in a format of integers one that is no number: what the device would
/// be given would be another one.
pub fn encoded(values: &[f64], format: Format, frac: u8) -> Result<Vec<u8>, Unfit> {
    // both bounds of each format are exact, so that a value fits exactly if it rounds to one between them
    let whole = |v: f64, unit: f64, [least, most]: [f64; 2]| {
        let n = (v * unit).round_ties_even();
        (least..=most).contains(&n).then_some(n as i32)
    };
    let float = |v: f64, stored: f64| !(v.is_finite() && stored.is_infinite());
    let word = [i32::MIN, i32::MAX].map(f64::from);
    let mut out = Vec::with_capacity(values.len() * format.bytes() as usize);
    for (index, &v) in values.iter().enumerate() {
        let fits = match format {
            Format::Fx32 => whole(v, f64::from(frac).exp2(), word).map(|n| out.extend(n.to_le_bytes())),
            Format::I32 => whole(v, 1.0, word).map(|n| out.extend(n.to_le_bytes())),
            Format::I8 => {
                whole(v, 1.0, [i8::MIN, i8::MAX].map(f64::from)).map(|n| out.push((n as i8).cast_unsigned()))
            }
            Format::F32 => float(v, f64::from(v as f32)).then(|| out.extend((v as f32).to_le_bytes())),
            Format::F16 => {
                let h = half::f16::from_f64(v);
                float(v, h.to_f64()).then(|| out.extend(h.to_le_bytes()))
            }
            Format::Bf16 => {
                let h = half::bf16::from_f64(v);
                float(v, h.to_f64()).then(|| out.extend(h.to_le_bytes()))
            }
        };
        if fits.is_none() {
            return Err(Unfit { index, value: v, format, frac });
        }
    }
    Ok(out)
}

/// A value that an edge cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "element {index} is {value}, which {format:?}{} does not hold", 
    if *format == Format::Fx32 { format!(" of {frac} fraction bits") } else { String::new() }
)]
pub struct Unfit {
    /// Its place.
    pub index: usize,
    /// The value.
    pub value: f64,
    /// The edge's format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_edge_holds_reads_back_as_it_was() {
        for (format, kept) in [
            (Format::Fx32, vec![0.5, -3.25, 2047.0]),
            (Format::F32, vec![1.5 * 2f64.powi(-100), -7.0]),
            (Format::F16, vec![0.333_251_953_125, 65504.0]),
            (Format::Bf16, vec![1.0078125]),
            (Format::I32, vec![-5.0, 7.0]),
            (Format::I8, vec![-128.0, 127.0]),
        ] {
            let shape = Shape { format, frac: 20, elements: kept.len() as u64 };
            assert_eq!(values(&encoded(&kept, format, 20).unwrap(), &shape), kept, "{format:?}");
        }
    }

    #[test]
    fn what_an_edge_cannot_hold_is_refused_and_not_clamped() {
        let unit = 2f64.powi(-20);
        for (format, fits, not) in [
            (Format::Fx32, [2048.0 - unit, -2048.0], [2048.0, -2048.0 - unit]),
            (Format::F32, [3e38, f64::INFINITY], [4e38, -1e300]),
            (Format::F16, [65519.0, f64::NEG_INFINITY], [65520.0, -1e6]),
            (Format::Bf16, [3e38, f64::NAN], [3.4e38, -1e39]),
            (Format::I32, [-2147483648.0, 2147483647.0], [2147483648.0, f64::NAN]),
            (Format::I8, [-128.0, 127.4], [127.6, -129.0]),
        ] {
            for v in fits {
                assert!(encoded(&[0.0, v], format, 20).is_ok(), "{format:?} {v}");
            }
            for v in not {
                let e = encoded(&[0.0, v], format, 20).unwrap_err();
                assert_eq!((e.index, e.value.to_bits()), (1, v.to_bits()), "{format:?}");
                assert!(e.to_string().starts_with("element 1 is"), "{e}");
            }
        }
    }
}
