//! Vectors and everything else that is stored as plain row-major elements.

use crate::error::QuantizeError;
use crate::source::Narrow;
use crate::tally::Tally;
use crate::unit::Units;
use crate::weight::Weight;

/// Plain elements, one piece: norms, biases and filters are small.
pub(crate) struct Elements<'a> {
    pub weight: Weight<'a>,
    pub rows: u64,
    pub cols: u64,
    pub format: Narrow,
}

impl Units for Elements<'_> {
    fn len(&self) -> u64 {
        1
    }

    fn bytes(&self, _unit: u64) -> u64 {
        self.rows * self.cols * self.format.dtype().bytes()
    }

    fn write(&self, _unit: u64, out: &mut [u8]) -> Result<Tally, QuantizeError> {
        let mut floats = Vec::new();
        let tally = self.weight.narrowed(0..self.rows, self.cols, self.format, &mut floats)?;
        out.copy_from_slice(&floats);
        Ok(tally)
    }
}
