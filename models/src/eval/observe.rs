//! What happens inside a run: the value of every operation, and what every call was given and gave. It is what
//! says where two implementations part first.

use super::error::EvalError;
use super::run::{Options, evaluate};
use super::tensor::Tensor;
use super::weights::Weights;
use crate::hir::{Function, Module, Node, observed};
use std::collections::BTreeMap;

/// The value of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// Where it stands (`self_attn.q_proj`); several operations may share a label.
    pub label: String,
    /// The operation's name.
    pub op: &'static str,
    /// Its value.
    pub value: Tensor,
}

/// One call of a function of the module or of what is below.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// Child names from the module to the called function's module.
    pub path: Vec<String>,
    /// The called function.
    pub function: String,
    /// Scope of its weights below the module's.
    pub scope: String,
    /// Its activations by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// Its results by name.
    pub results: BTreeMap<String, Tensor>,
}

/// Results by name.
pub type Results = BTreeMap<String, Tensor>;

/// Runs a flattened function and keeps the value of every operation that has a tensor value, in order.
///
/// # Errors
/// As `evaluate`.
pub fn values(
    function: &Function,
    inputs: &BTreeMap<String, Tensor>,
    weights: &dyn Weights,
    options: Options<'_>,
) -> Result<(Results, Vec<Labelled>), EvalError> {
    let mut seen = Vec::new();
    let mut trace = |node: &Node, value: &Tensor| {
        seen.push(Labelled { label: node.label.clone(), op: node.op.name(), value: value.clone() })
    };
    let results = evaluate(function, inputs, weights, Options { trace: Some(&mut trace), ..options })?;
    Ok((results, seen))
}

/// Runs a module's function and keeps what each call in it was given and gave, a callee's own calls before it.
///
/// # Errors
/// As `evaluate`; an unknown function.
pub fn calls(
    module: &Module,
    function: &str,
    inputs: &BTreeMap<String, Tensor>,
    weights: &dyn Weights,
    options: Options<'_>,
) -> Result<(Results, Vec<Called>), EvalError> {
    let (flat, sites) = observed(module, function)?;
    let mut all = evaluate(&flat, inputs, weights, options)?;
    let mut take = |names: Vec<(String, String)>| {
        names.into_iter().filter_map(|(name, held)| Some((name, all.remove(&held)?))).collect()
    };
    let called = sites
        .into_iter()
        .map(|site| Called {
            path: site.path,
            function: site.function,
            scope: site.scope,
            inputs: take(site.inputs),
            results: take(site.results),
        })
        .collect();
    Ok((all, called))
}
