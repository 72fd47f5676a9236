//! What a decode run is scored from: slices, and what is known of them.

use super::Place;
use crate::metrics::Equality;
use crate::{NonFiniteWeights, ScoreError};
use serde::{Deserialize, Serialize};

/// What one run of the model computed, each table flattened, the token outermost.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    /// `[T, H]`: the embedding rows.
    pub embed: &'a [f64],
    /// `[T, H]` a layer: the residual after it.
    pub layers: Vec<&'a [f64]>,
    /// `[T, H]`: the post-norm hidden.
    pub normed: &'a [f64],
    /// `[T, V]`: the logits.
    pub logits: &'a [f64],
    /// `[T, k]` a layer: the experts taken, best first.
    pub routing: Vec<&'a [i64]>,
}

/// What was captured of a run; any part may be absent. Shapes as in [`Chain`].
#[derive(Clone, Debug, Default)]
pub struct CaptureChain<'a> {
    /// `[T, H]`: the embedding rows.
    pub embed: Option<&'a [f64]>,
    /// `[T, H]` a layer. Empty, or an entry a layer of the run.
    pub layers: Vec<Option<&'a [f64]>>,
    /// `[T, H]`: the post-norm hidden.
    pub normed: Option<&'a [f64]>,
    /// `[T, V]`: the logits.
    pub logits: Option<&'a [f64]>,
    /// `[T, k]` a layer. Empty, or an entry a layer of the run.
    pub routing: Vec<Option<&'a [i64]>>,
}

/// Who made the captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The published implementation.
    Published,
    /// Our own evaluator: satisfies no gate that asks for the published implementation.
    #[serde(rename = "self")]
    SelfMade,
}

/// What the captured run computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precision {
    /// Float64.
    F64,
    /// Float32.
    F32,
    /// Bfloat16.
    BF16,
}

/// What is known of the captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureLabel {
    /// Who made them.
    pub source: Source,
    /// What the run computed in.
    pub precision: Precision,
    /// Whether it ran on the weights that the device runs on; false for captures of the unquantized model.
    pub same_weights: bool,
}

impl CaptureLabel {
    /// Whether the captures can be held to the tight bounds: of the same weights, in float32 or better.
    #[must_use]
    pub fn is_tight(self) -> bool {
        self.same_weights && self.precision != Precision::BF16
    }
}

/// Whether the run has all layers of the captured model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stack {
    /// All of them.
    Whole,
    /// Only the first ones. The captured post-norm hidden and logits are then of another model and are not
    /// compared; the capture is asked for only where the stack ends on a captured layer.
    Shorter,
}

/// What the device counted in both runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fixed-point values that were clamped.
    pub saturations: u64,
    /// Float16 results beyond its range.
    pub f16_overflows: u64,
    /// NaNs and infinities that were written.
    pub non_finite: u64,
}

/// One layer's MoE output in the reference, to say what the shared expert adds.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'a> {
    /// Routed experts and gated shared expert.
    pub whole: &'a [f64],
    /// Routed experts alone.
    pub routed: &'a [f64],
}

/// A decode run and what it is compared with.
#[derive(Clone, Debug)]
pub struct DecodeInputs<'a> {
    /// T: teacher-forced tokens.
    pub tokens: usize,
    /// H: width of the residual stream.
    pub hidden: usize,
    /// V: rows of the vocabulary table.
    pub vocab: usize,
    /// `[T]`: the prompt.
    pub input_ids: &'a [i64],
    /// At most `[T]`: the id that follows each position, for as many positions as it is known.
    pub next_ids: &'a [i64],
    /// Whether the run has all layers of the captured model.
    pub stack: Stack,
    /// The device, choosing experts itself.
    pub free: Chain<'a>,
    /// The device, with the reference's experts.
    pub forced: Chain<'a>,
    /// The float64 evaluator on the device's weights, dequantized, choosing experts itself.
    pub reference: Chain<'a>,
    /// `[T, E]` a layer: the reference's router logits.
    pub reference_router: Vec<&'a [f64]>,
    /// The reference's MoE branches; empty where they were not kept.
    pub branches: Vec<Branch<'a>>,
    /// Whose captures the run is asked for. Our own are compared with wherever there are any; the published
    /// implementation's are asked for unless this says [`Source::SelfMade`].
    pub oracle: Source,
    /// The captures.
    pub capture: Option<CaptureChain<'a>>,
    /// What they are, or would be if the delivery had them: it decides which gates there are.
    pub capture_label: CaptureLabel,
    /// What the device counted.
    pub counters: Counters,
    /// Weights that are not finite; none where they are refused.
    pub non_finite_weights: NonFiniteWeights,
    /// The linked kernel's bits against the segments'; `None` if the kernel was not run.
    pub whole_kernel: Option<Equality>,
}

impl<'a> Chain<'a> {
    /// The table at a place of the stack.
    pub(super) fn at(&self, place: Place) -> &'a [f64] {
        match place {
            Place::Embed => self.embed,
            Place::Layer(layer) => self.layers[layer],
            Place::FinalNorm => self.normed,
            Place::Logits => self.logits,
        }
    }
}

