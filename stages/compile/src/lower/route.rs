//! The choice of the k largest, and its results.

use super::{FORCED_IDS, Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::object::Symbol;
use mica_models::hir::ValueId;

impl Lower<'_> {
    /// The choice also reads the edge of forced indices, so that one compile serves free and forced
    /// runs.
    pub(super) fn topk(&mut self, v: ValueId, x: ValueId, k: u64) -> Result<Value, CompileError> {
        let x = self.tensor(x)?;
        if x.count() != x.last() {
            return Err(self.g.unsupported(v, "the choice is among one row"));
        }
        let bytes = k * Format::I32.bytes();
        let place = Place::new(Symbol::Edge(FORCED_IDS.into()), self.token * bytes);
        let span = self.fetch(&place, bytes);
        let forced = self.load(span, Format::I32, &[k]);
        let mut shape = x.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = k;
        }
        let (ids, values) = (self.fresh(&shape, Format::I32), self.fresh(&shape, Format::F32));
        self.emit(build::topk(ids.tile(), values.tile(), x.tile(), forced.tile(), k as u32));
        Ok(Value::Tuple(vec![values, ids]))
    }

    /// One result of an op that has several.
    pub(super) fn element(&mut self, v: ValueId, of: ValueId, index: usize) -> Result<Tensor, CompileError> {
        match self.value(of) {
            Value::Tuple(ts) if index < ts.len() => Ok(ts[index].clone()),
            _ => Err(self.g.unsupported(v, "only `topk` has several results")),
        }
    }
}
