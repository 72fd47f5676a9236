//! What a decoder carries from one step to the next, found from its function's names.
//!
//! The contract: a step takes one token and the cache before it. A result named as an activation (other than
//! `hidden`) is a **state**: zeros at first, then the step's result. An activation `X_cache` `[heads, n, dim]`
//! with a result `X_row` `[heads, dim]` is a **cache** that its caller manages: empty at first, each step's row
//! appended. `ctx_len`, the cache's open axis, is the number of steps before, from 0 to one below the longest
//! context; `pos` is the step's position.

use crate::eval::{EvalError, Options, Tensor, Weights, evaluate};
use crate::hir::Function;
use std::collections::BTreeMap;

/// States and caches between the steps of one function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carried {
    /// States by name.
    pub states: BTreeMap<String, Tensor>,
    /// Caches by name.
    pub caches: BTreeMap<String, Cache>,
}

/// A cache as the rows that were appended to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cache {
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head's row.
    pub dim: usize,
    /// `[positions, heads, dim]`.
    pub rows: Vec<f64>,
}

impl Cache {
    /// The number of rows.
    pub fn positions(&self) -> usize {
        self.rows.len() / (self.heads * self.dim).max(1)
    }
    /// The cache as the function takes it: `[heads, positions, dim]`.
    pub fn tensor(&self) -> Tensor {
        let positions = self.positions();
        let mut data = Vec::with_capacity(self.rows.len());
        for h in 0..self.heads {
            for p in 0..positions {
                let at = (p * self.heads + h) * self.dim;
                data.extend_from_slice(&self.rows[at..at + self.dim]);
            }
        }
        Tensor::f64(&[self.heads, positions, self.dim], data)
    }
}

/// What `Carried::keep` did with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is the new state of that name.
    State,
    /// It was appended to the cache.
    Row,
    /// It is neither: an output of the step.
    No,
}

impl Carried {
    /// Zero states and empty caches of a function.
    pub fn new(function: &Function) -> Carried {
        let mut carried = Carried::default();
        for p in function.activations() {
            let size = |i: usize| p.ty.shape[i].known().unwrap_or_default() as usize;
            if let Some(row) = row_of(&p.name)
                && function.result(&row).is_some()
                && p.ty.shape.len() == 3
            {
                let cache = Cache { heads: size(0), dim: size(2), rows: Vec::new() };
                carried.caches.insert(p.name.clone(), cache);
            } else if p.name != "hidden" && function.result(&p.name).is_some() {
                let shape: Vec<usize> = (0..p.ty.shape.len()).map(size).collect();
                carried.states.insert(p.name.clone(), Tensor::zeros(&shape));
            }
        }
        carried
    }

    /// The next step's `ctx_len`: rows in the caches (all have as many); 0 without one.
    pub fn ctx_len(&self) -> usize {
        self.caches.values().next().map_or(0, Cache::positions)
    }

    /// States and caches as the next step's inputs.
    pub fn inputs(&self) -> BTreeMap<String, Tensor> {
        let caches = self.caches.iter().map(|(name, cache)| (name.clone(), cache.tensor()));
        self.states.iter().map(|(name, t)| (name.clone(), t.clone())).chain(caches).collect()
    }

    /// Puts a state in place of the carried one.
    ///
    /// # Errors
    /// A name that is no state, a wrong shape.
    pub fn seed(&mut self, name: &str, state: Tensor) -> Result<(), CarryError> {
        let known = listed(&self.states);
        match self.states.get_mut(name) {
            Some(old) if old.shape == state.shape => *old = state,
            Some(old) => {
                let expected = format!("{:?}", old.shape);
                return Err(CarryError::Shape {
                    name: name.to_string(),
                    found: format!("{:?}", state.shape),
                    expected,
                });
            }
            None => return Err(CarryError::Unknown { what: "state", name: name.to_string(), known }),
        }
        Ok(())
    }

    /// Appends rows `[positions, heads, dim]` to a cache.
    ///
    /// # Errors
    /// A name that is no cache, a number of elements that is no number of rows.
    pub fn append(&mut self, cache: &str, rows: &[f64]) -> Result<(), CarryError> {
        let known = listed(&self.caches);
        let Some(found) = self.caches.get_mut(cache) else {
            return Err(CarryError::Unknown { what: "cache", name: cache.to_string(), known });
        };
        if !rows.len().is_multiple_of((found.heads * found.dim).max(1)) {
            return Err(CarryError::Shape {
                name: cache.to_string(),
                found: format!("{} elements", rows.len()),
                expected: format!("rows [{}, {}]", found.heads, found.dim),
            });
        }
        found.rows.extend_from_slice(rows);
        Ok(())
    }

    /// Keeps a step's result that is a state or a cache's row.
    ///
    /// # Errors
    /// A result of a wrong shape.
    pub fn keep(&mut self, name: &str, value: &Tensor) -> Result<Kept, CarryError> {
        if self.states.contains_key(name) {
            return self.seed(name, value.clone()).map(|()| Kept::State);
        }
        let cache = name.strip_suffix("_row").map(|x| format!("{x}_cache"));
        match (cache.filter(|c| self.caches.contains_key(c)), value.as_f64()) {
            (Some(cache), Some(rows)) => self.append(&cache, rows).map(|()| Kept::Row),
            _ => Ok(Kept::No),
        }
    }

    /// Runs one step: `own` are the activations that are not carried (`hidden`, `pos`). Its results are kept
    /// and returned, all of them.
    ///
    /// # Errors
    /// As `evaluate`; a cache at its longest is refused there, by the bound of `ctx_len`.
    pub fn step(
        &mut self,
        function: &Function,
        own: BTreeMap<String, Tensor>,
        weights: &dyn Weights,
        options: Options<'_>,
    ) -> Result<BTreeMap<String, Tensor>, EvalError> {
        let mut inputs = self.inputs();
        inputs.extend(own);
        let results = evaluate(function, &inputs, weights, options)?;
        for (name, value) in &results {
            self.keep(name, value)?;
        }
        Ok(results)
    }
}

fn row_of(cache: &str) -> Option<String> {
    cache.strip_suffix("_cache").map(|x| format!("{x}_row"))
}

fn listed<T>(map: &BTreeMap<String, T>) -> String {
    match map.is_empty() {
        true => "none".to_string(),
        false => map.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// What cannot be carried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarryError {
    /// A name that the function does not carry.
    #[error("no {what} `{name}` is carried, expected one of: {known}")]
    Unknown {
        /// `state` or `cache`.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that are.
        known: String,
    },
    /// A wrong shape.
    #[error("carried `{name}` is {found}, expected {expected}")]
    Shape {
        /// State or cache.
        name: String,
        /// What was given.
        found: String,
        /// What was expected.
        expected: String,
    },
}
