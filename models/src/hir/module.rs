//! Modules: functions and child modules under one name.

use super::error::HirError;
use super::function::{Function, Param};
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

/// A module. Names of functions and children are disjoint.
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
        let names: Vec<&str> =
            self.functions.iter().map(|f| f.name.as_str()).chain(self.child_names()).collect();
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                return Err(HirError::DuplicateName {
                    function: self.name.clone(),
                    name: name.to_string(),
                    what: "function and child",
                });
            }
        }
        if let Some(entry) = &self.entry {
            self.lookup(entry)?;
        }
        self.weights()?;
        self.children.iter().try_for_each(|c| c.module.check())
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
        self.functions.iter().find(|f| f.name == function).ok_or_else(|| {
            let known = self.functions.iter().map(|f| f.name.as_str());
            self.no_such("function", function, known.collect())
        })
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

    fn no_such(&self, what: &'static str, name: &str, known: Vec<&str>) -> HirError {
        HirError::NoSuch {
            module: self.name.clone(),
            what,
            name: name.to_string(),
            known: if known.is_empty() { "none".to_string() } else { known.join(", ") },
        }
    }
}
