//! Which gates a decode run is put to, and what comes of each.

use super::compare::{Compared, Comparisons, Measure};
use super::{DecodeInputs, Place, Source, Stack, TokenScore, routing};
use crate::metrics::{Attainment, Equality};
use crate::{Bound, Gate, GateSpec, Reading, ScoreError, Thresholds, counted};

/// What the gates on captures ask of each token of the free-running device.
pub(super) struct AskedOfTokens {
    /// Whether it has to attain the capture's maximum.
    pub token: bool,
    /// What its cosine at the chain's end has to be.
    pub chain: Option<Bound>,
}

/// What the gates on captures that will be run ask of each token.
pub(super) fn asked_of_tokens(inputs: &DecodeInputs<'_>, thresholds: &Thresholds) -> AskedOfTokens {
    let judging = asked(inputs).find(|&by| refusal(inputs, by).is_none());
    AskedOfTokens {
        token: judging.is_some() && asks_tokens_of_capture(inputs),
        chain: judging.map(|by| chain_gate(inputs, by, thresholds).bound),
    }
}

/// Who computed what the gates on captures compare with: the maker of the captures that there are, else of
/// those that are asked for.
pub(super) fn oracle(inputs: &DecodeInputs<'_>) -> Source {
    made(inputs).unwrap_or(inputs.oracle)
}

fn made(inputs: &DecodeInputs<'_>) -> Option<Source> {
    inputs.capture.as_ref().map(|_| inputs.capture_label.source)
}

/// Whose captures are asked for. The published implementation's are unless the run is said to be judged by our
/// own; ours are where there are any, and where they are all that it is judged by.
fn asked(inputs: &DecodeInputs<'_>) -> impl Iterator<Item = Source> {
    let stack = captures_are_asked(inputs);
    let published = inputs.oracle == Source::Published || made(inputs) == Some(Source::Published);
    let own = made(inputs) == Some(Source::SelfMade) || !published;
    let all = [(Source::Published, published), (Source::SelfMade, own)];
    all.into_iter().filter(move |(_, asked)| stack && *asked).map(|(by, _)| by)
}

/// What a gate's name says of whose captures it compares with.
fn against(by: Source) -> &'static str {
    match by {
        Source::Published => "capture",
        Source::SelfMade => "self",
    }
}

/// Puts the run to all its gates.
pub(super) fn judge(
    inputs: &DecodeInputs<'_>,
    thresholds: &Thresholds,
    compared: &Comparisons,
    tokens: &[TokenScore],
) -> Result<Vec<Gate>, ScoreError> {
    let mut gates = Gates { refusal: None, list: Vec::new() };
    for by in asked(inputs) {
        gates.refusal = refusal(inputs, by);
        against_capture(&mut gates, by, inputs, thresholds, compared, tokens)?;
    }
    // What follows needs no capture.
    gates.refusal = None;
    let attained = tokens_attain(tokens.iter().map(|token| token.float64.token));
    gates.put(token_gate("float64", inputs), attained, "the reference has no logits");
    gates.tight("float64", &ALL_GROUPS, thresholds, &compared.forced_reference, inputs);
    of_the_run(&mut gates, inputs)?;
    Ok(gates.list)
}

/// A whole stack asks for captures whether the delivery has them or not; a shorter one only where it ends on
/// a captured layer, for nobody captures every stack.
fn captures_are_asked(inputs: &DecodeInputs<'_>) -> bool {
    inputs.stack == Stack::Whole || inputs.captured(inputs.chain_end()).is_some()
}

