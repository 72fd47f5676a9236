//! Every validation passes on sound evidence, and each gate fails when the one thing that it watches is
//! broken.

use super::evidence::*;
use super::{Bounds, Kind, judge};
use crate::decode::Counters;
use crate::{Gate, NonFiniteWeights, ScoreError, Verdict};

/// Numbers that look random and are always the same.
fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f64::from((state >> 40) as u32) / f64::from(1u32 << 23) - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The same values with an error in the last places, as a device makes it.
fn near(values: &[f64]) -> Vec<f64> {
    let one = |(i, v): (usize, &f64)| v * (1.0 + 1e-5 * if i % 2 == 0 { 1.0 } else { -1.0 });
    values.iter().enumerate().map(one).collect()
}

const WIDTH: usize = 16;
const STEPS: usize = 2;

fn item(what: What, seed: u64, width: usize) -> Item {
    let published = numbers(seed, width * STEPS);
    Item { what, width, device: near(&published), evaluator: published.clone(), published: Some(published) }
}

fn layer(index: usize, whats: &[What]) -> Layer {
    let seed = |n: usize| (100 * index + n + 1) as u64;
    let width = |w: What| if w == What::Gate { 1 } else { WIDTH };
    let mut items: Vec<Item> = whats.iter().enumerate().map(|(n, &w)| item(w, seed(n), width(w))).collect();
    // an experts' block whose output is what its components say
    let find = |w: What| items.iter().find(|i| i.what == w).cloned();
    if let (Some(r), Some(s), Some(g)) = (find(What::Routed), find(What::Shared), find(What::Gate)) {
        let all = |of: fn(&Item) -> Vec<f64>| super::moe::combined(&of(&r), &of(&s), &of(&g), WIDTH);
        items[0].device = all(|i| i.device.clone());
        items[0].evaluator = all(|i| i.evaluator.clone());
        items[0].published = Some(items[0].evaluator.clone());
    }
    let ids = vec![3, 1, 0, 2];
    let choices = Choices { k: 2, device: ids.clone(), evaluator: ids.clone(), published: Some(ids) };
    Layer { index, full: false, items, choices: Some(choices) }
}

fn evidence(layers: Vec<Layer>) -> Evidence {
    Evidence {
        setting: "hidden=16".into(),
        layers,
        published: Published::SameWeights,
        counters: Some(Counters::default()),
        non_finite_weights: NonFiniteWeights::default(),
        twice: Vec::new(),
        next_ids: Vec::new(),
        residual_unit: 1.0 / f64::from(1 << 20),
    }
}

/// Sound evidence for a validation.
fn sound(kind: Kind) -> Evidence {
    use What::{ConvState, Gate, KeyRows, Mixer, Output, RecurrentState, Routed, Scores, Shared};
    let one = |whats: &[What]| evidence(vec![layer(0, whats)]);
    match kind {
        Kind::Router => one(&[Scores]),
        Kind::MoeRouted => one(&[Output]),
        Kind::MoeBlock | Kind::MoeBlockReal | Kind::Reference => one(&[Output, Routed, Shared, Gate]),
        Kind::Deltanet => one(&[Output, ConvState, RecurrentState]),
        Kind::Attention => one(&[Output, KeyRows]),
        Kind::LinearLayer | Kind::AttentionLayer | Kind::Hybrid => {
            evidence((0..4).map(|l| layer(l, &[Output, Mixer, Routed, Shared, Gate])).collect())
        }
        Kind::Resume => {
            let mut e = one(&[Output, RecurrentState]);
            let bytes = vec![1, 2, 3];
            e.twice.push(Twice { what: "state".into(), pieces: bytes.clone(), whole: bytes });
            e
        }
        Kind::Embed => {
            let mut e = one(&[Output]);
            let output = &mut e.layers[0].items[0];
            output.device =
                output.evaluator.iter().map(|v| (v * 1048576.0).round_ties_even() / 1048576.0).collect();
            e
        }
        Kind::LmHead | Kind::Perplexity => {
            let mut e = one(&[Output]);
            let output = &mut e.layers[0].items[0];
            // a largest element that no rounding reaches
            for list in [&mut output.device, &mut output.evaluator] {
                list[3] = 5.0;
                list[WIDTH + 5] = 5.0;
            }
            output.published = Some(output.evaluator.clone());
            if kind == Kind::Perplexity {
                output.published = None;
                e.published = Published::Other;
                e.next_ids = vec![1, 2];
            }
            e
        }
    }
}

const ALL: [Kind; 14] = [
    Kind::Router,
    Kind::MoeRouted,
    Kind::MoeBlock,
    Kind::MoeBlockReal,
    Kind::Reference,
    Kind::Deltanet,
    Kind::LinearLayer,
    Kind::Resume,
    Kind::Attention,
    Kind::AttentionLayer,
    Kind::Hybrid,
    Kind::Embed,
    Kind::LmHead,
    Kind::Perplexity,
];

