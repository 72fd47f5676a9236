//! Where a run first leaves its references: a row a place, with the error of the device against the capture,
//! of the device against the float64 chain, and of the float64 chain against the capture, which is what
//! quantization alone costs (or, on captures of the same weights, what the evaluator does).

use super::compare::{Comparisons, Measure};
use super::{DecodeInputs, Place};
use crate::metrics::{Scale, Similarity};
use crate::{Bound, Thresholds};
use serde::{Deserialize, Serialize};

/// The table, always made; it is shown when a gate fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstDivergence {
    /// The places in the order in which a token passes them.
    pub rows: Vec<DivergenceRow>,
    /// The first place where a cell is outside.
    pub first_outside: Option<Place>,
}

/// One place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DivergenceRow {
    /// The place.
    pub place: Place,
    /// The device with forced routing against the capture.
    pub device_vs_capture: Option<Cell>,
    /// The device with forced routing against the float64 chain.
    pub device_vs_float64: Option<Cell>,
    /// The float64 chain against the capture.
    pub float64_vs_capture: Option<Cell>,
}

impl DivergenceRow {
    /// Whether one of its cells is outside.
    #[must_use]
    pub fn outside(&self) -> bool {
        let cells = [self.device_vs_capture, self.device_vs_float64, self.float64_vs_capture];
        cells.iter().flatten().any(|cell| cell.outside)
    }
}

/// The worst token of one pair at one place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Its error, see [`Similarity::error`].
    pub error: f64,
    /// What that is measured in.
    pub scale: Scale,
    /// The token.
    pub token: u64,
    /// Whether any token is outside the tight bounds. Never so for a pair that these do not bind: captures of
    /// other weights, or of lower precision.
    pub outside: bool,
}

/// Makes the table.
pub(super) fn first(
    inputs: &DecodeInputs<'_>,
    thresholds: &Thresholds,
    compared: &Comparisons,
) -> FirstDivergence {
    let label = inputs.capture_label;
    let binding = label.is_tight();
    let cosine = Bound::AtLeast(thresholds.layer_cosine);
    let ratio = Bound::Within { center: 1.0, tolerance: thresholds.layer_norm_ratio };
    let near = |s: &Similarity| cosine.admits(s.cosine) && ratio.admits(s.norm_ratio);
    let equal = |s: &Similarity| Bound::AtMost(thresholds.reference_error).admits(s.error);
    let row = |place| DivergenceRow {
        place,
        device_vs_capture: compared.forced_capture.at(place).map(|rows| cell(rows, |s| !binding || near(s))),
        device_vs_float64: compared.forced_reference.at(place).map(|rows| cell(rows, near)),
        float64_vs_capture: compared
            .reference_capture
            .at(place)
            .map(|rows| cell(rows, |s| !binding || equal(s))),
    };
    let rows: Vec<DivergenceRow> = Place::all(inputs.reference.layers.len()).map(row).collect();
    let first_outside = rows.iter().find(|row| row.outside()).map(|row| row.place);
    FirstDivergence { rows, first_outside }
}

/// The worst of the rows, one a token.
fn cell(rows: &[Similarity], inside: impl Fn(&Similarity) -> bool) -> Cell {
    let worst = Measure::Error.worst(rows);
    Cell {
        error: rows[worst].error,
        scale: rows[worst].scale,
        token: worst as u64,
        outside: !rows.iter().all(inside),
    }
}
