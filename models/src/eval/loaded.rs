//! Running a module: with all parameters passed, or loaded, its weights bound, with activations only.
//!
//! The five faces: `Module::call`, `Module::child`, `Module::lookup`, `Loaded::call`, `Loaded::child`. Loading
//! changes nothing and copies nothing; it reads the types of the weights of its module and of what is below,
//! and no other.

use super::error::EvalError;
use super::run::{Options, check_tensor, evaluate};
use super::tensor::{Data, Tensor};
use super::weights::{Scoped, Weights};
use crate::hir::builder::join;
use crate::hir::{Function, Module, Type, inline};
use std::borrow::Cow;
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

    /// Runs a function with all its parameters by name: activations and weights, those of the functions that
    /// it calls with their scope (`gate.weight`).
    ///
    /// # Errors
    /// An unknown function; a parameter that is missing, unknown, or of a wrong shape or element kind; as
    /// `evaluate`.
    pub fn call(
        &self,
        function: &str,
        parameters: &BTreeMap<String, Tensor>,
        options: Options<'_>,
    ) -> Result<BTreeMap<String, Tensor>, EvalError> {
        let flat = inline(self, function)?;
        let weights = Passed::new(self, &flat, parameters)?;
        let is_weight = |name: &String| flat.weights().any(|w| w.name == *name);
        let activations = parameters.iter().filter(|(name, _)| !is_weight(name));
        let activations = activations.map(|(name, t)| (name.clone(), t.clone())).collect();
        evaluate(&flat, &activations, &weights, options)
    }
}

/// Weights passed as parameters.
struct Passed<'a>(&'a BTreeMap<String, Tensor>);

impl<'a> Passed<'a> {
    fn new(
        module: &Module,
        flat: &Function,
        parameters: &'a BTreeMap<String, Tensor>,
    ) -> Result<Passed<'a>, EvalError> {
        for weight in flat.weights() {
            match parameters.get(&weight.name) {
                None => return Err(unbound(module, weight.name.clone(), &weight.ty)),
                Some(t) => check_tensor(&weight.ty, t)
                    .map_err(|found| wrong_type(weight.name.clone(), found, &weight.ty))?,
            }
        }
        Ok(Passed(parameters))
    }
}

impl Weights for Passed<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        match self.0.get(name).map(|t| &t.data) {
            Some(Data::F64(data)) => Ok(Cow::Borrowed(data)),
            _ => Err(EvalError::MissingWeight { name: name.to_string() }),
        }
    }
}

fn unbound(module: &Module, name: String, ty: &Type) -> EvalError {
    EvalError::UnboundWeight { module: module.name.clone(), name, expected: ty.to_string() }
}

fn wrong_type(name: String, found: String, ty: &Type) -> EvalError {
    EvalError::WeightType { name, found, expected: ty.to_string() }
}

fn check(module: &Module, resource: &dyn Resource, scope: &str) -> Result<(), EvalError> {
    for weight in module.weights()? {
        let name = join(scope, &weight.name);
        match resource.ty(&name) {
            None => return Err(unbound(module, name, &weight.ty)),
            Some(found) if found == weight.ty => {}
            Some(found) => return Err(wrong_type(name, found.to_string(), &weight.ty)),
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
        evaluate(&inline(self.module, function)?, activations, &self.weights(), options)
    }

    /// Runs the module's entry with activations only.
    ///
    /// # Errors
    /// As `call`; a module without an entry.
    pub fn forward(
        &self,
        activations: &BTreeMap<String, Tensor>,
        options: Options<'_>,
    ) -> Result<BTreeMap<String, Tensor>, EvalError> {
        self.call(&self.module.forward()?.name, activations, options)
    }

    /// The weights of the module and of what is below, named as in the module.
    pub fn weights(&self) -> Scoped<'a> {
        Scoped { weights: self.resource, scope: self.scope.clone() }
    }
}
