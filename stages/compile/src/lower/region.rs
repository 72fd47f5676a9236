//! A region: its nodes once a head, on that head's matrix of the state.
//!
//! The next head's matrix is loaded before this one is worked on, and the ones after it are fetched, so
//! that the engines run ahead. Of several tokens each head runs all before the next head does: its matrix stays in LRM from
//! one to the next, and comes and leaves once.

use super::matmul::AHEAD;
use super::memory::{edge_format, edge_in, edge_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::UnaryOp;
use mica_device::object::Symbol;
use mica_models::hir::{Op, ValueId};

impl Lower<'_> {
    pub(super) fn region(&mut self, r: usize) -> Result<(), CompileError> {
        let rules = self.rules;
        let region = &rules.regions[r];
        let tokens = self.options.tokens;
        let next = self.g.next_state(region.state);
        if let Some(n) = next.filter(|n| *n != region.state && !region.nodes.contains(n) && tokens > 1) {
            let what = "the next value of a state that runs head by head is made outside of it: compile one token a call";
            return Err(self.g.unsupported(n, what));
        }
        let mut whole: Vec<(ValueId, u64, Tensor)> = Vec::new();
        for &v in &region.nodes {
            let read_outside = self.g.users(v).iter().any(|u| !region.nodes.contains(u));
            if read_outside || self.g.exports(v).iter().any(|e| e.seam) {
                for token in 0..tokens {
                    let t = self.fresh(&self.g.shape(v)?, Format::F32);
                    whole.push((v, token, t));
                }
            }
        }
        // a matrix is for all tokens where each makes the next one's, else for one
        let each = if next.is_some() { tokens } else { 1 };
        let loads: Vec<(u64, u64)> =
            (0..region.heads).flat_map(|b| (0..tokens).step_by(each as usize).map(move |t| (b, t))).collect();
        let mut spans = Vec::new();
        let mut matrices: Vec<Tensor> = Vec::new();
        for (i, &(b, first)) in loads.iter().enumerate() {
            let within = |ahead: usize| (i + 1 + ahead).min(loads.len());
            while spans.len() < within(1 + AHEAD) {
                spans.push(self.fetch_head(region.state, loads[spans.len()])?);
            }
            while matrices.len() < within(1) {
                matrices.push(self.load_head(region.state, spans[matrices.len()])?);
            }
            let mut matrix = matrices[i].clone();
            for token in first..first + each {
                matrix = self.at_token(token, |l| l.head_of_token(r, b, matrix, next, &whole))?;
            }
        }
        // the state itself is a parameter again, the nodes read outside are whole
        for token in 0..tokens {
            self.at_token(token, |l| {
                l.set(region.state, Value::Absent);
                region.nodes.iter().for_each(|&v| l.set(v, Value::Left));
            });
        }
        for (v, token, t) in whole {
            self.at(v);
            self.at_token(token, |l| {
                l.set(v, Value::Tensor(t));
                l.boundary(v);
                match l.g.exports(v).iter().any(|e| e.seam) {
                    true => l.leave(v),
                    false => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    /// The nodes for one head of the token in work, from its matrix of the state; the next token's matrix.
    fn head_of_token(
        &mut self,
        r: usize,
        b: u64,
        matrix: Tensor,
        next: Option<ValueId>,
        whole: &[(ValueId, u64, Tensor)],
    ) -> Result<Tensor, CompileError> {
        let rules = self.rules;
        let region = &rules.regions[r];
        self.set(region.state, Value::Tensor(matrix.clone()));
        self.head = Some((r, b));
        for &v in &region.nodes {
            let home = whole.iter().find(|(w, t, _)| (*w, *t) == (v, self.token)).map(|(_, _, t)| t);
            self.head_node(v, home, b)?;
        }
        self.head = None;
        let last = self.token + 1 == self.options.tokens;
        match next.filter(|n| *n != region.state && !last).map(|n| (n, self.value(n).clone())) {
            Some((n, Value::Tensor(t))) => {
                let format = self.state_format(region.state, n)?;
                Ok(self.through(&t, format))
            }
            Some((n, _)) => Err(self.g.unsupported(n, "the next value of a state is a tensor")),
            None => Ok(matrix),
        }
    }

    /// One matrix of the state for one token, in L2.
    fn fetch_head(&mut self, state: ValueId, (b, token): (u64, u64)) -> Result<Span, CompileError> {
        let p = &self.g.f.params[state.0 as usize];
        let shape = self.g.shape(state)?;
        let bytes = shape[1] * shape[2] * edge_format(p.ty.dtype).bytes();
        let place = Place::new(Symbol::Edge(edge_in(&p.name)), (token * shape[0] + b) * bytes);
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
        let shape = self.g.shape(v)?;
        let heads = self.head.map_or(1, |(r, _)| self.rules.regions[r].heads);
        // what changes no number of elements; the rest shows in what comes out
        let across = match &node.op {
            Op::Softmax { axis } => *axis == 0,
            Op::Transpose { perm } => perm.first() != Some(&0),
            Op::RmsNorm { .. } => shape.len() == 1,
            _ => false,
        };
        let apart = "heads do not meet where a state runs head by head: only the axes after the first change";
        if across {
            return Err(self.g.unsupported(v, apart));
        }
        let place = home.map(|t| t.at(b));
        self.destination = place.clone();
        let mut value = self.op(v, node)?;
        self.destination = None;
        if let Value::Tensor(t) = &value
            && shape.iter().product::<u64>() != heads * t.count()
        {
            return Err(self.g.unsupported(v, apart));
        }
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
                let bytes = t.count() * format.bytes();
                if let Some(at) = self.leaves_at(&e.name, heads * bytes) {
                    self.store(t, &edge_out(&e.name), format, at + b * bytes);
                }
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
            _ => Ok(t),
        }
    }
}
