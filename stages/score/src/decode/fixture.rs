//! A made-up run for the tests: three tokens, two layers, hidden 4, six ids, four experts of which two are
//! taken. The device is 1e-5 from the reference, a tight capture 1e-7, one of the unquantized model 1e-2.

use super::{
    Branch, CaptureChain, CaptureLabel, Chain, Counters, DecodeInputs, Place, Precision, Source, Stack,
};
use crate::metrics::Equality;
use crate::{DecodeReport, NonFiniteWeights, Thresholds, score_decode};

pub const TOKENS: usize = 3;
pub const HIDDEN: usize = 4;
pub const VOCAB: usize = 6;
pub const LAYERS: usize = 2;

pub const TIGHT: CaptureLabel =
    CaptureLabel { source: Source::Published, precision: Precision::F32, same_weights: true };
pub const BF16: CaptureLabel = CaptureLabel { precision: Precision::BF16, ..TIGHT };
pub const UNQUANTIZED: CaptureLabel = CaptureLabel { same_weights: false, ..TIGHT };
pub const OWN: CaptureLabel = CaptureLabel { source: Source::SelfMade, ..TIGHT };

/// Numbers in -1 to 1 that look random and are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / f64::from(1 << 23) - 1.0
    }

    fn table(&mut self, elements: usize) -> Vec<f64> {
        (0..elements).map(|_| self.next()).collect()
    }
}

/// An owned [`Chain`].
#[derive(Clone)]
pub struct Run {
    pub embed: Vec<f64>,
    pub layers: Vec<Vec<f64>>,
    pub normed: Vec<f64>,
    pub logits: Vec<f64>,
    pub routing: Vec<Vec<i64>>,
}

impl Run {
    fn base() -> Self {
        let mut numbers = Numbers(7);
        let embed = numbers.table(TOKENS * HIDDEN);
        let layers = (0..LAYERS).map(|_| numbers.table(TOKENS * HIDDEN)).collect();
        let normed = numbers.table(TOKENS * HIDDEN);
        // Each token prefers the id twice its position, clearly.
        let mut logits = numbers.table(TOKENS * VOCAB);
        (0..TOKENS).for_each(|token| logits[token * VOCAB + 2 * token] = 2.0);
        Self { embed, layers, normed, logits, routing: vec![vec![2, 0, 1, 3, 0, 2]; LAYERS] }
    }

    /// The same with every element off by at most this factor.
    fn off_by(&self, factor: f64, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let mut run = self.clone();
        for table in [&mut run.embed, &mut run.normed, &mut run.logits].into_iter().chain(&mut run.layers) {
            table.iter_mut().for_each(|v| *v *= 1.0 + factor * numbers.next());
        }
        run
    }

    fn chain(&self) -> Chain<'_> {
        Chain {
            embed: &self.embed,
            layers: self.layers.iter().map(Vec::as_slice).collect(),
            normed: &self.normed,
            logits: &self.logits,
            routing: self.routing.iter().map(Vec::as_slice).collect(),
        }
    }
}

/// Which parts of the captured run the delivery has.
#[derive(Clone)]
pub struct Parts {
    pub places: Vec<Place>,
    pub routing: bool,
}

/// An owned [`DecodeInputs`].
#[derive(Clone)]
pub struct Fixture {
    pub input_ids: Vec<i64>,
    pub next_ids: Vec<i64>,
    pub stack: Stack,
    pub free: Run,
    pub forced: Run,
    pub reference: Run,
    pub router: Vec<Vec<f64>>,
    pub branches: Vec<(Vec<f64>, Vec<f64>)>,
    pub captured: Run,
    pub parts: Option<Parts>,
    pub oracle: Source,
    pub label: CaptureLabel,
    pub counters: Counters,
    pub non_finite_weights: NonFiniteWeights,
    pub whole_kernel: Option<Equality>,
}

impl Fixture {
    pub fn new(label: CaptureLabel) -> Self {
        let reference = Run::base();
        let capture_error = match label {
            CaptureLabel { same_weights: false, .. } => 1e-2,
            CaptureLabel { precision: Precision::BF16, .. } => 4e-3,
            _ => 1e-7,
        };
        // Experts in the order of the routing above: token 0 takes 2, 0, token 1 takes 1, 3.
        let router = vec![1.0, 0.5, 2.0, 0.25, 0.5, 3.0, 0.25, 1.0, 4.0, 0.5, 2.0, 1.5];
        Self {
            input_ids: vec![5, 3, 1],
            next_ids: vec![0, 2, 4],
            stack: Stack::Whole,
            free: reference.off_by(1e-5, 1),
            forced: reference.off_by(1e-5, 2),
            captured: reference.off_by(capture_error, 3),
            reference,
            router: vec![router; LAYERS],
            branches: vec![(vec![3.0, 4.0], vec![3.0, 3.0]), (vec![3.0, 4.0], vec![1.5, 4.0])],
            parts: Some(Parts { places: Place::all(LAYERS).collect(), routing: true }),
            oracle: Source::Published,
            label,
            counters: Counters::default(),
            non_finite_weights: NonFiniteWeights::default(),
            whole_kernel: Some(Equality { elements: 24, differing: 0, first: None }),
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn inputs(&self) -> DecodeInputs<'_> {
        let capture = self.parts.as_ref().map(|parts| {
            let part = |place, table| parts.places.contains(&place).then_some(table);
            let run = self.captured.chain();
            let layers = run.layers.iter().enumerate();
            CaptureChain {
                embed: part(Place::Embed, run.embed),
                layers: layers.map(|(layer, &table)| part(Place::Layer(layer), table)).collect(),
                normed: part(Place::FinalNorm, run.normed),
                logits: part(Place::Logits, run.logits),
                routing: run.routing.iter().map(|&ids| parts.routing.then_some(ids)).collect(),
            }
        });
        DecodeInputs {
            tokens: TOKENS,
            hidden: HIDDEN,
            vocab: VOCAB,
            input_ids: &self.input_ids,
            next_ids: &self.next_ids,
            stack: self.stack,
            free: self.free.chain(),
            forced: self.forced.chain(),
            reference: self.reference.chain(),
            reference_router: self.router.iter().map(Vec::as_slice).collect(),
            branches: self.branches.iter().map(|(whole, routed)| Branch { whole, routed }).collect(),
            oracle: self.oracle,
            capture,
            capture_label: self.label,
            counters: self.counters,
            non_finite_weights: self.non_finite_weights.clone(),
            whole_kernel: self.whole_kernel,
        }
    }

    pub fn score(&self) -> DecodeReport {
        score_decode(&self.inputs(), &Thresholds::default()).unwrap()
    }
}

/// Multiplies every element of a table.
pub fn scale(table: &mut [f64], factor: f64) {
    table.iter_mut().for_each(|v| *v *= factor);
}

/// Loses the last element.
pub fn shorten<T>(list: &mut Vec<T>) {
    list.truncate(list.len() - 1);
}

/// Lets another id win at a token.
pub fn swap_token(logits: &mut [f64], token: usize) {
    logits.swap(token * VOCAB + 2 * token, token * VOCAB + 1);
}
