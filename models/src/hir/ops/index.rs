//! Choosing and gathering: top-k, rows of a table, elements of a tuple.

use super::{binary, float, unary};
use crate::eval::{Data, Tensor};
use crate::hir::cost::{Cost, bytes, elements};
use crate::hir::op::Op;
use crate::hir::types::{Dim, Dtype, Type};

pub(super) fn infer_topk(k: u64, x: &[&Type]) -> Result<Vec<Type>, String> {
    let a = unary(x)?;
    float(a, "an operand")?;
    let last = a.shape.last().ok_or("an operand with at least one axis")?;
    if k == 0 || last.least() < k {
        return Err(format!("k from 1 to the last axis, which is {last}, not {k}"));
    }
    let mut shape = a.shape.clone();
    *shape.last_mut().expect("has a last axis") = Dim::from(k);
    let indices = Type { dtype: Dtype::I64, shape: shape.clone() };
    Ok(vec![Type { dtype: a.dtype, shape }, indices])
}

pub(super) fn infer_tuple_get(index: usize, operands: &[Vec<Type>]) -> Result<Vec<Type>, String> {
    match operands {
        [tuple] if tuple.len() > 1 && index < tuple.len() => Ok(vec![tuple[index].clone()]),
        [tuple] if tuple.len() > 1 => Err(format!("an element below {}, not {index}", tuple.len())),
        _ => Err("one tuple".to_string()),
    }
}

pub(super) fn infer_select(x: &[&Type]) -> Result<Type, String> {
    let (table, indices) = binary(x, "table [N, ..] and indices")?;
    if indices.dtype != Dtype::I64 {
        return Err("indices of dtype i64".to_string());
    }
    if table.shape.is_empty() {
        return Err("a table with at least one axis".to_string());
    }
    Ok(Type { dtype: table.dtype, shape: [&indices.shape[..], &table.shape[1..]].concat() })
}

pub(super) fn cost(op: &Op, operands: &[Type], results: &[Type]) -> Cost {
    let written = results.iter().map(bytes).sum();
    match op {
        // A gather reads the rows that it takes, not the table.
        Op::IndexSelect => Cost { flops: 0, read: bytes(&results[0]) + bytes(&operands[1]), written },
        // A selection over the row for each of k.
        _ => Cost {
            flops: elements(&operands[0]) * results[0].shape.last().map_or(1, Dim::least),
            read: bytes(&operands[0]),
            written,
        },
    }
}

/// Values and indices of the k largest of each row, or of the forced indices.
pub(super) fn evaluate_topk(k: usize, x: &Tensor, forced: Option<&[i64]>) -> Result<Vec<Tensor>, String> {
    let n = x.shape[x.shape.len() - 1];
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    let rows = x.elements() / n.max(1);
    if let Some(ids) = forced
        && ids.len() != k * rows
    {
        return Err(format!("{} forced ids, not {}", k * rows, ids.len()));
    }
    for (r, row) in x.reals().chunks(n.max(1)).enumerate() {
        let chosen = match forced {
            Some(ids) => ids[r * k..(r + 1) * k].iter().map(|&i| in_range(i, n)).collect::<Result<_, _>>()?,
            None => largest(row, k),
        };
        values.extend(chosen.iter().map(|&i| row[i]));
        indices.extend(chosen.iter().map(|&i| i as i64));
    }
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("has a last axis, by inference") = k;
    Ok(vec![Tensor::f64(&shape, values), Tensor::i64(&shape, indices)])
}

fn largest(row: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // Adding zero turns −0 into +0, so that they tie; the sort is stable, so ties keep the lower index.
    order.sort_by(|&a, &b| (row[b] + 0.0).total_cmp(&(row[a] + 0.0)));
    order.truncate(k);
    order
}

/// An index of an axis of length `n`, or what was expected.
pub(crate) fn in_range(index: i64, n: usize) -> Result<usize, String> {
    usize::try_from(index).ok().filter(|i| *i < n).ok_or_else(|| format!("indices in 0..{n}, not {index}"))
}

pub(super) fn evaluate_select(table: &Tensor, indices: &Tensor) -> Result<Tensor, String> {
    let n = table.shape[0];
    let row = table.elements() / n.max(1);
    let rows = indices.integers().iter().map(|&i| in_range(i, n)).collect::<Result<Vec<_>, _>>()?;
    fn gather<T: Copy>(data: &[T], rows: &[usize], row: usize) -> Vec<T> {
        rows.iter().flat_map(|i| data[i * row..(i + 1) * row].iter().copied()).collect()
    }
    Ok(Tensor {
        shape: [&indices.shape[..], &table.shape[1..]].concat(),
        data: match &table.data {
            Data::F64(v) => Data::F64(gather(v, &rows, row)),
            Data::I64(v) => Data::I64(gather(v, &rows, row)),
        },
    })
}
