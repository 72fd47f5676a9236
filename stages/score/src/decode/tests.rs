//! Each gate passes on a good run and fails when the one thing that it guards is broken.

use super::fixture::*;
use super::{CaptureLabel, Place, Source, Stack};
use crate::metrics::Equality;
use crate::{DecodeReport, Gate, ScoreError, Thresholds, Verdict, score_decode};

fn names(report: &DecodeReport, keep: impl Fn(&Verdict) -> bool) -> Vec<&str> {
    report.gates.iter().filter(|gate| keep(&gate.verdict)).map(|gate| gate.name.as_str()).collect()
}

fn failed(report: &DecodeReport) -> Vec<&str> {
    names(report, |verdict| *verdict == Verdict::Fail)
}

/// A channel that is far larger than all others makes every cosine 1; the figures without it do not.
#[test]
fn one_large_channel_hides_nothing() {
    let report = |broken: f64| {
        let large = |f: &mut Fixture| {
            let runs = [&mut f.reference, &mut f.forced, &mut f.free];
            for layer in runs.into_iter().flat_map(|run| &mut run.layers) {
                layer.iter_mut().skip(3).step_by(HIDDEN).for_each(|v| *v = -1e6);
            }
            f.forced.layers[1][4] *= broken;
        };
        Fixture::new(TIGHT).with(large).with(|f| f.parts = None).score()
    };
    let (sound, broken) = (report(1.0), report(-1.0));
    assert!(!failed(&broken).contains(&"layer-cosine-vs-float64"), "{:?}", failed(&broken));
    let peak = broken.difficulty.peak;
    assert_eq!((peak.value, peak.channel, peak.place, peak.token), (-1e6, 3, Place::Layer(0), 0));
    assert!(broken.difficulty.rest < 1.0);
    assert!(sound.difficulty.forced_without_peak > 0.999_999);
    assert!(broken.difficulty.forced_without_peak < 0.99, "{:?}", broken.difficulty);
    assert_eq!(broken.difficulty.forced_layer, 1);
    // of every token the third expert is half a logit behind the second
    let margins = broken.difficulty.margins.unwrap();
    assert_eq!((margins.choices, margins.least, margins.median), (6, 0.5, 0.5));
}

