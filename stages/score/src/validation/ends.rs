//! The two ends of a model, and the evaluator on its own.

use super::evidence::{Evidence, NEAR_ZERO, Published, worst};
use super::{Embed, Judged, LmHead, Reference, gates, line};
use crate::metrics::{Attainment, Equality, Similarity};
use crate::{Bound, GateSpec, Reading, ScoreError, Verdict};

/// The evaluator against the published implementation.
pub(super) fn reference(evidence: &Evidence, bounds: &Reference) -> Result<Judged, ScoreError> {
    let all = gates::reference(evidence, bounds.reference_error)?;
    let value = all.first().map_or(f64::NAN, |g| g.value);
    let line = format!(
        "moe_reference_vs_hf ({}): {} (rel {value:.3e} vs gate {:e})",
        evidence.setting,
        Verdict::of_all(&all),
        bounds.reference_error
    );
    Ok((vec![line], all))
}

/// Every row of the table, bit by bit: the residual's format is what layer 0 reads.
pub(super) fn embed(evidence: &Evidence, bounds: &Embed) -> Result<Judged, ScoreError> {
    let output = evidence.layers[0].output()?;
    let unit = evidence.residual_unit;
    // nearest, ties to even, as the device converts
    let held = |v: f64| (v / unit).round_ties_even() * unit;
    let wanted: Vec<f64> = output.evaluator.iter().map(|&v| held(v)).collect();
    let exact = |y: &[f64], r: &[f64]| -> Result<Reading, ScoreError> {
        let e = Equality::of(y, r)?;
        let at = e.first.map(|i| format!("first is element {i}"));
        Ok(Reading { value: e.differing as f64, elements: e.elements, at })
    };
    let mut all =
        vec![GateSpec::published("bit-exact", Bound::Equals(0.0)).judge(exact(&output.device, &wanted)?)];
    let s = Similarity::of(&output.device, &wanted, NEAR_ZERO)?;
    let error = Reading { value: s.max_abs, elements: s.elements, at: None };
    all.push(GateSpec::published("max-error", Bound::AtMost(bounds.max_error)).judge(error));
    let spec = GateSpec::published("bit-exact-vs-delivered", Bound::Equals(0.0));
    let mut vs = "delivered float is of other weights".to_owned();
    match (&evidence.published, &output.published) {
        (Published::Other, _) => {}
        (Published::NotAsked(why), _) => vs.clone_from(why),
        (Published::Absent(why), _) => {
            vs.clone_from(why);
            all.push(spec.not_run(why.clone()));
        }
        (Published::SameWeights, None) => {
            vs = "the embedding was not captured".into();
            all.push(spec.not_run(vs.clone()));
        }
        (Published::SameWeights, Some(rows)) => {
            // the captured ids' rows come first
            let wanted: Vec<f64> = rows.iter().map(|&v| held(v)).collect();
            let device = output.device.get(..wanted.len()).unwrap_or(&output.device);
            let reading = exact(device, &wanted)?;
            vs = format!("bit-exact vs delivered float: {}", reading.value == 0.0);
            all.push(spec.judge(reading));
        }
    }
    all.extend(gates::counters(evidence));
    let figures =
        format!("bit-exact vs dequantized rows: {}, {vs}, max|err| {:.3e}", all[0].passed(), s.max_abs);
    Ok((vec![line("embed_tokens", evidence, &all, &figures)], all))
}

/// The whole vocabulary on a given post-norm hidden.
pub(super) fn lm_head(evidence: &Evidence, bounds: &LmHead) -> Result<Judged, ScoreError> {
    let output = evidence.layers[0].output()?;
    let reference = output.reference(&evidence.published);
    let same = output.published.is_some() && evidence.published == Published::SameWeights;
    let mut attained = Reading { value: 0.0, elements: 0, at: None };
    let (mut tokens, mut widest) = (0, 0);
    for (y, r) in output.device.chunks(output.width).zip(reference.chunks(output.width)) {
        let a = Attainment::of(y, r)?;
        attained.elements += a.elements;
        widest = widest.max(a.ties);
        if a.attains {
            attained.value += 1.0;
        } else {
            attained.at.get_or_insert_with(|| format!("token {tokens} does not"));
        }
        tokens += 1;
    }
    let of = attained.value;
    let spec = |published| {
        let bound = Bound::Equals(f64::from(tokens));
        if published { GateSpec::published("top-1", bound) } else { GateSpec::own("top-1", bound) }
    };
    let rows = output.rows(&evidence.published)?;
    let list = |of: fn(&Similarity) -> f64| {
        let each = move |(t, s): (usize, &Similarity)| (of(s), s.elements, format!("token {t}"));
        rows.iter().enumerate().map(each).collect::<Vec<_>>()
    };
    let nothing = || Reading { value: f64::NAN, elements: 0, at: None };
    let cosine = worst(list(|s| s.cosine), |v| 1.0 - v).unwrap_or_else(nothing);
    let ratio = worst(list(|s| s.norm_ratio), |v| (v - 1.0).abs()).unwrap_or_else(nothing);
    let figures = format!(
        "top-1 {of:.0}/{tokens} of the {}, cosine {:.8}, widest reference tie {widest}",
        if same { "delivered logits" } else { "float64 reference" },
        cosine.value
    );
    let mut all = vec![
        spec(same).judge(attained),
        GateSpec::own("tight-cosine", Bound::AtLeast(bounds.tight_cosine)).judge(cosine),
        GateSpec::own("tight-norm-ratio", Bound::Within { center: 1.0, tolerance: bounds.tight_norm_ratio })
            .judge(ratio),
    ];
    all.extend(gates::reference(evidence, bounds.reference_error)?);
    all.extend(gates::counters(evidence));
    Ok((vec![line("lm_head", evidence, &all, &figures)], all))
}
