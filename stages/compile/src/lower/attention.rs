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

use super::memory::{edge_in, edge_in_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::graph::POSITION;
use crate::graph::attention::Attention;
use crate::ir::build::{self, Place};
use crate::ir::{Item, Span, Tile};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use mica_device::object::Symbol;
use mica_models::hir::{Op, ValueId};

/// log2 of the positions of a block.
const BLOCK_BITS: i64 = 7;
/// Positions of a block.
const BLOCK: u64 = 1 << BLOCK_BITS;

/// What the loop over blocks carries from one to the next: maximum, sum, weighted values.
struct Running {
    m: Tensor,
    l: Tensor,
    o: Tensor,
}

/// One block of the cache, on its way or in L2: the scalars that say what of it there is, and where it lies.
struct Block {
    /// Positions in it, of those that the last token sees; 0 behind the last block.
    count: u8,
    /// Bytes before it in one head's cache.
    at: u8,
    /// Bytes of it in one head's cache.
    bytes: u8,
    /// Positions of the call's first token in it and behind, where several tokens read it.
    first: Option<u8>,
    /// Its keys and values, a head each.
    spans: Vec<[Span; 2]>,
}

/// A token's part of an attention.
struct Query {
    /// `[Hkv, G, D]`.
    q: Tensor,
    /// Its own key and value, `[Hkv, D]` as a cache holds them.
    own: [Tensor; 2],
}

/// What all blocks of a walk have in common.
struct Walk<'w> {
    queries: &'w [Query],
    runs: &'w [Running],
    /// The tokens that read its blocks, ascending.
    tokens: std::ops::Range<usize>,
    cache: &'w [String; 2],
    scale: Option<f64>,
    /// The scalar that holds the number of cached positions of the call's first token.
    context: u8,
    /// The scalar that holds the position at which the walk ends.
    end: u8,
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

    /// Step 2.
    fn blocks(
        &mut self,
        queries: &[Query],
        cache: &[String; 2],
        runs: &[Running],
        scale: Option<f64>,
    ) -> Result<(), CompileError> {
        let context = self.context()?;
        let last = queries.len() as i64 - 1;
        self.scoped(|l| {
            let (blocks, end) = (l.scalar()?, l.scalar()?);
            l.emit(build::salui(ScalarOp::Add, blocks, context, BLOCK as i64 - 1));
            l.emit(build::salui(ScalarOp::Shr, blocks, blocks, BLOCK_BITS));
            let walk = Walk { queries, runs, tokens: 0..queries.len(), cache, scale, context, end };
            if last == 0 {
                l.pairs(&Walk { end: context, ..walk }, blocks)?;
                return Ok(());
            }
            // what was appended is there before any of it is fetched
            l.emit(build::fence());
            let seen = l.scalar()?;
            l.emit(build::salui(ScalarOp::Shl, end, blocks, BLOCK_BITS));
            l.emit(build::salui(ScalarOp::Add, seen, context, last));
            l.emit(build::salu(ScalarOp::Min, end, end, seen));
            l.pairs(&walk, blocks)?;
            // a later token may reach blocks in which the first one has no position
            for t in 1..queries.len() {
                l.emit(build::salui(ScalarOp::Add, end, context, t as i64));
                l.rest(&Walk { tokens: t..t + 1, ..walk }, blocks)?;
            }
            Ok(())
        })
    }

    /// The blocks in which every token has positions, from block 0. While one is worked on the next one is fetched:
    /// they go in pairs, the second on its way to one half of the buffers as the first is worked on, the first of the
    /// next pair to the other half meanwhile.
    fn pairs(&mut self, walk: &Walk<'_>, blocks: u8) -> Result<(), CompileError> {
        self.scoped(|l| {
            let (pairs, start) = (l.scalar()?, l.scalar()?);
            let first = l.block(walk)?;
            let second = l.block(walk)?;
            l.emit(build::salui(ScalarOp::Add, pairs, blocks, 1));
            l.emit(build::salui(ScalarOp::Shr, pairs, pairs, 1));
            l.emit(build::sli(start, 0));
            l.fetch_block(walk, &first, start);
            // waits do not reach across iterations: everything is idle where one begins
            l.emit(build::fence());
            l.emit(build::repeat(pairs, start));
            l.emit(build::salui(ScalarOp::Shl, start, start, BLOCK_BITS + 1));
            l.emit(build::salui(ScalarOp::Add, start, start, BLOCK as i64));
            l.fetch_block(walk, &second, start);
            l.block_of_tokens(walk, &first)?;
            l.emit(build::fence());
            // the second of a pair, if there is one: a loop of one iteration or none
            l.emit(build::salui(ScalarOp::Min, second.at, second.count, 1));
            l.emit(build::repeat(second.at, second.at));
            l.emit(build::salui(ScalarOp::Add, start, start, BLOCK as i64));
            l.fetch_block(walk, &first, start);
            l.block_of_tokens(walk, &second)?;
            l.emit(build::fence());
            l.program.items.push(Item::End);
            l.program.items.push(Item::End);
            Ok(())
        })
    }

    /// The blocks from number S[blocks] on, one after the other.
    fn rest(&mut self, walk: &Walk<'_>, blocks: u8) -> Result<(), CompileError> {
        self.scoped(|l| {
            let (more, start) = (l.scalar()?, l.scalar()?);
            let block = l.block(walk)?;
            l.emit(build::salui(ScalarOp::Add, more, walk.end, BLOCK as i64 - 1));
            l.emit(build::salui(ScalarOp::Shr, more, more, BLOCK_BITS));
            l.emit(build::salu(ScalarOp::Sub, more, more, blocks));
            l.emit(build::fence());
            l.emit(build::repeat(more, start));
            l.emit(build::salu(ScalarOp::Add, start, start, blocks));
            l.emit(build::salui(ScalarOp::Shl, start, start, BLOCK_BITS));
            l.fetch_block(walk, &block, start);
            l.block_of_tokens(walk, &block)?;
            l.emit(build::fence());
            l.program.items.push(Item::End);
            Ok(())
        })
    }

    /// Scalars and L2 buffers of a block.
    fn block(&mut self, walk: &Walk<'_>) -> Result<Block, CompileError> {
        let q = &walk.queries[0].q;
        let bytes = BLOCK * q.last() * Format::F16.bytes();
        let mut span = || Span { buf: self.l2(bytes), offset: 0, bytes };
        let spans = (0..q.shape[0]).map(|_| [span(), span()]).collect();
        let (count, at, bytes) = (self.scalar()?, self.scalar()?, self.scalar()?);
        let first = (walk.tokens.len() > 1).then(|| self.scalar()).transpose()?;
        Ok(Block { count, at, bytes, first, spans })
    }

    /// Has the block that begins at position S[start] fetched, as much of it as the walk has.
    fn fetch_block(&mut self, walk: &Walk<'_>, b: &Block, start: u8) {
        let row = walk.queries[0].q.last() * Format::F16.bytes();
        if let Some(first) = b.first {
            self.emit(build::salu(ScalarOp::Sub, first, walk.context, start));
        }
        self.emit(build::salu(ScalarOp::Min, b.at, start, walk.end));
        self.emit(build::salu(ScalarOp::Sub, b.count, walk.end, b.at));
        self.emit(build::salui(ScalarOp::Min, b.count, b.count, BLOCK as i64));
        self.emit(build::salui(ScalarOp::Mul, b.at, b.at, row as i64));
        self.emit(build::salui(ScalarOp::Mul, b.bytes, b.count, row as i64));
        for (h, spans) in (0..).zip(&b.spans) {
            for (edge, span) in walk.cache.iter().zip(spans) {
                let addend = h * self.options.capacity * row;
                let place = Place { symbol: Symbol::Edge(edge.clone()), index: Some(b.at), addend };
                self.emit(build::dld(*span, &place, Some(b.bytes)));
            }
        }
    }

    /// A block that is in L2, for every head of every token.
    fn block_of_tokens(&mut self, walk: &Walk<'_>, b: &Block) -> Result<(), CompileError> {
        for (h, [k, v]) in (0..).zip(&b.spans) {
            let d = walk.queries[0].q.last();
            let (k, v) = (self.block_tile(*k, d, b.count), self.block_tile(*v, d, b.count));
            for t in walk.tokens.clone() {
                self.scoped(|l| {
                    let mut count = b.count;
                    // of each token's positions in a block only the last ones differ
                    if let Some(first) = b.first {
                        count = l.scalar()?;
                        l.emit(build::salui(ScalarOp::Add, count, first, t as i64));
                        l.emit(build::salui(ScalarOp::Min, count, count, BLOCK as i64));
                    }
                    let seen = |tile: Tile| Tile { count: Some(count), ..tile };
                    let (q, run) = (walk.queries[t].q.at(h), &walk.runs[t]);
                    for j in 0..q.shape[0] {
                        let one =
                            Running { m: run.m.at(h).at(j), l: run.l.at(h).at(j), o: run.o.at(h).at(j) };
                        l.block_of_head(&q.at(j), (seen(k), seen(v)), &one, walk.scale, count);
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// A block of rows in LRM, as many as there are.
    fn block_tile(&mut self, from: Span, d: u64, count: u8) -> Tile {
        let t = self.fresh(&[BLOCK, d], Format::F16);
        let tile = Tile { count: Some(count), ..t.tile() };
        self.emit(build::ldt(tile, from, Format::F16, 0));
        tile
    }

    /// One block for one query head.
    fn block_of_head(
        &mut self,
        q: &Tensor,
        (k, v): (Tile, Tile),
        run: &Running,
        scale: Option<f64>,
        count: u8,
    ) {
        use {Broadcast::Cyclic, Broadcast::Same, build::vbin};
        let (m, l, o) = (run.m.tile(), run.l.tile(), run.o.tile());
        let scores = self.fresh(&[BLOCK], Format::F32);
        let s = Tile { count: Some(count), ..scores.matrix(BLOCK, 1) };
        self.emit(build::tmv(s, k, q.tile()));
        if let Some(c) = scale {
            self.emit(build::vbini(VectorOp::Mul, s, s, c as f32));
        }
        let [top, c, sum] = [(); 3].map(|()| self.fresh(&[], Format::F32).tile());
        self.emit(build::red(ReduceOp::Max, 1, top, s));
        self.emit(vbin(VectorOp::Max, Same, top, top, m));
        self.emit(vbin(VectorOp::Sub, Same, c, m, top));
        self.emit(build::vun(UnaryOp::Exp, c, c));
        self.emit(vbin(VectorOp::Sub, Cyclic, s, s, top));
        self.emit(build::vun(UnaryOp::Exp, s, s));
        self.emit(build::red(ReduceOp::Sum, 1, sum, s));
        self.emit(vbin(VectorOp::Mul, Same, l, l, c));
        self.emit(vbin(VectorOp::Add, Same, l, l, sum));
        self.emit(vbin(VectorOp::Mul, Cyclic, o, o, c));
        self.emit(build::tmvt(o, v, s, true));
        self.emit(build::vun(UnaryOp::Cvt, m, top));
    }
}
