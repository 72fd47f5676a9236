//! The places of a chain at which two runs are compared.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where in the chain a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The embedding row: the residual before layer 0.
    Embed,
    /// The residual after this layer.
    Layer(usize),
    /// The post-norm hidden.
    FinalNorm,
    /// The logits.
    Logits,
}

impl Place {
    /// All places of a stack, in the order in which a token passes them.
    pub(super) fn all(layers: usize) -> impl Iterator<Item = Self> {
        std::iter::once(Self::Embed)
            .chain((0..layers).map(Self::Layer))
            .chain([Self::FinalNorm, Self::Logits])
    }

    /// Whether it is on the residual stream.
    pub(super) fn is_residual(self) -> bool {
        matches!(self, Self::Embed | Self::Layer(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embed => f.write_str("embed"),
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::FinalNorm => f.write_str("final norm"),
            Self::Logits => f.write_str("logits"),
        }
    }
}
