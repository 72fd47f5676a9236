//! The same elements elsewhere: concatenation, slices, reshapes, transposes, repetition.

use super::{has_axis, unary};
use crate::eval::tensor::around;
use crate::eval::{Data, Tensor};
use crate::hir::cost::{Cost, bytes};
use crate::hir::op::Op;
use crate::hir::types::{Dim, Type};

pub(super) fn infer(op: &Op, x: &[&Type]) -> Result<Type, String> {
    if let Op::Concat { axis } = op {
        return infer_concat(*axis, x);
    }
    let a = unary(x)?;
    let shape = match op {
        Op::Slice { axis, start, len } => {
            has_axis(a, *axis)?;
            if start.checked_add(*len).is_none_or(|end| end > a.shape[*axis].least()) {
                return Err(format!("{start}+{len} within axis {axis}, which is {}", a.shape[*axis]));
            }
            let mut shape = a.shape.clone();
            shape[*axis] = Dim::from(*len);
            shape
        }
        Op::Reshape { shape } if signature(shape) == signature(&a.shape) => shape.clone(),
        Op::Reshape { shape } => {
            let (from, to) = (signature(&a.shape).0, signature(shape).0);
            return Err(format!(
                "the same number of elements and the same open axes ({from} elements, not {to})"
            ));
        }
        Op::Transpose { perm } => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted != (0..a.shape.len()).collect::<Vec<_>>() {
                return Err(format!("a permutation of {} axes, not {perm:?}", a.shape.len()));
            }
            perm.iter().map(|&i| a.shape[i].clone()).collect()
        }
        Op::RepeatInterleave { axis, repeats } => {
            has_axis(a, *axis)?;
            let n = a.shape[*axis].known().ok_or("a closed axis to repeat")?;
            let mut shape = a.shape.clone();
            shape[*axis] = Dim::from(n * repeats);
            shape
        }
        _ => return Err("an operation on layout".to_string()),
    };
    Ok(Type { dtype: a.dtype, shape })
}

fn infer_concat(axis: usize, x: &[&Type]) -> Result<Type, String> {
    let (first, rest) = x.split_first().ok_or("at least one operand")?;
    has_axis(first, axis)?;
    let mut shape = first.shape.clone();
    for b in rest {
        let others = |t: &Type| {
            t.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone()).collect()
        };
        let (p, q): (Vec<Dim>, Vec<Dim>) = (others(first), others(b));
        if b.dtype != first.dtype || b.shape.len() != first.shape.len() || p != q {
            return Err(format!("operands of one dtype that differ on axis {axis} only"));
        }
        let (sum, d) = (&mut shape[axis], &b.shape[axis]);
        if sum.var.is_some() && d.var.is_some() {
            return Err(format!("at most one operand with an open axis {axis}"));
        }
        sum.plus += d.plus;
        sum.var = sum.var.take().or_else(|| d.var.clone());
    }
    Ok(Type { dtype: first.dtype, shape })
}

/// Product of the closed dimensions, and the open ones sorted.
fn signature(shape: &[Dim]) -> (u64, Vec<&Dim>) {
    let mut open: Vec<&Dim> = shape.iter().filter(|d| d.known().is_none()).collect();
    open.sort();
    (shape.iter().filter_map(Dim::known).product(), open)
}

pub(super) fn cost(op: &Op, results: &[Type]) -> Cost {
    // A reshape moves nothing; the others read each element that they write.
    let moved = match op {
        Op::Reshape { .. } => 0,
        _ => bytes(&results[0]),
    };
    let repeats = match op {
        Op::RepeatInterleave { repeats, .. } => (*repeats).max(1),
        _ => 1,
    };
    Cost { flops: 0, read: moved / repeats, written: moved }
}

pub(super) fn evaluate(op: &Op, x: &[&Tensor], shape: &[usize]) -> Tensor {
    let data = match &x[0].data {
        Data::F64(_) => Data::F64(arrange(op, x, shape, |t| t.reals())),
        Data::I64(_) => Data::I64(arrange(op, x, shape, |t| t.integers())),
    };
    Tensor { shape: shape.to_vec(), data }
}

fn arrange<'a, T: Copy + 'a>(
    op: &Op,
    x: &[&'a Tensor],
    shape: &[usize],
    data: impl Fn(&'a Tensor) -> &'a [T],
) -> Vec<T> {
    let a = data(x[0]);
    let mut out = Vec::with_capacity(shape.iter().product());
    match op {
        Op::Concat { axis } => {
            let (outer, inner) = around(shape, *axis);
            for o in 0..outer {
                for t in x {
                    let n = t.shape[*axis] * inner;
                    out.extend_from_slice(&data(t)[o * n..(o + 1) * n]);
                }
            }
        }
        Op::Slice { axis, start, len } => {
            let (outer, inner) = around(&x[0].shape, *axis);
            let n = x[0].shape[*axis];
            for o in 0..outer {
                let first = (o * n + *start as usize) * inner;
                out.extend_from_slice(&a[first..first + *len as usize * inner]);
            }
        }
        Op::RepeatInterleave { axis, repeats } => {
            let (_, inner) = around(&x[0].shape, *axis);
            for piece in a.chunks(inner.max(1)) {
                (0..*repeats).for_each(|_| out.extend_from_slice(piece));
            }
        }
        Op::Transpose { perm } => transpose(a, &x[0].shape, perm, &mut out),
        _ => out.extend_from_slice(a),
    }
    out
}

fn transpose<T: Copy>(a: &[T], from: &[usize], perm: &[usize], out: &mut Vec<T>) {
    let mut source = vec![1usize; from.len()];
    for i in (1..from.len()).rev() {
        source[i - 1] = source[i] * from[i];
    }
    let shape: Vec<usize> = perm.iter().map(|&i| from[i]).collect();
    let step: Vec<usize> = perm.iter().map(|&i| source[i]).collect();
    let mut index = vec![0usize; shape.len()];
    let mut at = 0usize;
    for _ in 0..a.len() {
        out.push(a[at]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += step[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= step[axis] * shape[axis];
            index[axis] = 0;
        }
    }
}
