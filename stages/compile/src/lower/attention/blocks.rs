//! The walk over the cached rows, block by block, as attention's second step has it.

use super::{Query, Running};
use crate::error::CompileError;
use crate::ir::build::{self, Place};
use crate::ir::{Item, Span};
use crate::lower::{Lower, Tensor};
use mica_device::format::Format;
use mica_device::isa::ScalarOp;
use mica_device::object::Symbol;
use std::ops::Range;

/// log2 of the positions of a block.
const BLOCK_BITS: i64 = 7;
/// Positions of a block.
pub(crate) const BLOCK: u64 = 1 << BLOCK_BITS;

/// One block of the cache, on its way or in L2: the scalars that say what of it there is, and where it lies.
pub(super) struct Block {
    /// Positions in it, of those that the last token sees; 0 behind the last block.
    pub count: u8,
    /// Bytes before it in one head's cache.
    at: u8,
    /// Bytes of it in one head's cache.
    bytes: u8,
    /// Positions of the call's first token in it and behind, where several tokens read it.
    pub first: Option<u8>,
    /// Its keys and values, a head each.
    pub spans: Vec<[Span; 2]>,
}

/// What all blocks of a walk have in common.
pub(super) struct Walk<'w> {
    pub queries: &'w [Query],
    pub runs: &'w [Running],
    /// The tokens that read its blocks, ascending.
    pub tokens: Range<usize>,
    /// Where its strips lie in LRM, turn by turn.
    pub strips: &'w [Tensor; 2],
    cache: &'w [String; 2],
    pub scale: Option<f64>,
    /// The scalar that holds the number of cached positions of the call's first token.
    context: u8,
    /// The scalar that holds the position at which the walk ends.
    end: u8,
}

impl Lower<'_> {
    /// Step 2.
    pub(super) fn blocks(
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
            let row = queries[0].q.last();
            let strips = &[(); 2].map(|()| l.fresh(&[l.strip, row], Format::F16));
            let walk = Walk { queries, runs, tokens: 0..queries.len(), strips, cache, scale, context, end };
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

    /// The blocks in which every token has positions, from block 0. While one is worked on the next one is fetched, and
    /// its first strip loaded: they go in pairs, the second on its way to one half of the buffers as the first is worked on,
    /// the first of the next pair to the other half meanwhile.
    fn pairs(&mut self, walk: &Walk<'_>, blocks: u8) -> Result<(), CompileError> {
        self.scoped(|l| {
            let (pairs, start) = (l.scalar()?, l.scalar()?);
            let first = l.block(walk)?;
            let second = l.block(walk)?;
            l.emit(build::salui(ScalarOp::Add, pairs, blocks, 1));
            l.emit(build::salui(ScalarOp::Shr, pairs, pairs, 1));
            l.emit(build::sli(start, 0));
            l.fetch_block(walk, &first, start);
            l.load_strip(walk, &first, 0)?;
            // waits do not reach across iterations: everything is idle where one begins
            l.emit(build::fence());
            l.emit(build::repeat(pairs, start));
            l.emit(build::salui(ScalarOp::Shl, start, start, BLOCK_BITS + 1));
            l.emit(build::salui(ScalarOp::Add, start, start, BLOCK as i64));
            l.fetch_block(walk, &second, start);
            l.block_of_tokens(walk, &first, Some(&second))?;
            l.emit(build::fence());
            // the second of a pair, if there is one: a loop of one iteration or none
            l.emit(build::salui(ScalarOp::Min, second.at, second.count, 1));
            l.emit(build::repeat(second.at, second.at));
            l.emit(build::salui(ScalarOp::Add, start, start, BLOCK as i64));
            l.fetch_block(walk, &first, start);
            l.block_of_tokens(walk, &second, Some(&first))?;
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
            l.load_strip(walk, &block, 0)?;
            l.block_of_tokens(walk, &block, None)?;
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
}
