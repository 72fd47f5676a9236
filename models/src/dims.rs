//! Giving open dimensions values: `ctx_len=0,1,1024` runs a function at each.

use crate::hir::{Dims, Function};

/// A dimension and the values at which to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The dimension.
    pub name: String,
    /// Values, in the order in which they run.
    pub values: Vec<u64>,
}

impl std::str::FromStr for Pin {
    type Err = DimError;
    fn from_str(text: &str) -> Result<Pin, DimError> {
        let wrong = || DimError::Text { text: text.to_string() };
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let values = values.split(',').map(|v| v.trim().parse().map_err(|_| wrong()));
        let name = name.trim().to_string();
        match name.is_empty() {
            true => Err(wrong()),
            false => Ok(Pin { name, values: values.collect::<Result<_, _>>()? }),
        }
    }
}

/// What is wrong with dimensions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// Not of the form of a pin.
    #[error("`{text}` pins no dimension, expected NAME=NUMBER or NAME=NUMBER,NUMBER")]
    Text {
        /// What was written.
        text: String,
    },
    /// A dimension that the function does not have open.
    #[error("{function} has no open dimension `{name}`, expected one of: {known}")]
    Unknown {
        /// The function.
        function: String,
        /// The name.
        name: String,
        /// Its open dimensions.
        known: String,
    },
    /// A dimension pinned twice.
    #[error("dimension `{name}` is pinned twice, expected its values in one list")]
    Twice {
        /// The dimension.
        name: String,
    },
    /// A value outside the dimension's range.
    #[error("dimension `{name}` is {value}, expected a value in {lo}..{hi}")]
    Range {
        /// The dimension.
        name: String,
        /// The value.
        value: u64,
        /// Smallest value.
        lo: u64,
        /// One past the largest.
        hi: u64,
    },
    /// An open dimension without a value.
    #[error("{function}: dimension `{name}` is open, expected a value in {lo}..{hi}")]
    Open {
        /// The function.
        function: String,
        /// The dimension.
        name: String,
        /// Smallest value.
        lo: u64,
        /// One past the largest.
        hi: u64,
    },
}

/// Every combination of the pinned values, the last pin varying fastest; one empty combination without pins.
///
/// # Errors
/// A dimension that is not open in the function or pinned twice, a value out of range.
pub fn pinned(function: &Function, pins: &[Pin]) -> Result<Vec<Dims>, DimError> {
    let mut all = vec![Dims::new()];
    for (i, pin) in pins.iter().enumerate() {
        if pins[..i].iter().any(|p| p.name == pin.name) {
            return Err(DimError::Twice { name: pin.name.clone() });
        }
        let with = |dims: &Dims, value: &u64| {
            let mut dims = dims.clone();
            dims.insert(pin.name.clone(), *value);
            dims
        };
        all = all.iter().flat_map(|dims| pin.values.iter().map(move |v| with(dims, v))).collect();
    }
    all.iter().try_for_each(|dims| check(function, dims))?;
    Ok(all)
}

fn check(function: &Function, dims: &Dims) -> Result<(), DimError> {
    let open = function.open_dims();
    for (name, &value) in dims {
        match open.iter().find(|v| v.name == *name) {
            Some(v) if (v.lo..v.hi).contains(&value) => {}
            Some(v) => return Err(DimError::Range { name: name.clone(), value, lo: v.lo, hi: v.hi }),
            None => {
                let known: Vec<&str> = open.iter().map(|v| v.name.as_str()).collect();
                return Err(DimError::Unknown {
                    function: function.name.clone(),
                    name: name.clone(),
                    known: if known.is_empty() { "none".to_string() } else { known.join(", ") },
                });
            }
        }
    }
    Ok(())
}

/// Checks that every open dimension of the function has a value in its range.
///
/// # Errors
/// A dimension without a value, out of range, or not of the function.
pub fn closed(function: &Function, dims: &Dims) -> Result<(), DimError> {
    check(function, dims)?;
    match function.open_dims().iter().find(|v| !dims.contains_key(&v.name)) {
        None => Ok(()),
        Some(v) => {
            Err(DimError::Open { function: function.name.clone(), name: v.name.clone(), lo: v.lo, hi: v.hi })
        }
    }
}
