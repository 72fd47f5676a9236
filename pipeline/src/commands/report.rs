//! What a build says at its end: reports of scores and timings, as text, JSON and gate events.

use crate::action::Outcome;
use crate::error::NodeError;
use crate::events::{Event, Status};
use crate::graph::Job;
use crate::queries::{self, Report};
use crate::session::Session;
use crate::timing::{Timing, render};
use mica_cache::Digest;
use mica_quantize::TensorFigures;
use mica_score::table::{Align, Table};
use mica_score::{Gate, Verdict, validation};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What a goal reports.
pub enum Reported {
    /// A decode run's gates.
    Score(Box<Report>),
    /// A validation's gates.
    Validation(Box<validation::Report>),
    /// A kernel's cycles.
    Timing(Box<Timing>),
    /// What a part lost by being stored in the device's formats.
    Figures(Vec<TensorFigures>),
    /// A result whose report the cache has lost since.
    Lost(Digest),
}

/// A goal's target and its report.
pub type Named = (String, Reported);

/// The reports of those goals that have one and were built.
pub fn collect(session: &Session, goals: &[usize], errors: &[Option<NodeError>]) -> Vec<Named> {
    let mut reports = Vec::new();
    for &i in goals.iter().filter(|&&i| errors[i].is_none()) {
        let node = session.graph.nodes[i];
        let model = session.models[node.model];
        let report = match node.job {
            Job::Score => queries::scored(&session.db, model)
                .map(|o| read(session, &o, "report", queries::SCORE_KIND, |r| Reported::Score(Box::new(r)))),
            Job::Judge => queries::judged(&session.db, model).map(|o| {
                read(session, &o, "report", queries::VALIDATION_KIND, |r| Reported::Validation(Box::new(r)))
            }),
            Job::Perplexity => queries::surprised(&session.db, model).map(|o| {
                read(session, &o, "report", queries::VALIDATION_KIND, |r| Reported::Validation(Box::new(r)))
            }),
            Job::Timing => queries::timed(&session.db, model).map(|o| {
                read(session, &o, "report", queries::TIMING_KIND, |r| Reported::Timing(Box::new(r)))
            }),
            Job::Quantize(part) => queries::quantized(&session.db, model, part)
                .map(|o| read(session, &o, "figures", queries::FIGURES_KIND, Reported::Figures)),
            _ => continue,
        };
        if let Ok(r) = report {
            reports.push((session.graph.names[i].clone(), r));
        }
    }
    reports
}

fn read<T: DeserializeOwned>(
    session: &Session,
    outcome: &Outcome,
    output: &str,
    kind: &str,
    of: impl FnOnce(T) -> Reported,
) -> Reported {
    let digest = outcome.digest(output);
    let blob = session.env().cache.get(digest).ok().flatten();
    match blob.and_then(|b| mica_cache::decode(kind, &b).ok()) {
        Some(value) => of(value),
        None => Reported::Lost(digest),
    }
}

/// Digests of the reports that were lost between the build and their printing.
pub fn lost(reports: &[Named]) -> Vec<String> {
    let digest = |(_, r): &Named| match r {
        Reported::Lost(d) => Some(d.to_string()),
        _ => None,
    };
    reports.iter().filter_map(digest).collect()
}

/// The reports as a person reads them.
pub fn text(reports: &[Named]) -> String {
    let mut out = String::new();
    for (target, report) in reports {
        out += &format!("── {target}\n");
        out += &match report {
            Reported::Score(r) => r.render(),
            Reported::Validation(r) => r.render(),
            Reported::Timing(t) => render::text(t, render::Show::default()),
            Reported::Figures(f) => figures(f),
            Reported::Lost(d) => format!("the report {d} is gone from the cache; build again\n"),
        };
        out += "\n";
    }
    out
}

/// Error figures, a row a weight.
fn figures(figures: &[TensorFigures]) -> String {
    let right = |c| (c, Align::Right);
    let mut table = Table::new(&[
        ("weight", Align::Left),
        right("elements"),
        right("relative error"),
        right("worst group"),
        right("its error"),
        right("saturated"),
        right("not finite"),
    ]);
    for f in figures {
        let (worst, its) = match &f.worst_group {
            Some(w) => (w.index.to_string(), format!("{:.3e}", w.relative_error)),
            None => ("-".into(), "-".into()),
        };
        let error = if f.lossless { "lossless".into() } else { format!("{:.3e}", f.relative_error) };
        let (saturated, not_finite) = (f.saturated.to_string(), f.non_finite.to_string());
        table.row([f.role.clone(), f.elements.to_string(), error, worst, its, saturated, not_finite]);
    }
    format!("{table}\n")
}

/// The gates of a report; none of one that judges nothing.
pub fn gates_of(report: &Reported) -> &[Gate] {
    match report {
        Reported::Score(r) => &r.decode.gates,
        Reported::Validation(r) => &r.gates,
        Reported::Timing(_) | Reported::Figures(_) | Reported::Lost(_) => &[],
    }
}

/// Sends an event a gate; gives how many passed, failed, were not run.
pub fn gates(session: &Session, reports: &[Named]) -> [usize; 3] {
    let mut counts = [0; 3];
    for (target, report) in reports {
        for g in gates_of(report) {
            let (slot, pass, why) = match &g.verdict {
                Verdict::Pass => (0, Some(true), None),
                Verdict::Fail => (1, Some(false), None),
                Verdict::NotRun(reason) => (2, None, Some(reason.as_str())),
            };
            counts[slot] += 1;
            session.env().sink.send(&Event::Gate {
                target,
                name: &g.name,
                value: g.value.is_finite().then_some(g.value),
                bound: &g.bound.to_string(),
                pass,
                why,
            });
        }
    }
    counts
}

/// Raised when a field of the JSON report changes its meaning or goes away.
const SCHEMA: u32 = 2;

/// The build as one JSON document.
pub fn document(
    session: &Session,
    wanted: &[usize],
    errors: &[Option<NodeError>],
    reports: &[Named],
) -> Value {
    let env = session.env();
    let actions: Vec<Value> = wanted
        .iter()
        .map(|&i| {
            let target = &session.graph.names[i];
            json!({ "target": target, "status": env.status(target).unwrap_or(Status::Skipped), "why": env.why(target) })
        })
        .collect();
    let errors: Vec<Value> =
        errors.iter().flatten().map(|e| json!({ "target": e.target(), "message": e.to_string() })).collect();
    let reports: Vec<Value> = reports
        .iter()
        .map(|(target, r)| match r {
            Reported::Score(r) => json!({ "target": target, "score": r }),
            Reported::Validation(r) => json!({ "target": target, "validation": r }),
            Reported::Timing(t) => json!({ "target": target, "timing": t }),
            Reported::Figures(f) => json!({ "target": target, "figures": f }),
            Reported::Lost(d) => json!({ "target": target, "lost": d.to_string() }),
        })
        .collect();
    json!({ "schema": SCHEMA, "actions": actions, "errors": errors, "reports": reports })
}
