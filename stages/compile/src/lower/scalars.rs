//! Integer scalars: the token, the position, and what is computed of them.

use super::memory::edge_in;
use super::{Lower, Value};
use crate::error::CompileError;
use crate::graph::POSITION;
use crate::ir::build::{self, Place};
use mica_device::isa::ScalarOp;
use mica_device::object::Symbol;
use mica_models::hir::{Dtype, Node, Op, ValueId};

impl Lower<'_> {
    /// Whether a value lives in a scalar register.
    pub(super) fn is_scalar(&self, v: ValueId) -> bool {
        let ty = self.g.ty(v);
        ty.dtype == Dtype::I64 && ty.shape.is_empty()
    }

    /// The register of a scalar value. Of several tokens each one's is computed where it is used, into scratch of the
    /// scope that asks.
    pub(super) fn scalar_of(&mut self, v: ValueId) -> Result<u8, CompileError> {
        match (self.options.tokens, self.value(v)) {
            (1, Value::Scalar(s)) => return Ok(*s),
            (1, _) => return Err(self.g.unsupported(v, "an index or a position is an I64 scalar")),
            _ => {}
        }
        let root = self.g.root(v);
        match (self.g.param(root), self.g.node(root)) {
            (Some(p), _) if p.name == POSITION => {
                let Value::Scalar(first) = self.at_token(0, |l| l.value(root).clone()) else {
                    return Err(self.g.unsupported(v, "the position is an I64 scalar"));
                };
                if self.token == 0 {
                    return Ok(first);
                }
                let s = self.scalar()?;
                self.emit(build::salui(ScalarOp::Add, s, first, self.token as i64));
                Ok(s)
            }
            (Some(p), _) if self.is_scalar(root) => {
                let s = self.scalar()?;
                self.emit(build::sld(s, &Place::new(Symbol::Edge(edge_in(&p.name)), 8 * self.token)));
                Ok(s)
            }
            (_, Some(node)) if self.is_scalar(root) => self.computed(root, node),
            _ => Err(self.g.unsupported(v, "an index or a position is an I64 scalar")),
        }
    }

    /// Arithmetic of scalars, on the scalar unit: now for the one token of a call, where it is used for several.
    pub(super) fn scalar_op(&mut self, v: ValueId, node: &Node) -> Result<Value, CompileError> {
        match node.op {
            Op::FullLike { .. } => Ok(Value::Absent),
            _ if self.options.tokens > 1 => Ok(Value::Absent),
            _ => self.computed(v, node).map(Value::Scalar),
        }
    }

    fn computed(&mut self, v: ValueId, node: &Node) -> Result<u8, CompileError> {
        let op = match node.op {
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
        Ok(to)
    }
}
