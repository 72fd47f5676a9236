//! What a run counts besides its results.

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Sub};

/// Events of one or several kernel calls. "No saturation" is a gate, and a strict run traps at the
/// first event of the first three kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counters {
    /// FX32 results or conversions that were clamped.
    pub saturations: u64,
    /// Finite values that became infinite when they were stored as F16.
    pub f16_overflows: u64,
    /// NaN results (stored as the canonical NaN), and infinite results of finite operands.
    pub non_finite: u64,
    /// Instructions executed.
    pub instructions: u64,
}

impl Counters {
    /// Events that a strict run does not accept.
    pub const fn events(&self) -> u64 {
        self.saturations + self.f16_overflows + self.non_finite
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.saturations += other.saturations;
        self.f16_overflows += other.f16_overflows;
        self.non_finite += other.non_finite;
        self.instructions += other.instructions;
    }
}

impl Add for Counters {
    type Output = Counters;
    fn add(mut self, other: Counters) -> Counters {
        self += other;
        self
    }
}

/// What was counted since `earlier`, counters of the same call.
impl Sub for Counters {
    type Output = Counters;
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            saturations: self.saturations - earlier.saturations,
            f16_overflows: self.f16_overflows - earlier.f16_overflows,
            non_finite: self.non_finite - earlier.non_finite,
            instructions: self.instructions - earlier.instructions,
        }
    }
}
