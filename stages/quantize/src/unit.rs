//! The pieces that a weight is written in: each fills its own stretch of the segment on its own, so that
//! pieces can be made side by side and memory holds only a few.

use crate::error::QuantizeError;
use crate::tally::Tally;

/// A weight cut into pieces.
pub(crate) trait Units: Sync {
    /// Number of pieces.
    fn len(&self) -> u64;
    /// Bytes of a piece; pieces follow each other without gaps.
    fn bytes(&self, unit: u64) -> u64;
    /// Writes a piece into its zeroed bytes.
    fn write(&self, unit: u64, out: &mut [u8]) -> Result<Tally, QuantizeError>;
}
