//! Selectors: `MODEL:CHILD.CHILD.FUNCTION` names a function of a described stack, `MODEL:CHILD` a module's
//! entry.

use crate::error::ModelError;
use crate::hir::builder::join;
use crate::hir::{Function, Module, inline};
use crate::stack::{Part, Stack};
use std::fmt;

/// What a selector names.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The model.
    pub model: String,
    /// Child names from the model's root to the function's module (`layer3`, `mixer`); empty for the root.
    pub path: Vec<String>,
    /// The part of the stack that it is in: whose weights `crate::sources` describes.
    pub part: Part,
    /// The function's module.
    pub module: Module,
    /// Scope of the module's weights within the part (`self_attn`); empty for the part itself.
    pub scope: String,
    /// The function, flattened; its weights are named as in the module.
    pub function: Function,
}

impl Selection {
    /// The part's name (its role) of one of the function's weights.
    pub fn role(&self, weight: &str) -> String {
        join(&self.scope, weight)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = [&self.path[..], std::slice::from_ref(&self.function.name)].concat();
        write!(f, "{}:{}", self.model, path.join("."))
    }
}

/// What is wrong with a selector.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// Not of the form of a selector.
    #[error("`{selector}` is no selector, expected MODEL:PATH as in {model}:{example}")]
    Form {
        /// What was written.
        selector: String,
        /// A model's name.
        model: String,
        /// A path in it.
        example: String,
    },
    /// Another model's name.
    #[error("selector `{selector}` names model `{found}`, expected `{expected}`")]
    Model {
        /// What was written.
        selector: String,
        /// The model that it names.
        found: String,
        /// The model that is described.
        expected: String,
    },
    /// A name that a module does not have.
    #[error("`{module}` has no function or child `{name}`{nearest}, expected one of: {known}")]
    NoSuch {
        /// Path of the module.
        module: String,
        /// The name.
        name: String,
        /// `, did you mean …?` where a name is near.
        nearest: String,
        /// The names that it has; runs as ranges.
        known: String,
    },
    /// A path that goes on after a function.
    #[error("`{function}` is a function, expected the selector to end there, not at `{rest}`")]
    AfterFunction {
        /// Path of the function.
        function: String,
        /// What follows.
        rest: String,
    },
    /// A module without an entry.
    #[error("`{module}` has no entry, expected the name of a function or child after it: {known}")]
    NoEntry {
        /// Path of the module.
        module: String,
        /// The names that it has; runs as ranges.
        known: String,
    },
    /// The stack's functions do not fit together.
    #[error(transparent)]
    Stack(#[from] ModelError),
}

/// The model that a selector names, whether or not it is described.
pub fn model_of(selector: &str) -> &str {
    selector.split_once(':').map_or(selector, |(model, _)| model)
}

/// Resolves a selector in a stack.
///
/// # Errors
/// What is wrong with it, the nearest name, and the names that exist.
pub fn select(selector: &str, stack: &Stack) -> Result<Selection, SelectError> {
    let (model, path) = selector.split_once(':').unwrap_or((selector, ""));
    if model != stack.name {
        return Err(SelectError::Model {
            selector: selector.to_string(),
            found: model.to_string(),
            expected: stack.name.clone(),
        });
    }
    let names: Vec<&str> = if path.is_empty() { Vec::new() } else { path.split('.').collect() };
    if names.iter().any(|n| n.is_empty()) {
        let example = format!("{}.mixer", stack.parts().get(1).copied().unwrap_or(Part::Embed));
        let (selector, model) = (selector.to_string(), stack.name.clone());
        return Err(SelectError::Form { selector, model, example });
    }
    let root = stack.module()?;
    let mut module = &root;
    // Scopes of the children on the way; the first is the part's own, which is no part of a role.
    let mut scopes: Vec<&str> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        if let Ok(child) = module.child_entry(name) {
            scopes.push(&child.scope);
            module = &child.module;
            continue;
        }
        let here = at(&stack.name, &names[..i]);
        if module.lookup(name).is_err() {
            return Err(no_such(here, name, module));
        }
        if i + 1 < names.len() {
            let function = at(&stack.name, &names[..=i]);
            return Err(SelectError::AfterFunction { function, rest: names[i + 1..].join(".") });
        }
        return found(stack, &names[..i], module, &scopes, name);
    }
    match &module.entry {
        Some(entry) => found(stack, &names, module, &scopes, entry),
        None => {
            Err(SelectError::NoEntry { module: at(&stack.name, &names), known: names_of(module).join(", ") })
        }
    }
}

fn found(
    stack: &Stack,
    path: &[&str],
    module: &Module,
    scopes: &[&str],
    function: &str,
) -> Result<Selection, SelectError> {
    let part = stack.parts().into_iter().find(|p| {
        let name = p.to_string();
        name == path.first().copied().unwrap_or(function)
    });
    Ok(Selection {
        model: stack.name.clone(),
        path: path.iter().map(ToString::to_string).collect(),
        part: part.ok_or_else(|| no_such(stack.name.clone(), function, module))?,
        module: module.clone(),
        scope: scopes.iter().skip(1).fold(String::new(), |outer, s| join(&outer, s)),
        function: inline(module, function).map_err(ModelError::from)?,
    })
}

fn at(model: &str, path: &[&str]) -> String {
    match path {
        [] => model.to_string(),
        path => format!("{model}:{}", path.join(".")),
    }
}

fn no_such(module: String, name: &str, of: &Module) -> SelectError {
    let every = of.functions.iter().map(|f| &f.name).chain(of.children.iter().map(|c| &c.name));
    let nearest = every
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.chars().count() / 3)
        .min_by_key(|(distance, _)| *distance)
        .map_or(String::new(), |(_, known)| format!(", did you mean `{known}`?"));
    SelectError::NoSuch { module, name: name.to_string(), nearest, known: names_of(of).join(", ") }
}

/// Functions, then children, numbered runs of children as ranges (`layer0..layer39`).
fn names_of(module: &Module) -> Vec<String> {
    let mut names: Vec<String> = module.functions.iter().map(|f| f.name.clone()).collect();
    names.extend(crate::forest::runs(&module.children, |_, _| true).iter().map(|run| run.name()));
    names
}
