//! Random inputs and weights for a function, in ranges that are found from what it does with them.
//!
//! A position is within the context, an index within its table, a cache window within the cache; real numbers
//! are uniform in [−1, 1), as the stored dtype holds them. The same seed gives the same numbers everywhere.

use crate::dims::{DimError, closed};
use crate::eval::{EvalError, Resource, Tensor, Weights};
use crate::generator::Generator;
use crate::hir::{Dims, Function, Op, Param, Type, ValueId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Where an activation's elements are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Real numbers in [−1, 1).
    Unit,
    /// Integers `lo..hi`, without repetition where there are enough.
    Index {
        /// Smallest.
        lo: u64,
        /// One past the largest.
        hi: u64,
    },
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Unit => f.write_str("[-1, 1)"),
            Range::Index { lo, hi } if lo + 1 == *hi => write!(f, "{lo}"),
            Range::Index { lo, hi } => write!(f, "{lo}..{hi}"),
        }
    }
}

/// The range of each activation at these dimensions, in order.
///
/// # Errors
/// An open dimension without a value or out of range; an integer activation whose use bounds nothing.
pub fn ranges(function: &Function, dims: &Dims) -> Result<Vec<(String, Range)>, InputError> {
    closed(function, dims)?;
    let one = |(i, p): (usize, &Param)| match p.ty.dtype.is_float() {
        true => Ok((p.name.clone(), Range::Unit)),
        false => match index_range(function, ValueId(i as u32), dims) {
            Some((lo, hi)) if lo < hi => Ok((p.name.clone(), Range::Index { lo, hi })),
            _ => Err(InputError::Unbounded { function: function.name.clone(), name: p.name.clone() }),
        },
    };
    let tensors = function.params.iter().enumerate();
    tensors.filter(|(_, p)| p.kind == crate::hir::ParamKind::Tensor).map(one).collect()
}

/// Random activations: every one of the function's, drawn from its range.
///
/// # Errors
/// As `ranges`.
pub fn random_inputs(
    function: &Function,
    dims: &Dims,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, InputError> {
    let ranges = ranges(function, dims)?;
    let draw = |(p, (name, range)): (&Param, (String, Range))| {
        let size = |d: &crate::hir::Dim| d.var.as_ref().map_or(0, |v| dims[&v.name]) + d.plus;
        let shape: Vec<usize> = p.ty.shape.iter().map(|d| size(d) as usize).collect();
        let count = shape.iter().product::<usize>() as u64;
        let g = Generator::new(&format!("input.{name}"), seed, p.ty.dtype, 1.0, 0.0);
        let tensor = match range {
            Range::Unit => Tensor::f64(&shape, (0..count).map(|i| g.element(i)).collect()),
            Range::Index { lo, hi } => Tensor::i64(&shape, indices(&g, count, lo, hi)),
        };
        (name, tensor)
    };
    Ok(function.activations().zip(ranges).map(draw).collect())
}

/// The bounds that an integer activation's uses set together; `None` without any.
fn index_range(function: &Function, v: ValueId, dims: &Dims) -> Option<(u64, u64)> {
    let length = |v: ValueId, axis: usize| {
        let dim = function.ty(v).shape.get(axis)?;
        Some(dim.var.as_ref().map_or(0, |var| dims.get(&var.name).copied().unwrap_or(var.lo)) + dim.plus)
    };
    let uses = function.nodes.iter().filter_map(|node| match (&node.op, node.inputs.as_slice()) {
        (Op::IndexSelect, [table, ids]) if *ids == v => Some((0, length(*table, 0)?)),
        // The token's position is the number of tokens in the cache; without one, that of a first step.
        (Op::Rope { .. }, [_, position]) if *position == v => {
            let at = function.open_dims().first().map_or(0, |var| dims[&var.name]);
            Some((at, at + 1))
        }
        (Op::CacheUpdate, [cache, new, at, s]) if *at == v || *s == v => {
            let (capacity, rows) = (length(*cache, 0)?, length(*new, 0)?);
            Some(if *at == v {
                (0, (capacity + 1).saturating_sub(rows))
            } else {
                (1, rows.min(capacity) + 1)
            })
        }
        _ => None,
    });
    uses.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
}

fn indices(g: &Generator, count: u64, lo: u64, hi: u64) -> Vec<i64> {
    let n = hi - lo;
    if count > n {
        return (0..count).map(|i| (lo + g.below(i, n)) as i64).collect();
    }
    // Floyd's choice of `count` of n, and then their order, from one stream.
    let mut chosen: Vec<u64> = Vec::new();
    for i in 0..count {
        let last = n - count + i;
        let pick = g.below(i, last + 1);
        let pick = if chosen.contains(&pick) { last } else { pick };
        let place = g.below(count + i, i + 1) as usize;
        chosen.insert(place, pick);
    }
    chosen.into_iter().map(|i| (lo + i) as i64).collect()
}

/// Random weights of a function, of the declared types: matrices scaled so that a product is about as large as
/// its vector, the rest in [−0.5, 0.5). Made as they are read, so a layer at published dimensions needs no
/// memory.
pub struct RandomWeights {
    seed: u64,
    types: BTreeMap<String, Type>,
}

impl RandomWeights {
    /// For the weights of a flattened function.
    pub fn new(function: &Function, seed: u64) -> RandomWeights {
        let types = function.weights().map(|w| (w.name.clone(), w.ty.clone())).collect();
        RandomWeights { seed, types }
    }

    fn generator(&self, name: &str) -> Result<(Generator, u64), EvalError> {
        let missing = || EvalError::MissingWeight { name: name.to_string() };
        let ty = self.types.get(name).ok_or_else(missing)?;
        let shape = ty.known_shape().ok_or_else(missing)?;
        let scale = match shape.as_slice() {
            // Uniform in [−s, s) has a variance of s²/3.
            [.., rows, k] if *rows > 1 => libm::sqrt(3.0 / *k as f64) as f32,
            _ => 0.5,
        };
        let generator = Generator::new(&format!("weight.{name}"), self.seed, ty.dtype, scale, 0.0);
        Ok((generator, shape.iter().product()))
    }
}

impl Weights for RandomWeights {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let (generator, count) = self.generator(name)?;
        Ok(Cow::Owned((0..count).map(|i| generator.element(i)).collect()))
    }
    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let (generator, count) = self.generator(name)?;
        let end = rows.iter().max().map_or(0, |r| (r + 1) * row_len);
        if end as u64 > count {
            let name = name.to_string();
            return Err(EvalError::WeightSize { name, found: count as usize, expected: end });
        }
        let row = |r: &usize| (r * row_len..(r + 1) * row_len).map(|i| generator.element(i as u64));
        Ok(Cow::Owned(rows.iter().flat_map(row).collect()))
    }
}

impl Resource for RandomWeights {
    fn ty(&self, name: &str) -> Option<Type> {
        self.types.get(name).cloned()
    }
}

/// What cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Dimensions that are open or wrong.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// An integer activation that could be anything.
    #[error("{function}: no range is known for `{name}`, expected it to be a position or an index")]
    Unbounded {
        /// The function.
        function: String,
        /// The activation.
        name: String,
    },
}
