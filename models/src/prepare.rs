//! Preparing weights: from what a delivery holds to what a function takes.
//!
//! A weight whose published layout differs has a converter registered for it (`crate::naming`): a function of
//! the HIR of one parameter and one result, like any other. Two run them. Packing takes the converters of
//! `crate::sources` and evaluates each on the numbers of the elements instead of their values, so that every
//! dtype keeps its bits. `Prepared` evaluates them on values, children first, and gives an evaluation the weights
//! of a delivery as it is. No converter reads another weight, so the order changes no result; it decides which
//! weight is named where several are wrong.

use crate::error::ModelError;
use crate::eval::{EvalError, Options, Resource, Tensor, Weights, evaluate};
use crate::hir::builder::join;
use crate::hir::{Function, Module, Type};
use crate::naming::{WeightSource, sources};
use crate::stack::{Part, Stack};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The names of a module's weights with their scope, those of its children first, each child's children before
/// it.
///
/// # Errors
/// One weight name with two types.
pub fn children_first(module: &Module) -> Result<Vec<String>, ModelError> {
    let mut order = Vec::new();
    for child in &module.children {
        order.extend(children_first(&child.module)?.iter().map(|name| join(&child.scope, name)));
    }
    for weight in module.weights()? {
        if !order.contains(&weight.name) {
            order.push(weight.name.clone());
        }
    }
    Ok(order)
}

/// The sources of a part's weights in the order in which they are prepared: children first.
///
/// # Errors
/// `ModelError::NoLayer`.
pub fn prepared_sources(stack: &Stack, part: Part) -> Result<Vec<WeightSource>, ModelError> {
    let mut all = sources(stack, part)?;
    if let Part::Layer(i) = part {
        let order = children_first(&stack.kind(i)?.module)?;
        all.sort_by_key(|s| order.iter().position(|name| *name == s.role));
    }
    Ok(all)
}

/// The converters of a part's weights by role, in the order in which they run.
///
/// # Errors
/// `ModelError::NoLayer`.
pub fn converters(stack: &Stack, part: Part) -> Result<Vec<(String, Function)>, ModelError> {
    let all = prepared_sources(stack, part)?;
    Ok(all.into_iter().filter_map(|s| Some((s.role, s.converter?))).collect())
}

/// A part's weights, prepared from a resource that holds them as published, named by role.
pub struct Prepared<'a> {
    published: &'a dyn Resource,
    types: BTreeMap<String, Type>,
    converted: BTreeMap<String, Vec<f64>>,
}

impl<'a> Prepared<'a> {
    /// Checks every weight's published shape, children first, and converts those that have a converter. The
    /// others stay where they are. A resource may hold another float dtype than the model states, as
    /// deliveries do: `A_log` comes in float32 or bfloat16.
    ///
    /// # Errors
    /// A weight that is missing or of another published shape; a converter that fails.
    pub fn new(stack: &Stack, part: Part, published: &'a dyn Resource) -> Result<Prepared<'a>, PrepareError> {
        let mut prepared = Prepared { published, types: BTreeMap::new(), converted: BTreeMap::new() };
        for source in prepared_sources(stack, part)? {
            let expected = Type::new(source.dtype, &source.published_shape);
            let role = source.role.clone();
            match published.ty(&role) {
                None => return Err(PrepareError::Missing { role, expected: expected.to_string() }),
                Some(found) if found.shape != expected.shape || !found.dtype.is_float() => {
                    let (found, expected) = (found.to_string(), expected.to_string());
                    return Err(PrepareError::Published { role, found, expected });
                }
                Some(_) => {}
            }
            if let Some(converter) = &source.converter {
                let data = convert(&role, converter, published).map_err(|error| PrepareError::Converter {
                    role: role.clone(),
                    error: Box::new(error),
                })?;
                prepared.converted.insert(role.clone(), data);
            }
            prepared.types.insert(role, Type::new(source.dtype, &source.shape));
        }
        Ok(prepared)
    }
}

fn convert(role: &str, converter: &Function, published: &dyn Resource) -> Result<Vec<f64>, EvalError> {
    let data = published.tensor(role)?.into_owned();
    let mut inputs = BTreeMap::new();
    for p in converter.activations() {
        let shape: Vec<usize> = p.ty.known_shape().unwrap_or_default().iter().map(|&n| n as usize).collect();
        let expected = shape.iter().product();
        if data.len() != expected {
            return Err(EvalError::WeightSize { name: role.to_string(), found: data.len(), expected });
        }
        inputs.insert(p.name.clone(), Tensor::f64(&shape, data.clone()));
    }
    let none = BTreeMap::<String, Vec<f64>>::new();
    let results = evaluate(converter, &inputs, &none, Options::default())?;
    let weight = results.get("weight").and_then(Tensor::as_f64);
    weight.map(<[f64]>::to_vec).ok_or_else(|| EvalError::Weight {
        name: role.to_string(),
        reason: "its converter has no real result `weight`".to_string(),
    })
}

impl Weights for Prepared<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        match self.converted.get(name) {
            Some(data) => Ok(Cow::Borrowed(data)),
            None => self.published.tensor(name),
        }
    }
    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        match self.converted.get(name) {
            Some(_) => self.converted.rows(name, rows, row_len),
            None => self.published.rows(name, rows, row_len),
        }
    }
}

impl Resource for Prepared<'_> {
    fn ty(&self, name: &str) -> Option<Type> {
        self.types.get(name).cloned()
    }
}

/// Why a part's weights cannot be prepared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PrepareError {
    /// A weight that the resource lacks.
    #[error("weight `{role}` is missing, expected {expected} as published")]
    Missing {
        /// The weight.
        role: String,
        /// Its published type.
        expected: String,
    },
    /// A weight of another shape than published.
    #[error("weight `{role}` is {found}, expected {expected} as published")]
    Published {
        /// The weight.
        role: String,
        /// Its type at the resource.
        found: String,
        /// Its published type.
        expected: String,
    },
    /// A converter that failed.
    #[error("weight `{role}` could not be converted: {error}")]
    Converter {
        /// The weight.
        role: String,
        /// Why.
        error: Box<EvalError>,
    },
    /// A part that the stack does not have.
    #[error(transparent)]
    Model(#[from] ModelError),
}
