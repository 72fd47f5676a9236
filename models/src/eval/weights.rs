//! Where the evaluator reads weights from.

use super::error::EvalError;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Weights by name, widened to float64, row-major.
pub trait Weights: Sync {
    /// All elements of a weight.
    ///
    /// # Errors
    /// `EvalError::MissingWeight`, or `EvalError::Weight` with the source's reason.
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError>;

    /// Rows of a weight seen as rows of `row_len` elements, in the order asked; a row may be asked twice.
    /// The evaluator reads matrices in blocks of rows and tables only where they are indexed, so a source
    /// that overrides this never holds a large weight whole.
    ///
    /// # Errors
    /// As `tensor`; `EvalError::WeightSize` where the weight ends before a row.
    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let contiguous = rows.windows(2).all(|w| w[1] == w[0] + 1);
        let size =
            |found: usize, expected: usize| EvalError::WeightSize { name: name.to_string(), found, expected };
        let end = rows.iter().max().map_or(0, |r| (r + 1) * row_len);
        let first = rows.first().map_or(0, |r| r * row_len);
        match self.tensor(name)? {
            all if all.len() < end => Err(size(all.len(), end)),
            Cow::Borrowed(all) if contiguous => Ok(Cow::Borrowed(&all[first..end])),
            all => {
                Ok(rows.iter().flat_map(|r| all[r * row_len..(r + 1) * row_len].iter().copied()).collect())
            }
        }
    }
}

impl Weights for BTreeMap<String, Vec<f64>> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        match self.get(name) {
            Some(data) => Ok(Cow::Borrowed(data)),
            None => Err(EvalError::MissingWeight { name: name.to_string() }),
        }
    }
}

/// Weights of a child module: every name with a scope and a dot before it.
pub struct Scoped<'w> {
    /// Where the weights are.
    pub weights: &'w dyn Weights,
    /// The scope; empty for none.
    pub scope: String,
}

impl Weights for Scoped<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        self.weights.tensor(&crate::hir::builder::join(&self.scope, name))
    }
    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        self.weights.rows(&crate::hir::builder::join(&self.scope, name), rows, row_len)
    }
}
