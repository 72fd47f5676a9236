//! Attention over a cache, as an online softmax.
//!
//! For each head h of the G that share a key/value head, in this order, one rounding each step:
//!
//! 1. this step's own row, its key and value rounded to F16: `m = (k · q) · scale`, `l = e^(m − m)`,
//!    `o = v`;
//! 2. for each block of 128 cached positions from 0, the last one shorter:
//!    `s = (K · q) · scale`; `M = max(m, max s)`; `c = e^(m − M)`; `p = e^(s − M)`;
//!    `l = l · c + Σ p`; `o = o · c`, then `o[j] += p[i] · V[i][j]` in ascending i; `m = M`;
//! 3. `o / l`.
//!
//! The number of cached positions is the scalar `pos`.
//!
//! A call of several tokens first appends its own rows to the caches, so that the rows of its earlier tokens lie where
//! blocks of 128 from position 0 have them. Each token then sees its own number of positions. A block that the first
//! token reads is fetched once for all of them; one that only later tokens reach is fetched for each.

pub(crate) mod blocks;
mod strips;

use super::memory::{edge_in, edge_in_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::graph::POSITION;
use crate::graph::attention::Attention;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, ScalarOp, UnaryOp, VectorOp};
use mica_device::object::Symbol;
use mica_models::hir::{Op, ValueId};

/// What the loop over blocks carries from one to the next: maximum, sum, weighted values.
struct Running {
    m: Tensor,
    l: Tensor,
    o: Tensor,
}

/// A token's part of an attention.
struct Query {
    /// `[Hkv, G, D]`.
    q: Tensor,
    /// Its own key and value, `[Hkv, D]` as a cache holds them.
    own: [Tensor; 2],
}

