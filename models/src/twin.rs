//! Twins: other implementations of a module, and where one parts from the reference.
//!
//! A twin of a module (the compiled layer object on the simulator) has exactly the module's functions and
//! children, all the way down, and computes them without the evaluator. It is called with activations only:
//! its weights are its own.

use crate::eval::{Called, EvalError, Labelled, Options, Tensor, Weights, calls, values};
use crate::hir::{Module, inline};
use std::collections::BTreeMap;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Another implementation of a module.
pub trait Twin {
    /// Names of its functions.
    fn functions(&self) -> Vec<String>;
    /// Names of its children.
    fn children(&self) -> Vec<String>;
    /// A child.
    fn child(&self, name: &str) -> Option<&dyn Twin>;
    /// Runs a function: results by name from activations by name. `crate::eval::check_inputs` is the rule that
    /// inputs are checked by.
    ///
    /// # Errors
    /// What the twin says of inputs that do not fit or of its own limits.
    fn call(&self, function: &str, inputs: &Tensors) -> Result<Tensors, TwinError>;
    /// The values that it can show of a run of a function, by label; `None` where it shows none.
    fn labelled(&self, _function: &str, _inputs: &Tensors) -> Option<Tensors> {
        None
    }
}

/// An error of a twin.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TwinError {
    /// A function that it lacks.
    #[error("the twin has no function `{function}`, expected one of: {known}")]
    NoFunction {
        /// The function asked for.
        function: String,
        /// Those that it has.
        known: String,
    },
    /// Inputs that do not fit.
    #[error(transparent)]
    Inputs(#[from] EvalError),
    /// Its own limits or faults.
    #[error("the twin could not run `{function}`: {reason}")]
    Run {
        /// The function.
        function: String,
        /// What it says.
        reason: String,
    },
}

/// A twin that is not one of its module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the twin of `{path}` {fault} {what} `{name}`, expected exactly: {expected}")]
pub struct TwinMismatch {
    /// The module, by child names below the root's name.
    pub path: String,
    /// `lacks` or `has an extra`.
    pub fault: &'static str,
    /// `function` or `child`.
    pub what: &'static str,
    /// The name.
    pub name: String,
    /// What the module has of that sort, comma-separated.
    pub expected: String,
}

/// Checks that a twin has exactly the module's functions and children, recursively.
///
/// # Errors
/// The first one that is missing or extra.
pub fn verify(module: &Module, twin: &dyn Twin) -> Result<(), TwinMismatch> {
    verify_at(module, twin, &module.name)
}

fn verify_at(module: &Module, twin: &dyn Twin, path: &str) -> Result<(), TwinMismatch> {
    let functions: Vec<&str> = module.functions.iter().map(|f| f.name.as_str()).collect();
    let children: Vec<&str> = module.children.iter().map(|c| c.name.as_str()).collect();
    exactly(path, "function", &functions, &twin.functions())?;
    exactly(path, "child", &children, &twin.children())?;
    for child in &module.children {
        let Some(inner) = twin.child(&child.name) else {
            return Err(mismatch(path, "lacks", "child", &child.name, &children));
        };
        verify_at(&child.module, inner, &format!("{path}.{}", child.name))?;
    }
    Ok(())
}

fn exactly(path: &str, what: &'static str, expected: &[&str], found: &[String]) -> Result<(), TwinMismatch> {
    if let Some(name) = expected.iter().find(|e| !found.iter().any(|f| f == *e)) {
        return Err(mismatch(path, "lacks", what, name, expected));
    }
    match found.iter().find(|f| !expected.contains(&f.as_str())) {
        Some(name) => Err(mismatch(path, "has an extra", what, name, expected)),
        None => Ok(()),
    }
}

fn mismatch(
    path: &str,
    fault: &'static str,
    what: &'static str,
    name: &str,
    expected: &[&str],
) -> TwinMismatch {
    let expected = match expected {
        [] => "none".to_string(),
        names => names.join(", "),
    };
    TwinMismatch { path: path.to_string(), fault, what, name: name.to_string(), expected }
}

/// Where a twin parts from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Child names to the module of the function.
    pub path: Vec<String>,
    /// The innermost function whose results differ on inputs that are the reference's.
    pub function: String,
    /// Its first result that differs, or that the twin does not give.
    pub result: String,
    /// The first operation in it whose value differs, by label and name, where the twin shows values.
    pub op: Option<(String, &'static str)>,
}

/// Whether a twin's value is as good as the reference's.
pub type Agree<'a> = &'a dyn Fn(&Tensor, &Tensor) -> bool;

/// The first function, in order of execution and innermost first, whose results differ from the reference's
/// although its inputs are the reference's; `None` where all agree. `weights` are the module's.
///
/// # Errors
/// Of the evaluator, or of the twin.
pub fn first_divergence(
    module: &Module,
    function: &str,
    inputs: &Tensors,
    weights: &dyn Weights,
    twin: &dyn Twin,
    agree: Agree,
) -> Result<Option<Divergence>, TwinError> {
    let (results, mut order) = calls(module, function, inputs, weights, Options::default())?;
    order.push(Called {
        path: Vec::new(),
        function: function.to_string(),
        scope: String::new(),
        inputs: inputs.clone(),
        results,
    });
    for called in &order {
        let twin = called.path.iter().try_fold(twin, |t, name| t.child(name));
        let Some(twin) = twin else { continue };
        let got = twin.call(&called.function, &called.inputs)?;
        let differs = |(name, want): &(&String, &Tensor)| got.get(*name).is_none_or(|t| !agree(want, t));
        if let Some((result, _)) = called.results.iter().find(differs) {
            let op = first_op(module, called, weights, twin, agree)?;
            let (path, function) = (called.path.clone(), called.function.clone());
            return Ok(Some(Divergence { path, function, result: result.clone(), op }));
        }
    }
    Ok(None)
}

/// The first operation of a call whose value the twin shows otherwise. Where several share a label, the twin's
/// value is that of the last.
fn first_op(
    module: &Module,
    called: &Called,
    weights: &dyn Weights,
    twin: &dyn Twin,
    agree: Agree,
) -> Result<Option<(String, &'static str)>, TwinError> {
    let Some(shown) = twin.labelled(&called.function, &called.inputs) else { return Ok(None) };
    let (inner, _) = module.descend(&called.path).map_err(EvalError::from)?;
    let flat = inline(inner, &called.function).map_err(EvalError::from)?;
    let scoped = crate::eval::Scoped { weights, scope: called.scope.clone() };
    let (_, seen) = values(&flat, &called.inputs, &scoped, Options::default())?;
    let last = |i: usize, v: &Labelled| !seen[i + 1..].iter().any(|later| later.label == v.label);
    Ok(seen
        .iter()
        .enumerate()
        .filter(|(i, v)| last(*i, v))
        .find(|(_, v)| shown.get(&v.label).is_some_and(|t| !agree(&v.value, t)))
        .map(|(_, v)| (v.label.clone(), v.op)))
}
