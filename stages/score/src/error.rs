//! What can be wrong with what is to be scored. A bad figure is not an error; it is a failed gate.

/// Values that cannot be compared at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// A comparison of nothing would pass every bound.
    #[error("there is nothing to compare: {what} is empty")]
    Empty {
        /// What was to be compared.
        what: String,
    },
    /// Two operands of one comparison differ in length.
    #[error("{found} elements cannot be compared with {expected} of the reference")]
    Mismatch {
        /// Elements of the reference.
        expected: usize,
        /// Elements of what is compared with it.
        found: usize,
    },
    /// An input has not the number of elements that the run's dimensions give it.
    #[error("{what} has {found} elements where {expected} were expected")]
    Length {
        /// Which input.
        what: String,
        /// Elements by the dimensions.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// An input is no whole number of rows.
    #[error("{what} has {elements} elements, which is no whole number of {rows} rows")]
    Rows {
        /// Which input.
        what: String,
        /// Elements given.
        elements: usize,
        /// Rows that they should make.
        rows: usize,
    },
    /// An id lies outside the table that it indexes.
    #[error("{what}: id {id} at position {position} is outside 0..{limit}")]
    Id {
        /// Which input.
        what: String,
        /// Index of the id in its list.
        position: usize,
        /// The id.
        id: i64,
        /// One past the largest id.
        limit: usize,
    },
}
