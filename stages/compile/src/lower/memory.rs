//! Between external memory, L2 and LRM: edges, the seam, and weights that are plain vectors.

use super::{FORCED_IDS, Lower, Tensor, Value};
use crate::error::CompileError;
use crate::graph::{POSITION, SEAM};
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
                seam = self.declare(&edge_in(SEAM), Direction::In, Format::Fx32, shape);
            } else if self.is_scalar(v) {
                self.declare(&edge_in(&p.name), Direction::In, Format::I32, shape);
                let s = self.scalar()?;
                self.set(v, Value::Scalar(s));
                self.emit(build::sld(s, &Place::new(Symbol::Edge(edge_in(&p.name)), 0)));
            } else {
                let format = edge_format(p.ty.dtype);
                self.declare(&edge_in(&p.name), Direction::In, format, shape);
            }
        }
        for (v, node) in self.g.live_nodes() {
            if let Op::TopK { k } = node.op {
                if self.edges.iter().any(|e| e.name == FORCED_IDS) {
                    return Err(self
                        .g
                        .unsupported(v, "a part chooses once: there is one edge of forced ids"));
                }
                self.declare(FORCED_IDS, Direction::In, Format::I32, vec![k]);
            }
        }
        for (name, v) in &self.g.f.results {
            let Some(e) = self.g.exports(*v).iter().find(|e| e.name == *name) else { continue };
            let format = if e.seam { Format::Fx32 } else { edge_format(e.dtype) };
            let bytes = self.declare(&edge_out(name), Direction::Out, format, self.g.shape(*v)?);
            if e.seam {
                seam = bytes;
            }
        }
        self.seam = self.l2(seam);
        self.program.l2[self.seam.0 as usize].fixed = Some(0);
        Ok(seam)
    }

    fn declare(&mut self, name: &str, direction: Direction, format: Format, shape: Vec<u64>) -> u64 {
        // a scalar is a whole 64-bit integer, which `sld` reads
        let bytes = match shape.is_empty() && format == Format::I32 {
            true => 8,
            false => shape.iter().product::<u64>() * format.bytes(),
        };
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

    /// The seam's range of L2.
    fn seam_span(&self) -> Span {
        Span { buf: self.seam, offset: 0, bytes: self.program.l2[self.seam.0 as usize].bytes }
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
                let count: u64 = self.g.shape(v)?.iter().product();
                (Place::new(Symbol::Edge(edge_in(&p.name)), 0), format, count * format.bytes())
            }
        };
        if let Some(id) = self.resident[v.0 as usize] {
            return Ok((id, format));
        }
        let span = self.fetch(&place, bytes);
        self.resident[v.0 as usize] = Some(span.buf);
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

    /// Lets a value leave on its edges and in the seam.
    pub(super) fn leave(&mut self, v: ValueId) -> Result<(), CompileError> {
        for e in self.g.exports(v) {
            if let Value::Left = self.value(v) {
                continue;
            }
            let t = self.whole(v)?;
            if e.seam {
                self.emit(build::stt(self.seam_span(), t.tile(), Format::Fx32, self.options.frac));
            } else {
                self.store(&t, &edge_out(&e.name), edge_format(e.dtype), 0);
            }
        }
        Ok(())
    }

    /// Parameters that are results too.
    pub(super) fn parameters_that_leave(&mut self) -> Result<(), CompileError> {
        for i in 0..self.g.f.params.len() {
            let v = ValueId(i as u32);
            if !self.g.exports(v).is_empty() {
                self.whole(v)?;
                self.leave(v)?;
            }
        }
        Ok(())
    }
}
