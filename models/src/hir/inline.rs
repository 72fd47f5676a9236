//! Flattens a module's function: every call replaced by the called function's nodes, weight names and labels
//! scoped by the path of children.

use super::builder::{Builder, join};
use super::error::HirError;
use super::function::{Function, ParamKind, ValueId};
use super::module::Module;
use super::op::Op;

/// The function `entry` of `module` without calls. A child's weights and labels get the child's scope and a
/// dot before them.
///
/// # Errors
/// A function or child that does not exist; operand types that do not fit.
pub fn inline(module: &Module, entry: &str) -> Result<Function, HirError> {
    let function = module.lookup(entry)?;
    let mut b = Builder::new(entry);
    let args: Vec<ValueId> = function.activations().map(|p| b.param(p.name.clone(), p.ty.clone())).collect();
    let results = body(&mut b, module, function, "", &args)?;
    for ((name, _), v) in function.results.iter().zip(results) {
        b.result(name.clone(), v);
    }
    b.finish()
}

/// What a value of the function being flattened became.
enum Mapped {
    One(ValueId),
    /// Results of a flattened call.
    Many(Vec<ValueId>),
}

fn body(
    b: &mut Builder,
    module: &Module,
    function: &Function,
    scope: &str,
    args: &[ValueId],
) -> Result<Vec<ValueId>, HirError> {
    let mut args = args.iter();
    let mut map: Vec<Mapped> = Vec::with_capacity(function.params.len() + function.nodes.len());
    for p in &function.params {
        let next = match p.kind {
            ParamKind::Tensor => args.next().copied(),
            ParamKind::Const => Some(b.weight(join(scope, &p.name), p.ty.clone())),
        };
        // `Builder::call` has checked the number of operands.
        map.push(Mapped::One(next.expect("as many operands as activations")));
    }
    for node in &function.nodes {
        let inputs: Vec<ValueId> = node.inputs.iter().map(|v| one(&map[v.0 as usize])).collect();
        let mapped = match (&node.op, node.inputs.first().map(|v| &map[v.0 as usize])) {
            (Op::Call { path, function }, _) => {
                let (mut callee, mut inner) = (module, scope.to_string());
                for name in path {
                    let child = callee.child_entry(name)?;
                    inner = join(&inner, &child.scope);
                    callee = &child.module;
                }
                let mut results = body(b, callee, callee.lookup(function)?, &inner, &inputs)?;
                match results.len() {
                    1 => Mapped::One(results.remove(0)),
                    _ => Mapped::Many(results),
                }
            }
            (Op::TupleGet { index }, Some(Mapped::Many(results))) => Mapped::One(results[*index]),
            _ => {
                let label = join(scope, &node.label);
                Mapped::One(b.label(&label, |b| b.op(node.op.clone(), &inputs))?)
            }
        };
        map.push(mapped);
    }
    Ok(function.results.iter().map(|(_, v)| one(&map[v.0 as usize])).collect())
}

fn one(mapped: &Mapped) -> ValueId {
    match mapped {
        Mapped::One(v) => *v,
        Mapped::Many(results) => results[0],
    }
}
