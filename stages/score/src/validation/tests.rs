//! Every validation passes on sound evidence, and each gate fails when the one thing that it watches is
//! broken.

use super::evidence::*;
use super::{Bounds, Kind, judge};
use crate::decode::Counters;
use crate::{Bound, Gate, NonFiniteWeights, ScoreError, Verdict};

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
        (Kind::Deltanet, |e| scale(&mut output(e).device[..WIDTH], 0.9), "norm-ratio"),
        (Kind::Attention, |e| e.layers[0].items[1].device.reverse(), "tight-cosine"),
        (Kind::Attention, |e| scale(&mut output(e).device[WIDTH..], -1.0), "cosine"),
        (Kind::LinearLayer, |e| e.layers[3].items[1].device.reverse(), "tight-cosine"),
        (Kind::LinearLayer, |e| scale(&mut e.layers[1].items[0].device, 1.06), "norm-ratio"),
        (Kind::AttentionLayer, |e| e.layers[2].choices.as_mut().unwrap().device.swap(2, 3), "expert-choices"),
        (Kind::Hybrid, |e| e.layers[3].items[0].device.reverse(), "cosine"),
        (Kind::Hybrid, |e| e.layers[2].items[2].evaluator[5] += 1e-3, "reference-error"),
        (Kind::Resume, |e| e.twice[0].pieces[2] ^= 1, "bit-equal"),
        (
            Kind::Resume,
            |e| {
                e.twice.push(e.twice[0].clone());
                e.twice[0].pieces[0] ^= 1;
            },
            "bit-equal",
        ),
        (Kind::Resume, |e| e.layers[0].items[1].device.reverse(), "tight-cosine"),
        (Kind::Embed, |e| output(e).device[17] += e.residual_unit, "bit-exact"),
        (Kind::Embed, |e| output(e).device[17] += e.residual_unit, "max-error"),
        (Kind::Embed, |e| output(e).published.as_mut().unwrap()[3] += 1.0, "bit-exact-vs-delivered"),
        (Kind::LmHead, |e| output(e).device[3] = -5.0, "top-1"),
        (Kind::LmHead, |e| output(e).device[4] += 0.2, "tight-cosine"),
        (Kind::LmHead, |e| scale(&mut output(e).device, 1.01), "tight-norm-ratio"),
        (Kind::LmHead, |e| scale(&mut output(e).device[..WIDTH], 0.99), "tight-norm-ratio"),
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

/// A bound by its own name in its own validation is that of the gate, and no other is.
#[test]
fn every_bound_is_that_of_its_own_gate() {
    let mut sections = toml::Table::try_from(Bounds::default()).unwrap();
    let fields = sections.iter_mut().flat_map(|(_, section)| section.as_table_mut().unwrap().iter_mut());
    for (number, (_, bound)) in (1..).zip(fields) {
        *bound = toml::Value::Float(f64::from(number) / 4096.0);
    }
    let bounds: Bounds = sections.clone().try_into().unwrap();
    for kind in ALL {
        let name = serde_json::to_value(kind).unwrap();
        let section = sections[name.as_str().unwrap()].as_table().unwrap();
        let own = toml::Table::from_iter([(name.as_str().unwrap().into(), section.clone().into())]);
        let own: Bounds = own.try_into().unwrap();
        for other in ALL {
            assert_eq!(own.of(other) != Bounds::default().of(other), kind == other, "{kind:?} {other:?}");
        }
        let mut unread: Vec<&str> = section.keys().map(String::as_str).collect();
        for gate in judge(kind, &bounds, &sound(kind)).unwrap().gates {
            let (Bound::AtLeast(b) | Bound::AtMost(b) | Bound::Within { tolerance: b, .. }) = gate.bound
            else {
                continue;
            };
            let field = gate.name.trim_start_matches("perplexity-").replace('-', "_");
            assert_eq!(
                Some(b),
                section.get(&field).and_then(toml::Value::as_float),
                "{kind:?} {}",
                gate.name
            );
            unread.retain(|name| *name != field);
        }
        // the routed half has no components
        let expected: &[&str] = if kind == Kind::MoeRouted { &["component_norm_ratio"] } else { &[] };
        assert_eq!(unread, expected, "{kind:?}");
    }
}

