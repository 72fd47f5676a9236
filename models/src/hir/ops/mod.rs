//! The rules of the operations, one file a family: shape and dtype, float64 value, cost.
//!
//! This file only finds the family. A shape rule takes operand types and returns result types or a
//! sentence of what it expects; a value rule takes operands that fit the shape rule.

pub mod cache;
pub mod elementwise;
pub mod index;
pub mod layout;
pub mod matmul;
pub mod reduce;
pub mod rope;

use super::cost::Cost;
use super::op::Op;
use super::types::Type;
use crate::eval::{Angles, Tensor};

/// Result types from operand types (of a tuple operand, all its elements'), or what was expected.
pub(crate) fn infer(op: &Op, operands: &[Vec<Type>]) -> Result<Vec<Type>, String> {
    if let Op::TupleGet { index } = op {
        return index::infer_tuple_get(*index, operands);
    }
    if operands.iter().any(|t| t.len() != 1) {
        return Err("tensors, not a tuple (take an element with tuple_get)".to_string());
    }
    let x: Vec<&Type> = operands.iter().map(|t| &t[0]).collect();
    match op {
        Op::TopK { k } => index::infer_topk(*k, &x),
        _ => infer_one(op, &x).map(|t| vec![t]),
    }
}

fn infer_one(op: &Op, x: &[&Type]) -> Result<Type, String> {
    match op {
        Op::MatMul => matmul::infer(x),
        Op::Reduce { .. } | Op::RmsNorm { .. } | Op::Softmax { .. } => reduce::infer(op, x),
        Op::Rope { rotary, theta } => rope::infer(*rotary, *theta, x),
        Op::IndexSelect => index::infer_select(x),
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::RepeatInterleave { .. } => layout::infer(op, x),
        Op::CacheUpdate => cache::infer(x),
        Op::Call { .. } => Err("a call made by the builder's `call`".to_string()),
        _ => elementwise::infer(op, x),
    }
}

/// Cost from operand and result types; a dimension that is still open counts as its smallest.
pub(crate) fn cost(op: &Op, operands: &[Type], results: &[Type]) -> Cost {
    match op {
        Op::MatMul => matmul::cost(operands, results),
        Op::Reduce { .. } | Op::RmsNorm { .. } | Op::Softmax { .. } => reduce::cost(op, operands, results),
        Op::Rope { rotary, .. } => rope::cost(*rotary, operands, results),
        Op::TopK { .. } | Op::IndexSelect => index::cost(op, operands, results),
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::RepeatInterleave { .. } => layout::cost(op, results),
        Op::CacheUpdate => cache::cost(operands),
        Op::TupleGet { .. } | Op::Call { .. } => Cost::default(),
        _ => elementwise::cost(op, operands, results),
    }
}

/// What evaluation may be asked to do otherwise.
pub(crate) struct Mode<'a> {
    /// Whether `Op::Round` rounds.
    pub round: bool,
    /// Indices that every `Op::TopK` takes instead of choosing.
    pub forced_ids: Option<&'a [i64]>,
    /// What `Op::Rope` turns by.
    pub angles: Angles<'a>,
}

/// The value of an operation on operands that fit its shape rule; `shape` is the result's (the first
/// result's) with every dimension known. `Op::TupleGet` and `Op::Call` have none: the caller handles them.
///
/// # Errors
/// What was expected of an operand's value: an index in range, a cache window that fits.
pub(crate) fn evaluate(op: &Op, x: &[&Tensor], shape: &[usize], mode: &Mode) -> Result<Vec<Tensor>, String> {
    let one = match op {
        Op::MatMul => matmul::evaluate(x[0], x[1]),
        Op::Reduce { .. } | Op::RmsNorm { .. } | Op::Softmax { .. } => reduce::evaluate(op, x, shape),
        Op::Rope { rotary, theta } => rope::evaluate(*rotary as usize, *theta, x[0], x[1], mode.angles)?,
        Op::TopK { k } => return index::evaluate_topk(*k as usize, x[0], mode.forced_ids),
        Op::IndexSelect => return index::evaluate_select(x[0], x[1]).map(|t| vec![t]),
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::RepeatInterleave { .. } => layout::evaluate(op, x, shape),
        Op::CacheUpdate => return cache::evaluate(x).map(|t| vec![t]),
        Op::TupleGet { .. } | Op::Call { .. } => return Err("a tensor operation".to_string()),
        _ => elementwise::evaluate(op, x, shape, mode.round),
    };
    Ok(vec![one])
}

/// The one operand, or what was expected.
fn unary<'a>(x: &[&'a Type]) -> Result<&'a Type, String> {
    match x {
        [a] => Ok(a),
        _ => Err(format!("1 operand, not {}", x.len())),
    }
}

/// The two operands, or what was expected.
fn binary<'a>(x: &[&'a Type], what: &str) -> Result<(&'a Type, &'a Type), String> {
    match x {
        [a, b] => Ok((a, b)),
        _ => Err(format!("2 operands ({what}), not {}", x.len())),
    }
}

/// Checks that an operand is real.
fn float(x: &Type, what: &str) -> Result<(), String> {
    match x.dtype.is_float() {
        true => Ok(()),
        false => Err(format!("{what} of a float dtype")),
    }
}

/// Checks that an axis exists.
fn has_axis(x: &Type, axis: usize) -> Result<(), String> {
    match axis < x.shape.len() {
        true => Ok(()),
        false => Err(format!("an operand with an axis {axis}, of {} axes", x.shape.len())),
    }
}
