//! The bounds of the `decode` gates, each of which `workspace.toml` may override by name.
//!
//! They are inputs of scoring alone: changing one judges again and simulates nothing.

use serde::{Deserialize, Serialize};

/// Bounds of the `decode` gates.
///
/// The first is the published walkthrough's and is loose: a model whose final norm forgets its `1 +`
/// passes it. The others are this project's own. A NaN bound is met by nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// Least cosine, at every token, of the free-running device's post-norm hidden to a capture of the
    /// same weights. As published: 0.95.
    pub chain_cosine: f64,
    /// The same to a capture of the unquantized model, for a checkpoint that is quantized here: 0.98.
    pub chain_cosine_unquantized: f64,
    /// Least cosine, at every place and token, of the device with forced routing: 0.99999.
    pub layer_cosine: f64,
    /// Largest distance of the norm ratio from 1, at the same places: 0.001, that is 0.1 %.
    pub layer_norm_ratio: f64,
    /// Largest relative L2 error, at every place and token, of the float64 reference against a capture
    /// of the same weights: 1e-6, what float32 captures allow.
    pub reference_error: f64,
    /// Root mean square up to which a reference counts as zero, so that errors against it are absolute:
    /// 1e-9, far below the resolution of the residual stream. It is also how far from such a reference
    /// a value may be and still count as equal to it.
    pub near_zero: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            chain_cosine: 0.95,
            chain_cosine_unquantized: 0.98,
            layer_cosine: 0.99999,
            layer_norm_ratio: 0.001,
            reference_error: 1e-6,
            near_zero: 1e-9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_overridden_by_name_and_the_others_stay() {
        let given: Thresholds = toml::from_str("layer_cosine = 0.999").unwrap();
        assert_eq!(given, Thresholds { layer_cosine: 0.999, ..Thresholds::default() });
    }

    #[test]
    fn an_unknown_bound_is_refused_with_the_known_ones() {
        let message = toml::from_str::<Thresholds>("layer_cosin = 0.9").unwrap_err().to_string();
        assert!(message.contains("layer_cosin`") && message.contains("`layer_cosine`"), "{message}");
    }
}