impl<'a> CaptureChain<'a> {
    /// The table at a place, if it was captured.
    pub(super) fn at(&self, place: Place) -> Option<&'a [f64]> {
        match place {
            Place::Embed => self.embed,
            Place::Layer(layer) => self.layers.get(layer).copied().flatten(),
            Place::FinalNorm => self.normed,
            Place::Logits => self.logits,
        }
    }
}

impl<'a> DecodeInputs<'a> {
    /// Elements of a token at a place.
    pub(super) fn width(&self, place: Place) -> usize {
        if place == Place::Logits { self.vocab } else { self.hidden }
    }

    /// The captured table at a place, where it is of a model that this run can be compared with.
    pub(super) fn captured(&self, place: Place) -> Option<&'a [f64]> {
        match (self.stack, place) {
            (Stack::Shorter, Place::FinalNorm | Place::Logits) => None,
            _ => self.capture.as_ref()?.at(place),
        }
    }

    /// Where the chain as a whole is judged: the post-norm hidden, or a shorter stack's last residual.
    pub(super) fn chain_end(&self) -> Place {
        match self.stack {
            Stack::Whole => Place::FinalNorm,
            Stack::Shorter => Place::Layer(self.reference.layers.len() - 1),
        }
    }

    /// Refuses what has not the size that the dimensions give it, before anything is compared.
    pub(super) fn validate(&self) -> Result<(), ScoreError> {
        let layers = self.reference.layers.len();
        let dimensions =
            [("tokens", self.tokens), ("hidden", self.hidden), ("vocab", self.vocab), ("layers", layers)];
        for (what, size) in dimensions {
            if size == 0 {
                return Err(ScoreError::Empty { what: what.into() });
            }
        }
        length("input_ids", self.tokens, self.input_ids.len())?;
        if self.next_ids.len() > self.tokens {
            return length("next_ids", self.tokens, self.next_ids.len());
        }
        let chains = [("free", &self.free), ("forced", &self.forced), ("reference", &self.reference)];
        for (name, chain) in chains {
            self.validate_chain(name, chain)?;
        }
        length("the list of router logits", layers, self.reference_router.len())?;
        if !self.branches.is_empty() {
            length("the list of branches", layers, self.branches.len())?;
        }
        self.validate_routing()?;
        self.validate_capture()
    }

    fn validate_chain(&self, name: &str, chain: &Chain<'_>) -> Result<(), ScoreError> {
        let layers = self.reference.layers.len();
        length(&format!("the list of {name} layers"), layers, chain.layers.len())?;
        length(&format!("the list of {name} routings"), layers, chain.routing.len())?;
        for place in Place::all(layers) {
            length(&format!("{name} {place}"), self.tokens * self.width(place), chain.at(place).len())?;
        }
        for (layer, (routing, of_reference)) in chain.routing.iter().zip(&self.reference.routing).enumerate()
        {
            length(&format!("{name} routing of layer {layer}"), of_reference.len(), routing.len())?;
        }
        Ok(())
    }

    /// The reference's experts must exist, for its logits are looked up at them. What the device chose may be
    /// anything; that is for the gates to say.
    fn validate_routing(&self) -> Result<(), ScoreError> {
        for (layer, (routing, router)) in
            self.reference.routing.iter().zip(&self.reference_router).enumerate()
        {
            let ids = format!("reference routing of layer {layer}");
            whole_rows(&ids, routing.len(), self.tokens)?;
            whole_rows(&format!("router logits of layer {layer}"), router.len(), self.tokens)?;
            let experts = router.len() / self.tokens;
            let outside = |&id: &i64| !usize::try_from(id).is_ok_and(|id| id < experts);
            if let Some(position) = routing.iter().position(outside) {
                return Err(ScoreError::Id { what: ids, position, id: routing[position], limit: experts });
            }
        }
        Ok(())
    }

    fn validate_capture(&self) -> Result<(), ScoreError> {
        let Some(capture) = &self.capture else { return Ok(()) };
        let layers = self.reference.layers.len();
        if !capture.layers.is_empty() {
            length("the list of captured layers", layers, capture.layers.len())?;
        }
        if !capture.routing.is_empty() {
            length("the list of captured routings", layers, capture.routing.len())?;
        }
        for place in Place::all(layers) {
            if let Some(table) = capture.at(place) {
                length(&format!("captured {place}"), self.tokens * self.width(place), table.len())?;
            }
        }
        for (layer, routing) in capture.routing.iter().enumerate() {
            if let Some(routing) = routing {
                let expected = self.reference.routing[layer].len();
                length(&format!("captured routing of layer {layer}"), expected, routing.len())?;
            }
        }
        Ok(())
    }
}

fn length(what: &str, expected: usize, found: usize) -> Result<(), ScoreError> {
    if expected == found { Ok(()) } else { Err(ScoreError::Length { what: what.into(), expected, found }) }
}

fn whole_rows(what: &str, elements: usize, rows: usize) -> Result<(), ScoreError> {
    if elements == 0 {
        return Err(ScoreError::Empty { what: what.into() });
    }
    if !elements.is_multiple_of(rows) {
        return Err(ScoreError::Rows { what: what.into(), elements, rows });
    }
    Ok(())
}