type Twin = (&'static str, fn(&mut Fixture), &'static [&'static str]);

const LAYER_COSINES: [&str; 2] = ["layer-cosine-vs-capture", "layer-cosine-vs-float64"];
const LAYER_RATIOS: [&str; 2] = ["layer-norm-ratio-vs-capture", "layer-norm-ratio-vs-float64"];
const LAYERS_BOTH: [&str; 4] = [
    "layer-cosine-vs-capture",
    "layer-norm-ratio-vs-capture",
    "layer-cosine-vs-float64",
    "layer-norm-ratio-vs-float64",
];
const HIDDEN_BOTH: [&str; 4] = [
    "hidden-cosine-vs-capture",
    "hidden-norm-ratio-vs-capture",
    "hidden-cosine-vs-float64",
    "hidden-norm-ratio-vs-float64",
];
const LOGITS_BOTH: [&str; 4] = [
    "logits-cosine-vs-capture",
    "logits-norm-ratio-vs-capture",
    "logits-cosine-vs-float64",
    "logits-norm-ratio-vs-float64",
];

/// What is broken, how, and exactly which gates have to fail. The references are two, so a broken device
/// fails against both.
const TWINS: [Twin; 27] = [
    ("a layer scaled by 1 %", |f| scale(&mut f.forced.layers[1], 1.01), &LAYER_RATIOS),
    ("two elements of a layer swapped", |f| f.forced.layers[1].swap(4, 6), &LAYER_COSINES),
    ("an element of a layer zeroed", |f| f.forced.layers[0][5] = 0.0, &LAYERS_BOTH),
    ("a layer NaN", |f| f.forced.layers[1][0] = f64::NAN, &LAYERS_BOTH),
    ("a token's embedding lost", |f| f.forced.embed[..HIDDEN].fill(0.0), &LAYERS_BOTH),
    (
        "the final norm's 1 + forgotten",
        |f| {
            scale(&mut f.forced.normed, 0.41);
            scale(&mut f.free.normed, 0.41);
        },
        &["hidden-norm-ratio-vs-capture", "hidden-norm-ratio-vs-float64"],
    ),
    (
        "two elements of the hidden swapped",
        |f| f.forced.normed.swap(0, 1),
        &["hidden-cosine-vs-capture", "hidden-cosine-vs-float64"],
    ),
    ("the hidden infinite", |f| f.forced.normed[3] = f64::INFINITY, &HIDDEN_BOTH),
    (
        "a head that doubles its logits",
        |f| scale(&mut f.forced.logits, 2.0),
        &["logits-norm-ratio-vs-capture", "logits-norm-ratio-vs-float64"],
    ),
    (
        "two logits swapped",
        |f| f.forced.logits.swap(1, 3),
        &["logits-cosine-vs-capture", "logits-cosine-vs-float64"],
    ),
    ("a logit NaN", |f| f.forced.logits[1] = f64::NAN, &LOGITS_BOTH),
    ("another token", |f| swap_token(&mut f.free.logits, 1), &["token-vs-capture", "token-vs-float64"]),
    ("no token", |f| f.free.logits[VOCAB] = f64::NAN, &["token-vs-capture", "token-vs-float64"]),
    (
        "the free-running hidden turned around",
        |f| scale(&mut f.free.normed[HIDDEN..2 * HIDDEN], -1.0),
        &["chain-cosine-vs-capture"],
    ),
    ("the free-running hidden NaN", |f| f.free.normed[0] = f64::NAN, &["chain-cosine-vs-capture"]),
    (
        "a captured layer's value corrupted",
        |f| f.captured.layers[1][2] *= 1.0001,
        &["reference-layer-vs-capture"],
    ),
    (
        "a captured hidden's value corrupted",
        |f| f.captured.normed[2] *= 1.0001,
        &["reference-hidden-vs-capture"],
    ),
    ("a captured logit corrupted", |f| f.captured.logits[3] *= 1.0001, &["reference-logits-vs-capture"]),
    (
        "the evaluator wrong in a layer",
        |f| scale(&mut f.reference.layers[0], 1.01),
        &["reference-layer-vs-capture", "layer-norm-ratio-vs-float64"],
    ),
    ("a captured choice of experts", |f| f.captured.routing[1][0] = 3, &["reference-routing-vs-capture"]),
    ("a forced choice of experts", |f| f.forced.routing[0][5] = 1, &["forced-routing"]),
    ("a saturation", |f| f.counters.saturations = 1, &["saturations"]),
    ("an overflow", |f| f.counters.f16_overflows = 1, &["f16-overflows"]),
    ("a NaN written", |f| f.counters.non_finite = 1, &["non-finite"]),
    (
        "a weight that is NaN, which the device got as 0",
        |f| f.non_finite_weights.add("layer1: in_proj_qkv.weight", 1),
        &["non-finite"],
    ),
    (
        "the linked kernel off by one element",
        |f| f.whole_kernel = Some(Equality { elements: 24, differing: 1, first: Some(7) }),
        &["whole-kernel"],
    ),
    (
        "a linked kernel of which nothing was compared",
        |f| f.whole_kernel = Some(Equality { elements: 0, differing: 0, first: None }),
        &["whole-kernel"],
    ),
];

#[test]
fn a_broken_input_fails_exactly_its_gates() {
    for (what, break_it, expected) in TWINS {
        let report = Fixture::new(TIGHT).with(break_it).score();
        assert_eq!(failed(&report), expected, "{what}");
        assert_eq!(report.verdict(), Verdict::Fail, "{what}");
    }
}

#[test]
fn every_gate_has_a_twin() {
    let report = Fixture::new(TIGHT).score();
    let guarded: Vec<&str> = TWINS.iter().flat_map(|(_, _, gates)| *gates).copied().collect();
    for gate in names(&report, |_| true) {
        assert!(guarded.contains(&gate), "nothing proves that {gate} bites");
    }
}

#[test]
fn a_bfloat16_capture_is_held_to_the_published_bounds_alone() {
    let report = Fixture::new(BF16).score();
    assert_eq!(report.verdict(), Verdict::Pass);
    let of_captures: Vec<_> = report.gates.iter().filter(|gate| gate.name.ends_with("capture")).collect();
    assert!(of_captures.iter().all(|gate| gate.published), "{of_captures:?}");
    assert_eq!(of_captures.len(), 2);
}

#[test]
fn a_checkpoint_quantized_here_is_held_to_its_own_weights_and_loosely_to_the_capture() {
    let report = Fixture::new(UNQUANTIZED).score();
    assert_eq!(report.verdict(), Verdict::Pass);
    let of_captures: Vec<_> = report.gates.iter().filter(|gate| gate.name.ends_with("capture")).collect();
    assert_eq!(of_captures.len(), 1);
    assert_eq!((of_captures[0].published, of_captures[0].bound.to_string()), (false, ">= 0.98".into()));

    let twins: [Twin; 4] = [
        (
            "another direction",
            |f| f.free.normed[..HIDDEN].copy_from_slice(&[1.0; HIDDEN]),
            &["chain-cosine-vs-capture"],
        ),
        // The capture has another token now and then: that is what quantization does, and is printed.
        ("another captured token", |f| swap_token(&mut f.captured.logits, 0), &[]),
        ("another token", |f| swap_token(&mut f.free.logits, 0), &["token-vs-float64"]),
        ("a scaled layer", |f| scale(&mut f.forced.layers[0], 1.01), &["layer-norm-ratio-vs-float64"]),
    ];
    for (what, break_it, expected) in twins {
        assert_eq!(failed(&Fixture::new(UNQUANTIZED).with(break_it).score()), expected, "{what}");
    }
}

#[test]
fn what_was_not_captured_is_not_run_and_not_passed() {
    const PARTS: &str = "the fixture has captures";
    // what is absent, gates that are then not run, the first one's reason
    type Case = (fn(&mut Fixture), usize, &'static str);
    let cases: [Case; 7] = [
        (|f| f.parts = None, 12, "the delivery has no captures"),
        (
            |f| f.label = OWN,
            12,
            "the captures were made by our own evaluator, not by the published implementation",
        ),
        (
            |f| f.parts.as_mut().expect(PARTS).places.retain(|place| *place != Place::Logits),
            4,
            "the logits were not captured",
        ),
        (
            |f| f.parts.as_mut().expect(PARTS).places.retain(|place| *place != Place::FinalNorm),
            4,
            "the post-norm hidden was not captured",
        ),
        (
            |f| f.parts.as_mut().expect(PARTS).places.retain(|place| !matches!(place, Place::Layer(_))),
            3,
            "no layer's output was captured",
        ),
        (|f| f.parts.as_mut().expect(PARTS).routing = false, 1, "the routing was not captured"),
        (|f| f.whole_kernel = None, 1, "the linked kernel was not run"),
    ];
    for (remove, count, reason) in cases {
        let report = Fixture::new(TIGHT).with(remove).score();
        let not_run = names(&report, |verdict| matches!(verdict, Verdict::NotRun(_)));
        assert_eq!(not_run.len(), count, "{reason}: {not_run:?}");
        assert_eq!(report.verdict(), Verdict::NotRun(reason.into()));
        assert!(failed(&report).is_empty());
    }
}

/// Our own captures are compared with under names of their own; what asks for the published implementation is
/// not run on them, and is left out only of a run that is said to be judged by our own.
#[test]
fn our_own_captures_are_put_to_gates_of_their_own() {
    let stated = |f: &mut Fixture| f.oracle = Source::SelfMade;
    let ends = |report: &DecodeReport, end: &str| -> usize {
        names(report, |_| true).iter().filter(|name| name.ends_with(end)).count()
    };
    let unstated = Fixture::new(OWN).score();
    assert_eq!((ends(&unstated, "-vs-capture"), ends(&unstated, "-vs-self")), (12, 12));
    assert!(matches!(unstated.verdict(), Verdict::NotRun(_)));
    let own = |report: &DecodeReport| -> Vec<Gate> {
        report.gates.iter().filter(|g| g.name.ends_with("-vs-self")).cloned().collect()
    };
    let report = Fixture::new(OWN).with(stated).score();
    assert_eq!((ends(&report, "-vs-capture"), ends(&report, "-vs-self")), (0, 12));
    assert_eq!((report.verdict(), report.oracle), (Verdict::Pass, Source::SelfMade));
    assert!(own(&report).iter().all(|g| !g.published), "{:?}", own(&report));
    assert_eq!(own(&report), own(&unstated));

    // what is broken, and the gates that say so
    type Case = (fn(&mut Fixture), &'static [&'static str]);
    let cases: [Case; 5] = [
        (|f| scale(&mut f.captured.layers[0], 1.0 + 1e-5), &["reference-layer-vs-self"]),
        (|f| f.captured.normed[0] *= 1.0 + 1e-4, &["reference-hidden-vs-self"]),
        (
            |f| swap_token(&mut f.captured.logits, 0),
            &["token-vs-self", "logits-cosine-vs-self", "reference-logits-vs-self"],
        ),
        (|f| f.captured.routing[0][0] = 3, &["reference-routing-vs-self"]),
        (
            |f| scale(&mut f.captured.normed, -1.0),
            &["chain-cosine-vs-self", "hidden-cosine-vs-self", "reference-hidden-vs-self"],
        ),
    ];
    for (break_it, expected) in cases {
        let report = Fixture::new(OWN).with(stated).with(break_it).score();
        assert_eq!(failed(&report), expected);
    }

    // nothing to judge by is no pass, and the published implementation's captures stay what they are
    let none = Fixture::new(OWN).with(stated).with(|f| f.parts = None).score();
    assert_eq!(none.verdict(), Verdict::NotRun("the delivery has no captures".into()));
    let published = Fixture::new(TIGHT).with(stated).score();
    assert_eq!((ends(&published, "-vs-capture"), ends(&published, "-vs-self")), (12, 0));
    assert_eq!(published.oracle, Source::Published);
}

#[test]
fn layers_that_were_not_captured_are_counted() {
    let report = Fixture::new(TIGHT)
        .with(|f| f.parts.as_mut().unwrap().places.retain(|place| *place != Place::Layer(0)))
        .score();
    assert_eq!(report.verdict(), Verdict::Pass);
    let gate = report.gates.iter().find(|gate| gate.name == "layer-cosine-vs-capture").unwrap();
    assert_eq!(gate.elements, 2 * (TOKENS * HIDDEN) as u64);
    assert!(gate.at.as_deref().unwrap().ends_with("1 of 2 layers captured"), "{gate}");
}

#[test]
fn a_shorter_stack_is_compared_with_the_capture_of_its_last_layer_alone() {
    let shorter = |f: &mut Fixture| f.stack = Stack::Shorter;
    // The captured ends are those of another model and must not matter.
    let report = Fixture::new(TIGHT)
        .with(shorter)
        .with(|f| {
            swap_token(&mut f.captured.logits, 0);
            scale(&mut f.captured.normed, -1.0);
        })
        .score();
    assert_eq!(report.verdict(), Verdict::Pass, "{:?}", failed(&report));
    assert!(report.perplexity.unwrap().capture.is_none());
    let turned = |f: &mut Fixture| scale(&mut f.free.layers[1], -1.0);
    let report = Fixture::new(TIGHT).with(shorter).with(turned).score();
    assert_eq!(failed(&report), ["chain-cosine-vs-capture"]);

    let report = Fixture::new(TIGHT)
        .with(shorter)
        .with(|f| f.parts.as_mut().unwrap().places.retain(|place| *place != Place::Layer(1)))
        .score();
    assert_eq!(report.verdict(), Verdict::Pass);
    assert!(names(&report, |_| true).iter().all(|name| !name.ends_with("capture")));
}

#[test]
fn the_first_place_outside_is_marked() {
    // how it is broken, the first place outside
    type Case = (fn(&mut Fixture), Option<Place>);
    let cases: [Case; 7] = [
        (|_| (), None),
        (|f| f.forced.layers[1].swap(4, 6), Some(Place::Layer(1))),
        (|f| scale(&mut f.forced.embed, 1.01), Some(Place::Embed)),
        (
            |f| {
                scale(&mut f.forced.layers[1], 1.01);
                scale(&mut f.forced.normed, 1.01);
            },
            Some(Place::Layer(1)),
        ),
        (|f| f.forced.normed[0] = f64::NAN, Some(Place::FinalNorm)),
        (|f| f.captured.logits[0] = 0.0, Some(Place::Logits)),
        (|f| f.free.layers[0][0] = 0.0, None),
    ];
    for (break_it, expected) in cases {
        let report = Fixture::new(TIGHT).with(break_it).score();
        assert_eq!(report.divergence.first_outside, expected);
    }
    // Captures that bind nothing mark nothing.
    for label in [UNQUANTIZED, BF16, OWN] {
        assert_eq!(Fixture::new(label).score().divergence.first_outside, None);
    }
}

#[test]
fn a_flip_of_the_free_run_is_listed_with_its_margin_and_fails_nothing() {
    let report = Fixture::new(TIGHT)
        .with(|f| {
            f.free.routing[1] = vec![0, 2, 1, 0, 0, 9];
        })
        .score();
    assert_eq!(report.verdict(), Verdict::Pass);
    assert_eq!((report.routing.choices, report.routing.reordered), (6, 1));
    let [close, absurd] = &report.routing.flips[..] else { panic!("{:?}", report.routing) };
    assert_eq!((close.layer, close.token, &*close.lost, &*close.gained), (1, 1, &[3][..], &[0][..]));
    assert_eq!(close.logit_margin, 0.5);
    let whole: f64 = [0.5f64, 3.0, 0.25, 1.0].map(f64::exp).iter().sum();
    assert!((close.probability_margin - (1f64.exp() - 0.5f64.exp()) / whole).abs() < 1e-15);
    assert_eq!(&*absurd.gained, [9]);
    assert!(absurd.logit_margin.is_nan() && absurd.probability_margin.is_nan());
    // of two that changed, the largest lost and the smallest gained
    let both = Fixture::new(TIGHT).with(|f| f.free.routing[0][..2].copy_from_slice(&[1, 3])).score();
    let [flip] = &both.routing.flips[..] else { panic!("{:?}", both.routing) };
    assert_eq!((&*flip.lost, &*flip.gained, flip.logit_margin), (&[2, 0][..], &[1, 3][..], 2.0 - 0.25));
}

/// A token passes where every gate that judges it and was run does.
#[test]
fn a_token_passes_what_it_is_asked() {
    // the captures, what is broken, and which tokens pass
    type Case = (CaptureLabel, fn(&mut Fixture), [bool; 3]);
    let cases: [Case; 8] = [
        (TIGHT, |_| (), [true; 3]),
        (TIGHT, |f| swap_token(&mut f.free.logits, 1), [true, false, true]),
        (TIGHT, |f| swap_token(&mut f.reference.logits, 2), [true, true, false]),
        (TIGHT, |f| swap_token(&mut f.captured.logits, 0), [false, true, true]),
        (TIGHT, |f| scale(&mut f.free.normed[HIDDEN..2 * HIDDEN], -1.0), [true, false, true]),
        // captures of other weights choose other tokens, and captures that are not judged by ask nothing
        (UNQUANTIZED, |f| swap_token(&mut f.captured.logits, 0), [true; 3]),
        (UNQUANTIZED, |f| scale(&mut f.free.normed[..HIDDEN], -1.0), [false, true, true]),
        (TIGHT, |f| f.parts = None, [true; 3]),
    ];
    for (number, (label, break_it, expected)) in cases.into_iter().enumerate() {
        let report = Fixture::new(label).with(break_it).score();
        let pass: Vec<bool> = report.tokens.iter().map(|token| token.pass).collect();
        assert_eq!(pass, expected, "case {number}");
    }
}

#[test]
fn shares_are_of_the_whole_and_a_broken_layer_spoils_them() {
    let shares = Fixture::new(TIGHT).score().shares.unwrap();
    assert_eq!((&*shares.layers, shares.min, shares.median), (&[0.2, 0.3][..], 0.2, 0.25));
    let broken = Fixture::new(TIGHT).with(|f| f.branches[0].0[0] = f64::NAN).score().shares.unwrap();
    assert!(broken.min.is_nan() && broken.median.is_nan() && broken.layers[1] == 0.3);
    assert_eq!(Fixture::new(TIGHT).with(|f| f.branches.clear()).score().shares, None);
}

#[test]
fn a_threshold_judges_again_and_measures_the_same() {
    let fixture = Fixture::new(TIGHT).with(|f| scale(&mut f.forced.layers[1], 1.01));
    let strict = fixture.score();
    let loose = Thresholds { layer_norm_ratio: 0.02, ..Thresholds::default() };
    let loose = score_decode(&fixture.inputs(), &loose).unwrap();
    assert_eq!((strict.verdict(), loose.verdict()), (Verdict::Fail, Verdict::Pass));
    let figures = |report: &DecodeReport| report.gates.iter().map(|g| g.value).collect::<Vec<_>>();
    assert_eq!(figures(&strict), figures(&loose));
}

#[test]
fn inputs_of_the_wrong_size_are_named() {
    // what is wrong, the message
    type Case = (fn(&mut Fixture), &'static str);
    let cases: [Case; 12] = [
        (|f| shorten(&mut f.input_ids), "input_ids has 2 elements where 3 were expected"),
        (|f| f.next_ids.push(0), "next_ids has 4 elements where 3 were expected"),
        (|f| f.next_ids[1] = 6, "next ids: id 6 at position 1 is outside 0..6"),
        (|f| shorten(&mut f.free.layers), "the list of free layers has 1 elements where 2 were expected"),
        (|f| shorten(&mut f.forced.layers[1]), "forced layer 1 has 11 elements where 12 were expected"),
        (|f| f.reference.logits.clear(), "reference logits has 0 elements where 18 were expected"),
        (
            |f| shorten(&mut f.forced.routing[1]),
            "forced routing of layer 1 has 5 elements where 6 were expected",
        ),
        (|f| shorten(&mut f.captured.normed), "captured final norm has 11 elements where 12 were expected"),
        (
            |f| f.captured.routing[0].push(1),
            "captured routing of layer 0 has 7 elements where 6 were expected",
        ),
        (
            |f| shorten(&mut f.router[1]),
            "router logits of layer 1 has 11 elements, which is no whole number of 3 rows",
        ),
        (
            |f| f.reference.routing[0][4] = 4,
            "reference routing of layer 0: id 4 at position 4 is outside 0..4",
        ),
        (|f| shorten(&mut f.branches), "the list of branches has 1 elements where 2 were expected"),
    ];
    for (break_it, expected) in cases {
        let fixture = Fixture::new(TIGHT).with(break_it);
        let error = score_decode(&fixture.inputs(), &Thresholds::default()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let nothing = Fixture::new(TIGHT);
    for (what, tokens, hidden) in [("tokens", 0, HIDDEN), ("hidden", TOKENS, 0)] {
        let inputs = super::DecodeInputs { tokens, hidden, ..nothing.inputs() };
        let error = score_decode(&inputs, &Thresholds::default()).unwrap_err();
        assert_eq!(error, ScoreError::Empty { what: what.into() });
    }
}
