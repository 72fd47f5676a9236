//! Operations on each element: arithmetic with broadcasting, elementary functions, dtype changes.

use super::{binary, float, unary};
use crate::eval::round::round_through;
use crate::eval::{Data, Tensor};
use crate::hir::cost::{Cost, bytes, elements};
use crate::hir::op::Op;
use crate::hir::types::{Dim, Type};

pub(super) fn infer(op: &Op, x: &[&Type]) -> Result<Type, String> {
    if is_binary(op) {
        let (a, b) = binary(x, "of one dtype")?;
        if a.dtype != b.dtype {
            return Err("two operands of one dtype (there is no implicit promotion; cast one)".to_string());
        }
        if matches!(op, Op::Div) {
            float(a, "operands")?;
        }
        let shape = broadcast(&a.shape, &b.shape)
            .ok_or("shapes that broadcast (aligned at the last axis, equal or 1)")?;
        return Ok(Type { dtype: a.dtype, shape });
    }
    let a = unary(x)?;
    match op {
        Op::Cast { dtype } => {
            let shape = a.shape.clone();
            return Ok(Type { dtype: *dtype, shape });
        }
        Op::Round { dtype } if !dtype.is_float() => return Err("a float dtype to round through".to_string()),
        Op::FullLike { value } if !a.dtype.is_float() && libm::trunc(*value) != *value => {
            return Err(format!("an integer value for an {} operand, not {value:?}", a.dtype));
        }
        Op::Neg | Op::Square | Op::FullLike { .. } => {}
        _ => float(a, "an operand")?,
    }
    Ok(a.clone())
}

fn is_binary(op: &Op) -> bool {
    matches!(op, Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max)
}

/// NumPy's broadcasting of shapes; `None` where they do not fit.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let one = Dim::from(1);
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(one.clone(), |j| s[j].clone());
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (x, y) if x == one => Some(y),
            (x, y) if y == one => Some(x),
            _ => None,
        })
        .collect()
}

pub(super) fn cost(op: &Op, operands: &[Type], results: &[Type]) -> Cost {
    let each = match op {
        Op::Cast { .. } | Op::Round { .. } | Op::FullLike { .. } => 0,
        // 1/√a: root and division.
        Op::Rsqrt => 2,
        // ln(1 + e^a).
        Op::Softplus => 3,
        // 1/(1 + e^−a); silu multiplies by a as well.
        Op::Sigmoid => 4,
        Op::Silu => 5,
        _ => 1,
    };
    Cost {
        flops: each * elements(&results[0]),
        read: match op {
            Op::FullLike { .. } => 0,
            _ => operands.iter().map(bytes).sum(),
        },
        written: bytes(&results[0]),
    }
}

pub(super) fn evaluate(op: &Op, x: &[&Tensor], shape: &[usize], round: bool) -> Tensor {
    let data = match (&x[0].data, x.get(1).map(|b| &b.data)) {
        (Data::F64(a), Some(Data::F64(b))) => {
            let f: fn(f64, f64) -> f64 = match op {
                Op::Add => |a, b| a + b,
                Op::Sub => |a, b| a - b,
                Op::Mul => |a, b| a * b,
                Op::Div => |a, b| a / b,
                _ => |a, b| if a > b || a.is_nan() { a } else { b },
            };
            Data::F64(zip((a, &x[0].shape), (b, &x[1].shape), shape, f))
        }
        (Data::I64(a), Some(Data::I64(b))) => {
            let f: fn(i64, i64) -> i64 = match op {
                Op::Add => i64::wrapping_add,
                Op::Sub => i64::wrapping_sub,
                Op::Mul => i64::wrapping_mul,
                _ => i64::max,
            };
            Data::I64(zip((a, &x[0].shape), (b, &x[1].shape), shape, f))
        }
        (Data::F64(a), _) => match op {
            Op::Cast { dtype } if !dtype.is_float() => Data::I64(a.iter().map(|&v| v as i64).collect()),
            Op::Round { dtype } if round => Data::F64(a.iter().map(|&v| round_through(*dtype, v)).collect()),
            _ => Data::F64(a.iter().map(|&v| real(op, v)).collect()),
        },
        (Data::I64(a), _) => match op {
            Op::Cast { dtype } if dtype.is_float() => Data::F64(a.iter().map(|&v| v as f64).collect()),
            _ => Data::I64(a.iter().map(|&v| integer(op, v)).collect()),
        },
    };
    Tensor { shape: shape.to_vec(), data }
}

fn real(op: &Op, a: f64) -> f64 {
    match op {
        Op::Neg => -a,
        Op::Exp => libm::exp(a),
        Op::Square => a * a,
        Op::Rsqrt => 1.0 / libm::sqrt(a),
        Op::Softplus if a > 20.0 => a,
        Op::Softplus => libm::log1p(libm::exp(a)),
        Op::Sigmoid => sigmoid(a),
        Op::Silu => a * sigmoid(a),
        Op::FullLike { value } => *value,
        _ => a,
    }
}

fn integer(op: &Op, a: i64) -> i64 {
    match op {
        Op::Neg => a.wrapping_neg(),
        Op::Square => a.wrapping_mul(a),
        Op::FullLike { value } => *value as i64,
        _ => a,
    }
}

fn sigmoid(a: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-a))
}

/// Applies `f` to two broadcast operands.
fn zip<T: Copy>(a: (&[T], &[usize]), b: (&[T], &[usize]), shape: &[usize], f: fn(T, T) -> T) -> Vec<T> {
    if a.1 == shape && b.1 == shape {
        return a.0.iter().zip(b.0).map(|(&x, &y)| f(x, y)).collect();
    }
    let (sa, sb) = (strides(a.1, shape.len()), strides(b.1, shape.len()));
    let mut index = vec![0usize; shape.len()];
    let (mut ia, mut ib) = (0usize, 0usize);
    let total = shape.iter().product();
    let mut out = Vec::with_capacity(total);
    for _ in 0..total {
        out.push(f(a.0[ia], b.0[ib]));
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            ia += sa[axis];
            ib += sb[axis];
            if index[axis] < shape[axis] {
                break;
            }
            ia -= sa[axis] * shape[axis];
            ib -= sb[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}

/// Row-major strides of `shape` aligned at the last of `rank` axes; 0 where it repeats.
pub(super) fn strides(shape: &[usize], rank: usize) -> Vec<usize> {
    let mut strides = vec![0; rank];
    let mut step = 1;
    for (i, &n) in shape.iter().enumerate().rev() {
        if n != 1 {
            strides[rank - shape.len() + i] = step;
        }
        step *= n;
    }
    strides
}
