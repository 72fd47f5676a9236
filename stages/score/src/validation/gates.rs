//! Gates that several validations share.

use super::Published;
use super::evidence::{Evidence, Item, What, worst};
use crate::metrics::{Choice, Similarity};
use crate::{Bound, Gate, GateSpec, Reading, ScoreError, counted};

/// Bounds of direction and length, as published and ours.
pub(super) struct Alike {
    pub cosine: f64,
    pub norm_ratio: f64,
    pub tight_cosine: f64,
    pub tight_norm_ratio: f64,
    pub component_norm_ratio: f64,
}

/// Outputs against the published bounds; outputs, components, states and cached rows against ours.
pub(super) fn alike(evidence: &Evidence, bounds: &Alike) -> Result<Vec<Gate>, ScoreError> {
    let outputs = similarities(evidence, |w| w == What::Output)?;
    let all = similarities(evidence, |_| true)?;
    let components = similarities(evidence, |w| w != What::Output)?;
    let cosine = |s: &Similarity| s.cosine;
    let ratio = |s: &Similarity| s.norm_ratio;
    let within = |tolerance| Bound::Within { center: 1.0, tolerance };
    let below_one = |v: f64| 1.0 - v;
    let from_one = |v: f64| (v - 1.0).abs();
    let read = |from: &[(String, Similarity)], of: &dyn Fn(&Similarity) -> f64, distance| {
        worst(from.iter().map(|(at, s)| (of(s), s.elements, at.clone())), distance)
    };
    let judge = |spec: GateSpec, reading: Option<Reading>| match reading {
        Some(r) => spec.judge(r),
        None => spec.not_run("nothing was compared"),
    };
    let mut gates = vec![
        judge(
            GateSpec::published("cosine", Bound::AtLeast(bounds.cosine)),
            read(&outputs, &cosine, below_one),
        ),
        judge(GateSpec::published("norm-ratio", within(bounds.norm_ratio)), read(&outputs, &ratio, from_one)),
        judge(
            GateSpec::own("tight-cosine", Bound::AtLeast(bounds.tight_cosine)),
            read(&all, &cosine, below_one),
        ),
        judge(
            GateSpec::own("tight-norm-ratio", within(bounds.tight_norm_ratio)),
            read(&outputs, &ratio, from_one),
        ),
    ];
    if !components.is_empty() {
        gates.push(judge(
            GateSpec::own("component-norm-ratio", within(bounds.component_norm_ratio)),
            read(&components, &ratio, from_one),
        ));
    }
    Ok(gates)
}

/// The device beside its reference, every row of the wanted values, each with its place.
fn similarities(
    evidence: &Evidence,
    wanted: impl Fn(What) -> bool,
) -> Result<Vec<(String, Similarity)>, ScoreError> {
    let mut found = Vec::new();
    for layer in &evidence.layers {
        for item in layer.items.iter().filter(|i| wanted(i.what)) {
            for (step, s) in item.rows(&evidence.published)?.into_iter().enumerate() {
                found.push((format!("layer {}, {}, row {step}", layer.index, item.what.word()), s));
            }
        }
    }
    Ok(found)
}

/// The device takes the reference's experts in the reference's order.
pub(super) fn choices(evidence: &Evidence, published: bool) -> Result<Option<Gate>, ScoreError> {
    let mut readings = Vec::new();
    for layer in &evidence.layers {
        let Some(c) = &layer.choices else { continue };
        let reference = match (&c.published, &evidence.published) {
            (Some(p), Published::SameWeights) => p,
            _ => &c.evaluator,
        };
        let compared = Choice::of(&c.device, reference)?;
        let rows = c.device.chunks(c.k).zip(reference.chunks(c.k));
        let differing = rows.filter(|(a, b)| a != b).count();
        readings.push((differing as f64, compared.elements, format!("layer {}", layer.index)));
    }
    let spec = GateSpec { published, ..GateSpec::own("expert-choices", Bound::Equals(0.0)) };
    Ok(worst(readings, |v| v).map(|r| spec.judge(r)))
}

/// The evaluator against the published implementation, relative L2 a list of values, and its choices.
pub(super) fn reference(evidence: &Evidence, bound: f64) -> Result<Vec<Gate>, ScoreError> {
    let spec = || GateSpec::published("reference-error", Bound::AtMost(bound));
    match &evidence.published {
        Published::Other | Published::NotAsked(_) => return Ok(Vec::new()),
        Published::Absent(why) => return Ok(vec![spec().not_run(why.clone())]),
        Published::SameWeights => {}
    }
    let mut errors = Vec::new();
    let mut differing = Vec::new();
    for layer in &evidence.layers {
        for item in &layer.items {
            if let Some(s) = reference_error(item)? {
                let at = format!("layer {}, {}", layer.index, item.what.word());
                errors.push((s.error, s.elements, at));
            }
        }
        if let Some(c) = &layer.choices
            && let Some(p) = &c.published
        {
            let compared = Choice::of(&c.evaluator, p)?;
            let value = f64::from(u8::from(!compared.same_order));
            differing.push((value, compared.elements, format!("layer {}", layer.index)));
        }
    }
    let mut gates = vec![match worst(errors, |v| v) {
        Some(r) => spec().judge(r),
        None => spec().not_run("none of what was computed was captured"),
    }];
    let spec = GateSpec::own("reference-choices", Bound::Equals(0.0));
    gates.extend(worst(differing, |v| v).map(|r| spec.judge(r)));
    Ok(gates)
}

/// The evaluator beside the published values of one list.
pub(super) fn reference_error(item: &Item) -> Result<Option<Similarity>, ScoreError> {
    let published = item.published.as_ref();
    published.map(|p| Similarity::of(&item.evaluator, p, super::evidence::NEAR_ZERO)).transpose()
}

/// Nothing was clamped, overflowed or no number.
pub(super) fn counters(evidence: &Evidence) -> Vec<Gate> {
    let Some(c) = evidence.counters else { return Vec::new() };
    counted::gates(c, &evidence.non_finite_weights).into()
}
