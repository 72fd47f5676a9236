//! The gates on a run, with the captures of the published implementation as the judge.

use super::{Computed, Source};
use mica_score::decode::{
    CaptureChain, CaptureLabel, Counters, DecodeInputs, DecodeReport, Precision, Stack,
};
use mica_score::metrics::Equality;
use mica_score::{NonFiniteWeights, Thresholds, score_decode};

/// The captured run, its first tokens.
#[derive(Clone)]
pub struct Captures {
    /// The prompt's ids.
    pub ids: Vec<i64>,
    /// The ids that follow.
    pub next: Vec<i64>,
    /// `[T, H]` a layer.
    pub layers: Vec<Vec<f64>>,
    /// `[T, H]`: the embedding rows.
    pub embed: Vec<f64>,
    /// `[T, H]`: the post-norm hidden.
    pub normed: Vec<f64>,
    /// `[T, V]`.
    pub logits: Vec<f64>,
    /// `[T, k]` a layer.
    pub routing: Vec<Vec<i64>>,
}

impl Captures {
    /// Reads the first tokens of a delivery's captures, which are of its own weights in float64.
    ///
    /// # Panics
    /// If one is missing.
    pub fn read(source: &Source, tokens: usize) -> Captures {
        let set = source.delivery.capture_set().expect("captures");
        let names = &source.captures.names;
        let floats = |name: &str| {
            let array = set.get_f64(name).unwrap_or_else(|e| panic!("{e}"));
            array.values[..tokens * array.row_len()].to_vec()
        };
        let integers = |name: &str| {
            let array = set.get_i64(name).unwrap_or_else(|e| panic!("{e}"));
            array.values[..tokens * array.row_len()].to_vec()
        };
        let layers = 0..source.stack.layers.len();
        Captures {
            ids: integers(names.input_ids.as_str()),
            next: integers(names.next_ids.as_str()),
            layers: layers.clone().map(|layer| floats(&names.layer_output.of(layer))).collect(),
            embed: floats(names.embedding.as_str()),
            normed: floats(names.head_input.as_str()),
            logits: floats(names.logits.as_str()),
            routing: layers.map(|layer| integers(&names.topk_indices.of(layer))).collect(),
        }
    }

    fn chain(&self) -> CaptureChain<'_> {
        CaptureChain {
            embed: Some(&self.embed),
            layers: self.layers.iter().map(|table| Some(table.as_slice())).collect(),
            normed: Some(&self.normed),
            logits: Some(&self.logits),
            routing: self.routing.iter().map(|ids| Some(ids.as_slice())).collect(),
        }
    }
}

/// Puts a run to the gates of `decode`: the device free and forced, the float64 chain, and what the linked
/// kernel left of its first tokens.
///
/// # Panics
/// If the tables do not fit each other.
pub fn judge(
    source: &Source,
    captures: &Captures,
    reference: &Computed,
    free: &Computed,
    forced: &Computed,
    kernel: &[u8],
) -> DecodeReport {
    let mut counters = free.counters;
    counters += forced.counters;
    let inputs = DecodeInputs {
        tokens: captures.ids.len(),
        hidden: source.stack.facts.hidden as usize,
        vocab: source.stack.facts.vocab as usize,
        input_ids: &captures.ids,
        next_ids: &captures.next,
        stack: Stack::Whole,
        free: free.chain(),
        forced: forced.chain(),
        reference: reference.chain(),
        reference_router: reference.router.iter().map(Vec::as_slice).collect(),
        branches: Vec::new(),
        oracle: mica_score::decode::Source::Published,
        capture: Some(captures.chain()),
        capture_label: CaptureLabel {
            source: mica_score::decode::Source::Published,
            precision: Precision::F64,
            same_weights: true,
        },
        counters: Counters {
            saturations: counters.saturations,
            f16_overflows: counters.f16_overflows,
            non_finite: counters.non_finite,
        },
        non_finite_weights: NonFiniteWeights::default(),
        whole_kernel: Some(Equality::of(kernel, &free.end).unwrap_or_else(|e| panic!("{e}"))),
    };
    score_decode(&inputs, &Thresholds::default()).unwrap_or_else(|e| panic!("{e}"))
}
