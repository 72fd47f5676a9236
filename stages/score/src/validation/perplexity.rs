//! A held-out text: how surprised the device is by it, beside the float64 evaluator, and how far its
//! distributions are from the evaluator's.

use super::evidence::Evidence;
use super::{Judged, Perplexity, gates, line};
use crate::metrics::{Attainment, Divergence, Perplexity as Surprise};
use crate::{Bound, GateSpec, Reading, ScoreError};

/// The logits of both at every position of the text; the ids that follow are the evidence's.
pub(super) fn perplexity(evidence: &Evidence, bounds: &Perplexity) -> Result<Judged, ScoreError> {
    let logits = evidence.layers[0].output()?;
    let (device, float64, vocab) = (&logits.device, &logits.evaluator, logits.width);
    let ours = Surprise::of(device, vocab, &evidence.next_ids)?;
    let theirs = Surprise::of(float64, vocab, &evidence.next_ids)?;
    let apart = Divergence::of(device, float64, vocab)?;
    let mut top = Reading { value: 0.0, elements: 0, at: None };
    for (position, (y, r)) in device.chunks(vocab).zip(float64.chunks(vocab)).enumerate() {
        let a = Attainment::of(y, r)?;
        top.elements += a.elements;
        if a.attains {
            top.value += 1.0;
        } else {
            top.at.get_or_insert_with(|| format!("first is position {position}"));
        }
    }
    let (attained, ratio) = (top.value, ours.value / theirs.value);
    top.value /= apart.positions as f64;
    let elements = device.len() as u64;
    let reading = |value, at| Reading { value, elements, at };
    let worst = format!("worst is {:.3e} at position {}", apart.worst, apart.worst_position);
    let mut all = vec![
        GateSpec::own("perplexity-ratio", Bound::Within { center: 1.0, tolerance: bounds.ratio })
            .judge(reading(ratio, None)),
        GateSpec::own("divergence", Bound::AtMost(bounds.divergence))
            .judge(reading(apart.mean, Some(worst.clone()))),
        GateSpec::own("top-1", Bound::AtLeast(bounds.top_1)).judge(top),
    ];
    all.extend(gates::counters(evidence));
    let figures = format!(
        "device {:.3} vs float64 {:.3} ({:+.3}%) over {} positions; KL {:.3e} nats a position, {worst}; top-1 \
         {attained:.0}/{}",
        ours.value,
        theirs.value,
        (ratio - 1.0) * 100.0,
        ours.positions,
        apart.mean,
        apart.positions,
    );
    Ok((vec![line("perplexity", evidence, &all, &figures)], all))
}
