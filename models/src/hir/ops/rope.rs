//! Rotary position embedding.
//!
//! The first `R` elements of the last axis rotate in half-split pairs (j, j + R/2) by the angle
//! position · theta^(−2j/R); the others pass through. In which precision the angles are taken is the
//! evaluation's choice (`crate::eval::Angles`).

use super::{binary, float};
use crate::eval::{Angles, Tensor};
use crate::hir::cost::{Cost, bytes, elements};
use crate::hir::types::{Dtype, Type};

pub(super) fn infer(rotary: u64, theta: f64, x: &[&Type]) -> Result<Type, String> {
    let (a, position) = binary(x, "x [.., D] and position")?;
    float(a, "x")?;
    if position.dtype != Dtype::I64 || !position.shape.is_empty() {
        return Err("a position that is a scalar i64".to_string());
    }
    if !(theta.is_finite() && theta > 0.0) {
        return Err(format!("a finite positive theta, not {theta:?}"));
    }
    match a.shape.last().map(|d| d.known()) {
        Some(Some(d)) if rotary.is_multiple_of(2) && rotary <= d => Ok(a.clone()),
        _ => Err(format!("an even number of rotary elements within the last axis, not {rotary}")),
    }
}

pub(super) fn cost(rotary: u64, operands: &[Type], results: &[Type]) -> Cost {
    let heads = elements(&operands[0]) / operands[0].shape.last().map_or(1, |d| d.least().max(1));
    Cost {
        // Two multiplications and one addition an element; the angles once (power, product, sine, cosine).
        flops: 3 * heads * rotary + 2 * rotary,
        read: operands.iter().map(bytes).sum(),
        written: bytes(&results[0]),
    }
}

pub(super) fn evaluate(
    rotary: usize,
    theta: f64,
    x: &Tensor,
    position: &Tensor,
    angles: Angles,
) -> Result<Tensor, String> {
    let turns = angles.turns(rotary, theta, position.integers()[0])?;
    let half = rotary / 2;
    let mut out = x.reals().to_vec();
    let d = x.shape[x.shape.len() - 1];
    for head in out.chunks_mut(d.max(1)) {
        for (j, &(cos, sin)) in turns.iter().enumerate() {
            let (a, b) = (head[j], head[j + half]);
            head[j] = a * cos - b * sin;
            head[j + half] = b * cos + a * sin;
        }
    }
    Ok(Tensor::f64(&x.shape, out))
}
