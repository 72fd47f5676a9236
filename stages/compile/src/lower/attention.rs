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

use super::memory::edge_in;
use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::graph::POSITION;
use crate::graph::attention::Attention;
use crate::ir::build::{self, Place};
use crate::ir::{Item, Span, Tile};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use mica_device::object::Symbol;
use mica_models::hir::ValueId;

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

/// The scalars of one block.
#[derive(Clone, Copy)]
struct Block {
    /// Positions in it.
    count: u8,
    /// Bytes before it in one head's cache.
    at: u8,
    /// Bytes of it in one head's cache.
    bytes: u8,
}

impl Lower<'_> {
    pub(super) fn attention(&mut self, v: ValueId, a: &Attention) -> Result<Tensor, CompileError> {
        let q = self.tensor(a.q)?;
        let (own_k, own_v) = (self.tensor(a.own[0])?, self.tensor(a.own[1])?);
        let &[heads, group, d] = q.shape.as_slice() else {
            return Err(self.g.unsupported(v, "queries are [key/value heads, group, head dimension]"));
        };
        if own_k.count() != heads * d || own_v.count() != heads * d {
            let what = format!("keys and values of a step are [{heads}, 1, {d}]");
            return Err(self.g.unsupported(v, what));
        }
        let cache = [self.cache(v, a.cache[0])?, self.cache(v, a.cache[1])?];
        let run = self.own_row(&q, [&own_k, &own_v], a.scale);
        self.blocks(&q, &cache, &run, a.scale)?;
        let shape = [heads, group, d];
        let to = self.out(&shape, Format::F32);
        self.emit(build::vbin(VectorOp::Div, Broadcast::Stretch, to.tile(), run.o.tile(), run.l.tile()));
        Ok(to)
    }

    /// The edge of a cache parameter, which must be stored as F16.
    fn cache(&self, v: ValueId, param: ValueId) -> Result<String, CompileError> {
        let p = &self.g.f.params[param.0 as usize];
        if super::memory::edge_format(p.ty.dtype) != Format::F16 {
            return Err(self.g.unsupported(v, "a cache holds 16-bit floats"));
        }
        Ok(edge_in(&p.name))
    }

    /// Step 1.
    fn own_row(&mut self, q: &Tensor, own: [&Tensor; 2], scale: Option<f64>) -> Running {
        let (heads, group, d) = (q.shape[0], q.shape[1], q.shape[2]);
        let [k, v] = own.map(|t| {
            let to = self.fresh(&[heads, d], Format::F16);
            self.emit(build::vun(UnaryOp::Cvt, to.tile(), t.view(&[heads, d]).tile()));
            to
        });
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
        q: &Tensor,
        cache: &[String; 2],
        run: &Running,
        scale: Option<f64>,
    ) -> Result<(), CompileError> {
        let d = q.shape[2];
        let row = (d * Format::F16.bytes()) as i64;
        let Some(pos) = self.g.f.params.iter().position(|p| p.name == POSITION) else {
            return Err(CompileError::Unsupported {
                label: self.label.clone(),
                op: "matmul",
                what: format!("attention over a cache takes the scalar parameter `{POSITION}`"),
            });
        };
        let context = self.scalar_of(ValueId(pos as u32))?;
        self.scoped(|l| {
            let (blocks, i, at) = (l.scalar()?, l.scalar()?, l.scalar()?);
            let (count, bytes) = (l.scalar()?, l.scalar()?);
            l.emit(build::salui(ScalarOp::Add, blocks, context, BLOCK as i64 - 1));
            l.emit(build::salui(ScalarOp::Shr, blocks, blocks, BLOCK_BITS));
            // waits do not reach across iterations: everything is idle where one begins
            l.emit(build::fence());
            l.emit(build::repeat(blocks, i));
            l.emit(build::salui(ScalarOp::Shl, at, i, BLOCK_BITS));
            l.emit(build::salu(ScalarOp::Sub, count, context, at));
            l.emit(build::salui(ScalarOp::Min, count, count, BLOCK as i64));
            l.emit(build::salui(ScalarOp::Mul, at, at, row));
            l.emit(build::salui(ScalarOp::Mul, bytes, count, row));
            let block = Block { count, at, bytes };
            let spans: Vec<[Span; 2]> = (0..q.shape[0])
                .map(|h| [l.rows_of(&cache[0], h, d, block), l.rows_of(&cache[1], h, d, block)])
                .collect();
            for (h, [k, v]) in (0..).zip(spans) {
                let (k, v) = (l.block_tile(k, d, block), l.block_tile(v, d, block));
                for j in 0..q.shape[1] {
                    let one = Running { m: run.m.at(h).at(j), l: run.l.at(h).at(j), o: run.o.at(h).at(j) };
                    l.block_of_head(&q.at(h).at(j), (k, v), &one, scale, block);
                }
            }
            l.emit(build::fence());
            l.program.items.push(Item::End);
            Ok(())
        })
    }

    /// A block of one head's rows, fetched into L2.
    fn rows_of(&mut self, edge: &str, h: u64, d: u64, block: Block) -> Span {
        let row = d * Format::F16.bytes();
        let place = Place {
            symbol: Symbol::Edge(edge.into()),
            index: Some(block.at),
            addend: h * self.options.capacity * row,
        };
        let span = Span { buf: self.l2(BLOCK * row), offset: 0, bytes: BLOCK * row };
        self.emit(build::dld(span, &place, Some(block.bytes)));
        span
    }

    /// A block of rows in LRM, as many as there are.
    fn block_tile(&mut self, from: Span, d: u64, block: Block) -> Tile {
        let t = self.fresh(&[BLOCK, d], Format::F16);
        let tile = Tile { count: Some(block.count), ..t.tile() };
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
        b: Block,
    ) {
        use {Broadcast::Cyclic, Broadcast::Same, build::vbin};
        let (m, l, o) = (run.m.tile(), run.l.tile(), run.o.tile());
        let scores = self.fresh(&[BLOCK], Format::F32);
        let s = Tile { count: Some(b.count), ..scores.matrix(BLOCK, 1) };
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
