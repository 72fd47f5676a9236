//! What an operation and a function cost: arithmetic and memory traffic, without any device in mind.

use super::function::Function;
use super::ops;
use super::types::{Dim, Type};
use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::Add;

/// Values given to open dimensions, by name.
pub type Dims = BTreeMap<String, u64>;

/// Arithmetic operations, and bytes in the published dtypes. Each operation is taken alone: it reads its
/// operands and writes its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Additions, multiplications, comparisons and elementary functions, one each.
    pub flops: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, o: Cost) -> Cost {
        Cost { flops: self.flops + o.flops, read: self.read + o.read, written: self.written + o.written }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), Cost::add)
    }
}

impl Function {
    /// The cost of each node, in order. An open dimension without a value counts as its smallest.
    pub fn node_costs(&self, dims: &Dims) -> Vec<Cost> {
        self.nodes
            .iter()
            .map(|node| {
                let operands: Vec<Type> = node.inputs.iter().map(|v| pin(self.ty(*v), dims)).collect();
                let results: Vec<Type> = node.types.iter().map(|t| pin(t, dims)).collect();
                ops::cost(&node.op, &operands, &results)
            })
            .collect()
    }
    /// The cost of the whole function: the sum over its nodes.
    pub fn cost(&self, dims: &Dims) -> Cost {
        self.node_costs(dims).into_iter().sum()
    }
}

/// The type with those open dimensions closed that have a value.
fn pin(ty: &Type, dims: &Dims) -> Type {
    let value = |d: &Dim| match d.var.as_ref().and_then(|v| dims.get(&v.name)) {
        Some(n) => (n + d.plus).into(),
        None => d.clone(),
    };
    Type { dtype: ty.dtype, shape: ty.shape.iter().map(value).collect() }
}

/// Elements of a type; open dimensions count as their smallest.
pub(crate) fn elements(ty: &Type) -> u64 {
    ty.shape.iter().map(Dim::least).product()
}

/// Bytes of a type; open dimensions count as their smallest.
pub(crate) fn bytes(ty: &Type) -> u64 {
    elements(ty) * ty.dtype.bytes()
}
