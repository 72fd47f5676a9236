//! The units that a weight is written in: each fills its own stretch of the segment on its own, so that
//! they can be made side by side and memory holds only a few.

use crate::error::QuantizeError;
use crate::tally::Tally;

/// A weight cut into units.
pub(crate) trait Units: Sync {
    /// Number of units.
    fn len(&self) -> u64;
    /// Bytes of a unit; units follow each other without gaps.
    fn bytes(&self, unit: u64) -> u64;
    /// Writes every one of a unit's bytes, whatever they were.
    fn write(&self, unit: u64, out: &mut [u8]) -> Result<Tally, QuantizeError>;
}
