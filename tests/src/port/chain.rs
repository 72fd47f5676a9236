//! What a run of the model computed, whoever ran it.

use mica_models::stack::Part;
use mica_score::decode::Chain;
use mica_simulate::Counters;
use std::collections::BTreeMap;

/// Tables of all tokens, the token outermost.
#[derive(Clone, Debug, Default)]
pub struct Computed {
    /// `[T, H]`: the embedding rows.
    pub embed: Vec<f64>,
    /// `[T, H]` a layer: the residual after it.
    pub layers: Vec<Vec<f64>>,
    /// `[T, H]`: the post-norm hidden.
    pub normed: Vec<f64>,
    /// `[T, V]`: the logits.
    pub logits: Vec<f64>,
    /// `[T, k]` a layer: the experts taken.
    pub routing: Vec<Vec<i64>>,
    /// `[T, E]` a layer: the router's logits; the reference's alone.
    pub router: Vec<Vec<f64>>,
    /// What the device counted.
    pub counters: Counters,
    /// The bytes that the device left of last residual, post-norm hidden and logits.
    pub end: Vec<u8>,
}

impl Computed {
    /// As the score takes it.
    pub fn chain(&self) -> Chain<'_> {
        Chain {
            embed: &self.embed,
            layers: self.layers.iter().map(Vec::as_slice).collect(),
            normed: &self.normed,
            logits: &self.logits,
            routing: self.routing.iter().map(Vec::as_slice).collect(),
        }
    }

    /// Files a part's results under their places.
    pub(super) fn file(&mut self, part: Part, mut results: BTreeMap<String, Vec<f64>>) {
        let mut take = |name: &str| results.remove(name).unwrap_or_default();
        match part {
            Part::Embed => self.embed = take("hidden"),
            Part::Layer(_) => {
                self.layers.push(take("hidden"));
                self.routing.push(take("expert_ids").into_iter().map(|id| id as i64).collect());
                self.router.push(take("router_logits"));
            }
            Part::Head => {
                self.normed = take("normed");
                self.logits = take("logits");
            }
        }
    }
}
