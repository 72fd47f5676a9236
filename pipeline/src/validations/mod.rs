//! What each of the walkthrough's validations runs: which function, on which weights and inputs, beside
//! which published values.
//!
//! It knows names, functions and shapes. How a result is looked up or made stands in `queries`; how it is
//! judged, in the score stage.

mod catalog;
mod inputs;
mod open;
mod subject;
#[cfg(test)]
mod tests;
mod vectors;

pub use catalog::{Case, OF_MODELS, OF_VECTORS};
pub use inputs::{Hidden, Seeded};
pub use open::{Opened, of_model};
use subject::restrict;
pub use subject::{Span, Subject};
pub use vectors::{Descriptions, HIDDEN, Vector};

use crate::graph::{Facts, TrialFacts};
use mica_models::Stack;
use mica_models::hir::HirError;
use mica_score::validation::{Bounds, Kind};
use std::sync::Arc;

/// One validation of one model or op vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// How it is judged.
    pub kind: Kind,
    /// Which function is run.
    pub subject: Subject,
    /// The layer that it is of; the first of several.
    pub layer: usize,
    /// What its nodes are.
    pub facts: Arc<Facts>,
    /// What goes in.
    pub hidden: Hidden,
    /// Steps.
    pub steps: usize,
    /// Whether more steps were captured: what was captured after the last is then not of this run.
    pub cut: bool,
    /// What stands behind the name in the printed line.
    pub setting: String,
    /// Bounds of its gates.
    pub bounds: Bounds,
    /// One thing that is wrong in the model, to show that a gate sees it.
    #[cfg(test)]
    pub broken: Option<mica_models::testing::Broken>,
}

impl Trial {
    /// What it runs of the model.
    pub fn excerpt(&self) -> Excerpt {
        Excerpt {
            subject: self.subject,
            layer: self.layer,
            #[cfg(test)]
            broken: self.broken,
        }
    }
}

/// What is run of a model. Validations of one delivery that run the same share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Excerpt {
    subject: Subject,
    layer: usize,
    #[cfg(test)]
    broken: Option<mica_models::testing::Broken>,
}

impl Excerpt {
    /// The stack with the function in place that is run.
    ///
    /// # Errors
    /// A stack without such a module.
    pub fn of(self, stack: Stack) -> Result<Stack, HirError> {
        #[cfg(test)]
        let stack = match self.broken {
            Some(what) => mica_models::testing::broken(&stack, what)?,
            None => stack,
        };
        restrict(stack, self.subject, self.layer)
    }
}

/// The nodes of a case on a stack of `layers` layers, whose mixers' words are `mixers`; a call takes `per_call` tokens.
pub fn facts(name: String, case: &Case, layer: usize, mixers: &[String], per_call: u64) -> Facts {
    let head = mixers.len() + 1;
    let mut parts = vec!["embed".to_string()];
    parts.extend((0..mixers.len()).map(|i| format!("layer{i}")));
    parts.push("head".into());
    // a kind is named by what its parts have in common; layers that the case leaves out are of a kind of
    // their own, so that no part of it stands for theirs
    let mut kinds = vec!["embed".to_string()];
    let mut kind_of = vec![0];
    for (i, mixer) in mixers.iter().enumerate() {
        let kind = match case.subject {
            Subject::Layers(_) => mixer.as_str(),
            _ if i == layer => case.subject.word(),
            _ => "elsewhere",
        };
        let known = kinds.iter().position(|k| k == kind);
        kind_of.push(known.unwrap_or(kinds.len()));
        if known.is_none() {
            kinds.push(kind.into());
        }
    }
    kind_of.push(kinds.len());
    kinds.push("head".into());
    let parts_run = match case.subject {
        Subject::Embed => vec![0],
        Subject::Head => vec![head],
        Subject::Layers(span) => span.layers(mixers).map(|i| i + 1).collect(),
        _ => vec![layer + 1],
    };
    let runs = match case.kind {
        Kind::Reference => 0,
        // all steps in one run, then the steps one by one
        Kind::Resume => 3,
        _ => 1,
    };
    Facts {
        model: name,
        parts,
        kind_of,
        kinds,
        blocks: 0,
        per_call,
        captured_routing: false,
        text_of: None,
        trial: Some(TrialFacts { parts: parts_run, runs }),
    }
}

/// Whether a layer's mixer is full attention: its function has a cache.
pub fn is_full(stack: &Stack, layer: usize) -> bool {
    let kind = stack.layers.get(layer).map(|&k| &stack.kinds[k]);
    kind.is_some_and(|k| k.function.activations().any(|p| p.name.ends_with("_cache")))
}
