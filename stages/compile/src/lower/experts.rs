//! Matrices chosen at run time: `matmul(index_select(W [E, R, C], ids [k]), x)`.
//!
//! For each chosen index, in the order of `ids`: read it, multiply by the bytes of a matrix, and fetch
//! at that distance off the constants' base.

use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::ScalarOp;
use mica_device::layout::MatrixLayout;
use mica_device::object::Symbol;
use mica_device::segment::Storage;
use mica_models::hir::ValueId;

impl Lower<'_> {
    /// Whether a value is a weight of several matrices.
    pub(super) fn is_experts(&self, table: ValueId) -> bool {
        let entry = self.weight(table).ok().flatten();
        entry.is_some_and(|e| matches!(e.storage, Storage::Experts(_)))
    }

    /// `x` is one vector `[C]` for all chosen matrices, or one a matrix (`[k, C, 1]`).
    pub(super) fn experts(
        &mut self,
        v: ValueId,
        table: ValueId,
        ids: ValueId,
        x: ValueId,
    ) -> Result<Tensor, CompileError> {
        let (offset, format, rows, cols) = match self.weight(table)? {
            Some(e) => match (e.storage, e.shape.as_slice()) {
                (Storage::Experts(format), &[_, rows, cols]) => (e.offset, format, rows, cols),
                _ => return Err(self.storage_error(e, "matrices chosen by index (experts)")),
            },
            None => return Err(self.g.unsupported(v, "experts are weights")),
        };
        let (ids, x) = (self.tensor(ids)?, self.tensor(x)?);
        let k = ids.count();
        let shape = self.g.shape(v)?;
        let one_each = shape.iter().product::<u64>() == k * rows;
        if ids.format != Format::I32 || !one_each || (x.count() != cols && x.count() != k * cols) {
            let what = format!("{k} matrices [{rows}, {cols}] take one vector, or one each");
            return Err(self.g.unsupported(v, what));
        }
        let each = if x.count() == cols { 0 } else { cols };
        let m = MatrixLayout { rows, cols, format };
        let vectors = self.broadcast(&x);
        let to = self.out(&shape, Format::F32);
        for j in 0..k {
            self.scoped(|l| {
                let s = l.scalar()?;
                l.emit(build::sget(s, ids.tile(), j as u32));
                l.emit(build::salui(ScalarOp::Mul, s, s, m.bytes() as i64));
                let place = Place { symbol: Symbol::Constants, index: Some(s), addend: offset };
                let vector = vectors.part(j * each, &[cols]).tile();
                let part = |first, n| to.part(j * rows + first, &[n]);
                l.times(&m, &place, &[vector], |_, _, first, n| part(first, n), |_, _, _, _| {});
                Ok(())
            })?;
        }
        Ok(to)
    }
}
