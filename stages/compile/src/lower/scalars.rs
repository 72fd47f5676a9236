//! Integer scalars: the token, the position, and what is computed of them.

use super::{Lower, Value};
use crate::error::CompileError;
use crate::ir::build;
use mica_device::isa::ScalarOp;
use mica_models::hir::{Dtype, Node, Op, ValueId};

impl Lower<'_> {
    /// Whether a value lives in a scalar register.
    pub(super) fn is_scalar(&self, v: ValueId) -> bool {
        let ty = self.g.ty(v);
        ty.dtype == Dtype::I64 && ty.shape.is_empty()
    }

    /// The register of a scalar value.
    pub(super) fn scalar_of(&self, v: ValueId) -> Result<u8, CompileError> {
        match self.value(v) {
            Value::Scalar(s) => Ok(*s),
            _ => Err(self.g.unsupported(v, "an index or a position is an I64 scalar")),
        }
    }

    /// Arithmetic of scalars, on the scalar unit.
    pub(super) fn scalar_op(&mut self, v: ValueId, node: &Node) -> Result<Value, CompileError> {
        let op = match node.op {
            Op::FullLike { .. } => return Ok(Value::Absent),
            Op::Add => ScalarOp::Add,
            Op::Sub => ScalarOp::Sub,
            Op::Mul => ScalarOp::Mul,
            Op::Max => ScalarOp::Max,
            _ => return Err(self.g.unsupported(v, "the scalar unit adds, subtracts, multiplies, compares")),
        };
        let a = self.scalar_of(node.inputs[0])?;
        let to = self.scalar()?;
        let inst = match self.g.fill(node.inputs[1]) {
            Some(c) => build::salui(op, to, a, c as i64),
            None => build::salu(op, to, a, self.scalar_of(node.inputs[1])?),
        };
        self.emit(inst);
        Ok(Value::Scalar(to))
    }
}
