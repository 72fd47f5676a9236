//! A described model for people: its modules as a tree, with signatures, weights marked, and runs of equal
//! siblings as one entry.

use crate::error::ModelError;
use crate::hir::builder::join;
use crate::hir::{Child, Function, Module, Param, ParamKind, inline};
use crate::stack::Stack;
use serde::Serialize;
use std::fmt;

/// Consecutive children that share a stem and are numbered without a gap (`layer4`, `layer5`, `layer6`), or one
/// child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Name of the first.
    pub first: String,
    /// Name of the last; the first's where it is one.
    pub last: String,
    /// How many.
    pub count: usize,
}

impl Run {
    /// `layer3`, or `layer4..layer6`.
    pub fn name(&self) -> String {
        match self.count {
            1 => self.first.clone(),
            _ => format!("{}..{}", self.first, self.last),
        }
    }
}

/// The children in runs of those that `equal` holds for.
pub(crate) fn runs(children: &[Child], equal: impl Fn(&Child, &Child) -> bool) -> Vec<Run> {
    let mut runs: Vec<(Run, usize)> = Vec::new();
    for (i, child) in children.iter().enumerate() {
        match runs.last_mut() {
            Some((run, start)) if follows(&run.last, &child.name) && equal(&children[*start], child) => {
                run.last.clone_from(&child.name);
                run.count += 1;
            }
            _ => {
                let name = child.name.clone();
                runs.push((Run { first: name.clone(), last: name, count: 1 }, i));
            }
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

/// Whether two names share a stem and the second's number is the next.
fn follows(a: &str, b: &str) -> bool {
    let split = |s: &str| {
        let stem = s.trim_end_matches(|c: char| c.is_ascii_digit());
        s[stem.len()..].parse::<u64>().ok().map(|n| (stem.to_string(), n))
    };
    match (split(a), split(b)) {
        (Some((s, n)), Some((t, m))) => s == t && m == n + 1,
        _ => false,
    }
}

/// A parameter or a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Name.
    pub name: String,
    /// Type as printed.
    #[serde(rename = "type")]
    pub ty: String,
}

/// A function's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// Name.
    pub name: String,
    /// Whether it is its module's entry.
    pub entry: bool,
    /// Open dimensions with their ranges.
    pub dims: Vec<String>,
    /// Activations and states, in order.
    pub activations: Vec<Named>,
    /// Its own weights, in order; those of the functions that it calls are theirs.
    pub weights: Vec<Named>,
    /// Results.
    pub results: Vec<Named>,
    /// The functions that it calls, in order.
    pub calls: Vec<String>,
    /// Operations when flattened.
    pub operations: usize,
}

/// A module, or a run of equal siblings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// Names and count.
    #[serde(flatten)]
    pub run: Run,
    /// The module's own name.
    pub module: String,
    /// Scope of its weights in its parent; of a run, the first's and the last's as a range.
    pub scope: String,
    /// The path of the same module before it; functions and children then stand there.
    pub same_as: Option<String>,
    /// Functions.
    pub functions: Vec<Signature>,
    /// Children.
    pub children: Vec<Tree>,
}

/// How much a model consists of, every layer counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Modules, the root included.
    pub modules: usize,
    /// Modules without children.
    pub leaf_modules: usize,
    /// Functions.
    pub functions: usize,
}

/// A described model as a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forest {
    /// The model's name.
    pub model: String,
    /// How much there is.
    pub counts: Counts,
    /// The root.
    pub root: Tree,
}

/// Counts of a stack, without describing it.
///
/// # Errors
/// As `Stack::module`.
pub fn counts(stack: &Stack) -> Result<Counts, ModelError> {
    Ok(count(&stack.module()?))
}

fn count(module: &Module) -> Counts {
    let own = Counts {
        modules: 1,
        leaf_modules: usize::from(module.children.is_empty()),
        functions: module.functions.len(),
    };
    module.children.iter().map(|c| count(&c.module)).fold(own, |a, b| Counts {
        modules: a.modules + b.modules,
        leaf_modules: a.leaf_modules + b.leaf_modules,
        functions: a.functions + b.functions,
    })
}

