//! Error figures of a weight, and how those of its parts add up.

use serde::{Deserialize, Serialize};

/// How well a stored weight stands for the delivered one. What is not finite counts in `non_finite` alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorFigures {
    /// The weight.
    pub role: String,
    /// Its elements.
    pub elements: u64,
    /// ‖w − ŵ‖ / ‖w‖ over the whole weight, where w is as delivered (dequantized, if it is quantized).
    pub relative_error: f64,
    /// The scale group (row, in a format without scales) of largest ‖w − ŵ‖ / ‖w‖, the first of equals;
    /// `None` where nothing was lost.
    pub worst_group: Option<WorstGroup>,
    /// Weights that lie beyond the integer range at their group's scale.
    pub saturated: u64,
    /// NaN and infinite weights; more than 0 only where the caller allows them.
    pub non_finite: u64,
    /// Whether every stored value is the delivered value exactly.
    pub lossless: bool,
}

/// The group of largest error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstGroup {
    /// Counted over the whole weight, row-major.
    pub index: u64,
    /// ‖w − ŵ‖ / ‖w‖ within the group.
    pub relative_error: f64,
}

/// Sums over some groups. Merged in the weight's order, so that threads change no bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    error: f64,
    energy: f64,
    worst: Option<WorstGroup>,
    /// The largest squared relative error of a group that was added; `worst` is at least as bad.
    squared: f64,
    pub saturated: u64,
    pub non_finite: u64,
    pub lossless: bool,
}

impl Tally {
    /// Of no groups.
    pub const fn new() -> Tally {
        Tally {
            error: 0.0,
            energy: 0.0,
            worst: None,
            squared: 0.0,
            saturated: 0,
            non_finite: 0,
            lossless: true,
        }
    }

    /// Adds a group of squared error and squared size.
    pub fn group(&mut self, index: u64, error: f64, energy: f64) {
        self.error += error;
        self.energy += energy;
        // Roots are in the order of their squares: most groups need none.
        let squared = error / energy;
        if error > 0.0 && squared > self.squared {
            self.squared = squared;
            self.worse(WorstGroup { index, relative_error: squared.sqrt() });
        }
    }

    fn worse(&mut self, group: WorstGroup) {
        if self.worst.is_none_or(|worst| group.relative_error > worst.relative_error) {
            self.worst = Some(group);
        }
    }

    /// Adds what comes after.
    pub fn merge(&mut self, next: &Tally) {
        self.error += next.error;
        self.energy += next.energy;
        self.saturated += next.saturated;
        self.non_finite += next.non_finite;
        self.lossless &= next.lossless;
        if let Some(group) = next.worst {
            self.worse(group);
        }
    }

    /// The figures of the whole weight.
    pub fn figures(&self, role: &str, elements: u64) -> TensorFigures {
        TensorFigures {
            role: role.into(),
            elements,
            relative_error: if self.error > 0.0 { (self.error / self.energy).sqrt() } else { 0.0 },
            worst_group: self.worst,
            saturated: self.saturated,
            non_finite: self.non_finite,
            lossless: self.lossless,
        }
    }
}
