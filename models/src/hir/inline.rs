//! Flattens a module's function: every call replaced by the called function's nodes, weight names and labels
//! scoped by the path of children.

use super::builder::{Builder, join};
use super::error::HirError;
use super::function::{Function, ParamKind, ValueId};
use super::module::Module;
use super::op::Op;

/// A call that was flattened: what it was given and what it gave stand among the results of `observed`.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSite {
    /// Child names from the module that was flattened to the called function's module.
    pub path: Vec<String>,
    /// The called function.
    pub function: String,
    /// Scope of its weights below the flattened module's.
    pub scope: String,
    /// The callee's activation and the result that holds it.
    pub inputs: Vec<(String, String)>,
    /// The callee's result and the result that holds it.
    pub results: Vec<(String, String)>,
}

/// The function `entry` of `module` without calls. A child's weights and labels get the child's scope and a
/// dot before them.
///
/// # Errors
/// A function or child that does not exist; operand types that do not fit.
pub fn inline(module: &Module, entry: &str) -> Result<Function, HirError> {
    flatten(module, entry, &mut None)
}

/// As `inline`, with every call's operands and results as results of their own, and the calls, a callee's own
/// calls before it.
///
/// # Errors
/// As `inline`.
pub fn observed(module: &Module, entry: &str) -> Result<(Function, Vec<CallSite>), HirError> {
    let mut sites = Some(Vec::new());
    let function = flatten(module, entry, &mut sites)?;
    Ok((function, sites.unwrap_or_default()))
}

fn flatten(module: &Module, entry: &str, sites: &mut Option<Vec<CallSite>>) -> Result<Function, HirError> {
    let function = module.lookup(entry)?;
    let mut b = Builder::new(entry);
    let args: Vec<ValueId> = function.activations().map(|p| b.param(p.name.clone(), p.ty.clone())).collect();
    let here = Place { module, path: Vec::new(), scope: String::new() };
    let results = body(&mut b, &here, function, &args, sites)?;
    for ((name, _), v) in function.results.iter().zip(results) {
        b.result(name.clone(), v);
    }
    b.finish()
}

/// A module within the one that is flattened.
struct Place<'m> {
    module: &'m Module,
    path: Vec<String>,
    scope: String,
}

/// What a value of the function being flattened became.
enum Mapped {
    One(ValueId),
    /// Results of a flattened call.
    Many(Vec<ValueId>),
}

fn body(
    b: &mut Builder,
    here: &Place,
    function: &Function,
    args: &[ValueId],
    sites: &mut Option<Vec<CallSite>>,
) -> Result<Vec<ValueId>, HirError> {
    let mut args = args.iter();
    let mut map: Vec<Mapped> = Vec::with_capacity(function.params.len() + function.nodes.len());
    for p in &function.params {
        let next = match p.kind {
            ParamKind::Tensor => args.next().copied(),
            ParamKind::Const => Some(b.weight(join(&here.scope, &p.name), p.ty.clone())),
        };
        // `Builder::call` and `Module::check` have checked the number of operands.
        map.push(Mapped::One(next.expect("as many operands as activations")));
    }
    for node in &function.nodes {
        let inputs: Vec<ValueId> = node.inputs.iter().map(|v| one(&map[v.0 as usize])).collect();
        let mapped = match (&node.op, node.inputs.first().map(|v| &map[v.0 as usize])) {
            (Op::Call { path, function }, _) => {
                let (module, inner) = here.module.descend(path)?;
                let path = [&here.path[..], path].concat();
                let place = Place { module, path, scope: join(&here.scope, &inner) };
                let callee = module.lookup(function)?;
                let mut results = body(b, &place, callee, &inputs, sites)?;
                if let Some(sites) = sites {
                    sites.push(observe(b, sites.len(), place, callee, &inputs, &results));
                }
                match results.len() {
                    1 => Mapped::One(results.remove(0)),
                    _ => Mapped::Many(results),
                }
            }
            (Op::TupleGet { index }, Some(Mapped::Many(results))) => Mapped::One(results[*index]),
            _ => {
                let label = join(&here.scope, &node.label);
                Mapped::One(b.label(&label, |b| b.op(node.op.clone(), &inputs))?)
            }
        };
        map.push(mapped);
    }
    Ok(function.results.iter().map(|(_, v)| one(&map[v.0 as usize])).collect())
}

/// Makes a call's operands and results results of the flattened function; `@` stands in no authored name.
fn observe(
    b: &mut Builder,
    number: usize,
    place: Place,
    callee: &Function,
    inputs: &[ValueId],
    results: &[ValueId],
) -> CallSite {
    let mut keep = |side: &str, name: &str, v: ValueId| {
        let held = format!("@{number}.{side}.{name}");
        b.result(held.clone(), v);
        (name.to_string(), held)
    };
    CallSite {
        inputs: callee.activations().zip(inputs).map(|(p, v)| keep("in", &p.name, *v)).collect(),
        results: callee.results.iter().zip(results).map(|((n, _), v)| keep("out", n, *v)).collect(),
        function: callee.name.clone(),
        scope: place.scope,
        path: place.path,
    }
}

fn one(mapped: &Mapped) -> ValueId {
    match mapped {
        Mapped::One(v) => *v,
        Mapped::Many(results) => results[0],
    }
}
