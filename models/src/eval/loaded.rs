//! A module with its weights bound: called with activations only.

use super::error::EvalError;
use super::run::{Options, evaluate};
use super::tensor::Tensor;
use super::weights::{Scoped, Weights};
use crate::hir::builder::join;
use crate::hir::{Module, Type, inline};
use std::collections::BTreeMap;

/// Weights that know their types, as `Module::load` asks for.
pub trait Resource: Weights {
    /// The type of a weight; `None` where there is none of that name. Reads no elements.
    fn ty(&self, name: &str) -> Option<Type>;
}

/// A module and the weights of its functions and children. Nothing is copied or changed by loading.
#[derive(Clone)]
pub struct Loaded<'a> {
    module: &'a Module,
    resource: &'a dyn Resource,
    scope: String,
}

impl Module {
    /// Binds the weights of the module and of its children by name, without reading their elements.
    ///
    /// # Errors
    /// A weight that is missing, or whose type at the resource is not the declared one.
    pub fn load<'a>(&'a self, resource: &'a dyn Resource) -> Result<Loaded<'a>, EvalError> {
        self.load_scoped(resource, "")
    }

    /// As `load`, the names having `scope` and a dot before them in the resource (`layers.3`).
    ///
    /// # Errors
    /// As `load`.
    pub fn load_scoped<'a>(
        &'a self,
        resource: &'a dyn Resource,
        scope: &str,
    ) -> Result<Loaded<'a>, EvalError> {
        check(self, resource, scope)?;
        Ok(Loaded { module: self, resource, scope: scope.to_string() })
    }

    /// Runs a function with all its parameters passed by name, weights included.
    ///
    /// # Errors
    /// As `evaluate`; an unknown function.
    pub fn call(
        &self,
        function: &str,
        activations: &BTreeMap<String, Tensor>,
        weights: &dyn Weights,
        options: Options<'_>,
    ) -> Result<BTreeMap<String, Tensor>, EvalError> {
        evaluate(&inline(self, function)?, activations, weights, options)
    }
}

fn check(module: &Module, resource: &dyn Resource, scope: &str) -> Result<(), EvalError> {
    for weight in module.weights()? {
        let name = join(scope, &weight.name);
        match resource.ty(&name) {
            None => return Err(EvalError::MissingWeight { name }),
            Some(found) if found == weight.ty => {}
            Some(found) => {
                return Err(EvalError::WeightType {
                    name,
                    found: found.to_string(),
                    expected: weight.ty.to_string(),
                });
            }
        }
    }
    module.children.iter().try_for_each(|c| check(&c.module, resource, &join(scope, &c.scope)))
}

impl<'a> Loaded<'a> {
    /// The module.
    pub fn module(&self) -> &'a Module {
        self.module
    }

    /// A child with its weights; they are in the child's scope.
    ///
    /// # Errors
    /// An unknown child.
    pub fn child(&self, name: &str) -> Result<Loaded<'a>, EvalError> {
        let child = self.module.child_entry(name)?;
        Ok(Loaded { module: &child.module, resource: self.resource, scope: join(&self.scope, &child.scope) })
    }

    /// Runs a function with activations only.
    ///
    /// # Errors
    /// As `evaluate`; an unknown function.
    pub fn call(
        &self,
        function: &str,
        activations: &BTreeMap<String, Tensor>,
        options: Options<'_>,
    ) -> Result<BTreeMap<String, Tensor>, EvalError> {
        let weights = Scoped { weights: self.resource, scope: self.scope.clone() };
        self.module.call(function, activations, &weights, options)
    }
}