impl Lower<'_> {
    /// Attention for all tokens, a value each.
    pub(super) fn attention(&mut self, v: ValueId, a: &Attention) -> Result<Vec<Value>, CompileError> {
        let mut queries = Vec::new();
        for t in 0..self.options.tokens {
            queries.push(self.at_token(t, |l| l.query(v, a))?);
        }
        let cache = [self.cache(v, a.cache[0], a.own[0])?, self.cache(v, a.cache[1], a.own[1])?];
        if self.options.tokens > 1 {
            self.append(&queries, &cache)?;
        }
        let runs: Vec<Running> = queries.iter().map(|q| self.own_row(q, a.scale)).collect();
        self.blocks(&queries, &cache, &runs, a.scale)?;
        let done = queries.iter().zip(&runs).map(|(q, run)| {
            let to = self.out(&q.q.shape, Format::F32);
            self.emit(build::vbin(VectorOp::Div, Broadcast::Stretch, to.tile(), run.o.tile(), run.l.tile()));
            Value::Tensor(to)
        });
        Ok(done.collect())
    }

    /// What the token in work brings.
    fn query(&mut self, v: ValueId, a: &Attention) -> Result<Query, CompileError> {
        let q = self.tensor(a.q)?;
        let (own_k, own_v) = (self.tensor(a.own[0])?, self.tensor(a.own[1])?);
        let &[heads, _, d] = q.shape.as_slice() else {
            return Err(self.g.unsupported(v, "queries are [key/value heads, group, head dimension]"));
        };
        if own_k.count() != heads * d || own_v.count() != heads * d {
            let what = format!("keys and values of a step are [{heads}, 1, {d}]");
            return Err(self.g.unsupported(v, what));
        }
        let own = [own_k, own_v].map(|t| {
            let to = self.fresh(&[heads, d], Format::F16);
            self.emit(build::vun(UnaryOp::Cvt, to.tile(), t.view(&[heads, d]).tile()));
            to
        });
        Ok(Query { q, own })
    }

    /// The edge of a cache parameter, which must be stored as F16; `own` are the rows that it grows by.
    fn cache(&self, v: ValueId, param: ValueId, own: ValueId) -> Result<String, CompileError> {
        let p = &self.g.f.params[param.0 as usize];
        if super::memory::edge_format(p.ty.dtype) != Format::F16 {
            return Err(self.g.unsupported(v, "a cache holds 16-bit floats"));
        }
        if self.options.tokens == 1 {
            return Ok(edge_in(&p.name));
        }
        // whoever calls one token at a time appends the row that leaves; it must be the one appended here
        let row = p.name.strip_suffix("_cache").map(|n| format!("{n}_row"));
        let leaves = |(name, _): &&(String, ValueId)| Some(name) == row.as_ref();
        match self.g.f.results.iter().find(leaves) {
            Some((_, row)) if self.reshaped(*row) != self.reshaped(own) => {
                Err(self.g.unsupported(v, "the row that leaves for a cache is the one that attention takes"))
            }
            _ => Ok(edge_in_out(&p.name)),
        }
    }

    /// What a value is a view of.
    fn reshaped(&self, v: ValueId) -> ValueId {
        match self.g.node(v) {
            Some(n) if matches!(n.op, Op::Reshape { .. }) => self.reshaped(n.inputs[0]),
            _ => self.g.root(v),
        }
    }

    /// Appends the call's own rows to the caches, from the position of the first token on.
    fn append(&mut self, queries: &[Query], cache: &[String; 2]) -> Result<(), CompileError> {
        let tokens = queries.len() as u64;
        let context = self.context()?;
        self.scoped(|l| {
            let at = l.scalar()?;
            for (which, edge) in cache.iter().enumerate() {
                let shape = &queries[0].own[which].shape;
                let (heads, row) = (shape[0], shape[1] * Format::F16.bytes());
                let buf = l.l2(heads * tokens * row);
                for (t, q) in (0..).zip(queries) {
                    for h in 0..heads {
                        let span = Span { buf, offset: (h * tokens + t) * row, bytes: row };
                        l.emit(build::stt(span, q.own[which].at(h).tile(), Format::F16, 0));
                    }
                }
                l.emit(build::salui(ScalarOp::Mul, at, context, row as i64));
                for h in 0..heads {
                    let place = Place {
                        symbol: Symbol::Edge(edge.clone()),
                        index: Some(at),
                        addend: h * l.options.capacity * row,
                    };
                    let span = Span { buf, offset: h * tokens * row, bytes: tokens * row };
                    l.emit(build::dst(&place, span));
                }
            }
            Ok(())
        })
    }

    /// The scalar that holds the number of cached positions before the call.
    fn context(&mut self) -> Result<u8, CompileError> {
        let Some(pos) = self.g.f.params.iter().position(|p| p.name == POSITION) else {
            return Err(CompileError::Unsupported {
                label: self.label.clone(),
                op: "matmul",
                what: format!("attention over a cache takes the scalar parameter `{POSITION}`"),
            });
        };
        self.at_token(0, |l| l.scalar_of(ValueId(pos as u32)))
    }

    /// Step 1.
    fn own_row(&mut self, query: &Query, scale: Option<f64>) -> Running {
        let Query { q, own: [k, v] } = query;
        let (heads, group, d) = (q.shape[0], q.shape[1], q.shape[2]);
        let m = self.fresh(&[heads, group], Format::F32);
        let o = self.fresh(&[heads, group, d], Format::F32);
        for h in 0..heads {
            for j in 0..group {
                let (score, row) = (m.at(h).at(j), q.at(h).at(j));
                self.emit(build::tmv(score.tile(), k.at(h).matrix(1, d), row.tile()));
                self.emit(build::vun(UnaryOp::Cvt, o.at(h).at(j).tile(), v.at(h).tile()));
            }
        }
        if let Some(c) = scale {
            self.emit(build::vbini(VectorOp::Mul, m.tile(), m.tile(), c as f32));
        }
        let l = self.fresh(&[heads, group], Format::F32);
        self.emit(build::vbin(VectorOp::Sub, Broadcast::Same, l.tile(), m.tile(), m.tile()));
        self.emit(build::vun(UnaryOp::Exp, l.tile(), l.tile()));
        Running { m, l, o }
    }
}
