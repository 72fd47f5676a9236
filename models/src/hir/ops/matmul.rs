//! Matrix products, as NumPy's `matmul`.
//!
//! Order of summation, the same whatever the threads: with one column, eight lanes over the contraction
//! (element i into lane i mod 8), then a tree over the lanes; with more columns, in order of the
//! contraction. No fused multiply–add.

use super::elementwise::{broadcast, strides};
use super::{binary, float};
use crate::eval::Tensor;
use crate::hir::cost::{Cost, bytes, elements};
use crate::hir::types::Type;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Multiplications below which threads cost more than they save.
const SERIAL: usize = 1 << 15;
/// Elements of a matrix fetched at a time: half a megabyte of float64, which stays in a core's cache.
const BLOCK: usize = 1 << 16;

pub(super) fn infer(x: &[&Type]) -> Result<Type, String> {
    let (a, b) = binary(x, "[.., M, K] and [.., K, N]")?;
    float(a, "operands")?;
    if a.dtype != b.dtype {
        return Err("two operands of one dtype (there is no implicit promotion; cast one)".to_string());
    }
    let (Some(k), false) = (a.shape.last(), b.shape.is_empty()) else {
        return Err("operands with at least one axis".to_string());
    };
    let (vector_a, vector_b) = (a.shape.len() == 1, b.shape.len() == 1);
    let contracted = &b.shape[b.shape.len() - if vector_b { 1 } else { 2 }];
    if k != contracted {
        return Err(format!("the contracted axes to be equal, not {k} and {contracted}"));
    }
    let batch = |t: &Type| t.shape[..t.shape.len().saturating_sub(2)].to_vec();
    let mut shape = broadcast(&batch(a), &batch(b)).ok_or("leading axes that broadcast")?;
    if !vector_a {
        shape.push(a.shape[a.shape.len() - 2].clone());
    }
    if !vector_b {
        shape.push(b.shape[b.shape.len() - 1].clone());
    }
    Ok(Type { dtype: a.dtype, shape })
}

pub(super) fn cost(operands: &[Type], results: &[Type]) -> Cost {
    let k = operands[0].shape.last().map_or(0, |d| d.least());
    Cost {
        // k multiplications and k − 1 additions, counted as 2k as is usual.
        flops: 2 * k * elements(&results[0]),
        read: operands.iter().map(bytes).sum(),
        written: bytes(&results[0]),
    }
}

/// Sum of products in eight fixed lanes.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let (mut ca, mut cb) = (a.chunks_exact(8), b.chunks_exact(8));
    for (x, y) in (&mut ca).zip(&mut cb) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in ca.remainder().iter().zip(cb.remainder()).enumerate() {
        lanes[i] += x * y;
    }
    ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
}

/// Each of `rows` rows of `row_len` elements times its vector: `fetch` gives a range of rows, `vector` the
/// vector of a row. The matrix is never held whole.
pub(crate) fn matrix_vector<'m, E: Send>(
    rows: usize,
    row_len: usize,
    fetch: impl Fn(Range<usize>) -> Result<Cow<'m, [f64]>, E> + Sync,
    vector: impl Fn(usize) -> Range<usize> + Sync,
    x: &[f64],
) -> Result<Vec<f64>, E> {
    let block = (BLOCK / row_len.max(1)).max(1);
    let mut out = vec![0.0; rows];
    let one_block = |(i, out): (usize, &mut [f64])| {
        let first = i * block;
        let matrix = fetch(first..first + out.len())?;
        for (j, y) in out.iter_mut().enumerate() {
            *y = dot(&matrix[j * row_len..(j + 1) * row_len], &x[vector(first + j)]);
        }
        Ok(())
    };
    match rows * row_len < SERIAL {
        true => out.chunks_mut(block).enumerate().try_for_each(one_block)?,
        false => out.par_chunks_mut(block).enumerate().try_for_each(one_block)?,
    }
    Ok(out)
}

pub(super) fn evaluate(a: &Tensor, b: &Tensor) -> Tensor {
    let (sa, sb) = (a.shape.as_slice(), b.shape.as_slice());
    let (vector_a, vector_b) = (sa.len() == 1, sb.len() == 1);
    let k = sa[sa.len() - 1];
    let m = if vector_a { 1 } else { sa[sa.len() - 2] };
    let n = if vector_b { 1 } else { sb[sb.len() - 1] };
    let (ba, bb) = (&sa[..sa.len().saturating_sub(2)], &sb[..sb.len().saturating_sub(2)]);
    let rank = ba.len().max(bb.len());
    let batch: Vec<usize> = (0..rank)
        .map(|i| {
            let at = |s: &[usize]| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
            if at(ba) == 1 { at(bb) } else { at(ba) }
        })
        .collect();
    let (ta, tb) = (strides(ba, rank), strides(bb, rank));
    // Which matrix of each operand a batch index reads.
    let matrices: Vec<(usize, usize)> = (0..batch.iter().product())
        .map(|flat: usize| {
            let (mut rest, mut ia, mut ib) = (flat, 0, 0);
            for axis in (0..rank).rev() {
                let i = rest % batch[axis];
                rest /= batch[axis];
                ia += i * ta[axis];
                ib += i * tb[axis];
            }
            (ia, ib)
        })
        .collect();
    let (xa, xb) = (a.reals(), b.reals());
    let mut out = vec![0.0; matrices.len() * m * n];
    let one_row = |(row, out): (usize, &mut [f64])| {
        let (ia, ib) = matrices[row / m];
        let left = &xa[(ia * m + row % m) * k..][..k];
        let right = &xb[ib * k * n..][..k * n];
        if n == 1 {
            out[0] = dot(left, right);
            return;
        }
        for (i, &l) in left.iter().enumerate() {
            for (y, &r) in out.iter_mut().zip(&right[i * n..(i + 1) * n]) {
                *y += l * r;
            }
        }
    };
    if n > 0 {
        match matrices.len() * m * n * k < SERIAL {
            true => out.chunks_mut(n).enumerate().for_each(one_row),
            false => out.par_chunks_mut(n).enumerate().for_each(one_row),
        }
    }
    let mut shape = batch;
    shape.extend((!vector_a).then_some(m));
    shape.extend((!vector_b).then_some(n));
    Tensor::f64(&shape, out)
}
