//! The described model as it is run: whole, shortened, or restricted to what is validated; its functions, and
//! which of a delivery's tensors play which role in it. All models that run the same of one configuration share
//! the description and its functions; those that run the same of one delivery share the roles.

use super::input::ConfigInput;
use super::source::{part_of, refused};
use super::{Db, DeliveryInput, ModelInput, Result};
use crate::validations::Excerpt;
use mica_cache::{Digest, encode};
use mica_fetch::TensorIndex;
use mica_models::hir::{Function, Op};
use mica_models::{Part, Stack};
use mica_pack::{Names, Resolved, Scheme, TensorInfo};
use std::sync::Arc;

/// What is run of a description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct View {
    description: String,
    layers: Option<usize>,
    excerpt: Option<Excerpt>,
}

impl View {
    fn of(db: &dyn Db, model: ModelInput) -> View {
        View {
            description: model.description(db).clone(),
            layers: model.layers(db),
            excerpt: model.trial(db).as_ref().map(|t| t.excerpt()),
        }
    }
}

/// A value, or why there is none, in words that name no model.
type Shared<T> = std::result::Result<T, String>;

/// The described model at the dimensions of a configuration.
#[salsa::tracked(returns(clone))]
fn described(db: &dyn Db, config: ConfigInput, description: String) -> Shared<Arc<Stack>> {
    let stack = mica_models::describe(&description, config.text(db));
    stack.map(Arc::new).map_err(|e| e.to_string())
}

#[salsa::tracked(returns(clone))]
fn viewed(db: &dyn Db, config: ConfigInput, view: View) -> Shared<Arc<Stack>> {
    let mut stack = described(db, config, view.description)?;
    if let Some(n) = view.layers {
        let why = |_| format!("{n} layers are asked for, and the model has {}", stack.layers.len());
        stack = Arc::new(Stack::clone(&stack).shortened(n).map_err(why)?);
    }
    match view.excerpt {
        None => Ok(stack),
        Some(e) => e.of(Stack::clone(&stack)).map(Arc::new).map_err(|e| e.to_string()),
    }
}

/// The model's stack.
#[salsa::tracked(returns(clone))]
pub fn stack(db: &dyn Db, model: ModelInput) -> Result<Arc<Stack>> {
    viewed(db, model.delivery(db).config(db), View::of(db, model))
        .map_err(|e| refused(db, model, "config", e))
}

/// Makes casts of a function's roundings, which neither device nor reference rounds at.
pub fn unrounded(f: &mut Function) {
    for node in &mut f.nodes {
        if let Op::Round { dtype } = node.op {
            node.op = Op::Cast { dtype };
        }
    }
}

#[salsa::tracked(returns(clone))]
fn flattened(
    db: &dyn Db,
    config: ConfigInput,
    view: View,
    part: Part,
    stored_rounding: bool,
) -> Shared<(Arc<Function>, Digest)> {
    let stack = viewed(db, config, view)?;
    let mut f = stack.function(part).map_err(|e| e.to_string())?.clone();
    if !stored_rounding {
        unrounded(&mut f);
    }
    let digest = blake3::hash(&encode("function", &f));
    Ok((Arc::new(f), digest))
}

/// The flattened function of a part, and its digest. Where values are not rounded as a bfloat16 run of the
/// published model stores them, its roundings are casts.
pub fn function(db: &dyn Db, model: ModelInput, part: usize) -> Result<(Arc<Function>, Digest)> {
    let rounding = model.run(db).stored_rounding;
    let stack = stack(db, model)?;
    // layers of one kind share the first one's
    let first = match part_of(&stack, part) {
        Part::Layer(i) => {
            let same = |kind: &usize| *kind == stack.layers[i];
            Part::Layer(stack.layers.iter().position(same).unwrap_or(i))
        }
        part => part,
    };
    flattened(db, model.delivery(db).config(db), View::of(db, model), first, rounding)
        .map_err(|e| refused(db, model, "config", e))
}

/// A delivery's tensors as pack sees them.
pub struct Delivered<'a> {
    index: &'a TensorIndex,
    scheme: Option<&'a Scheme>,
}

impl<'a> Delivered<'a> {
    /// Those of a delivery.
    pub fn of(db: &'a dyn Db, delivery: DeliveryInput) -> Delivered<'a> {
        Delivered { index: delivery.index(db), scheme: delivery.scheme(db).as_deref() }
    }
}

impl Names for Delivered<'_> {
    fn find(&self, name: &str) -> Option<TensorInfo> {
        let e = self.index.find(name)?;
        Some(TensorInfo { dtype: e.dtype, shape: e.shape.clone() })
    }
    fn has(&self, name: &str) -> bool {
        self.index.find(name).is_some()
    }
    fn all(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.index.tensors.keys().map(String::as_str))
    }
    fn scheme(&self) -> Option<&Scheme> {
        self.scheme
    }
}

#[salsa::tracked(returns(clone))]
fn found(db: &dyn Db, delivery: DeliveryInput, view: View, part: usize) -> Shared<Arc<Resolved>> {
    let stack = viewed(db, delivery.config(db), view)?;
    let found = mica_pack::resolve(&Delivered::of(db, delivery), &stack, part_of(&stack, part));
    found.map(Arc::new).map_err(|e| e.to_string())
}

/// Which tensors play which role in a part.
pub fn resolved(db: &dyn Db, model: ModelInput, part: usize) -> Result<Arc<Resolved>> {
    found(db, model.delivery(db), View::of(db, model), part).map_err(|e| {
        let name = stack(db, model).map_or_else(|_| part.to_string(), |s| part_of(&s, part).to_string());
        refused(db, model, &name, e)
    })
}
