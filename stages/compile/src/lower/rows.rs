//! Rows of a concatenation that never exists as a whole: the window of a causal convolution.
//!
//! The sum over the window is `a[0]·b[0] + a[1]·b[1] + …`, a product and then a sum each, in
//! ascending order; the rows that stay in the window go from L2 to their edge without passing LRM.

use super::memory::{edge_format, edge_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::isa::{Broadcast, VectorOp};
use mica_device::object::Symbol;
use mica_models::hir::{Op, ValueId};

impl Lower<'_> {
    /// The parts of a concatenation along axis 0, with each one's first row and rows.
    fn pieces(&self, v: ValueId) -> Result<Vec<(ValueId, u64, u64)>, CompileError> {
        let Some(node) = self.g.node(v).filter(|n| n.op == Op::Concat { axis: 0 }) else {
            let rows = self.g.shape(v)?[0];
            return Ok(vec![(self.g.root(v), 0, rows)]);
        };
        let mut first = 0;
        let mut all = Vec::new();
        for &input in &node.inputs {
            let rows = self.g.shape(input)?[0];
            all.push((self.g.root(input), first, rows));
            first += rows;
        }
        Ok(all)
    }

    /// Row `i` of a value `[K, C]`: of a parameter, loaded alone.
    fn row(&mut self, v: ValueId, i: u64) -> Result<Tensor, CompileError> {
        for (piece, first, rows) in self.pieces(v)? {
            if !(first..first + rows).contains(&i) {
                continue;
            }
            let loaded = matches!(self.value(piece), Value::Tensor(_));
            if self.g.param(piece).is_none() || loaded {
                return Ok(self.tensor(piece)?.at(i - first));
            }
            let cols = self.g.shape(piece)?[1];
            let (buf, format) = self.parameter_in_l2(piece)?;
            let bytes = cols * format.bytes();
            let span = Span { buf, offset: (i - first) * bytes, bytes };
            return Ok(self.load(span, format, &[cols]));
        }
        Err(self.g.unsupported(v, format!("it has no row {i}")))
    }

    /// The sum over rows of a product with a concatenation.
    pub(super) fn column_dot(
        &mut self,
        v: ValueId,
        rows: ValueId,
        by: ValueId,
    ) -> Result<Tensor, CompileError> {
        let shape = self.g.shape(v)?;
        let k = self.g.shape(rows)?[0];
        let mut sum: Option<Tensor> = None;
        for i in 0..k {
            let (a, b) = (self.row(rows, i)?, self.row(by, i)?);
            let p = self.combine(VectorOp::Mul, Broadcast::Same, &a, &b);
            sum = Some(match sum {
                None => p,
                Some(s) => self.combine(VectorOp::Add, Broadcast::Same, &s, &p),
            });
        }
        let sum = sum.ok_or_else(|| self.g.unsupported(v, "the concatenation has no rows"))?;
        Ok(sum.view(&shape))
    }

    /// Rows of a concatenation from `start`, as many as `v` has, each piece on its way to the edge.
    pub(super) fn leaving_rows(&mut self, v: ValueId, rows: ValueId, start: u64) -> Result<(), CompileError> {
        let shape = self.g.shape(v)?;
        let end = start + shape[0];
        for e in self.g.exports(v) {
            let format = edge_format(e.dtype);
            let edge = edge_out(&e.name);
            for (piece, first, n) in self.pieces(rows)? {
                let (lo, hi) = (first.max(start), (first + n).min(end));
                if lo >= hi {
                    continue;
                }
                let stride = shape[1] * format.bytes();
                let to = (lo - start) * stride;
                let same = self.g.param(piece).is_some_and(|p| edge_format(p.ty.dtype) == format);
                if same && self.weight(piece)?.is_none() {
                    let (buf, _) = self.parameter_in_l2(piece)?;
                    let span = Span { buf, offset: (lo - first) * stride, bytes: (hi - lo) * stride };
                    self.emit(build::dst(&Place::new(Symbol::Edge(edge.clone()), to), span));
                } else {
                    let t = self.tensor(piece)?.part((lo - first) * shape[1], &[hi - lo, shape[1]]);
                    self.store(&t, &edge, format, to);
                }
            }
        }
        self.set(v, Value::Left);
        Ok(())
    }
}