/// What each validation asks for, where nothing is overridden.
#[test]
fn gates_ask_for_this() {
    let mut text = String::new();
    for kind in ALL {
        text += &format!("{kind:?}\n");
        for gate in gates(kind, &sound(kind)) {
            let published = if gate.published { ", published" } else { "" };
            text += &format!("  {} {}{published}\n", gate.name, gate.bound);
        }
    }
    insta::assert_snapshot!(text);
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
            e.non_finite_weights.add("layer0: down", 3);
            let gates = gates(kind, &e);
            assert_eq!(failed(&gates), ["non-finite"], "{kind:?}");
            let at = gates.iter().find(|g| g.name == "non-finite").and_then(|g| g.at.as_deref());
            assert_eq!(at, Some("5 of them weights, the first in layer0: up"), "{kind:?}");
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

/// Whose choices the device has to take: the published implementation's of the same weights, else the evaluator's.
#[test]
fn choices_are_compared_with_the_reference() {
    let of = |published: Published, change: fn(&mut Choices)| {
        let mut e = sound(Kind::MoeBlock);
        e.published = published;
        change(e.layers[0].choices.as_mut().unwrap());
        failed(&gates(Kind::MoeBlock, &e)).contains(&"expert-choices")
    };
    let swap: [fn(&mut Choices); 3] =
        [|c| c.device.swap(0, 1), |c| c.evaluator.swap(0, 1), |c| c.published.as_mut().unwrap().swap(0, 1)];
    assert_eq!(swap.map(|change| of(Published::SameWeights, change)), [true, false, true]);
    assert_eq!(swap.map(|change| of(Published::Other, change)), [true, true, false]);
}

/// What was captured of nothing that was computed, and a state that was read back by nobody, prove nothing.
#[test]
fn what_had_nothing_to_judge_is_not_run() {
    let not_run = |kind, change: fn(&mut Evidence), name: &str| {
        let mut e = sound(kind);
        change(&mut e);
        let gate = gates(kind, &e).into_iter().find(|g| g.name == name).unwrap();
        assert!(matches!(gate.verdict, Verdict::NotRun(_)), "{gate:?}");
    };
    let uncaptured = |e: &mut Evidence| e.layers[0].items.iter_mut().for_each(|i| i.published = None);
    not_run(Kind::Deltanet, uncaptured, "reference-error");
    not_run(Kind::Resume, |e| e.twice.clear(), "bit-equal");
}

/// A shared expert that moves the output three times as far as it should is no lost branch, but not the right one.
#[test]
fn a_branch_is_measured_in_the_references_movement() {
    let mut e = sound(Kind::MoeBlock);
    let [output, routed, ..] = &mut e.layers[0].items[..] else { panic!("{e:?}") };
    for (output, routed) in output.device.iter_mut().zip(&routed.device) {
        *output = routed + 3.0 * (*output - routed);
    }
    let gates = gates(Kind::MoeBlock, &e);
    assert!(!failed(&gates).contains(&"branch") && failed(&gates).contains(&"tight-branch"), "{gates:#?}");
}

#[test]
fn the_worst_is_the_farthest_and_a_nan_stays() {
    const NAN: f64 = f64::NAN;
    // figures, which is the worst
    let cases: [(&[f64], Option<usize>); 6] = [
        (&[], None),
        (&[1.0], Some(0)),
        (&[1.0, 3.0, 2.0, 3.0], Some(1)),
        (&[1.0, NAN, 5.0], Some(1)),
        (&[NAN, 9.0, NAN], Some(0)),
        (&[f64::INFINITY, NAN], Some(0)),
    ];
    for (figures, expected) in cases {
        let readings = figures.iter().enumerate().map(|(n, &v)| (v, 10, n.to_string()));
        let found = worst(readings, |v| v);
        assert_eq!(found.as_ref().and_then(|r| r.at.clone()), expected.map(|n| n.to_string()), "{figures:?}");
        assert_eq!(found.map_or(0, |r| r.elements), 10 * figures.len() as u64);
    }
}

#[test]
fn some_rows_captured_are_compared_and_the_widest_tie_is_told() {
    let mut e = sound(Kind::Embed);
    output(&mut e).published.as_mut().unwrap().truncate(WIDTH);
    assert!(gates(Kind::Embed, &e).iter().all(Gate::passed));
    let mut e = sound(Kind::LmHead);
    let output = output(&mut e);
    for list in [&mut output.device, &mut output.evaluator, output.published.as_mut().unwrap()] {
        list[4] = 5.0;
    }
    let report = judge(Kind::LmHead, &Bounds::default(), &e).unwrap();
    assert!(report.lines[0].contains("widest reference tie 2"), "{:?}", report.lines);
}

/// A row half way between two values of the residual's format goes to the even one, as the device converts.
#[test]
fn a_tie_of_the_embedding_is_even() {
    for (row, held) in [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, 0.0), (-2.5, -2.0)] {
        let mut e = sound(Kind::Embed);
        let unit = e.residual_unit;
        let output = output(&mut e);
        output.evaluator[0] = row * unit;
        output.published.as_mut().unwrap()[0] = row * unit;
        output.device[0] = held * unit;
        assert!(gates(Kind::Embed, &e).iter().all(Gate::passed), "{row}");
    }
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