/// Describes a stack.
///
/// # Errors
/// A stack whose functions do not fit together.
pub fn forest(stack: &Stack) -> Result<Forest, ModelError> {
    let root = stack.module()?;
    let counts = count(&root);
    let run = Run { first: stack.name.clone(), last: stack.name.clone(), count: 1 };
    let root = tree(&root, run, String::new(), "", &mut Vec::new())?;
    Ok(Forest { model: stack.name.clone(), counts, root })
}

/// `seen` are the modules before this one with their paths.
fn tree<'m>(
    module: &'m Module,
    run: Run,
    scope: String,
    path: &str,
    seen: &mut Vec<(String, &'m Module)>,
) -> Result<Tree, ModelError> {
    let name = module.name.clone();
    if let Some((same, _)) = seen.iter().find(|(_, m)| *m == module) {
        let same_as = Some(same.clone());
        return Ok(Tree { run, module: name, scope, same_as, functions: Vec::new(), children: Vec::new() });
    }
    seen.push((path.to_string(), module));
    let functions = module.functions.iter().map(|f| signature(module, f)).collect::<Result<_, _>>()?;
    let mut children = Vec::new();
    for run in runs(&module.children, |a, b| a.module == b.module) {
        let (first, last) = (module.child_entry(&run.first)?, module.child_entry(&run.last)?);
        let scope = match run.count {
            1 => first.scope.clone(),
            _ => format!("{}..{}", first.scope, last.scope),
        };
        children.push(tree(&first.module, run, scope, &join(path, &first.name), seen)?);
    }
    Ok(Tree { run, module: name, scope, same_as: None, functions, children })
}

fn signature(module: &Module, f: &Function) -> Result<Signature, ModelError> {
    let of = |kind: ParamKind| {
        let named = |p: &Param| Named { name: p.name.clone(), ty: p.ty.to_string() };
        f.params.iter().filter(|p| p.kind == kind).map(named).collect()
    };
    let result = |(name, v): &(String, _)| Named { name: name.clone(), ty: f.ty(*v).to_string() };
    Ok(Signature {
        name: f.name.clone(),
        entry: module.entry.as_ref() == Some(&f.name),
        dims: f.open_dims().iter().map(|v| format!("{} in {}..{}", v.name, v.lo, v.hi)).collect(),
        activations: of(ParamKind::Tensor),
        weights: of(ParamKind::Const),
        results: f.results.iter().map(result).collect(),
        calls: f.calls(),
        operations: inline(module, &f.name)?.nodes.len(),
    })
}

impl fmt::Display for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        writeln!(
            f,
            "{}: {} modules ({} leaves), {} functions",
            self.model, c.modules, c.leaf_modules, c.functions
        )?;
        body(f, &self.root, 1)
    }
}

fn body(f: &mut fmt::Formatter<'_>, tree: &Tree, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    for s in &tree.functions {
        let list = |named: &[Named]| {
            named.iter().map(|n| format!("{}: {}", n.name, n.ty)).collect::<Vec<_>>().join(", ")
        };
        let entry = if s.entry { "entry " } else { "" };
        writeln!(f, "{pad}{entry}{}({}) -> {}", s.name, list(&s.activations), list(&s.results))?;
        for dim in &s.dims {
            writeln!(f, "{pad}    dim {dim}")?;
        }
        for w in &s.weights {
            writeln!(f, "{pad}    weight {}: {}", w.name, w.ty)?;
        }
        if !s.calls.is_empty() {
            writeln!(f, "{pad}    calls {}", s.calls.join(", "))?;
        }
    }
    for child in &tree.children {
        let times = if child.run.count > 1 { format!(" ×{}", child.run.count) } else { String::new() };
        let scope = if child.scope.is_empty() { String::new() } else { format!(" [{}]", child.scope) };
        match &child.same_as {
            Some(same) => writeln!(f, "{pad}{}{times}: as {same}{scope}", child.run.name())?,
            None => {
                writeln!(f, "{pad}{}{times}: {}{scope}", child.run.name(), child.module)?;
                body(f, child, depth + 1)?;
            }
        }
    }
    Ok(())
}
