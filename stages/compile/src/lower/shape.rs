//! Ops that move elements: views where the elements stay contiguous, strided copies elsewhere.

use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::ir::build::{self, Place, Strides};
use mica_device::format::Format;
use mica_device::isa::UnaryOp;
use mica_device::object::Symbol;
use mica_models::hir::ValueId;

impl Lower<'_> {
    /// A strided copy of the same format, its fields checked.
    fn copy(
        &mut self,
        (to, x): (&Tensor, u64),
        (from, y): (&Tensor, u64),
        s: Strides,
    ) -> Result<(), CompileError> {
        for (what, figure) in
            [("rows", s.rows), ("length", s.len), ("source stride", s.from), ("stride", s.to)]
        {
            if figure > 0xffff {
                return Err(CompileError::Field {
                    what: format!("{}: the {what} of a strided copy", self.label),
                    figure,
                    limit: 0xffff,
                });
            }
        }
        self.emit(build::vmov(to.tile(), x as u32, from.tile(), y as u32, s));
        Ok(())
    }

    pub(super) fn reshape(&mut self, v: ValueId, of: ValueId) -> Result<Tensor, CompileError> {
        let t = self.tensor(of)?;
        let mut shape = self.g.shape(v)?;
        // inside a region a tensor is one head's share
        if let (Some((r, _)), Some(first)) = (self.head, shape.first_mut())
            && *first == self.rules.regions[r].heads
        {
            *first = 1;
        }
        if shape.iter().product::<u64>() != t.count() {
            return Err(self.g.unsupported(v, "inside a region only the axes after the first change"));
        }
        Ok(t.view(&shape))
    }

    pub(super) fn slice(
        &mut self,
        of: ValueId,
        axis: usize,
        start: u64,
        len: u64,
    ) -> Result<Tensor, CompileError> {
        let t = self.tensor(of)?;
        let rows: u64 = t.shape[..axis].iter().product();
        let inner: u64 = t.shape[axis + 1..].iter().product();
        let mut shape = t.shape.clone();
        shape[axis] = len;
        if rows == 1 {
            return Ok(t.part(start * inner, &shape));
        }
        let to = self.out(&shape, t.format);
        let s = Strides { rows, len: len * inner, from: t.shape[axis] * inner, to: len * inner };
        self.copy((&to, 0), (&t, start * inner), s)?;
        Ok(to)
    }

    pub(super) fn repeat(&mut self, of: ValueId, axis: usize, repeats: u64) -> Result<Tensor, CompileError> {
        let t = self.tensor(of)?;
        let rows: u64 = t.shape[..=axis].iter().product();
        let inner: u64 = t.shape[axis + 1..].iter().product();
        let mut shape = t.shape.clone();
        shape[axis] *= repeats;
        let to = self.out(&shape, t.format);
        for r in 0..repeats {
            let s = Strides { rows, len: inner, from: inner, to: repeats * inner };
            self.copy((&to, r * inner), (&t, 0), s)?;
        }
        Ok(to)
    }

    /// A permutation that moves only axes of length 1 is a view.
    pub(super) fn transpose(
        &mut self,
        v: ValueId,
        of: ValueId,
        perm: &[usize],
    ) -> Result<Tensor, CompileError> {
        let t = self.tensor(of)?;
        let shape: Vec<u64> = perm.iter().map(|&p| t.shape[p]).collect();
        let long: Vec<usize> = perm.iter().copied().filter(|&p| t.shape[p] != 1).collect();
        if !long.is_sorted() {
            let what = format!("{:?} is permuted by {perm:?}: only axes of length 1 move", t.shape);
            return Err(self.g.unsupported(v, what));
        }
        Ok(t.view(&shape))
    }

    /// A concatenation put together in LRM.
    pub(super) fn concat(&mut self, v: ValueId, axis: usize) -> Result<Tensor, CompileError> {
        let Some(node) = self.g.node(v) else {
            return Err(self.g.unsupported(v, "a concatenation is a node"));
        };
        let mut parts = Vec::new();
        for &input in &node.inputs {
            let t = self.tensor(input)?;
            // an I32 part would be another kind of value; FX32 becomes F32 beside others
            let t = if t.format == Format::F32 { t } else { self.map(UnaryOp::Cvt, &t) };
            parts.push(t);
        }
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        let inner: u64 = shape[axis + 1..].iter().product();
        let rows: u64 = shape[..axis].iter().product();
        let to = self.out(&shape, Format::F32);
        let mut at = 0;
        for p in &parts {
            let len = p.shape[axis] * inner;
            let s = Strides { rows, len, from: len, to: shape[axis] * inner };
            self.copy((&to, at), (p, 0), s)?;
            at += len;
        }
        Ok(to)
    }

    /// A tensor of one value: a literal, copied with stride 0.
    pub(super) fn filled(&mut self, shape: &[u64], value: f64) -> Result<Tensor, CompileError> {
        let at = self.literal(&[value as f32]);
        let span = self.fetch(&Place::new(Symbol::Literals, at), Format::F32.bytes());
        let one = self.load(span, Format::F32, &[1]);
        let to = self.fresh(shape, Format::F32);
        let s = Strides { rows: to.count(), len: 1, from: 0, to: 1 };
        self.copy((&to, 0), (&one, 0), s)?;
        Ok(to)
    }
}