/// Why no gate that asks for captures of this maker can be run, if so.
fn refusal(inputs: &DecodeInputs<'_>, by: Source) -> Option<&'static str> {
    match (made(inputs), by) {
        (None, _) => Some("the delivery has no captures"),
        (Some(Source::SelfMade), Source::Published) => {
            Some("the captures were made by our own evaluator, not by the published implementation")
        }
        // ours are not asked for beside the published implementation's
        (Some(_), _) => None,
    }
}

fn asks_tokens_of_capture(inputs: &DecodeInputs<'_>) -> bool {
    inputs.stack == Stack::Whole && inputs.capture_label.same_weights
}

fn against_capture(
    gates: &mut Gates,
    by: Source,
    inputs: &DecodeInputs<'_>,
    thresholds: &Thresholds,
    compared: &Comparisons,
    tokens: &[TokenScore],
) -> Result<(), ScoreError> {
    if asks_tokens_of_capture(inputs) {
        let attained = tokens_attain(tokens.iter().map(|token| token.capture.and_then(|c| c.token)));
        gates.put(token_gate(against(by), inputs), attained, "the logits were not captured");
    }
    let chain = compared.free_capture.worst(Measure::Cosine, |_| true);
    gates.put(chain_gate(inputs, by, thresholds), chain, "the post-norm hidden was not captured");
    if !inputs.capture_label.is_tight() {
        return Ok(());
    }
    let groups = match inputs.stack {
        Stack::Whole => &ALL_GROUPS[..],
        Stack::Shorter => &ALL_GROUPS[..1],
    };
    gates.tight(against(by), groups, thresholds, &compared.forced_capture, inputs);
    for group in groups {
        let reading = group.reading(Measure::Error, &compared.reference_capture, inputs);
        let bound = Bound::AtMost(thresholds.reference_error);
        let spec = asks(by, format!("reference-{}-vs-{}", group.name, against(by)), bound);
        gates.put(spec, reading, group.absent);
    }
    let captured = inputs.capture.iter().flat_map(|capture| capture.routing.iter().enumerate());
    let pairs = captured.filter_map(|(layer, r)| Some((layer, inputs.reference.routing[layer], (*r)?)));
    let spec = GateSpec::own(format!("reference-routing-vs-{}", against(by)), Bound::Equals(0.0));
    gates.put(spec, routing::differing(inputs, pairs)?, "the routing was not captured");
    Ok(())
}

/// The gates on the run itself.
fn of_the_run(gates: &mut Gates, inputs: &DecodeInputs<'_>) -> Result<(), ScoreError> {
    let none = |name: &str| GateSpec::own(name, Bound::Equals(0.0));
    // A forced run with other experts would prove nothing of what it is asked for above.
    let pairs = inputs.forced.routing.iter().zip(&inputs.reference.routing).enumerate();
    let pairs = pairs.map(|(layer, (&y, &r))| (layer, y, r));
    gates.put(none("forced-routing"), routing::differing(inputs, pairs)?, "nothing was routed");
    gates.list.extend(counted::gates(inputs.counters, &inputs.non_finite_weights));
    let kernel = inputs.whole_kernel.map(|Equality { elements, differing, first }| Reading {
        value: differing as f64,
        elements,
        at: first.map(|first| format!("first is element {first}")),
    });
    gates.put(none("whole-kernel"), kernel, "the linked kernel was not run");
    Ok(())
}

fn token_gate(against: &str, inputs: &DecodeInputs<'_>) -> GateSpec {
    let name = format!("token-vs-{against}");
    let bound = Bound::Equals(inputs.tokens as f64);
    if against == "capture" { GateSpec::published(name, bound) } else { GateSpec::own(name, bound) }
}

/// A gate that the walkthrough states of the published implementation.
fn asks(by: Source, name: String, bound: Bound) -> GateSpec {
    GateSpec { published: by == Source::Published, ..GateSpec::own(name, bound) }
}

fn chain_gate(inputs: &DecodeInputs<'_>, by: Source, thresholds: &Thresholds) -> GateSpec {
    let name = format!("chain-cosine-vs-{}", against(by));
    if inputs.capture_label.same_weights {
        asks(by, name, Bound::AtLeast(thresholds.chain_cosine))
    } else {
        GateSpec::own(name, Bound::AtLeast(thresholds.chain_cosine_unquantized))
    }
}

/// How many tokens attain the maximum; `None` if the reference has no logits.
fn tokens_attain(tokens: impl Iterator<Item = Option<Attainment>>) -> Option<Reading> {
    let mut reading = Reading { value: 0.0, elements: 0, at: None };
    for (position, token) in tokens.enumerate() {
        let token = token?;
        reading.elements += token.elements;
        if token.attains {
            reading.value += 1.0;
        } else {
            reading.at.get_or_insert_with(|| format!("token {position} does not"));
        }
    }
    Some(reading)
}

/// Places that are judged together.
struct Group {
    name: &'static str,
    wanted: fn(Place) -> bool,
    absent: &'static str,
}

/// The residual stream first: it is all that a shorter stack shares with the captured model. The logits have
/// a group of their own, for a head that is wrong by a factor picks every token right.
const ALL_GROUPS: [Group; 3] = [
    Group { name: "layer", wanted: Place::is_residual, absent: "no layer's output was captured" },
    Group {
        name: "hidden",
        wanted: |place| matches!(place, Place::FinalNorm),
        absent: "the post-norm hidden was not captured",
    },
    Group {
        name: "logits",
        wanted: |place| matches!(place, Place::Logits),
        absent: "the logits were not captured",
    },
];

impl Group {
    fn reading(&self, measure: Measure, compared: &Compared, inputs: &DecodeInputs<'_>) -> Option<Reading> {
        let mut reading = compared.worst(measure, self.wanted)?;
        if (self.wanted)(Place::Embed) {
            let (found, all) = (compared.layers(), inputs.reference.layers.len());
            if found == 0 {
                // The embedding rows alone say nothing of the layers.
                return None;
            }
            if found < all {
                reading.at = reading.at.map(|at| format!("{at}; {found} of {all} layers captured"));
            }
        }
        Some(reading)
    }
}

/// The gates so far.
struct Gates {
    /// Why no gate can be run at the moment.
    refusal: Option<&'static str>,
    list: Vec<Gate>,
}

impl Gates {
    /// Judges a reading, or says why there is none.
    fn put(&mut self, spec: GateSpec, reading: Option<Reading>, absent: &str) {
        self.list.push(match (self.refusal, reading) {
            (Some(reason), _) => spec.not_run(reason),
            (None, Some(reading)) => spec.judge(reading),
            (None, None) => spec.not_run(absent),
        });
    }

    /// The tight form: every place and token, in direction and in length.
    fn tight(
        &mut self,
        against: &str,
        groups: &[Group],
        thresholds: &Thresholds,
        compared: &Compared,
        inputs: &DecodeInputs<'_>,
    ) {
        let cosine = Bound::AtLeast(thresholds.layer_cosine);
        let ratio = Bound::Within { center: 1.0, tolerance: thresholds.layer_norm_ratio };
        for group in groups {
            for (figure, measure, bound) in
                [("cosine", Measure::Cosine, cosine), ("norm-ratio", Measure::NormRatio, ratio)]
            {
                let spec = GateSpec::own(format!("{}-{figure}-vs-{against}", group.name), bound);
                self.put(spec, group.reading(measure, compared, inputs), group.absent);
            }
        }
    }
}
