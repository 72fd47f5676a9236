//! Lowering: from the scheduled nodes to the tile IR, one file a family of ops.
//!
//! Formats: the seam is FX32; `add` with an FX32 operand gives FX32; everything else is computed and
//! kept in F32; a matrix reads its vector as F16. It knows no address, no tile number and no wait.
//!
//! A value exists once a token, or once where it rests on weights alone.

pub(crate) mod attention;
mod chunks;
mod elementwise;
mod experts;
mod gather;
mod handover;
mod matmul;
mod memory;
mod reduce;
mod region;
mod rotary;
mod route;
mod rows;
mod scalars;
mod shape;
mod tensor;

use crate::Options;
use crate::error::CompileError;
use crate::graph::Graph;
use crate::graph::pattern::{Rule, Rules};
use crate::graph::schedule::{self, Step};
use crate::ir::{Inst, Item, L2Buf, L2Id, LrmId, Program, Tile, build};
use mica_device::format::Format;
use mica_device::isa::SCALARS;
use mica_device::object::EdgeUse;
use mica_device::product::Product;
use mica_device::segment::SegmentPlan;
use mica_models::hir::{Node, Op, ParamKind, ValueId};
use rotary::Rotation;
use std::ops::Range;
use tensor::Tensor;

/// The edge of indices that replace the chosen ones, I32 `[k]`; the first negative: choose freely.
pub const FORCED_IDS: &str = "forced_ids.in";

/// First scratch scalar; below it are the constants' base and the entry pointers.
const SCRATCH: u8 = 16;

/// What became of a value.
#[derive(Clone, Debug)]
enum Value {
    /// Nothing yet, or nothing that exists apart from those who read it.
    Absent,
    /// It is in LRM.
    Tensor(Tensor),
    /// It is an integer in a scalar register.
    Scalar(u8),
    /// Several results.
    Tuple(Vec<Tensor>),
    /// It left, piece by piece, and was never whole.
    Left,
    /// `u ⊗ v`, which exists only added to something.
    Outer(Tensor, Tensor),
}

/// The state of lowering.
pub(crate) struct Lower<'a> {
    g: &'a Graph<'a>,
    rules: &'a Rules,
    plan: &'a SegmentPlan,
    product: &'a Product,
    options: &'a Options,
    /// Rows of a cached block that are in LRM at a time; they divide the block.
    strip: u64,
    program: Program,
    values: Vec<Value>,
    /// F16 broadcasts made so far: what of, and where.
    broadcasts: Vec<(Tensor, Tensor)>,
    /// Rotary tables made so far: cos, sin.
    rotations: Vec<(Rotation, Tensor, Tensor)>,
    /// Rotary frequencies loaded so far: (elements, base).
    frequencies: Vec<((u64, u64), Tensor)>,
    /// What earlier tokens leave to later ones, as an edge would hold it: (value, its token, format).
    handed: Vec<((ValueId, u64, Format), Tensor)>,
    /// L2 copies of whole edges and of vectors read by rows, by parameter and token.
    resident: Vec<Option<L2Id>>,
    next_scalar: u8,
    edges: Vec<EdgeUse>,
    seam: L2Id,
    src: u16,
    label: String,
    /// Where the node in work puts its result, if not in a buffer of its own.
    destination: Option<Tensor>,
    /// The region and head in work.
    head: Option<(usize, u64)>,
    /// The token in work.
    token: u64,
    /// Whether a value is the same for all tokens of a call.
    shared: Vec<bool>,
}

/// A lowered part.
pub(crate) struct Lowered {
    /// The program.
    pub program: Program,
    /// Its edges, the seam's two among them.
    pub edges: Vec<EdgeUse>,
    /// Bytes of the seam, 0 without.
    pub seam_bytes: u64,
}

