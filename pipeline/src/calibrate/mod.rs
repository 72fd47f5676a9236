//! How near a model's values come to the limits of what the device holds them in, measured on the float64
//! chain, and the fraction bits that this suggests for the residual.
//!
//! It is advice: it makes no target, enters no key and changes no file. The float64 chain is measured and not
//! the device, for what the device clamps does not show how far it would have gone.

mod classes;
mod measure;

pub use classes::{Tag, tags};
pub use measure::{Ground, measure};

use crate::workspace::FRAC;
use serde::Serialize;

/// What a value is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The residual between and within layers.
    Residual,
    /// Results of norms.
    Norms,
    /// Arguments and results of sigmoid, silu, softplus and exp.
    Gates,
    /// What is carried from token to token: states and rows of caches.
    States,
    /// What a softmax takes, and the results of routers and head.
    Logits,
    /// Vectors that a matrix of weights is multiplied with.
    Vectors,
    /// Results of matrix products and of sums.
    Accumulators,
}

impl Class {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Class::Residual => "residual",
            Class::Norms => "norms",
            Class::Gates => "gates",
            Class::States => "states",
            Class::Logits => "logits",
            Class::Vectors => "vectors",
            Class::Accumulators => "accumulators",
        }
    }
}

/// What the device holds a value in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Held {
    /// 32-bit fixed point.
    Fx32,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Held {
    /// The largest magnitude that it holds; `frac` fraction bits of fixed point.
    pub fn limit(self, frac: u8) -> f64 {
        match self {
            Held::Fx32 => f64::from(i32::MAX) / power(frac.into()),
            Held::F16 => half::f16::MAX.to_f64(),
            Held::F32 => f32::MAX.into(),
        }
    }
}

/// 2^n, exact.
fn power(n: u32) -> f64 {
    (1u64 << n) as f64
}

/// A value and where it stood.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// The value; infinity for one that is not finite.
    pub value: f64,
    /// The part of the model.
    pub part: String,
    /// The operation, as `label op`.
    pub op: String,
    /// The token.
    pub token: usize,
}

/// The largest magnitude of a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headroom {
    /// The class.
    pub class: Class,
    /// What holds it.
    pub held: Held,
    /// The largest magnitude that was seen.
    pub largest: Seen,
    /// The largest that would be held.
    pub limit: f64,
    /// Bits between them: log2 of limit / largest; `None` if all values are zero.
    pub bits: Option<f64>,
}

/// What a function was given: its arguments, the spread of what a softmax takes (largest less smallest), or
/// the root mean square of what a norm takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arguments {
    /// The function.
    pub function: &'static str,
    /// The least.
    pub least: Seen,
    /// The most.
    pub most: Seen,
}

/// What was measured of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Tokens run.
    pub tokens: usize,
    /// A row a class and format, in the order of the classes.
    pub headroom: Vec<Headroom>,
    /// A row a function.
    pub arguments: Vec<Arguments>,
}

impl Measured {
    /// The residual's largest magnitude.
    pub fn residual(&self) -> f64 {
        let of_residual = self.headroom.iter().filter(|h| h.class == Class::Residual);
        of_residual.map(|h| h.largest.value).fold(0.0, f64::max)
    }
}

/// The most fraction bits at which `largest` times 2^margin is held, of those that a workspace can ask for;
/// `None` if none of them holds it.
pub fn fraction_bits(largest: f64, margin: u8) -> Option<u8> {
    let needed = largest * power(margin.into());
    FRAC.rev().find(|&frac| needed <= Held::Fx32.limit(frac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bits_as_leave_the_margin_and_no_more() {
        for (largest, margin, expected) in [
            (2.8, 2, Some(27)),
            (300.0, 2, Some(20)),
            (300.0, 0, Some(22)),
            (511.9, 2, Some(20)),
            // the largest integer is a whisker below the power of two
            (512.0, 2, Some(19)),
            (0.0, 2, Some(28)),
            (1e9, 2, None),
            (f64::INFINITY, 2, None),
            (f64::from(i32::MAX) / 256.0, 0, Some(8)),
            (f64::from(i32::MAX) / 256.0, 1, None),
        ] {
            assert_eq!(fraction_bits(largest, margin), expected, "{largest} {margin}");
        }
    }
}
