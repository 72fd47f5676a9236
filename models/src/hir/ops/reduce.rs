//! Operations along one axis: reductions, root-mean-square norm, softmax. Sums run in order of the axis.

use super::{binary, float, has_axis, unary};
use crate::eval::Tensor;
use crate::eval::tensor::around;
use crate::hir::cost::{Cost, bytes, elements};
use crate::hir::op::{Op, ReduceKind};
use crate::hir::types::{Dim, Type};

pub(super) fn infer(op: &Op, x: &[&Type]) -> Result<Type, String> {
    match op {
        Op::RmsNorm { eps } => {
            let (a, w) = binary(x, "x [.., D] and weight [D]")?;
            float(a, "x")?;
            if !(eps.is_finite() && *eps >= 0.0) {
                return Err(format!("a finite eps of 0 or more, not {eps:?}"));
            }
            match a.shape.last() {
                Some(d) if w.dtype == a.dtype && w.shape == [d.clone()] => Ok(a.clone()),
                Some(d) => Err(format!("a weight {}[{d}] (no implicit promotion)", a.dtype)),
                None => Err("x with at least one axis".to_string()),
            }
        }
        Op::Softmax { axis } => {
            let a = unary(x)?;
            check_axis(a, *axis, true)?;
            Ok(a.clone())
        }
        Op::Reduce { kind, axis, keep } => {
            let a = unary(x)?;
            check_axis(a, *axis, *kind != ReduceKind::Sum)?;
            let mut shape = a.shape.clone();
            match keep {
                true => shape[*axis] = Dim::from(1),
                false => drop(shape.remove(*axis)),
            }
            Ok(Type { dtype: a.dtype, shape })
        }
        _ => Err("an operation along an axis".to_string()),
    }
}

fn check_axis(a: &Type, axis: usize, some: bool) -> Result<(), String> {
    float(a, "an operand")?;
    has_axis(a, axis)?;
    match some && a.shape[axis].least() == 0 {
        true => Err(format!("axis {axis} to have at least one element")),
        false => Ok(()),
    }
}

pub(super) fn cost(op: &Op, operands: &[Type], results: &[Type]) -> Cost {
    let n = elements(&operands[0]);
    Cost {
        flops: match op {
            // Square, sum, two multiplications an element; root and division a row are left out.
            Op::RmsNorm { .. } => 4 * n,
            // Maximum, difference, exponential, sum, division.
            Op::Softmax { .. } => 5 * n,
            _ => n,
        },
        read: operands.iter().map(bytes).sum(),
        written: bytes(&results[0]),
    }
}

pub(super) fn evaluate(op: &Op, x: &[&Tensor], shape: &[usize]) -> Tensor {
    let a = x[0].reals();
    let data = match op {
        Op::RmsNorm { eps } => rms_norm(a, x[1].reals(), *eps),
        Op::Softmax { axis } => softmax(a, &x[0].shape, *axis),
        Op::Reduce { kind, axis, .. } => reduce(a, &x[0].shape, *kind, *axis),
        _ => unreachable!("the family has three operations"),
    };
    Tensor::f64(shape, data)
}

fn rms_norm(a: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let n = weight.len();
    let mut out = Vec::with_capacity(a.len());
    for row in a.chunks(n.max(1)) {
        let mean = row.iter().fold(0.0, |s, v| s + v * v) / n as f64;
        let scale = 1.0 / libm::sqrt(mean + eps);
        out.extend(row.iter().zip(weight).map(|(v, w)| v * scale * w));
    }
    out
}

fn softmax(a: &[f64], shape: &[usize], axis: usize) -> Vec<f64> {
    let (outer, inner) = around(shape, axis);
    let n = shape[axis];
    let mut out = a.to_vec();
    for o in 0..outer {
        for i in 0..inner {
            let at = |j: usize| (o * n + j) * inner + i;
            let max = (0..n).fold(f64::NEG_INFINITY, |m, j| m.max(a[at(j)]));
            let mut sum = 0.0;
            for j in 0..n {
                out[at(j)] = libm::exp(a[at(j)] - max);
                sum += out[at(j)];
            }
            for j in 0..n {
                out[at(j)] /= sum;
            }
        }
    }
    out
}

fn reduce(a: &[f64], shape: &[usize], kind: ReduceKind, axis: usize) -> Vec<f64> {
    let (outer, inner) = around(shape, axis);
    let n = shape[axis];
    let mut out = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            let values = (0..n).map(|j| a[(o * n + j) * inner + i]);
            out.push(match kind {
                ReduceKind::Sum => values.fold(0.0, |s, v| s + v),
                ReduceKind::Mean => values.fold(0.0, |s, v| s + v) / n as f64,
                ReduceKind::Max => values.fold(f64::NEG_INFINITY, f64::max),
            });
        }
    }
    out
}
