//! Matrix products: of a weight and a vector, and of tensors in LRM.

use super::chunks::chunks;
use super::memory::{edge_format, edge_out};
use super::{Lower, Tensor, Value};
use crate::error::CompileError;
use crate::ir::Tile;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::isa::MatvFlags;
use mica_device::layout::{MatrixFormat, MatrixLayout};
use mica_device::object::Symbol;
use mica_device::segment::{PlanEntry, Storage};
use mica_models::hir::{Node, Op, ValueId};
use std::ops::Range;

/// A transfer of a matrix is at most this fraction of L2.
const CHUNK_FRACTION: u64 = 32;
/// Transfers that stand in the program before the one that is worked on is: what the work stores must
/// not hold up the bus for the transfers behind it.
pub(super) const AHEAD: usize = 2;

/// The flags and the group length with which a matrix of this format is read.
fn matv_mode(format: MatrixFormat) -> (MatvFlags, u64) {
    let s = format.scaling;
    let flags = MatvFlags {
        weight: format.weight,
        scale_f32: s.is_some_and(|s| s.scale == Format::F32),
        zero: s.is_some_and(|s| s.zero),
    };
    (flags, s.map_or(0, |s| u64::from(s.group)))
}

impl Lower<'_> {
    pub(super) fn matmul(&mut self, v: ValueId, node: &Node) -> Result<Value, CompileError> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        if let Some(Node { op: Op::IndexSelect, inputs, .. }) = self.g.node(a)
            && self.is_experts(inputs[0])
        {
            return Ok(Value::Tensor(self.experts(v, inputs[0], inputs[1], b)?));
        }
        if !self.is_matrix(a) {
            self.weight(a)?;
            return self.product(v, a, b);
        }
        let values = self.project(v, node, self.token..self.token + 1)?;
        Ok(values.into_iter().next().unwrap_or(Value::Absent))
    }

    /// Whether a value is a weight stored as one matrix.
    pub(super) fn is_matrix(&self, v: ValueId) -> bool {
        let entry = self.weight(v).ok().flatten();
        entry.is_some_and(|e| matches!(e.storage, Storage::Matrix(_)))
    }

    /// The F16 broadcast of a tensor, made once.
    pub(super) fn broadcast(&mut self, x: &Tensor) -> Tensor {
        let same = |t: &Tensor| (t.buf, t.offset, t.count()) == (x.buf, x.offset, x.count());
        if let Some((_, to)) = self.broadcasts.iter().find(|(of, _)| same(of)) {
            return to.view(&x.shape);
        }
        let to = self.fresh(&x.shape, Format::F16);
        self.emit(build::bct(to.matrix(1, x.count()), x.matrix(1, x.count())));
        self.broadcasts.push((x.clone(), to.clone()));
        to
    }

    /// One matrix at a place, chunk by chunk, times broadcast vectors; `row` gives a vector's and a chunk's result
    /// tile, and `done` is called once each.
    pub(super) fn times(
        &mut self,
        m: &MatrixLayout,
        place: &Place,
        vectors: &[Tile],
        mut row: impl FnMut(&mut Self, usize, u64, u64) -> Tensor,
        mut done: impl FnMut(&mut Self, usize, u64, &Tensor),
    ) {
        let (flags, group) = matv_mode(m.format);
        let all = chunks(m, self.product.l2 / CHUNK_FRACTION);
        let mut spans = Vec::new();
        for (i, c) in all.iter().enumerate() {
            while let Some(next) = all.get(spans.len()).filter(|_| spans.len() <= i + AHEAD) {
                let at = Place { addend: place.addend + next.offset, ..place.clone() };
                spans.push(self.fetch(&at, next.bytes));
            }
            for (n, x) in vectors.iter().enumerate() {
                let to = row(self, n, c.row, c.rows);
                self.emit(build::matv(to.tile(), *x, spans[i], flags, c.rows as u32, group));
                done(self, n, c.row, &to);
            }
        }
    }

    /// `[R, C] · [C]` for some tokens; a value each. A product that only leaves is stored chunk by chunk and never
    /// whole: the logits of a large vocabulary are more than LRM.
    pub(super) fn project(
        &mut self,
        v: ValueId,
        node: &Node,
        tokens: Range<u64>,
    ) -> Result<Vec<Value>, CompileError> {
        let (a, x) = (node.inputs[0], node.inputs[1]);
        let (format, offset, rows, cols) = match self.weight(a)? {
            Some(PlanEntry { storage: Storage::Matrix(format), offset, shape, .. }) if shape.len() == 2 => {
                (*format, *offset, shape[0], shape[1])
            }
            _ => return Err(self.g.unsupported(v, "the matrix is a weight")),
        };
        let shape = self.g.shape(v)?;
        let mut vectors = Vec::new();
        for t in tokens.clone() {
            let x = self.at_token(t, |l| l.tensor(x))?;
            if x.count() != cols {
                return Err(self.g.unsupported(v, format!("a matrix [{rows}, {cols}] takes one vector")));
            }
            vectors.push(self.broadcast(&x).matrix(1, cols));
        }
        let m = MatrixLayout { rows, cols, format };
        let place = Place::new(Symbol::Constants, offset);
        let exports = self.g.exports(v);
        // a state leaves once, and what all tokens share leaves for each of them
        let once = self.options.tokens > 1
            && (self.is_shared(v) || exports.iter().any(|e| self.g.is_state(&e.name)));
        if self.g.users(v).is_empty() && exports.iter().all(|e| !e.seam) && !once {
            self.times(
                &m,
                &place,
                &vectors,
                |l, _, _, n| l.fresh(&[n], Format::F32),
                |l, n, first, t| {
                    for e in exports {
                        let format = edge_format(e.dtype);
                        let token = (tokens.start + n as u64) * rows;
                        l.store(t, &edge_out(&e.name), format, (token + first) * format.bytes());
                    }
                },
            );
            return Ok(vec![Value::Left; vectors.len()]);
        }
        let to: Vec<Tensor> = vectors.iter().map(|_| self.out(&shape, Format::F32)).collect();
        self.times(&m, &place, &vectors, |_, n, first, rows| to[n].part(first, &[rows]), |_, _, _, _| {});
        Ok(to.into_iter().map(Value::Tensor).collect())
    }

    /// A product of tensors in LRM, one of whose sides is a vector: `[.., 1, K] · [.., K, N]`,
    /// `[.., M, K] · [.., K, 1]`, or an outer product, which exists only added to something.
    fn product(&mut self, v: ValueId, a: ValueId, b: ValueId) -> Result<Value, CompileError> {
        let (a, b) = (self.tensor(a)?, self.tensor(b)?);
        let (row, column) = (a.shape.len() == 1, b.shape.len() == 1);
        let matrix = |t: &Tensor, flat: Option<[u64; 2]>| -> (Vec<u64>, [u64; 2]) {
            match (flat, t.shape.as_slice()) {
                (Some(of), _) => (vec![], of),
                (None, [lead @ .., x, y]) => (lead.to_vec(), [*x, *y]),
                (None, _) => (vec![], [1, 1]),
            }
        };
        let (lead, [m, k]) = matrix(&a, row.then(|| [1, a.last()]));
        let (other, [_, n]) = matrix(&b, column.then(|| [b.last(), 1]));
        if lead != other && !row && !column {
            return Err(self.g.unsupported(v, format!("batch axes {lead:?} and {other:?} differ")));
        }
        if k == 1 && m > 1 && n > 1 {
            return Ok(Value::Outer(a, b));
        }
        if m != 1 && n != 1 {
            let what = format!("[{m}, {k}] · [{k}, {n}] in LRM has no side that is a vector");
            return Err(self.g.unsupported(v, what));
        }
        let mut shape = if row { other } else { lead };
        let batch: u64 = shape.iter().product();
        shape.extend((!row).then_some(m));
        shape.extend((!column).then_some(n));
        let to = self.out(&shape, Format::F32);
        for i in 0..batch {
            let (x, y) = (if row { 0 } else { i * m * k }, if column { 0 } else { i * k * n });
            let one = to.part(i * m * n, &[m * n]).tile();
            self.emit(if m == 1 {
                build::tmvt(one, b.part(y, &[k, n]).tile(), a.part(x, &[k]).tile(), false)
            } else {
                build::tmv(one, a.part(x, &[m, k]).tile(), b.part(y, &[k]).tile())
            });
        }
        Ok(Value::Tensor(to))
    }

    /// `A + u ⊗ v`, where one operand of an `add` is an outer product.
    pub(super) fn outer_sum(&mut self, v: ValueId, node: &Node) -> Result<Option<Tensor>, CompileError> {
        if node.op != Op::Add {
            return Ok(None);
        }
        for (x, y) in [(0, 1), (1, 0)] {
            let Value::Outer(p, q) = self.value(node.inputs[y]).clone() else { continue };
            let a = self.tensor(node.inputs[x])?;
            let to = self.add_outer(v, &a, &p, &q)?;
            return Ok(Some(to));
        }
        Ok(None)
    }

    fn add_outer(&mut self, v: ValueId, a: &Tensor, u: &Tensor, w: &Tensor) -> Result<Tensor, CompileError> {
        let (m, n) = (u.shape[u.shape.len() - 2], w.last());
        let batch = u.count() / m;
        if a.count() != batch * m * n {
            return Err(self.g.unsupported(v, "an outer product is added to its own shape"));
        }
        let to = self.out(&a.shape, Format::F32);
        for i in 0..batch {
            self.emit(build::tout(
                to.part(i * m * n, &[m, n]).tile(),
                a.part(i * m * n, &[m, n]).tile(),
                u.part(i * m, &[m]).tile(),
                w.part(i * n, &[n]).tile(),
            ));
        }
        Ok(to)
    }

    /// An outer product that is read otherwise than by a sum: added to zeros.
    pub(super) fn outer(&mut self, v: ValueId, u: &Tensor, w: &Tensor) -> Result<Tensor, CompileError> {
        let mut shape = u.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = w.last();
        }
        let zeros = self.filled(&shape, 0.0)?;
        self.add_outer(v, &zeros, u, w)
    }
}