/// Lowers a function by its rules, with so many rows of a cached block in LRM at a time as `strip` says.
///
/// # Errors
/// Those of an op without a rule, and of weights that do not fit their use.
pub(crate) fn lower(
    g: &Graph,
    rules: &Rules,
    plan: &SegmentPlan,
    product: &Product,
    options: &Options,
    strip: u64,
) -> Result<Lowered, CompileError> {
    let values = (g.f.params.len() + g.f.nodes.len()) * options.tokens as usize;
    let mut l = Lower {
        g,
        rules,
        plan,
        product,
        options,
        strip,
        program: Program::default(),
        values: vec![Value::Absent; values],
        broadcasts: Vec::new(),
        rotations: Vec::new(),
        frequencies: Vec::new(),
        handed: Vec::new(),
        resident: vec![None; g.f.params.len() * options.tokens as usize],
        next_scalar: SCRATCH,
        edges: Vec::new(),
        seam: L2Id(0),
        src: 0,
        label: g.f.name.clone(),
        destination: None,
        head: None,
        token: 0,
        shared: shared(g),
    };
    let seam_bytes = l.open()?;
    l.steps(&schedule::order(g, rules, options.tokens)?)?;
    l.parameters_that_leave()?;
    Ok(Lowered { program: l.program, edges: l.edges, seam_bytes })
}

/// The values that rest on weights and constants alone.
fn shared(g: &Graph) -> Vec<bool> {
    let mut shared: Vec<bool> = g.f.params.iter().map(|p| p.kind == ParamKind::Const).collect();
    for (i, node) in g.f.nodes.iter().enumerate() {
        let v = ValueId((g.f.params.len() + i) as u32);
        // a choice may be forced, token by token
        let chosen = matches!(node.op, Op::TopK { .. });
        shared.push(!chosen && g.inputs(v).iter().all(|i| shared[i.0 as usize]));
    }
    shared
}

