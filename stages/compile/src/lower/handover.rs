//! What a token leaves to the next of the same call: states, which between calls go through an edge.
//!
//! The edge's format is what makes the bits: a value is rounded as it would be on its way out and back in.

use super::memory::edge_format;
use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::graph::pattern::Rule;
use crate::ir::build;
use mica_device::format::Format;
use mica_device::isa::UnaryOp;
use mica_models::hir::{Op, ValueId};

/// A row of a value `[K, C]`, followed to where it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// A parameter or a node that is no concatenation.
    pub piece: ValueId,
    /// Its token.
    pub token: u64,
    /// The row of it.
    pub row: u64,
}

impl Lower<'_> {
    /// The format in which a state goes from token to token.
    pub(super) fn state_format(&self, state: ValueId, next: ValueId) -> Result<Format, CompileError> {
        let to = edge_format(self.g.ty(state).dtype);
        let name = self.g.param(state).map(|p| &p.name);
        match self.g.exports(next).iter().find(|e| Some(&e.name) == name) {
            Some(e) if edge_format(e.dtype) == to => Ok(to),
            _ => Err(self.g.unsupported(state, "a state leaves in the format in which it comes")),
        }
    }

    /// A tensor converted, if it has another format.
    fn converted(&mut self, t: &Tensor, format: Format) -> Tensor {
        if t.format == format {
            return t.clone();
        }
        let to = self.fresh(&t.shape, format);
        self.emit(build::vun(UnaryOp::Cvt, to.tile(), t.tile()));
        to
    }

    /// A tensor as it would come back from an edge of a format.
    pub(super) fn through(&mut self, t: &Tensor, format: Format) -> Tensor {
        let stored = self.converted(t, format);
        let held = if format == Format::I32 { Format::I32 } else { Format::F32 };
        self.converted(&stored, held)
    }

    /// A value of an earlier token as an edge of a format would hold it, made once.
    pub(super) fn left_by(&mut self, v: ValueId, token: u64, format: Format) -> Result<Tensor, CompileError> {
        let key = (v, token, format);
        if let Some((_, t)) = self.handed.iter().find(|(k, _)| *k == key) {
            return Ok(t.clone());
        }
        let t = self.at_token(token, |l| l.whole(v))?;
        let t = self.converted(&t, format);
        self.handed.push((key, t.clone()));
        Ok(t)
    }

    /// The state of the token in work, which is not the first, whole.
    pub(super) fn handed_on(&mut self, state: ValueId, next: ValueId) -> Result<Tensor, CompileError> {
        if next == state {
            return self.at_token(0, |l| l.whole(state));
        }
        let format = self.state_format(state, next)?;
        let rules = self.rules;
        if !matches!(rules.rule(next), Rule::LeavingRows { .. }) {
            let t = self.at_token(self.token - 1, |l| l.whole(next))?;
            return Ok(self.through(&t, format));
        }
        // its rows are kept where they came from
        let shape = self.g.shape(state)?;
        let to = self.fresh(&shape, Format::F32);
        for i in 0..shape[0] {
            let row = self.row(state, i)?;
            self.emit(build::vun(UnaryOp::Cvt, to.at(i).tile(), row.tile()));
        }
        Ok(to)
    }

    /// Where row `row` of a value is kept at the token in work, and in which format it has come from an earlier
    /// one, the narrowest on its way.
    pub(super) fn origin(&self, v: ValueId, row: u64) -> Result<(Origin, Option<Format>), CompileError> {
        let mut at = Origin { piece: self.g.root(v), token: self.token, row };
        let mut stored = None;
        loop {
            if self.g.node(at.piece).is_some_and(|n| n.op == Op::Concat { axis: 0 }) {
                let pieces = self.pieces(at.piece)?;
                let holds = |p: &&(ValueId, u64, u64)| (p.1..p.1 + p.2).contains(&at.row);
                let Some(&(piece, first, _)) = pieces.iter().find(holds) else {
                    return Err(self.g.unsupported(v, format!("it has no row {row}")));
                };
                (at.piece, at.row) = (piece, at.row - first);
                continue;
            }
            let next = self.g.next_state(at.piece).filter(|_| at.token > 0);
            match next.map(|n| (n, self.rules.rule(n))) {
                Some((next, _)) if next == at.piece => at.token = 0,
                Some((next, Rule::LeavingRows { rows, start })) => {
                    let format = self.state_format(at.piece, next)?;
                    // of all the edges that it would pass the narrowest rounds it
                    if stored != Some(Format::F16) {
                        stored = Some(format);
                    }
                    at = Origin { piece: *rows, token: at.token - 1, row: at.row + start };
                }
                _ => return Ok((at, stored)),
            }
        }
    }
}