fn gates(kind: Kind, e: &Evidence) -> Vec<Gate> {
    judge(kind, &Bounds::default(), e).unwrap().gates
}

fn failed(gates: &[Gate]) -> Vec<&str> {
    gates.iter().filter(|g| g.verdict == Verdict::Fail).map(|g| g.name.as_str()).collect()
}

#[test]
fn sound_evidence_passes() {
    for kind in ALL {
        let gates = gates(kind, &sound(kind));
        assert!(!gates.is_empty() && gates.iter().all(Gate::passed), "{kind:?}: {gates:#?}");
    }
}

/// One thing broken: which validation, what is done to its evidence, and a gate that must fail.
type Twin = (Kind, fn(&mut Evidence), &'static str);

fn output(e: &mut Evidence) -> &mut Item {
    &mut e.layers[0].items[0]
}

fn scale(values: &mut [f64], by: f64) {
    values.iter_mut().for_each(|v| *v *= by);
}

#[test]
fn every_gate_has_a_twin_that_fails() {
    let twins: &[Twin] = &[
        (Kind::Router, |e| e.layers[0].choices.as_mut().unwrap().device.swap(0, 1), "expert-choices"),
        (Kind::Router, |e| output(e).device[0] += 3e-3, "score-error"),
        (Kind::Router, |e| output(e).device[0] += 3e-4, "tight-score-error"),
        (Kind::Router, |e| output(e).evaluator[0] += 1e-4, "reference-error"),
        (Kind::Router, |e| e.layers[0].choices.as_mut().unwrap().evaluator.swap(0, 1), "reference-choices"),
        (Kind::MoeRouted, |e| output(e).device.reverse(), "cosine"),
        (Kind::MoeRouted, |e| scale(&mut output(e).device, 1.03), "norm-ratio"),
        (Kind::MoeRouted, |e| output(e).device[0] += 0.1, "tight-cosine"),
        (Kind::MoeRouted, |e| scale(&mut output(e).device, 1.01), "tight-norm-ratio"),
        (Kind::MoeRouted, |e| e.layers[0].choices.as_mut().unwrap().device[0] = 7, "expert-choices"),
        (Kind::MoeBlock, |e| output(e).device = e.layers[0].items[1].device.clone(), "branch"),
        (Kind::MoeBlock, |e| scale(&mut e.layers[0].items[1].device, 1.2), "tight-branch"),
        (Kind::MoeBlock, |e| scale(&mut e.layers[0].items[3].device, 1.01), "component-norm-ratio"),
        (Kind::MoeBlockReal, |e| e.layers[0].items[2].device.reverse(), "tight-cosine"),
        (Kind::MoeBlockReal, |e| output(e).evaluator[0] += 1e-4, "reference-error"),
        (Kind::Reference, |e| output(e).evaluator[0] += 1e-4, "reference-error"),
        (
            Kind::Reference,
            |e| e.layers[0].choices.as_mut().unwrap().evaluator.swap(0, 1),
            "reference-choices",
        ),
        (Kind::Deltanet, |e| e.layers[0].items[2].device.reverse(), "tight-cosine"),
        (Kind::Deltanet, |e| scale(&mut output(e).device, 0.9), "norm-ratio"),
        (Kind::Attention, |e| e.layers[0].items[1].device.reverse(), "tight-cosine"),
        (Kind::Attention, |e| scale(&mut output(e).device[WIDTH..], -1.0), "cosine"),
        (Kind::LinearLayer, |e| e.layers[3].items[1].device.reverse(), "tight-cosine"),
        (Kind::LinearLayer, |e| scale(&mut e.layers[1].items[0].device, 1.06), "norm-ratio"),
        (Kind::AttentionLayer, |e| e.layers[2].choices.as_mut().unwrap().device.swap(2, 3), "expert-choices"),
        (Kind::Hybrid, |e| e.layers[3].items[0].device.reverse(), "cosine"),
        (Kind::Hybrid, |e| e.layers[2].items[2].evaluator[5] += 1e-3, "reference-error"),
        (Kind::Resume, |e| e.twice[0].pieces[2] ^= 1, "bit-equal"),
        (Kind::Resume, |e| e.layers[0].items[1].device.reverse(), "tight-cosine"),
        (Kind::Embed, |e| output(e).device[17] += e.residual_unit, "bit-exact"),
        (Kind::Embed, |e| output(e).device[17] += e.residual_unit, "max-error"),
        (Kind::Embed, |e| output(e).published.as_mut().unwrap()[3] += 1.0, "bit-exact-vs-delivered"),
        (Kind::LmHead, |e| output(e).device[3] = -5.0, "top-1"),
        (Kind::LmHead, |e| output(e).device[4] += 0.2, "tight-cosine"),
        (Kind::LmHead, |e| scale(&mut output(e).device, 1.01), "tight-norm-ratio"),
        (Kind::LmHead, |e| output(e).evaluator[4] += 1e-3, "reference-error"),
        (Kind::Perplexity, |e| output(e).device[3] = -5.0, "top-1"),
        (Kind::Perplexity, |e| scale(&mut output(e).device, 1.1), "perplexity-ratio"),
        (Kind::Perplexity, |e| output(e).device[4] += 1.0, "divergence"),
    ];
    for (kind, breakage, gate) in twins {
        let mut e = sound(*kind);
        breakage(&mut e);
        let gates = gates(*kind, &e);
        assert!(failed(&gates).contains(gate), "{kind:?} {gate}: {gates:#?}");
    }
    // and no gate is left without one
    for kind in ALL {
        for g in gates(kind, &sound(kind)) {
            let counted = ["saturations", "f16-overflows", "non-finite"].contains(&g.name.as_str());
            assert!(counted || twins.iter().any(|t| t.2 == g.name), "{kind:?} {}", g.name);
        }
    }
}

#[test]
fn a_nan_anywhere_and_a_counted_event_fail() {
    for kind in ALL {
        let mut e = sound(kind);
        let list =
            if kind == Kind::Reference { &mut output(&mut e).evaluator } else { &mut output(&mut e).device };
        list[1] = f64::NAN;
        assert!(!failed(&gates(kind, &e)).is_empty(), "{kind:?}");
        let mut e = sound(kind);
        e.counters = Some(Counters { saturations: 1, f16_overflows: 2, non_finite: 3 });
        if kind != Kind::Reference {
            assert_eq!(failed(&gates(kind, &e)), ["saturations", "f16-overflows", "non-finite"], "{kind:?}");
            let mut e = sound(kind);
            e.non_finite_weights.add("layer0: gate", 0);
            assert!(failed(&gates(kind, &e)).is_empty(), "{kind:?}");
            e.non_finite_weights.add("layer0: up", 2);
            let gates = gates(kind, &e);
            assert_eq!(failed(&gates), ["non-finite"], "{kind:?}");
            let at = gates.iter().find(|g| g.name == "non-finite").and_then(|g| g.at.as_deref());
            assert_eq!(at, Some("2 of them weights, the first in layer0: up"), "{kind:?}");
        }
    }
}

#[test]
fn what_is_not_captured_is_not_run_and_never_passes() {
    // a held-out text is nothing that the publisher captured
    for kind in ALL.into_iter().filter(|&k| k != Kind::Perplexity) {
        let mut e = sound(kind);
        e.published = Published::Absent("the delivery has no captures".into());
        let gates = gates(kind, &e);
        let not_run: Vec<&str> = gates
            .iter()
            .filter(|g| matches!(g.verdict, Verdict::NotRun(_)))
            .map(|g| g.name.as_str())
            .collect();
        let asked = if kind == Kind::Embed { "bit-exact-vs-delivered" } else { "reference-error" };
        assert_eq!(not_run, [asked], "{kind:?}");
        assert!(!Verdict::of_all(&gates).eq(&Verdict::Pass));
        let others: Vec<Gate> = gates.into_iter().filter(|g| g.name != asked).collect();
        e.published = Published::NotAsked("only our own evaluator is asked".into());
        assert_eq!(self::gates(kind, &e), others, "{kind:?}");
    }
}

#[test]
fn captures_of_other_weights_ask_nothing_of_them() {
    let mut e = sound(Kind::MoeBlock);
    e.published = Published::Other;
    output(&mut e).published.as_mut().unwrap().reverse();
    let gates = gates(Kind::MoeBlock, &e);
    assert!(gates.iter().all(|g| g.passed() && g.name != "reference-error"), "{gates:#?}");
}

#[test]
fn nothing_to_compare_is_an_error() {
    assert!(matches!(
        judge(Kind::Router, &Bounds::default(), &evidence(Vec::new())),
        Err(ScoreError::Empty { .. })
    ));
    let mut e = sound(Kind::Deltanet);
    output(&mut e).device.clear();
    assert!(judge(Kind::Deltanet, &Bounds::default(), &e).is_err());
}

#[test]
fn lines_read_as_the_walkthroughs() {
    let text = |kind| judge(kind, &Bounds::default(), &sound(kind)).unwrap().render();
    let all: String = ALL.iter().map(|&k| text(k)).collect();
    insta::assert_snapshot!(all);
}
