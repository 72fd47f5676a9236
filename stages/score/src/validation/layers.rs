//! Mixers, decoder layers, stacks of them, and state read back between calls.

use super::evidence::{Evidence, Layer, What};
use super::{Judged, Layers, gates, line};
use crate::metrics::{Branching, Equality, Similarity};
use crate::{Bound, Gate, GateSpec, Reading, ScoreError, Verdict};

/// A mixer on its own.
pub(super) fn mixer(name: &str, evidence: &Evidence, bounds: &Layers) -> Result<Judged, ScoreError> {
    let gates = judged(evidence, bounds)?;
    let s = worst_row(evidence, &evidence.layers[0], What::Output)?;
    let figures = format!("cosine {:.6}, norm ratio {:.6}", s.cosine, s.norm_ratio);
    Ok((vec![line(name, evidence, &gates, &figures)], gates))
}

/// Decoder layers, each with a line.
pub(super) fn stack(
    name: &str,
    whole: &str,
    evidence: &Evidence,
    bounds: &Layers,
) -> Result<Judged, ScoreError> {
    let gates = judged(evidence, bounds)?;
    let mut lines = Vec::new();
    for layer in &evidence.layers {
        lines.push(layer_line(&format!("{name} {}", layer.index), evidence, layer, bounds)?);
    }
    lines.push(format!("{whole} ({}): {}", evidence.setting, Verdict::of_all(&gates)));
    Ok((lines, gates))
}

/// The A-A-A-B stack, with the shared expert's share of each layer's experts.
pub(super) fn hybrid(evidence: &Evidence, bounds: &Layers) -> Result<Judged, ScoreError> {
    let gates = judged(evidence, bounds)?;
    let letter = |l: &Layer| if l.full { "B" } else { "A" };
    let mut lines = Vec::new();
    let mut shares = Vec::new();
    for layer in &evidence.layers {
        let name = format!("hybrid layer {} ({})", layer.index, letter(layer));
        lines.push(layer_line(&name, evidence, layer, bounds)?);
        shares.extend(share(layer)?);
    }
    if !shares.is_empty() {
        shares.sort_by(f64::total_cmp);
        let middle = shares.len() / 2;
        let median =
            if shares.len() % 2 == 1 { shares[middle] } else { (shares[middle - 1] + shares[middle]) / 2.0 };
        lines.push(format!(
            "shared-expert share over {} layers: min {:.3}%, median {:.3}%",
            shares.len(),
            100.0 * shares[0],
            100.0 * median
        ));
    }
    let pattern: Vec<&str> = evidence.layers.iter().map(letter).collect();
    lines.push(format!(
        "hybrid_decoder ({}; {}): {}",
        pattern.join("-"),
        evidence.setting,
        Verdict::of_all(&gates)
    ));
    Ok((lines, gates))
}

/// Steps one call each, the state read back between them, against one run of all steps.
pub(super) fn resume(evidence: &Evidence, bounds: &Layers) -> Result<Judged, ScoreError> {
    let mut gates = judged(evidence, bounds)?;
    gates.push(bits(evidence)?);
    let layer = &evidence.layers[0];
    let mut figures = Vec::new();
    for (step, s) in layer.output()?.rows(&evidence.published)?.iter().enumerate() {
        figures.push(format!("step{step} cos {:.6} ratio {:.6}", s.cosine, s.norm_ratio));
    }
    if let Some(state) = layer.item(What::RecurrentState) {
        let s = state.whole(&evidence.published)?;
        figures.push(format!("state cos {:.6} ratio {:.6}", s.cosine, s.norm_ratio));
    }
    let same = gates.last().is_some_and(Gate::passed);
    figures.push(format!("bit-equal to one run: {same}"));
    Ok((vec![line("resume", evidence, &gates, &figures.join(", "))], gates))
}

/// Bytes that differ between the run in pieces and the run in one.
fn bits(evidence: &Evidence) -> Result<Gate, ScoreError> {
    let spec = GateSpec::own("bit-equal", Bound::Equals(0.0));
    let mut reading = Reading { value: 0.0, elements: 0, at: None };
    for t in &evidence.twice {
        let e = Equality::of(&t.pieces, &t.whole)?;
        reading.elements += e.elements;
        reading.value += e.differing as f64;
        if let Some(first) = e.first {
            reading.at.get_or_insert_with(|| format!("{}, byte {first}", t.what));
        }
    }
    Ok(if evidence.twice.is_empty() { spec.not_run("there was one run only") } else { spec.judge(reading) })
}

fn judged(evidence: &Evidence, bounds: &Layers) -> Result<Vec<Gate>, ScoreError> {
    let alike = gates::Alike {
        cosine: bounds.cosine,
        norm_ratio: bounds.norm_ratio,
        tight_cosine: bounds.tight_cosine,
        tight_norm_ratio: bounds.tight_norm_ratio,
        component_norm_ratio: bounds.component_norm_ratio,
    };
    let mut all = gates::alike(evidence, &alike)?;
    all.extend(gates::choices(evidence, false)?);
    all.extend(gates::reference(evidence, bounds.reference_error)?);
    all.extend(gates::counters(evidence));
    Ok(all)
}

/// The row of least cosine; a NaN is least.
fn worst_row(evidence: &Evidence, layer: &Layer, what: What) -> Result<Similarity, ScoreError> {
    let absent = || ScoreError::Empty { what: format!("layer {}'s {}", layer.index, what.word()) };
    let rows = layer.item(what).ok_or_else(absent)?.rows(&evidence.published)?;
    let low = |s: &Similarity| if s.cosine.is_finite() { s.cosine } else { f64::NEG_INFINITY };
    rows.into_iter().min_by(|a, b| low(a).total_cmp(&low(b))).ok_or_else(absent)
}

/// `NAME: PASS (cosine …, ratio …, mixer …)`, by the gates of this layer alone.
fn layer_line(name: &str, evidence: &Evidence, layer: &Layer, bounds: &Layers) -> Result<String, ScoreError> {
    let alone = Evidence { layers: vec![layer.clone()], ..evidence.clone() };
    let verdict = Verdict::of_all(&judged(&alone, bounds)?);
    let s = worst_row(evidence, layer, What::Output)?;
    let mut figures = format!("cosine {:.6}, ratio {:.6}", s.cosine, s.norm_ratio);
    if layer.item(What::Mixer).is_some() {
        figures += &format!(", mixer {:.6}", worst_row(evidence, layer, What::Mixer)?.cosine);
    }
    Ok(format!("{name}: {verdict} ({figures})"))
}

/// The gated shared expert's share of the experts' output on the device, over all steps.
fn share(layer: &Layer) -> Result<Option<f64>, ScoreError> {
    let items = [What::Routed, What::Shared, What::Gate].map(|w| layer.item(w));
    let [Some(routed), Some(shared), Some(gate)] = items else { return Ok(None) };
    let whole = super::moe::combined(&routed.device, &shared.device, &gate.device, routed.width);
    Ok(Some(Branching::of(&whole, &routed.device)?.share))
}
