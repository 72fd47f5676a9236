//! A region: its nodes once a head, on that head's matrix of the state.
//!
//! The next head's matrix is loaded before this one is worked on, and the ones after it are fetched, so
//! that the engines run ahead.

use super::matmul::AHEAD;
use super::memory::{edge_format, edge_in, edge_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::UnaryOp;
use mica_device::object::Symbol;
use mica_models::hir::ValueId;

impl Lower<'_> {
    pub(super) fn region(&mut self, r: usize) -> Result<(), CompileError> {
        let rules = self.rules;
        let region = &rules.regions[r];
        let mut whole: Vec<(ValueId, Tensor)> = Vec::new();
        for &v in &region.nodes {
            let read_outside = self.g.users(v).iter().any(|u| !region.nodes.contains(u));
            if read_outside || self.g.exports(v).iter().any(|e| e.seam) {
                let t = self.fresh(&self.g.shape(v)?, Format::F32);
                whole.push((v, t));
            }
        }
        let mut spans = Vec::new();
        let mut matrices: Vec<Tensor> = Vec::new();
        for b in 0..region.heads {
            let within = |ahead: usize| (b + 1 + ahead as u64).min(region.heads) as usize;
            while spans.len() < within(1 + AHEAD) {
                spans.push(self.fetch_head(region.state, spans.len() as u64)?);
            }
            while matrices.len() < within(1) {
                matrices.push(self.load_head(region.state, spans[matrices.len()])?);
            }
            let matrix = matrices[b as usize].clone();
            self.set(region.state, Value::Tensor(matrix));
            self.head = Some((r, b));
            for &v in &region.nodes {
                let home = whole.iter().find(|(w, _)| *w == v).map(|(_, t)| t);
                self.head_node(v, home, b)?;
            }
            self.head = None;
        }
        // the state itself is a parameter again, the nodes read outside are whole
        self.set(region.state, Value::Absent);
        for &v in &region.nodes {
            self.set(v, Value::Left);
        }
        for (v, t) in whole {
            self.at(v);
            self.set(v, Value::Tensor(t));
            self.boundary(v);
            if self.g.exports(v).iter().any(|e| e.seam) {
                self.leave(v)?;
            }
        }
        Ok(())
    }

    /// One matrix of the state, in L2.
    fn fetch_head(&mut self, state: ValueId, b: u64) -> Result<Span, CompileError> {
        let p = &self.g.f.params[state.0 as usize];
        let shape = self.g.shape(state)?;
        let bytes = shape[1] * shape[2] * edge_format(p.ty.dtype).bytes();
        let place = Place::new(Symbol::Edge(edge_in(&p.name)), b * bytes);
        Ok(self.fetch(&place, bytes))
    }

    /// One matrix of the state, in LRM.
    fn load_head(&mut self, state: ValueId, from: Span) -> Result<Tensor, CompileError> {
        let shape = self.g.shape(state)?;
        let format = edge_format(self.g.ty(state).dtype);
        Ok(self.load(from, format, &[1, shape[1], shape[2]]))
    }

    /// One node for one head: into its share of `home` if it is read outside, and to its edges.
    fn head_node(&mut self, v: ValueId, home: Option<&Tensor>, b: u64) -> Result<(), CompileError> {
        let Some(node) = self.g.node(v) else { return Ok(()) };
        self.at(v);
        let place = home.map(|t| t.at(b));
        self.destination = place.clone();
        let mut value = self.op(v, node)?;
        self.destination = None;
        if let (Some(place), Value::Tensor(t)) = (place, &mut value)
            && (t.buf, t.offset) != (place.buf, place.offset)
        {
            // a view, which no instruction could have put there
            let place = place.view(&t.shape);
            self.emit(build::vun(UnaryOp::Cvt, place.tile(), t.tile()));
            *t = place;
        }
        if let Value::Tensor(t) = &value {
            for e in self.g.exports(v).iter().filter(|e| !e.seam) {
                let format = edge_format(e.dtype);
                self.store(t, &edge_out(&e.name), format, b * t.count() * format.bytes());
            }
        }
        self.set(v, value);
        Ok(())
    }

    /// A head's share of a value from outside its region: the same place on axis 0, or all of what has
    /// no such axis.
    pub(super) fn share_of_head(&mut self, v: ValueId, r: usize, b: u64) -> Result<Tensor, CompileError> {
        let heads = self.rules.regions[r].heads;
        let rank = self.g.ty(self.rules.regions[r].state).shape.len();
        let t = self.whole(v)?;
        match t.shape.first() {
            Some(&first) if t.shape.len() == rank && first == heads => {
                let inner = &t.shape[1..];
                let shape: Vec<u64> = std::iter::once(1).chain(inner.iter().copied()).collect();
                Ok(t.part(b * inner.iter().product::<u64>(), &shape))
            }
            Some(&first) if t.shape.len() == rank && first != 1 => {
                let what = format!("{:?} has neither {heads} heads nor one", t.shape);
                Err(self.g.unsupported(v, what))
            }
            _ => Ok(t),
        }
    }
}
