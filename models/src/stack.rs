//! A described model as the pipeline sees it: parts to compile and run in order, whatever the model.

use crate::error::ModelError;
use crate::hir::{Child, Function, Module};
use crate::naming::Naming;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A kind of layer: one function that many layers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerKind {
    /// Name, as the config's `layer_types` states it.
    pub name: String,
    /// The layer, flattened. Weight names are the published ones after `layers.N.`.
    pub function: Function,
    /// The module that was flattened, for its inner functions. Copies of a stack share it.
    pub module: Arc<Module>,
}

/// Figures that hold for the whole stack, from the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Length of the residual vector.
    pub hidden: u64,
    /// Rows of the embedding table and of the head.
    pub vocab: u64,
    /// Longest context, this step's position included.
    pub max_positions: u64,
    /// Routed experts of a layer; 0 in a dense model.
    pub experts: u64,
    /// Experts chosen for a token.
    pub experts_per_token: u64,
}

/// A decoder: embedding, layers of a few kinds, head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Name of the described model.
    pub name: String,
    /// `token` to `hidden`.
    pub embed: Function,
    /// The kinds of layers.
    pub kinds: Vec<LayerKind>,
    /// The kind of each layer, in order.
    pub layers: Vec<usize>,
    /// `hidden` to `normed` and `logits`.
    pub head: Function,
    /// Figures of the whole.
    pub facts: Facts,
    /// How a delivery names the weights.
    pub naming: Naming,
}

/// A part of a stack: what is packed and run as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// The embedding.
    Embed,
    /// A layer.
    Layer(usize),
    /// Final norm and head.
    Head,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Embed => f.write_str("embed"),
            Part::Layer(i) => write!(f, "layer{i}"),
            Part::Head => f.write_str("head"),
        }
    }
}

impl Stack {
    /// All parts in the order in which a token passes them.
    pub fn parts(&self) -> Vec<Part> {
        let layers = (0..self.layers.len()).map(Part::Layer);
        [Part::Embed].into_iter().chain(layers).chain([Part::Head]).collect()
    }

    /// The kind of a layer.
    ///
    /// # Errors
    /// `ModelError::NoLayer`.
    pub fn kind(&self, layer: usize) -> Result<&LayerKind, ModelError> {
        self.layers
            .get(layer)
            .map(|&k| &self.kinds[k])
            .ok_or(ModelError::NoLayer { layer, layers: self.layers.len() })
    }

    /// The function of a part.
    ///
    /// # Errors
    /// `ModelError::NoLayer`.
    pub fn function(&self, part: Part) -> Result<&Function, ModelError> {
        match part {
            Part::Embed => Ok(&self.embed),
            Part::Layer(i) => self.kind(i).map(|k| &k.function),
            Part::Head => Ok(&self.head),
        }
    }

    /// The same model with its first layers alone. The other layers' weights are knowingly not read.
    ///
    /// # Errors
    /// `ModelError::NoLayer` where there are not so many, or none is left.
    pub fn shortened(mut self, layers: usize) -> Result<Stack, ModelError> {
        let all = self.layers.len();
        if layers == 0 || layers > all {
            return Err(ModelError::NoLayer { layer: layers.wrapping_sub(1), layers: all });
        }
        for prefix in &self.naming.prefixes {
            let left_out = |n| format!("{prefix}{}{n}.", self.naming.layers);
            self.naming.ignored.extend((layers..all).map(left_out));
        }
        self.layers.truncate(layers);
        // a kind that no layer has is nothing to compile
        let used = |kind: usize| self.layers.contains(&kind);
        let kept: Vec<usize> = (0..self.kinds.len()).filter(|&kind| used(kind)).collect();
        self.layers = self.layers.iter().filter_map(|&k| kept.iter().position(|&kept| kept == k)).collect();
        let mut kind = 0;
        self.kinds.retain(|_| {
            kind += 1;
            kept.contains(&(kind - 1))
        });
        Ok(self)
    }

    /// The whole as one module: functions `embed` and `head`, children `layer0`, `layer1`, … each a module of
    /// its own in the scope `layers.N`.
    ///
    /// # Errors
    /// Names that are not disjoint.
    pub fn module(&self) -> Result<Module, ModelError> {
        let layer = |(i, &kind): (usize, &usize)| Child {
            name: format!("layer{i}"),
            scope: format!("layers.{i}"),
            module: Module::clone(&self.kinds[kind].module),
        };
        let children = self.layers.iter().enumerate().map(layer).collect();
        let functions = vec![self.embed.clone(), self.head.clone()];
        let mut module = Module::new(self.name.clone(), functions, children)?;
        // Neither function stands for the model: a step is driven through the parts.
        module.entry = None;
        Ok(module)
    }
}
