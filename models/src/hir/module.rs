//! Modules: functions and child modules under one name.
//!
//! - A **function** computes on its parameters: activations, passed at each call, and weights, which `load`
//!   binds by name. It owns nothing between calls; states go in and come out.
//! - A **call** is an operation that runs a function of a child, or one of this module that stands before
//!   the caller, on activations; the callee's weights are those of its own scope. So there is no recursion.
//! - The **entry** names the function that the module is run as, and `forward` is that function. A module
//!   without an entry (a whole decoder, whose steps are driven through its parts) has no `forward`.
//! - A function that makes calls is the module's **orchestration**; it is a function like any other, and
//!   flattening (`inline`) says what it means.
//! - A **twin** is another implementation of a module, as of the compiled layer on the simulator. It has
//!   exactly the module's functions and children (`crate::twin`).

use super::error::HirError;
use super::function::{Function, Param};
use super::op::Op;
use super::types::Type;
use serde::{Deserialize, Serialize};

/// A child module and the scope of its names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    /// Name by which the parent calls it (`mixer`).
    pub name: String,
    /// What stands before its weights' names and labels in the parent (`linear_attn`); may be empty.
    pub scope: String,
    /// The child.
    pub module: Module,
}

/// A module. Names of functions, children and weights are disjoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Name.
    pub name: String,
    /// The function that the module is called as, if it has one.
    pub entry: Option<String>,
    /// Functions.
    pub functions: Vec<Function>,
    /// Child modules.
    pub children: Vec<Child>,
}

impl Module {
    /// A module whose entry is the last of `functions`.
    ///
    /// # Errors
    /// Names that are not disjoint; one weight name with two types.
    pub fn new(
        name: impl Into<String>,
        functions: Vec<Function>,
        children: Vec<Child>,
    ) -> Result<Module, HirError> {
        let module = Module {
            name: name.into(),
            entry: functions.last().map(|f| f.name.clone()),
            functions,
            children,
        };
        module.check()?;
        Ok(module)
    }

    /// Checks what a module promises, as `new` does, for one made or changed field by field.
    ///
    /// # Errors
    /// Names that are not disjoint, an entry that is no function, one weight name with two types.
    pub fn check(&self) -> Result<(), HirError> {
        let weights = self.weights()?;
        let weights = weights.iter().map(|w| w.name.as_str());
        let names: Vec<&str> = self.function_names().chain(self.child_names()).chain(weights).collect();
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                return Err(HirError::DuplicateName {
                    function: self.name.clone(),
                    name: name.to_string(),
                    what: "function, child and weight",
                });
            }
        }
        if let Some(entry) = &self.entry {
            self.lookup(entry)?;
        }
        for i in 0..self.functions.len() {
            self.check_calls(i)?;
        }
        self.children.iter().try_for_each(|c| c.module.check())
    }

    /// Every call goes to a function that exists, of a child or before the caller, with its types.
    fn check_calls(&self, caller: usize) -> Result<(), HirError> {
        let function = &self.functions[caller];
        for node in &function.nodes {
            let Op::Call { path, function: name } = &node.op else { continue };
            let callee = match path.as_slice() {
                [] => match self.functions[..caller].iter().find(|f| f.name == *name) {
                    Some(callee) => callee,
                    None => {
                        let before = self.function_names().take(caller).collect();
                        return Err(self.no_such("function before its caller", name, before));
                    }
                },
                path => self.descend(path)?.0.lookup(name)?,
            };
            let given: Vec<Type> = node.inputs.iter().map(|v| function.ty(*v).clone()).collect();
            let taken: Vec<Type> = callee.activations().map(|p| p.ty.clone()).collect();
            let made: Vec<Type> = callee.results.iter().map(|(_, v)| callee.ty(*v).clone()).collect();
            if given != taken || node.types != made {
                let print = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
                return Err(HirError::Op {
                    function: function.name.clone(),
                    op: "call",
                    label: node.label.clone(),
                    operands: print(&given),
                    expected: format!("`{name}` on ({}) giving ({})", print(&taken), print(&made)),
                });
            }
        }
        Ok(())
    }

    fn function_names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|f| f.name.as_str())
    }

    fn child_names(&self) -> impl Iterator<Item = &str> {
        self.children.iter().map(|c| c.name.as_str())
    }

    /// The weights: the union over the functions, in order. Children's weights are not included.
    ///
    /// # Errors
    /// `HirError::WeightType` for one name with two types.
    pub fn weights(&self) -> Result<Vec<&Param>, HirError> {
        let mut found: Vec<&Param> = Vec::new();
        for weight in self.functions.iter().flat_map(Function::weights) {
            match found.iter().find(|w| w.name == weight.name) {
                None => found.push(weight),
                Some(first) if first.ty == weight.ty => {}
                Some(first) => {
                    return Err(HirError::WeightType {
                        function: self.name.clone(),
                        name: weight.name.clone(),
                        first: Box::new(first.ty.clone()),
                        second: Box::new(weight.ty.clone()),
                    });
                }
            }
        }
        Ok(found)
    }

    /// The IR of a function.
    ///
    /// # Errors
    /// `HirError::NoSuch` with the names that exist.
    pub fn lookup(&self, function: &str) -> Result<&Function, HirError> {
        self.functions
            .iter()
            .find(|f| f.name == function)
            .ok_or_else(|| self.no_such("function", function, self.function_names().collect()))
    }

    /// The IR of the entry: what running the module means.
    ///
    /// # Errors
    /// `HirError::NoEntry` with the functions that can be called by name.
    pub fn forward(&self) -> Result<&Function, HirError> {
        match &self.entry {
            Some(entry) => self.lookup(entry),
            None => Err(HirError::NoEntry {
                module: self.name.clone(),
                functions: listed(self.function_names().collect()),
            }),
        }
    }

    /// A child and its scope.
    ///
    /// # Errors
    /// `HirError::NoSuch` with the names that exist.
    pub fn child_entry(&self, name: &str) -> Result<&Child, HirError> {
        self.children
            .iter()
            .find(|c| c.name == name)
            .ok_or_else(|| self.no_such("child", name, self.child_names().collect()))
    }

    /// A child module.
    ///
    /// # Errors
    /// `HirError::NoSuch` with the names that exist.
    pub fn child(&self, name: &str) -> Result<&Module, HirError> {
        self.child_entry(name).map(|c| &c.module)
    }

    /// The module at a path of child names and the scope of its weights below this module's.
    ///
    /// # Errors
    /// `HirError::NoSuch` with the names that exist where the path leaves the tree.
    pub fn descend<S: AsRef<str>>(&self, path: &[S]) -> Result<(&Module, String), HirError> {
        let (mut module, mut scope) = (self, String::new());
        for name in path {
            let child = module.child_entry(name.as_ref())?;
            scope = super::builder::join(&scope, &child.scope);
            module = &child.module;
        }
        Ok((module, scope))
    }

    fn no_such(&self, what: &'static str, name: &str, known: Vec<&str>) -> HirError {
        HirError::NoSuch { module: self.name.clone(), what, name: name.to_string(), known: listed(known) }
    }
}

fn listed(names: Vec<&str>) -> String {
    match names.is_empty() {
        true => "none".to_string(),
        false => names.join(", "),
    }
}
