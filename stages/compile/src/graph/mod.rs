//! The HIR function as the compiler looks at it: casts seen through, only live nodes, users known,
//! patterns of several nodes recognised, nodes scheduled.
//!
//! It knows no instruction and no address.

pub mod attention;
pub mod batch;
pub mod pattern;
pub mod recurrence;
pub mod schedule;

use crate::error::CompileError;
use mica_models::hir::{Dtype, Function, Node, Op, Param, ParamKind, Type, ValueId};

/// The parameter and result that stays on chip between parts.
pub const SEAM: &str = "hidden";
/// The scalar parameter whose value every open dimension has: the number of cached positions.
pub const POSITION: &str = "pos";

/// A result that leaves the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its element kind, which decides the edge's format.
    pub dtype: Dtype,
    /// Whether it leaves in the seam rather than on an edge.
    pub seam: bool,
}

/// A function with what the passes ask of it.
#[derive(Debug)]
pub struct Graph<'f> {
    /// The function.
    pub f: &'f Function,
    root: Vec<ValueId>,
    users: Vec<Vec<ValueId>>,
    exports: Vec<Vec<Export>>,
}

impl<'f> Graph<'f> {
    /// Looks at a function of which the results `exports` are wanted, and the seam.
    ///
    /// # Errors
    /// `UnknownExport` for a name that is no result, `Unsupported` for a live value of no elements.
    pub fn new(f: &'f Function, exports: &[String]) -> Result<Graph<'f>, CompileError> {
        for name in exports {
            if !f.results.iter().any(|(n, _)| n == name) {
                let has = f.results.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ");
                return Err(CompileError::UnknownExport {
                    name: name.clone(),
                    function: f.name.clone(),
                    has,
                });
            }
        }
        let values = f.params.len() + f.nodes.len();
        let mut g =
            Graph { f, root: roots(f), users: vec![Vec::new(); values], exports: vec![Vec::new(); values] };
        for (name, v) in &f.results {
            if name == SEAM || exports.contains(name) {
                let at = g.root(*v).0 as usize;
                g.exports[at].push(Export { name: name.clone(), dtype: f.ty(*v).dtype, seam: name == SEAM });
            }
        }
        g.find_users();
        let empty = |v: &ValueId| g.live(*v) && g.ty(*v).known_shape().is_some_and(|s| s.contains(&0));
        match (0..values as u32).map(ValueId).find(empty) {
            Some(v) => Err(g.unsupported(v, "a tile has elements, and this value has none")),
            None => Ok(g),
        }
    }

    /// From the results back: a node is live where a result or a live node reads it.
    fn find_users(&mut self) {
        for i in (0..self.f.nodes.len()).rev() {
            let v = ValueId((self.f.params.len() + i) as u32);
            if self.root(v) != v || !self.live(v) {
                continue;
            }
            for input in self.inputs(v) {
                let input = input.0 as usize;
                // one entry a user, even where it reads a value twice; users ascend
                if self.users[input].first() != Some(&v) {
                    self.users[input].insert(0, v);
                }
            }
        }
    }

    /// The value that `v` is another name of: casts between float dtypes are nothing on the device,
    /// whose formats are the compiler's choice.
    pub fn root(&self, v: ValueId) -> ValueId {
        self.root[v.0 as usize]
    }
    /// The node behind a value, casts seen through.
    pub fn node(&self, v: ValueId) -> Option<&'f Node> {
        self.f.node(self.root(v))
    }
    /// The values that a node reads, as roots; a constant reads none, only the type.
    pub fn inputs(&self, v: ValueId) -> Vec<ValueId> {
        match self.node(v) {
            Some(Node { op: Op::FullLike { .. }, .. }) | None => Vec::new(),
            Some(n) => n.inputs.iter().map(|&i| self.root(i)).collect(),
        }
    }
    /// The parameter behind a value, casts seen through.
    pub fn param(&self, v: ValueId) -> Option<&'f Param> {
        self.f.param(self.root(v))
    }
    /// Whether the value is read or leaves.
    pub fn live(&self, v: ValueId) -> bool {
        !self.users(v).is_empty() || !self.exports(v).is_empty()
    }
    /// The live nodes that read a value, ascending, as roots.
    pub fn users(&self, v: ValueId) -> &[ValueId] {
        &self.users[self.root(v).0 as usize]
    }
    /// The results that a value leaves as.
    pub fn exports(&self, v: ValueId) -> &[Export] {
        &self.exports[self.root(v).0 as usize]
    }
    /// Whether `user` alone reads the value, and it does not leave.
    pub fn only_user(&self, v: ValueId, user: ValueId) -> bool {
        self.users(v) == [user] && self.exports(v).is_empty()
    }
    /// Whether a name is that of a state: a live parameter that an exported result of that name replaces after
    /// every token.
    pub fn is_state(&self, name: &str) -> bool {
        self.f.params.iter().zip(0..).any(|(p, i)| p.name == name && self.next_state(ValueId(i)).is_some())
    }
    /// What a state parameter is for the next token: the result of its name, as a root.
    pub fn next_state(&self, param: ValueId) -> Option<ValueId> {
        let p = self.param(param).filter(|p| p.kind == ParamKind::Tensor && p.name != SEAM)?;
        if p.ty.known_shape().is_none() || !self.live(param) {
            return None;
        }
        let (_, v) = self.f.results.iter().find(|(name, _)| *name == p.name)?;
        self.exports(*v).iter().any(|e| e.name == p.name).then(|| self.root(*v))
    }
    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &'f Type {
        self.f.ty(v)
    }
    /// The live nodes in order, as root values.
    pub fn live_nodes(&self) -> impl Iterator<Item = (ValueId, &'f Node)> + '_ {
        let first = self.f.params.len();
        self.f.nodes.iter().enumerate().filter_map(move |(i, n)| {
            let v = ValueId((first + i) as u32);
            (self.root(v) == v && self.live(v)).then_some((v, n))
        })
    }
    /// The op number of a node: its place among the function's nodes.
    pub fn op_number(&self, v: ValueId) -> usize {
        (v.0 as usize).saturating_sub(self.f.params.len())
    }
    /// Where a value stands in the model, for errors.
    pub fn label(&self, v: ValueId) -> &'f str {
        match (self.f.node(v), self.f.param(v)) {
            (Some(n), _) => &n.label,
            (None, Some(p)) => &p.name,
            (None, None) => "",
        }
    }
    /// The shape as numbers.
    ///
    /// # Errors
    /// `Unsupported` where a dimension is open.
    pub fn shape(&self, v: ValueId) -> Result<Vec<u64>, CompileError> {
        self.ty(v).known_shape().ok_or_else(|| {
            self.unsupported(v, "an open dimension is read only as the cached part of attention")
        })
    }
    /// The error that a value's op has no rule.
    pub fn unsupported(&self, v: ValueId, what: impl Into<String>) -> CompileError {
        CompileError::Unsupported {
            label: self.label(v).into(),
            op: self.f.node(v).map_or("parameter", |n| n.op.name()),
            what: what.into(),
        }
    }
    /// The constant that a value is filled with.
    pub fn fill(&self, v: ValueId) -> Option<f64> {
        match self.node(v)?.op {
            Op::FullLike { value } => Some(value),
            _ => None,
        }
    }
}

/// For each value, the one that it is another name of.
fn roots(f: &Function) -> Vec<ValueId> {
    let mut root: Vec<ValueId> = (0..f.params.len() as u32).map(ValueId).collect();
    for (i, node) in f.nodes.iter().enumerate() {
        let own = ValueId((f.params.len() + i) as u32);
        let free = |to: Dtype, from: Dtype| to != Dtype::I64 && from != Dtype::I64;
        root.push(match node.op {
            Op::Cast { dtype } if free(dtype, f.ty(node.inputs[0]).dtype) => root[node.inputs[0].0 as usize],
            _ => own,
        });
    }
    root
}
