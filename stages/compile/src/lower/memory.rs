//! Between external memory, L2 and LRM: edges, the seam, and weights that are plain vectors.

use super::{FORCED_IDS, Lower, Tensor, Value};
use crate::error::CompileError;
use crate::graph::{Export, POSITION, SEAM};
use crate::ir::build::{self, Place};
use crate::ir::{L2Id, Span};
use mica_device::format::Format;
use mica_device::object::{Direction, EdgeUse, Symbol};
use mica_device::segment::{PlanEntry, Storage};
use mica_models::hir::{Dtype, Op, Param, ParamKind, ValueId};

/// The format of a value of this element kind on an edge.
pub(super) fn edge_format(dtype: Dtype) -> Format {
    match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 | Dtype::BF16 => Format::F16,
        Dtype::I64 => Format::I32,
    }
}

/// The edge that a parameter comes on.
pub(super) fn edge_in(name: &str) -> String {
    format!("{name}.in")
}

/// The edge of a cache to which a call of several tokens appends.
pub(super) fn edge_in_out(name: &str) -> String {
    format!("{name}.inout")
}

/// The edge that a result leaves on.
pub(super) fn edge_out(name: &str) -> String {
    format!("{name}.out")
}

impl Lower<'_> {
    /// Declares the edges, loads the scalar parameters; the bytes of the seam.
    pub(super) fn open(&mut self) -> Result<u64, CompileError> {
        let mut seam = 0;
        let params = || self.g.f.params.iter().enumerate().map(|(i, p)| (ValueId(i as u32), p));
        // the position is read, if only as the number of cached rows, where a dimension is open
        let open = params().any(|(v, p)| self.g.live(v) && p.ty.known_shape().is_none());
        for (v, p) in params() {
            let read = self.g.live(v) || (open && p.name == POSITION);
            if p.kind == ParamKind::Const || !read {
                continue;
            }
            let shape = self.edge_shape(v, p)?;
            if p.name == SEAM {
                let shape = self.a_token(shape);
                seam = self.declare(&edge_in(SEAM), Direction::In, Format::Fx32, shape);
            } else if self.is_scalar(v) {
                // the position is the first token's, from which the others follow
                let shape = if p.name == POSITION { shape } else { self.a_token(shape) };
                self.declare_scalars(&edge_in(&p.name), Direction::In, shape);
                // one value is kept; of several each is read where it is used
                if p.name == POSITION || self.options.tokens == 1 {
                    let s = self.scalar()?;
                    self.set(v, Value::Scalar(s));
                    self.emit(build::sld(s, &Place::new(Symbol::Edge(edge_in(&p.name)), 0)));
                }
            } else if p.ty.known_shape().is_none() && self.options.tokens > 1 {
                self.declare(&edge_in_out(&p.name), Direction::InOut, edge_format(p.ty.dtype), shape);
            } else {
                let shape = if self.g.next_state(v).is_some() { shape } else { self.a_token(shape) };
                self.declare(&edge_in(&p.name), Direction::In, edge_format(p.ty.dtype), shape);
            }
        }
        for (v, node) in self.g.live_nodes() {
            if let Op::TopK { k } = node.op {
                if self.edges.iter().any(|e| e.name == FORCED_IDS) {
                    return Err(self
                        .g
                        .unsupported(v, "a part chooses once: there is one edge of forced ids"));
                }
                let shape = self.a_token(vec![k]);
                self.declare(FORCED_IDS, Direction::In, Format::I32, shape);
            }
        }
        for (name, v) in &self.g.f.results {
            let Some(e) = self.g.exports(*v).iter().find(|e| e.name == *name) else { continue };
            let format = if e.seam { Format::Fx32 } else { edge_format(e.dtype) };
            let shape = self.g.shape(*v)?;
            let shape = if self.g.is_state(name) { shape } else { self.a_token(shape) };
            let bytes = self.declare(&edge_out(name), Direction::Out, format, shape);
            if e.seam {
                seam = bytes;
            }
        }
        self.seam = self.l2(seam);
        self.program.l2[self.seam.0 as usize].fixed = Some(0);
        Ok(seam)
    }

    /// The shape of what an edge holds of each token, for all of them; one token's has no axis of tokens.
    fn a_token(&self, mut shape: Vec<u64>) -> Vec<u64> {
        if self.options.tokens > 1 {
            shape.insert(0, self.options.tokens);
        }
        shape
    }

    fn declare(&mut self, name: &str, direction: Direction, format: Format, shape: Vec<u64>) -> u64 {
        let bytes = shape.iter().product::<u64>() * format.bytes();
        self.declare_bytes(name, direction, format, shape, bytes)
    }

    /// An edge of scalars, each a whole 64-bit integer, which `sld` reads.
    fn declare_scalars(&mut self, name: &str, direction: Direction, shape: Vec<u64>) {
        let bytes = 8 * shape.iter().product::<u64>();
        self.declare_bytes(name, direction, Format::I32, shape, bytes);
    }

    fn declare_bytes(
        &mut self,
        name: &str,
        direction: Direction,
        format: Format,
        shape: Vec<u64>,
        bytes: u64,
    ) -> u64 {
        let frac = if format == Format::Fx32 { self.options.frac } else { 0 };
        self.edges.push(EdgeUse { name: name.into(), direction, format, frac, shape, bytes });
        bytes
    }

    /// The shape of a parameter's edge: an open dimension has the compiled capacity.
    fn edge_shape(&self, v: ValueId, p: &Param) -> Result<Vec<u64>, CompileError> {
        let open = |d: &mica_models::hir::Dim| match (&d.var, d.plus) {
            (None, n) => Some(n),
            (Some(_), 0) => Some(self.options.capacity),
            (Some(_), _) => None,
        };
        let shape: Option<Vec<u64>> = p.ty.shape.iter().map(open).collect();
        shape.ok_or_else(|| self.g.unsupported(v, "an edge's open dimension is open alone"))
    }

    /// The range of L2 in which the residual of the token in work lies.
    fn seam_span(&self) -> Span {
        let bytes = self.program.l2[self.seam.0 as usize].bytes / self.options.tokens;
        Span { buf: self.seam, offset: self.token * bytes, bytes }
    }

    /// Where in a result's edge the token in work leaves its `bytes`; a state leaves after the last token only.
    pub(super) fn leaves_at(&self, name: &str, bytes: u64) -> Option<u64> {
        match self.g.is_state(name) {
            false => Some(self.token * bytes),
            true => (self.token + 1 == self.options.tokens).then_some(0),
        }
    }

    /// The plan's entry of a weight parameter, its shape checked.
    pub(super) fn weight(&self, v: ValueId) -> Result<Option<&PlanEntry>, CompileError> {
        let Some(p) = self.g.param(v).filter(|p| p.kind == ParamKind::Const) else {
            return Ok(None);
        };
        let entry = self.plan.entry(&p.name).ok_or_else(|| CompileError::MissingWeight {
            role: p.name.clone(),
            function: self.g.f.name.clone(),
        })?;
        let wanted = self.g.shape(self.g.root(v))?;
        if entry.shape != wanted {
            return Err(CompileError::WeightShape {
                role: p.name.clone(),
                planned: entry.shape.clone(),
                wanted,
            });
        }
        Ok(Some(entry))
    }

    /// The error that a weight's storage does not suit its use.
    pub(super) fn storage_error(&self, entry: &PlanEntry, needed: &'static str) -> CompileError {
        let stored = match entry.storage {
            Storage::Matrix(_) => "a tiled matrix",
            Storage::Experts(_) => "tiled matrices chosen by index (experts)",
            Storage::Table { .. } => "rows gathered by index (a table)",
            Storage::Vector(_) => "plain elements (a vector)",
        };
        CompileError::Storage { role: entry.role.clone(), stored, needed }
    }

    /// A range of external memory, in L2.
    pub(super) fn fetch(&mut self, place: &Place, bytes: u64) -> Span {
        let span = Span { buf: self.l2(bytes), offset: 0, bytes };
        self.emit(build::dld(span, place, None));
        span
    }

    /// The whole of a parameter in L2, fetched once, with its stored format.
    pub(super) fn parameter_in_l2(&mut self, v: ValueId) -> Result<(L2Id, Format), CompileError> {
        let v = self.g.root(v);
        let (place, format, bytes) = match self.weight(v)? {
            Some(e) => match e.storage {
                Storage::Vector(format) => (Place::new(Symbol::Constants, e.offset), format, e.bytes),
                _ => return Err(self.storage_error(e, "plain elements (a vector)")),
            },
            None => {
                let p = &self.g.f.params[v.0 as usize];
                let format = edge_format(p.ty.dtype);
                let bytes = self.g.shape(v)?.iter().product::<u64>() * format.bytes();
                (Place::new(Symbol::Edge(edge_in(&p.name)), self.token * bytes), format, bytes)
            }
        };
        let slot = self.slot(v);
        if let Some(id) = self.resident[slot] {
            return Ok((id, format));
        }
        let span = self.fetch(&place, bytes);
        self.resident[slot] = Some(span.buf);
        Ok((span.buf, format))
    }

    /// A parameter in LRM.
    pub(super) fn load_parameter(&mut self, v: ValueId) -> Result<Tensor, CompileError> {
        let shape = self.g.shape(v)?;
        if self.g.param(v).is_some_and(|p| p.name == SEAM && p.kind == ParamKind::Tensor) {
            let t = self.fresh(&shape, Format::Fx32);
            self.emit(build::ldt(t.tile(), self.seam_span(), Format::Fx32, t.frac));
            return Ok(t);
        }
        let count: u64 = shape.iter().product();
        let (buf, format) = self.parameter_in_l2(v)?;
        let span = Span { buf, offset: 0, bytes: count * format.bytes() };
        Ok(self.load(span, format, &shape))
    }

    /// Elements in L2, in LRM: integers as they are, everything else as F32.
    pub(super) fn load(&mut self, from: Span, stored: Format, shape: &[u64]) -> Tensor {
        let format = if stored == Format::I32 { Format::I32 } else { Format::F32 };
        let t = self.fresh(shape, format);
        self.emit(build::ldt(t.tile(), from, stored, 0));
        t
    }

    /// Stores a tensor on an edge, `offset` bytes into it.
    pub(super) fn store(&mut self, t: &Tensor, edge: &str, format: Format, offset: u64) {
        let bytes = t.count() * format.bytes();
        let span = Span { buf: self.l2(bytes), offset: 0, bytes };
        self.emit(build::stt(span, t.tile(), format, t.frac));
        self.emit(build::dst(&Place::new(Symbol::Edge(edge.into()), offset), span));
    }

    /// Lets a value leave on its edges and in the seam; one that all tokens share, for each of them.
    pub(super) fn leave(&mut self, v: ValueId) -> Result<(), CompileError> {
        for e in self.g.exports(v) {
            let tokens = if self.is_shared(v) { 0..self.options.tokens } else { self.token..self.token + 1 };
            for t in tokens {
                self.at_token(t, |l| l.leave_as(v, e))?;
            }
        }
        Ok(())
    }

    fn leave_as(&mut self, v: ValueId, e: &Export) -> Result<(), CompileError> {
        if let Value::Left = self.value(v) {
            return Ok(());
        }
        if e.seam {
            let t = self.whole(v)?;
            self.emit(build::stt(self.seam_span(), t.tile(), Format::Fx32, self.options.frac));
            return Ok(());
        }
        let format = edge_format(e.dtype);
        let bytes = self.g.shape(v)?.iter().product::<u64>() * format.bytes();
        if let Some(at) = self.leaves_at(&e.name, bytes) {
            let t = self.whole(v)?;
            self.store(&t, &edge_out(&e.name), format, at);
        }
        Ok(())
    }

    /// Parameters that are results too.
    pub(super) fn parameters_that_leave(&mut self) -> Result<(), CompileError> {
        for i in 0..self.g.f.params.len() {
            let v = ValueId(i as u32);
            if self.g.exports(v).is_empty() {
                continue;
            }
            for t in self.tokens_of(v) {
                self.at_token(t, |l| l.whole(v).and_then(|_| l.leave(v)))?;
            }
        }
        Ok(())
    }
}
