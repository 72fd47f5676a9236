//! A block that is in L2, worked on strip by strip, as attention's second step has it.
//!
//! A strip is some rows of a head's keys or values, in LRM: all of a block, or fewer where LRM is short. Two buffers take
//! turns, so that a strip is loaded while the one before is worked on. Scores are a row each, and values are added in
//! ascending order, so strips of any length give the same bits.

use super::blocks::{BLOCK, Block, Walk};
use crate::error::CompileError;
use crate::ir::build::{self, vbin};
use crate::ir::{Span, Tile};
use crate::lower::{Lower, Tensor};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, ReduceOp, ScalarOp, UnaryOp, VectorOp};

/// One strip of a block.
#[derive(Clone, Copy)]
struct Strip {
    head: usize,
    /// 0 of the keys, 1 of the values.
    which: usize,
    /// Its first row in the block.
    first: u64,
}

impl Lower<'_> {
    /// The strips of a block, in the order in which they are worked on: their number is even.
    fn strips(&self, b: &Block) -> Vec<Strip> {
        let firsts = || (0..BLOCK).step_by(self.strip as usize);
        let of = |head| (0..2).flat_map(move |which| firsts().map(move |first| Strip { head, which, first }));
        (0..b.spans.len()).flat_map(of).collect()
    }

    /// Loads the strip of a number, if there is one, as many rows of it as there are.
    pub(super) fn load_strip(&mut self, walk: &Walk<'_>, b: &Block, n: usize) -> Result<(), CompileError> {
        let Some(&Strip { head, which, first }) = self.strips(b).get(n) else { return Ok(()) };
        let to = walk.strips[n % 2].tile();
        self.scoped(|l| {
            let count = l.in_strip(b.count, first)?;
            let from = b.spans[head][which];
            let row = from.bytes / BLOCK;
            let from = Span { offset: from.offset + first * row, bytes: l.strip * row, ..from };
            l.emit(build::ldt(Tile { count: Some(count), ..to }, from, Format::F16, 0));
            Ok(())
        })
    }

    /// A block, for every head of every token. Its first strip is in LRM; that of `next` is in the end.
    pub(super) fn block_of_tokens(
        &mut self,
        walk: &Walk<'_>,
        b: &Block,
        next: Option<&Block>,
    ) -> Result<(), CompileError> {
        let strips = self.strips(b);
        let mut scores = Vec::new();
        for (n, s) in strips.iter().enumerate() {
            match next.filter(|_| n + 1 == strips.len()) {
                Some(next) => self.load_strip(walk, next, 0)?,
                None => self.load_strip(walk, b, n + 1)?,
            }
            if s.which == 0 && s.first == 0 {
                let group = walk.queries[0].q.shape[1];
                scores = walk.tokens.clone().map(|_| self.fresh(&[group, BLOCK], Format::F32)).collect();
            }
            let rows = walk.strips[n % 2].tile();
            for (t, scores) in walk.tokens.clone().zip(&scores) {
                self.scoped(|l| {
                    let seen = l.seen(b, t)?;
                    if s.which == 1 && s.first == 0 {
                        l.weigh(walk, (s.head, t), scores, seen);
                    }
                    let count = Some(l.in_strip(seen, s.first)?);
                    l.strip_of_token(walk, t, *s, scores, Tile { count, ..rows });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The scalar that says how many positions of a block a token sees.
    fn seen(&mut self, b: &Block, token: usize) -> Result<u8, CompileError> {
        // of each token's positions in a block only the last ones differ
        let Some(first) = b.first else { return Ok(b.count) };
        let count = self.scalar()?;
        self.emit(build::salui(ScalarOp::Add, count, first, token as i64));
        self.emit(build::salui(ScalarOp::Min, count, count, BLOCK as i64));
        Ok(count)
    }

    /// Of S[count] rows of a block, the scalar that says how many are in the strip from row `first` on.
    fn in_strip(&mut self, count: u8, first: u64) -> Result<u8, CompileError> {
        if self.strip == BLOCK {
            return Ok(count);
        }
        let rows = self.scalar()?;
        self.emit(build::salui(ScalarOp::Sub, rows, count, first as i64));
        self.emit(build::salui(ScalarOp::Max, rows, rows, 0));
        self.emit(build::salui(ScalarOp::Min, rows, rows, self.strip as i64));
        Ok(rows)
    }

    /// A strip's scores, or its part of the weighted values, for one token; `rows` is the strip.
    fn strip_of_token(&mut self, walk: &Walk<'_>, t: usize, s: Strip, scores: &Tensor, rows: Tile) {
        let (q, o) = (walk.queries[t].q.at(s.head as u64), walk.runs[t].o.at(s.head as u64));
        for j in 0..q.shape[0] {
            let part = scores.at(j).part(s.first, &[self.strip]);
            let part = Tile { count: rows.count, ..part.matrix(self.strip, 1) };
            self.emit(match s.which {
                0 => build::tmv(part, rows, q.at(j).tile()),
                _ => build::tmvt(o.at(j).tile(), rows, part, true),
            });
        }
    }

    /// What a block's scores become for one head of a token: weights of its values, the sums and the maxima brought on.
    fn weigh(&mut self, walk: &Walk<'_>, (head, t): (usize, usize), scores: &Tensor, count: u8) {
        use Broadcast::{Cyclic, Same, Stretch};
        let run = &walk.runs[t];
        let [m, l, o] = [&run.m, &run.l, &run.o].map(|x| x.at(head as u64));
        let (group, o) = (m.count(), o.tile());
        let of = |j| Tile { count: Some(count), ..scores.at(j).matrix(BLOCK, 1) };
        let (m, l) = (m.tile(), l.tile());
        let [top, c, sum] = [(); 3].map(|()| self.fresh(&[group], Format::F32));
        for j in 0..group {
            if let Some(c) = walk.scale {
                self.emit(build::vbini(VectorOp::Mul, of(j), of(j), c as f32));
            }
            self.emit(build::red(ReduceOp::Max, 1, top.at(j).tile(), of(j)));
        }
        let [all, c] = [top.tile(), c.tile()];
        self.emit(vbin(VectorOp::Max, Same, all, all, m));
        self.emit(vbin(VectorOp::Sub, Same, c, m, all));
        self.emit(build::vun(UnaryOp::Exp, c, c));
        for j in 0..group {
            self.emit(vbin(VectorOp::Sub, Cyclic, of(j), of(j), top.at(j).tile()));
            self.emit(build::vun(UnaryOp::Exp, of(j), of(j)));
            self.emit(build::red(ReduceOp::Sum, 1, sum.at(j).tile(), of(j)));
        }
        self.emit(vbin(VectorOp::Mul, Same, l, l, c));
        self.emit(vbin(VectorOp::Add, Same, l, l, sum.tile()));
        self.emit(vbin(VectorOp::Mul, Stretch, o, o, c));
        self.emit(build::vun(UnaryOp::Cvt, m, all));
    }
}
