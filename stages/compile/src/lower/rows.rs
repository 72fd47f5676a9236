//! Rows of a concatenation that never exists as a whole: the window of a causal convolution.
//!
//! The sum over the window is `a[0]·b[0] + a[1]·b[1] + …`, a product and then a sum each, in
//! ascending order; the rows that stay in the window go from L2 to their edge without passing LRM.

use super::handover::Origin;
use super::memory::{edge_format, edge_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, VectorOp};
use mica_device::object::Symbol;
use mica_models::hir::{Op, ParamKind, ValueId};

/// Rows that lie one after the other: the first, the format it came in from an earlier token, how many.
type Run = (Origin, Option<Format>, u64);

impl Lower<'_> {
    /// The parts of a concatenation along axis 0, with each one's first row and rows.
    pub(super) fn pieces(&self, v: ValueId) -> Result<Vec<(ValueId, u64, u64)>, CompileError> {
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
    pub(super) fn row(&mut self, v: ValueId, i: u64) -> Result<Tensor, CompileError> {
        match self.origin(v, i)? {
            // on the edge it has the format already
            (Origin { piece, token, row }, Some(format)) if !self.on_edge(piece, token, format) => {
                Ok(self.left_by(piece, token, format)?.at(row))
            }
            (Origin { piece, token, row }, _) => self.at_token(token, |l| l.row_of(piece, row)),
        }
    }

    /// Whether a token's value is a parameter that comes on an edge in this format: what an earlier token left of a
    /// state does not.
    fn on_edge(&self, v: ValueId, token: u64, format: Format) -> bool {
        let comes = self.g.param(v).filter(|p| p.kind == ParamKind::Tensor);
        comes.is_some_and(|p| edge_format(p.ty.dtype) == format)
            && (token == 0 || self.g.next_state(v).is_none())
    }

    /// Row `i` of a parameter or of a value in LRM.
    fn row_of(&mut self, piece: ValueId, i: u64) -> Result<Tensor, CompileError> {
        let loaded = matches!(self.value(piece), Value::Tensor(_));
        let handed = self.token > 0 && self.g.next_state(piece).is_some();
        if self.g.param(piece).is_none() || loaded || handed {
            return Ok(self.tensor(piece)?.at(i));
        }
        let cols = self.g.shape(piece)?[1];
        let (buf, format) = self.parameter_in_l2(piece)?;
        let bytes = cols * format.bytes();
        let span = Span { buf, offset: i * bytes, bytes };
        Ok(self.load(span, format, &[cols]))
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

    /// Rows of a concatenation from `start`, as many as `v` has, each run of them on its way to the edge.
    pub(super) fn leaving_rows(&mut self, v: ValueId, rows: ValueId, start: u64) -> Result<(), CompileError> {
        let shape = self.g.shape(v)?;
        for e in self.g.exports(v) {
            let format = edge_format(e.dtype);
            let stride = shape[1] * format.bytes();
            let Some(mut to) = self.leaves_at(&e.name, shape[0] * stride) else { continue };
            for (first, stored, n) in self.runs(rows, start, shape[0])? {
                self.leaving_run(&edge_out(&e.name), format, to, (first, stored, n))?;
                to += n * stride;
            }
        }
        self.set(v, Value::Left);
        Ok(())
    }

    /// The rows as runs where they are kept.
    fn runs(&self, rows: ValueId, start: u64, n: u64) -> Result<Vec<Run>, CompileError> {
        let mut runs: Vec<Run> = Vec::new();
        for i in start..start + n {
            let (at, stored) = self.origin(rows, i)?;
            let follows = |(first, before, n): &Run| {
                *before == stored && *first == Origin { row: at.row.wrapping_sub(*n), ..at }
            };
            match runs.last_mut() {
                Some(run) if follows(run) => run.2 += 1,
                _ => runs.push((at, stored, 1)),
            }
        }
        Ok(runs)
    }

    fn leaving_run(
        &mut self,
        edge: &str,
        format: Format,
        to: u64,
        (first, stored, n): Run,
    ) -> Result<(), CompileError> {
        let Origin { piece, token, row } = first;
        let cols = self.g.shape(piece)?[1];
        if self.on_edge(piece, token, format) && stored.is_none_or(|s| s == format) {
            let (buf, _) = self.at_token(token, |l| l.parameter_in_l2(piece))?;
            let stride = cols * format.bytes();
            let span = Span { buf, offset: row * stride, bytes: n * stride };
            self.emit(build::dst(&Place::new(Symbol::Edge(edge.into()), to), span));
            return Ok(());
        }
        let t = match stored {
            Some(stored) if !self.on_edge(piece, token, stored) => self.left_by(piece, token, stored)?,
            _ => self.at_token(token, |l| l.tensor(piece))?,
        };
        self.store(&t.part(row * cols, &[n, cols]), edge, format, to);
        Ok(())
    }
}
