//! Functions in single-assignment form.

use super::op::Op;
use super::types::{DimVar, Type};
use serde::{Deserialize, Serialize};

/// A value of one function: parameters first, then nodes, numbered in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParamKind {
    /// An activation or a state, passed at each call.
    Tensor,
    /// A weight, bound by `load` (the field's `ConstTensor`).
    Const,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// Name; of a weight, its name within the part (`linear_attn.in_proj_qkv.weight`).
    pub name: String,
    /// Type.
    pub ty: Type,
    /// Activation or weight.
    pub kind: ParamKind,
}

/// One operation. The result's types: one, or the elements of a tuple.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Operation.
    pub op: Op,
    /// Operands, all defined before.
    pub inputs: Vec<ValueId>,
    /// Result types; more than one only for tuples.
    pub types: Vec<Type>,
    /// Where it stands in the model (`linear_attn.in_proj_qkv`); captures go by it.
    pub label: String,
}

/// A function: value `i` is parameter `i` for `i < params.len()`, node `i - params.len()` after that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Parameters.
    pub params: Vec<Param>,
    /// Operations in order.
    pub nodes: Vec<Node>,
    /// Named results.
    pub results: Vec<(String, ValueId)>,
}

impl Function {
    /// The node that defines a value; `None` for a parameter.
    pub fn node(&self, v: ValueId) -> Option<&Node> {
        (v.0 as usize).checked_sub(self.params.len()).and_then(|i| self.nodes.get(i))
    }
    /// The parameter that a value is; `None` for a node.
    pub fn param(&self, v: ValueId) -> Option<&Param> {
        self.params.get(v.0 as usize)
    }
    /// The (first) type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        match self.node(v) {
            Some(n) => &n.types[0],
            None => &self.params[v.0 as usize].ty,
        }
    }
    /// The activations and states, in order.
    pub fn activations(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| p.kind == ParamKind::Tensor)
    }
    /// The weights, in order of first use.
    pub fn weights(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| p.kind == ParamKind::Const)
    }
    /// All values with their nodes, in order.
    pub fn values(&self) -> impl Iterator<Item = (ValueId, &Node)> {
        let first = self.params.len() as u32;
        self.nodes.iter().enumerate().map(move |(i, n)| (ValueId(first + i as u32), n))
    }
    /// The functions that it calls, as dotted paths in order (`moe.router.router`); none in a function that
    /// only computes.
    pub fn calls(&self) -> Vec<String> {
        let path = |node: &Node| match &node.op {
            Op::Call { path, function } => {
                Some([&path[..], std::slice::from_ref(function)].concat().join("."))
            }
            _ => None,
        };
        self.nodes.iter().filter_map(path).collect()
    }
    /// The open dimensions of the activations, by name.
    pub fn open_dims(&self) -> Vec<&DimVar> {
        let mut found: Vec<&DimVar> = Vec::new();
        for var in self.activations().flat_map(|p| &p.ty.shape).filter_map(|d| d.var.as_ref()) {
            if !found.contains(&var) {
                found.push(var);
            }
        }
        found
    }
    /// The value of a named result.
    pub fn result(&self, name: &str) -> Option<ValueId> {
        self.results.iter().find(|(n, _)| n == name).map(|r| r.1)
    }
    /// The output of the published module at `label`: the last value labelled with it or with a label
    /// below it.
    pub fn output_of(&self, label: &str) -> Option<ValueId> {
        self.values().filter(|(_, n)| is_within(&n.label, label)).last().map(|(v, _)| v)
    }
    /// Names the function by what it computes: BLAKE3 of its printed form, which states everything.
    pub fn digest(&self) -> blake3::Hash {
        blake3::Hasher::new_derive_key("mica hir function 1").update(self.to_string().as_bytes()).finalize()
    }
}

/// Whether `label` is `module` or stands below it.
pub fn is_within(label: &str, module: &str) -> bool {
    label
        .strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || module.is_empty() || rest.starts_with('.'))
}
