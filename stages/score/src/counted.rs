//! Gates on what was counted: events of the device, and weights that it cannot see any more as they were.

use crate::decode::Counters;
use crate::{Bound, Gate, GateSpec, Reading};

/// Weights that are NaN or infinite in the delivery. An integer format stores 0 or the end of its range for them, so
/// the device computes with numbers and counts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonFiniteWeights {
    /// How many there are.
    pub count: u64,
    /// What the first that has some is called; `None` where there are none.
    pub tensor: Option<String>,
}

impl NonFiniteWeights {
    /// Adds those of a tensor.
    pub fn add(&mut self, tensor: &str, count: u64) {
        self.count += count;
        if count > 0 {
            self.tensor.get_or_insert_with(|| tensor.into());
        }
    }
}

/// Nothing was clamped, nothing overflowed, and nothing is or became no finite number.
pub(crate) fn gates(counters: Counters, weights: &NonFiniteWeights) -> [Gate; 3] {
    let at = weights.tensor.as_ref().map(|t| format!("{} of them weights, the first in {t}", weights.count));
    let non_finite = Reading { at, ..Reading::counter(counters.non_finite + weights.count) };
    [
        ("saturations", Reading::counter(counters.saturations)),
        ("f16-overflows", Reading::counter(counters.f16_overflows)),
        ("non-finite", non_finite),
    ]
    .map(|(name, reading)| GateSpec::own(name, Bound::Equals(0.0)).judge(reading))
}
