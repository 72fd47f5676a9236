//! The router, the routed half, and the whole block.

use super::evidence::{Evidence, Item, NEAR_ZERO, Published, What, worst};
use super::{Judged, Moe, MoeRouted, Router, gates, line};
use crate::metrics::{Branching, Similarity};
use crate::{Bound, Gate, GateSpec, Reading, ScoreError};

/// The chosen experts and their scores.
pub(super) fn router(evidence: &Evidence, bounds: &Router) -> Result<Judged, ScoreError> {
    let mut readings = Vec::new();
    for layer in &evidence.layers {
        let item = layer.item(What::Scores).ok_or_else(|| ScoreError::Empty { what: "the scores".into() })?;
        for (step, s) in item.rows(&evidence.published)?.into_iter().enumerate() {
            readings.push((s.max_abs, s.elements, format!("token {step}")));
        }
    }
    let reading = worst(readings, |v| v).unwrap_or(Reading { value: f64::NAN, elements: 0, at: None });
    let figures = format!("max score err {:.2e}", reading.value);
    let mut all: Vec<Gate> = gates::choices(evidence, true)?.into_iter().collect();
    all.push(GateSpec::published("score-error", Bound::AtMost(bounds.score_error)).judge(reading.clone()));
    all.push(GateSpec::own("tight-score-error", Bound::AtMost(bounds.tight_score_error)).judge(reading));
    all.extend(gates::reference(evidence, bounds.reference_error)?);
    all.extend(gates::counters(evidence));
    Ok((vec![line("router", evidence, &all, &figures)], all))
}

/// Router and routed experts.
pub(super) fn routed(evidence: &Evidence, bounds: &MoeRouted) -> Result<Judged, ScoreError> {
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
    let s = evidence.layers[0].output()?.whole(&evidence.published)?;
    let figures = format!("cosine {:.6}, norm ratio {:.6}", s.cosine, s.norm_ratio);
    Ok((vec![line("moe_routed_path", evidence, &all, &figures)], all))
}

/// The whole block; on a delivery's weights, with its errors beside those of quantization.
pub(super) fn block(evidence: &Evidence, bounds: &Moe, real: bool) -> Result<Judged, ScoreError> {
    let alike = gates::Alike {
        cosine: bounds.cosine,
        norm_ratio: bounds.norm_ratio,
        tight_cosine: bounds.tight_cosine,
        tight_norm_ratio: bounds.tight_norm_ratio,
        component_norm_ratio: bounds.component_norm_ratio,
    };
    let mut all = gates::alike(evidence, &alike)?;
    all.extend(gates::choices(evidence, false)?);
    let layer = &evidence.layers[0];
    let output = layer.output()?;
    let routed =
        layer.item(What::Routed).ok_or_else(|| ScoreError::Empty { what: "the routed half".into() })?;
    let device = Branching::of(&output.device, &routed.device)?;
    let reference =
        Branching::of(output.reference(&evidence.published), routed.reference(&evidence.published))?;
    let moved = Reading { value: device.moved / reference.moved, elements: device.elements, at: None };
    let within = Bound::Within { center: 1.0, tolerance: bounds.tight_branch };
    all.push(GateSpec::published("branch", Bound::AtLeast(bounds.branch)).judge(moved.clone()));
    all.push(GateSpec::own("tight-branch", within).judge(moved));
    all.extend(gates::reference(evidence, bounds.reference_error)?);
    all.extend(gates::counters(evidence));
    let s = output.whole(&evidence.published)?;
    let figures = if real {
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let share = norm(&routed.device) / norm(&output.device);
        format!(
            "device vs dequantized reference: cosine {:.6} ratio {:.6}; {}; shares routed {:.1}% / shared {:.1}%",
            s.cosine,
            s.norm_ratio,
            delivered(evidence)?,
            100.0 * share,
            100.0 * device.share
        )
    } else {
        format!(
            "cosine {:.6}, norm ratio {:.6}, shared-branch delta {:.3}% vs expected {:.3}%",
            s.cosine,
            s.norm_ratio,
            100.0 * device.contribution,
            100.0 * reference.contribution
        )
    };
    let name = if real { "moe_block_real" } else { "moe_block" };
    Ok((vec![line(name, evidence, &all, &figures)], all))
}

/// Relative errors against the delivered activations: of the dequantized reference, of the device, of each
/// component on the device.
fn delivered(evidence: &Evidence) -> Result<String, ScoreError> {
    if let Published::Absent(why) | Published::NotAsked(why) = &evidence.published {
        return Ok(why.clone());
    }
    let layer = &evidence.layers[0];
    let error = |item: &Item, of: fn(&Item) -> &[f64]| match &item.published {
        None => Ok("not captured".to_owned()),
        Some(p) => Similarity::of(of(item), p, NEAR_ZERO).map(|s| format!("{:.3e}", s.error)),
    };
    let output = layer.output()?;
    let mut text = format!(
        "vs delivered float: quant {}, device {}; per component:",
        error(output, |i| &i.evaluator)?,
        error(output, |i| &i.device)?
    );
    let parts = [What::Shared, What::Routed, What::Gate].into_iter().filter_map(|w| layer.item(w));
    for (n, item) in parts.enumerate() {
        let comma = if n > 0 { "," } else { "" };
        text += &format!("{comma} {} {}", item.what.word(), error(item, |i| &i.device)?);
    }
    Ok(text)
}

/// `routed + gate · shared`, a gate a row of `width`.
pub(super) fn combined(routed: &[f64], shared: &[f64], gate: &[f64], width: usize) -> Vec<f64> {
    let rows = routed.chunks(width).zip(shared.chunks(width)).zip(gate);
    rows.flat_map(|((r, s), g)| r.iter().zip(s).map(move |(r, s)| r + g * s)).collect()
}
