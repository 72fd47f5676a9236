//! A row of a table at a scalar index: the embedding.

use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::ir::Span;
use crate::ir::build::{self, Place};
use mica_device::isa::{Broadcast, ScalarOp, VectorOp};
use mica_device::layout::TableLayout;
use mica_device::object::Symbol;
use mica_device::segment::Storage;
use mica_models::hir::ValueId;

impl Lower<'_> {
    pub(super) fn table_row(
        &mut self,
        v: ValueId,
        table: ValueId,
        index: ValueId,
    ) -> Result<Tensor, CompileError> {
        let (offset, t) = match self.weight(table)? {
            Some(e) => match (e.storage, e.shape.as_slice()) {
                (Storage::Table { element, scaling }, &[rows, cols]) => {
                    (e.offset, TableLayout { rows, cols, element, scaling })
                }
                _ => return Err(self.storage_error(e, "rows gathered by index (a table)")),
            },
            None => return Err(self.g.unsupported(v, "a table is a weight")),
        };
        let groups = t.groups();
        if let Some(s) = t.scaling
            && !t.cols.is_multiple_of(u64::from(s.group))
        {
            let what = format!("groups of {} do not make {} columns", s.group, t.cols);
            return Err(self.g.unsupported(v, what));
        }
        let row = self.scoped(|l| {
            let index = l.scalar_of(index)?;
            let s = l.scalar()?;
            l.emit(build::salui(ScalarOp::Mul, s, index, t.row_bytes() as i64));
            let place = Place { symbol: Symbol::Constants, index: Some(s), addend: offset };
            Ok(l.fetch(&place, t.row_bytes()))
        })?;
        let span = |offset, bytes| Span { offset, bytes, ..row };
        let elements = self.load(span(0, t.cols * t.element.bytes()), t.element, &[t.cols]);
        let Some(scaling) = t.scaling else { return Ok(elements) };
        let from = span(t.scale_offset(), groups * scaling.scale.bytes());
        let scales = self.load(from, scaling.scale, &[groups]);
        Ok(self.combine(VectorOp::Mul, Broadcast::Stretch, &elements, &scales))
    }
}
