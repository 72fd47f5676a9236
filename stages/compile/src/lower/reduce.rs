//! Reductions, norms and softmax.
//!
//! `mean` divides the sum by the number; `softmax` subtracts the maximum, takes e to it and divides by
//! the sum.

use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::ir::{Tile, build};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, ReduceOp, UnaryOp, VectorOp};
use mica_models::hir::{Node, Op, ReduceKind, ValueId};

impl Lower<'_> {
    /// The tile and the device's axis number with which `axis` of `t` is reduced.
    fn along(&self, v: ValueId, t: &Tensor, axis: usize) -> Result<(Tile, u8), CompileError> {
        let lead: u64 = t.shape[..axis].iter().product();
        let tail: u64 = t.shape[axis + 1..].iter().product();
        match (lead, tail) {
            (_, 1) => Ok((t.matrix(lead, t.shape[axis]), 0)),
            (1, _) => Ok((t.matrix(t.shape[axis], tail), 1)),
            _ => {
                let what = format!("axis {axis} of {:?} is neither the first nor the last", t.shape);
                Err(self.g.unsupported(v, what))
            }
        }
    }

    fn reduced(t: &Tensor, axis: usize, keep: bool) -> Vec<u64> {
        let mut shape = t.shape.clone();
        if keep {
            shape[axis] = 1;
        } else {
            shape.remove(axis);
        }
        shape
    }

    fn fold(
        &mut self,
        v: ValueId,
        t: &Tensor,
        (op, mean): (ReduceOp, bool),
        axis: usize,
        keep: bool,
    ) -> Result<Tensor, CompileError> {
        let (tile, device_axis) = self.along(v, t, axis)?;
        let shape = Self::reduced(t, axis, keep);
        let to = if mean { self.fresh(&shape, Format::F32) } else { self.out(&shape, Format::F32) };
        self.emit(build::red(op, device_axis, to.tile(), tile));
        Ok(if mean { self.with(VectorOp::Div, &to, t.shape[axis] as f64) } else { to })
    }

    pub(super) fn reduce(
        &mut self,
        v: ValueId,
        of: ValueId,
        kind: ReduceKind,
        axis: usize,
        keep: bool,
    ) -> Result<Tensor, CompileError> {
        let t = self.tensor(of)?;
        let op = if kind == ReduceKind::Max { ReduceOp::Max } else { ReduceOp::Sum };
        self.fold(v, &t, (op, kind == ReduceKind::Mean), axis, keep)
    }

    /// A reduction whose operand is the square of `of`.
    pub(super) fn sum_of_squares(&mut self, v: ValueId, of: ValueId) -> Result<Tensor, CompileError> {
        let Some(Node { op: Op::Reduce { kind, axis, keep }, .. }) = self.g.node(v) else {
            return Err(self.g.unsupported(v, "a sum of squares is a reduction"));
        };
        let t = self.tensor(of)?;
        self.fold(v, &t, (ReduceOp::Sumsq, *kind == ReduceKind::Mean), *axis, *keep)
    }

    pub(super) fn rms_norm(
        &mut self,
        v: ValueId,
        x: ValueId,
        weight: ValueId,
        eps: f64,
    ) -> Result<Tensor, CompileError> {
        let (x, w) = (self.tensor(x)?, self.tensor(weight)?);
        let destination = self.destination.take();
        let last = x.shape.len() - 1;
        let mean = self.fold(v, &x, (ReduceOp::Sumsq, true), last, true)?;
        let shifted = self.with(VectorOp::Add, &mean, eps);
        let root = self.map(UnaryOp::Rsqrt, &shifted);
        let unit = self.combine(VectorOp::Mul, Broadcast::Stretch, &x, &root);
        self.destination = destination;
        Ok(self.combine(VectorOp::Mul, Broadcast::Cyclic, &unit, &w))
    }

    pub(super) fn softmax(&mut self, v: ValueId, x: ValueId, axis: usize) -> Result<Tensor, CompileError> {
        let x = self.tensor(x)?;
        if axis + 1 != x.shape.len() {
            return Err(self.g.unsupported(v, "softmax runs along the last axis"));
        }
        let destination = self.destination.take();
        let top = self.fold(v, &x, (ReduceOp::Max, false), axis, true)?;
        let below = self.combine(VectorOp::Sub, Broadcast::Stretch, &x, &top);
        let e = self.map(UnaryOp::Exp, &below);
        let sum = self.fold(v, &e, (ReduceOp::Sum, false), axis, true)?;
        self.destination = destination;
        Ok(self.combine(VectorOp::Div, Broadcast::Stretch, &e, &sum))
    }
}