impl Lower<'_> {
    /// Lowers steps in order. What reads a matrix, and attention, runs for all tokens of the call at once, so that the
    /// matrix is fetched once; what lies between runs for one token after the other, so that few of its values
    /// are live at a time.
    fn steps(&mut self, steps: &[Step]) -> Result<(), CompileError> {
        let mut stretch = Vec::new();
        for step in steps {
            match step {
                Step::Region(r) => {
                    self.stretch(&mut stretch)?;
                    self.region(*r)?;
                }
                Step::Node(v) if self.is_of_all_tokens(*v) => {
                    self.stretch(&mut stretch)?;
                    self.node_of_all(*v)?;
                }
                Step::Node(v) => stretch.push(*v),
                Step::Recurrence(nodes) => stretch.extend(nodes),
            }
        }
        self.stretch(&mut stretch)
    }

    fn is_of_all_tokens(&self, v: ValueId) -> bool {
        match (self.rules.rule(v), self.g.node(v)) {
            (Rule::Attention(_), _) => true,
            (Rule::Op, Some(n)) => n.op == Op::MatMul && self.is_matrix(n.inputs[0]),
            _ => false,
        }
    }

    /// Lowers nodes for one token after the other.
    fn stretch(&mut self, nodes: &mut Vec<ValueId>) -> Result<(), CompileError> {
        for t in 0..self.options.tokens {
            for &v in nodes.iter() {
                if t == 0 || !self.is_shared(v) {
                    self.at_token(t, |l| l.node(v))?;
                }
            }
        }
        nodes.clear();
        Ok(())
    }

    /// Whether a value is one for all tokens.
    fn is_shared(&self, v: ValueId) -> bool {
        self.shared[self.g.root(v).0 as usize]
    }

    /// The tokens for which a value exists on its own.
    fn tokens_of(&self, v: ValueId) -> Range<u64> {
        0..if self.is_shared(v) { 1 } else { self.options.tokens }
    }

    /// Runs `body` with another token in work.
    fn at_token<T>(&mut self, token: u64, body: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.token, token);
        let result = body(self);
        self.token = before;
        result
    }

    fn at(&mut self, v: ValueId) {
        self.src = self.g.op_number(v) as u16;
        self.label = self.g.label(v).into();
    }

    fn emit(&mut self, inst: Inst) {
        self.program.items.push(Item::Inst(Inst { src: self.src, ..inst }));
    }

    /// A new LRM tensor.
    fn fresh(&mut self, shape: &[u64], format: Format) -> Tensor {
        let id = LrmId(self.program.lrm.len() as u32);
        let frac = if format == Format::Fx32 { self.options.frac } else { 0 };
        let t = Tensor { buf: id, offset: 0, shape: shape.into(), format, frac };
        self.program.lrm.push(t.count() * format.bytes());
        t
    }

    /// Where the result of the node in work goes: its given destination, or a new tensor.
    fn out(&mut self, shape: &[u64], format: Format) -> Tensor {
        match self.destination.take() {
            Some(t) => t.view(shape),
            None => self.fresh(shape, format),
        }
    }

    /// A new L2 buffer.
    fn l2(&mut self, bytes: u64) -> L2Id {
        let id = L2Id(self.program.l2.len() as u32);
        self.program.l2.push(L2Buf { bytes, fixed: None });
        id
    }

    /// A fresh scratch scalar, free again once `next_scalar` is put back.
    fn scalar(&mut self) -> Result<u8, CompileError> {
        if self.next_scalar == SCALARS {
            return Err(CompileError::Scalars {
                label: self.label.clone(),
                limit: usize::from(SCALARS - SCRATCH),
            });
        }
        self.next_scalar += 1;
        Ok(self.next_scalar - 1)
    }

    /// Runs `body` and frees the scratch scalars that it took.
    fn scoped<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        let mark = self.next_scalar;
        let result = body(self);
        self.next_scalar = mark;
        result
    }

    /// Where the value of the token in work stands among those of all tokens.
    fn slot(&self, v: ValueId) -> usize {
        let token = if self.is_shared(v) { 0 } else { self.token };
        v.0 as usize * self.options.tokens as usize + token as usize
    }

    fn value(&self, v: ValueId) -> &Value {
        &self.values[self.slot(self.g.root(v))]
    }

    fn set(&mut self, v: ValueId, value: Value) {
        let slot = self.slot(v);
        self.values[slot] = value;
    }

    /// A value in LRM: computed before, or loaded or put together now.
    fn tensor(&mut self, v: ValueId) -> Result<Tensor, CompileError> {
        let v = self.g.root(v);
        if let Some((r, b)) = self.head
            && !self.rules.regions[r].nodes.contains(&v)
        {
            return self.share_of_head(v, r, b);
        }
        self.whole(v)
    }

    fn whole(&mut self, v: ValueId) -> Result<Tensor, CompileError> {
        if let Value::Tensor(t) = self.value(v) {
            return Ok(t.clone());
        }
        let t = if let Some(next) = self.g.next_state(v).filter(|_| self.token > 0) {
            self.handed_on(v, next)?
        } else if self.g.param(v).is_some() {
            self.load_parameter(v)?
        } else {
            match (self.g.node(v).map(|n| &n.op), self.value(v).clone()) {
                (_, Value::Outer(p, q)) => self.outer(v, &p, &q)?,
                (Some(Op::Concat { axis }), _) => self.concat(v, *axis)?,
                (Some(Op::FullLike { value }), _) => {
                    let shape = self.g.shape(v)?;
                    self.filled(&shape, *value)?
                }
                (Some(Op::IndexSelect), _) => {
                    return Err(self.g.unsupported(v, "experts are read only by `matmul`"));
                }
                _ => return Err(self.g.unsupported(v, "its value does not exist on its own here")),
            }
        };
        self.set(v, Value::Tensor(t.clone()));
        Ok(t)
    }

    fn node(&mut self, v: ValueId) -> Result<(), CompileError> {
        let Some(node) = self.g.node(v) else { return Ok(()) };
        self.at(v);
        let before = self.program.items.len();
        let rules = self.rules;
        match rules.rule(v) {
            Rule::Inner => return Ok(()),
            Rule::Attention(_) => {
                let what = "attention inside a recurrence: compile one token a call";
                return Err(self.g.unsupported(v, what));
            }
            Rule::ColumnDot { rows, by } => {
                let t = self.column_dot(v, *rows, *by)?;
                self.set(v, Value::Tensor(t));
            }
            Rule::SumSquares { of } => {
                let t = self.sum_of_squares(v, *of)?;
                self.set(v, Value::Tensor(t));
            }
            Rule::LeavingRows { rows, start } => return self.leaving_rows(v, *rows, *start),
            Rule::Op | Rule::Region(_) => {
                let value = self.op(v, node)?;
                self.set(v, value);
            }
        }
        if self.program.items.len() > before {
            self.boundary(v);
        }
        self.leave(v)
    }

    /// Lowers a node for all tokens at once.
    fn node_of_all(&mut self, v: ValueId) -> Result<(), CompileError> {
        let Some(node) = self.g.node(v) else { return Ok(()) };
        self.at(v);
        let rules = self.rules;
        let values = match rules.rule(v) {
            Rule::Attention(a) => self.attention(v, a)?,
            _ => self.project(v, node, self.tokens_of(v))?,
        };
        for (t, value) in (0..).zip(values) {
            self.at_token(t, |l| {
                l.set(v, value);
                l.boundary(v);
                l.leave(v)
            })?;
        }
        Ok(())
    }

    /// Marks the end of an op whose result is in LRM.
    fn boundary(&mut self, v: ValueId) {
        let tile: Option<Tile> = match self.value(v) {
            Value::Tensor(t) => Some(t.tile()),
            Value::Tuple(ts) => ts.first().map(Tensor::tile),
            _ => None,
        };
        if let Some(tile) = tile {
            self.emit(build::opb(tile));
        }
    }

    /// Lowers one node by its op.
    fn op(&mut self, v: ValueId, node: &Node) -> Result<Value, CompileError> {
        let input = |i: usize| node.inputs[i];
        if self.is_scalar(v) {
            return self.scalar_op(v, node);
        }
        Ok(Value::Tensor(match &node.op {
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max => return self.binary(v, node),
            Op::Neg
            | Op::Exp
            | Op::Square
            | Op::Rsqrt
            | Op::Softplus
            | Op::Sigmoid
            | Op::Silu
            | Op::Round { .. } => self.unary(v, node)?,
            Op::MatMul => return self.matmul(v, node),
            Op::Reduce { kind, axis, keep } => self.reduce(v, input(0), *kind, *axis, *keep)?,
            Op::RmsNorm { eps } => self.rms_norm(v, input(0), input(1), *eps)?,
            Op::Softmax { axis } => self.softmax(v, input(0), *axis)?,
            Op::Rope { rotary, theta } => self.rope(input(0), input(1), *rotary, *theta)?,
            Op::TopK { k } => return self.topk(v, input(0), *k),
            Op::TupleGet { index } => self.element(v, input(0), *index)?,
            Op::IndexSelect if self.is_experts(input(0)) => return Ok(Value::Absent),
            Op::IndexSelect => self.table_row(v, input(0), input(1))?,
            // put together only for those who need it whole
            Op::Concat { .. } => return Ok(Value::Absent),
            Op::Slice { axis, start, len } => self.slice(input(0), *axis, *start, *len)?,
            Op::Reshape { .. } => self.reshape(v, input(0))?,
            Op::Transpose { perm } => self.transpose(v, input(0), perm)?,
            Op::RepeatInterleave { axis, repeats } => self.repeat(input(0), *axis, *repeats)?,
            Op::Cast { .. } => {
                return Err(self.g.unsupported(v, "casts are between float dtypes only"));
            }
            Op::FullLike { .. } => return Ok(Value::Absent),
            Op::CacheUpdate => {
                return Err(self.g.unsupported(v, "a cache grows by a row that leaves on an edge"));
            }
            Op::Call { .. } => return Err(self.g.unsupported(v, "calls are inlined before")),
        }))
    }
}
