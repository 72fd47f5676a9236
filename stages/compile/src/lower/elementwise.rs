//! Element-wise ops and their broadcasting.

use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::build;
use mica_device::format::Format;
use mica_device::isa::{Broadcast, UnaryOp, VectorOp};
use mica_models::hir::{Dtype, Node, Op, ValueId};

/// How an operand of shape `b` meets one of shape `a`, the shape of the result; `None` where the
/// device has no such way.
pub(super) fn meet(a: &[u64], b: &[u64]) -> Option<Broadcast> {
    let missing = a.len().checked_sub(b.len())?;
    let b = |i: usize| if i < missing { 1 } else { b[i - missing] };
    // axes of length 1 in both say nothing
    let axes: Vec<bool> = (0..a.len()).filter(|&i| a[i] != 1).map(|i| b(i) == a[i]).collect();
    if (0..a.len()).any(|i| b(i) != a[i] && b(i) != 1) {
        return None;
    }
    let kept = axes.iter().filter(|k| **k).count();
    if kept == axes.len() {
        Some(Broadcast::Same)
    } else if axes.iter().rev().take(kept).all(|k| *k) {
        Some(Broadcast::Cyclic)
    } else if axes.iter().take(kept).all(|k| *k) {
        Some(Broadcast::Stretch)
    } else {
        None
    }
}

fn vector_op(op: &Op) -> VectorOp {
    match op {
        Op::Sub => VectorOp::Sub,
        Op::Mul => VectorOp::Mul,
        Op::Div => VectorOp::Div,
        Op::Max => VectorOp::Max,
        _ => VectorOp::Add,
    }
}

impl Lower<'_> {
    /// `a op b` into a new tensor of a's shape, `how` as [`meet`] says.
    pub(super) fn combine(&mut self, op: VectorOp, how: Broadcast, a: &Tensor, b: &Tensor) -> Tensor {
        let format = match (op, a.format, b.format) {
            (VectorOp::Add, Format::Fx32, _) | (VectorOp::Add, _, Format::Fx32) => Format::Fx32,
            _ => Format::F32,
        };
        let to = self.out(&a.shape, format);
        self.emit(build::vbin(op, how, to.tile(), a.tile(), b.tile()));
        to
    }

    /// `a op imm`.
    pub(super) fn with(&mut self, op: VectorOp, a: &Tensor, imm: f64) -> Tensor {
        let fixed = op == VectorOp::Add && a.format == Format::Fx32;
        let to = self.out(&a.shape, if fixed { Format::Fx32 } else { Format::F32 });
        self.emit(build::vbini(op, to.tile(), a.tile(), imm as f32));
        to
    }

    /// `f(a)`.
    pub(super) fn map(&mut self, f: UnaryOp, a: &Tensor) -> Tensor {
        let to = self.out(&a.shape, Format::F32);
        self.emit(build::vun(f, to.tile(), a.tile()));
        to
    }

    /// The negation of `a`, in a tensor of its own even where the node has a destination.
    fn negated(&mut self, a: &Tensor) -> Tensor {
        let to = self.fresh(&a.shape, Format::F32);
        self.emit(build::vun(UnaryOp::Neg, to.tile(), a.tile()));
        to
    }

    pub(super) fn binary(&mut self, v: ValueId, node: &Node) -> Result<Value, CompileError> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let op = vector_op(&node.op);
        if let Some(t) = self.outer_sum(v, node)? {
            return Ok(Value::Tensor(t));
        }
        if let Some(c) = self.g.fill(b) {
            let a = self.tensor(a)?;
            return Ok(Value::Tensor(self.with(op, &a, c)));
        }
        if let Some(c) = self.g.fill(a) {
            let mut b = self.tensor(b)?;
            let op = match op {
                // c − b = −b + c, exactly
                VectorOp::Sub => {
                    b = self.negated(&b);
                    VectorOp::Add
                }
                VectorOp::Div => return Err(self.g.unsupported(v, "a constant is never divided")),
                op => op,
            };
            return Ok(Value::Tensor(self.with(op, &b, c)));
        }
        let (a, b) = (self.tensor(a)?, self.tensor(b)?);
        if let Some(how) = meet(&a.shape, &b.shape) {
            return Ok(Value::Tensor(self.combine(op, how, &a, &b)));
        }
        let Some(how) = meet(&b.shape, &a.shape) else {
            let what = format!(
                "{:?} and {:?} meet neither element by element nor with one repeated along the \
                 leading or along the trailing axes",
                a.shape, b.shape
            );
            return Err(self.g.unsupported(v, what));
        };
        let (op, a) = match op {
            VectorOp::Sub => (VectorOp::Add, self.negated(&a)),
            VectorOp::Div => return Err(self.g.unsupported(v, "the dividend has the result's shape")),
            op => (op, a),
        };
        // op is commutative now, and the operand of the result's shape comes first
        Ok(Value::Tensor(self.combine(op, how, &b, &a)))
    }

    pub(super) fn unary(&mut self, v: ValueId, node: &Node) -> Result<Tensor, CompileError> {
        let f = match node.op {
            Op::Neg => UnaryOp::Neg,
            Op::Exp => UnaryOp::Exp,
            Op::Square => UnaryOp::Square,
            Op::Rsqrt => UnaryOp::Rsqrt,
            Op::Softplus => UnaryOp::Softplus,
            Op::Sigmoid => UnaryOp::Sigmoid,
            Op::Silu => UnaryOp::Silu,
            Op::Round { dtype: Dtype::BF16 } => UnaryOp::RoundBf16,
            _ => return Err(self.g.unsupported(v, "the device rounds through bfloat16 only")),
        };
        let a = self.tensor(node.inputs[0])?;
        Ok(self.map(f, &a))
    }
}
