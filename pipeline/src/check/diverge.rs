//! Where the checked side first parts from its reference: the innermost function, and the operation in it by
//! its label.

use super::inputs::{Tensors, capture_prefix, labelled, row};
use super::published::Captures;
use super::run::Check;
use mica_models::eval::{Options, Tensor, values};
use mica_models::hir::function::is_within;
use mica_models::twin::{Twin, first_divergence};
use serde::Serialize;

/// Where the sides part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diverged {
    /// The first step at which they do.
    pub step: usize,
    /// The innermost function that differs on equal inputs, by path, where it is known.
    pub function: Option<String>,
    /// Its first result that differs.
    pub result: Option<String>,
    /// The label of the first operation that differs.
    pub label: Option<String>,
    /// That operation.
    pub op: Option<String>,
    /// Why more is not known.
    pub note: Option<String>,
}

/// Looks for the first difference in a step that failed, on the checked side's inputs of that step.
pub fn find(check: &Check<'_>, step: usize, inputs: &Tensors) -> Diverged {
    let found = match check.twin {
        Some(_) => between_sides(check, inputs),
        None => beside_captures(check, step, inputs),
    };
    Diverged { step, ..found }
}

/// Values that cannot be compared say nothing about where the sides part.
fn agree(check: &Check<'_>, want: &Tensor, got: &Tensor) -> bool {
    want.shape != got.shape || check.predicates.agree(want, got, check.inner_dtype())
}

fn between_sides(check: &Check<'_>, inputs: &Tensors) -> Diverged {
    let (Some(twin), selection) = (check.twin, check.selection) else { return Diverged::default() };
    let function = &selection.function;
    let agree = |want: &Tensor, got: &Tensor| agree(check, want, got);
    // experts are forced for a call of the whole function only
    *twin.forced().lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    let by_function =
        first_divergence(&selection.module, &function.name, inputs, check.weights, twin, &agree);
    let note = match by_function {
        Ok(Some(d)) => {
            let path = [&d.path[..], std::slice::from_ref(&d.function)].concat().join(".");
            let (label, op) = d.op.map_or((None, None), |(l, o)| (Some(l), Some(o.to_string())));
            return Diverged {
                function: Some(path),
                result: Some(d.result),
                label,
                op,
                ..Diverged::default()
            };
        }
        Ok(None) => "on the reference's inputs every function agrees".to_string(),
        Err(e) => format!("the twin was not asked function by function: {e}"),
    };
    let shown = twin.labelled(&function.name, inputs).unwrap_or_default();
    let seen = values(function, inputs, check.weights, Options::default()).map(|(_, seen)| seen);
    let seen = seen.unwrap_or_default();
    let last = |i: usize| !seen[i + 1..].iter().any(|later| later.label == seen[i].label);
    let first = (0..seen.len())
        .filter(|&i| last(i))
        .find(|&i| shown.get(&seen[i].label).is_some_and(|t| !agree(&seen[i].value, t)));
    Diverged {
        function: Some(function.name.clone()),
        label: first.map(|i| seen[i].label.clone()),
        op: first.map(|i| seen[i].op.to_string()),
        note: Some(note),
        ..Diverged::default()
    }
}

/// The first label whose captured output differs, in the files that the expected outputs come from.
fn beside_captures(check: &Check<'_>, step: usize, inputs: &Tensors) -> Diverged {
    let function = &check.selection.function;
    let none = |note: &str| Diverged { note: Some(note.into()), ..Diverged::default() };
    // inner values are captured under the name of the output that the function is published as
    let outputs = check.expected.iter().filter(|e| function.result(&e.name).is_some());
    let mut places = outputs.filter_map(|e| Some((&e.place.0, capture_prefix(&e.place.1)?)));
    let Some((file, prefix)) = places.next() else {
        return none("the reference says nothing of what lies within");
    };
    let Ok(captures) = Captures::open(file) else {
        return none("the reference's file could not be read again");
    };
    let Ok((_, seen)) = values(function, inputs, check.weights, Options::default()) else {
        return none("the step could not be run again");
    };
    let mut labels: Vec<&str> = Vec::new();
    for v in &seen {
        // a module's output comes after those within it
        let mut ends: Vec<&str> = vec![&v.label];
        ends.extend(v.label.match_indices('.').map(|(i, _)| &v.label[..i]).rev());
        for label in ends {
            labels.retain(|l| *l != label);
            labels.push(label);
        }
    }
    let mut compared = 0;
    for label in labels {
        let Some(want) = labelled(&captures, prefix, label) else { continue };
        let want = if want.shape.first().is_some_and(|&n| n > step) { row(&want, step) } else { want };
        let mut within = seen.iter().rev().filter(|v| is_within(&v.label, label));
        let Some(v) = within.next() else { continue };
        compared += 1;
        if !agree(check, &want, &v.value) {
            // what only stores or lays out a value is not what made it
            let made = |v: &&mica_models::eval::Labelled| !matches!(v.op, "cast" | "reshape" | "round");
            let op = Some(v).into_iter().chain(within).find(made).unwrap_or(v).op.to_string();
            let (label, op) = (Some(label.to_string()), Some(op));
            return Diverged { function: Some(function.name.clone()), label, op, ..Diverged::default() };
        }
    }
    none(&format!("{compared} inner values are captured beside it, and all agree"))
}
