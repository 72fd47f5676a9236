//! `mica status`: the deliveries as they lie, and what every gate last said. Nothing runs.

use super::report::{self, Named, Reported};
use super::summary::table;
use super::{FAILED, WELL, build, here, out};
use crate::delivery::OpenDelivery;
use crate::error::{CliError, NodeError, with_causes};
use crate::graph::Job;
use crate::progress::say;
use crate::queries::Db;
use crate::session::{Session, environment};
use crate::targets;
use crate::workspace::Workspace;
use mica_fetch::Weights;
use mica_score::decode::Source;
use mica_score::table::{Align, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Says of each judged target what its gates last said, or that it would run. Nothing runs.
pub fn run(
    workspace: &Workspace,
    cache: Option<&Path>,
    selectors: &[String],
    json: bool,
) -> Result<u8, CliError> {
    let mut env = environment(workspace, cache)?;
    env.dry = true;
    let workspace = &here(workspace, cache)?;
    let session = Session::open(workspace, env)?;
    let judged = |i: &usize| matches!(session.graph.nodes[*i].job, Job::Score | Job::Judge | Job::Perplexity);
    let goals: Vec<usize> = match selectors {
        [] => (0..session.graph.nodes.len()).filter(judged).collect(),
        s => targets::select(s, &workspace.config.targets, &session.graph.names)?
            .into_iter()
            .filter(judged)
            .collect(),
    };
    if goals.is_empty() && !selectors.is_empty() {
        return Err(CliError::Usage(format!(
            "{} names no target that is judged; those of score: are",
            selectors.join(" ")
        )));
    }
    let wanted = session.graph.closure(&goals);
    let errors = build::settle(&session, &wanted, 1, true);
    // what had to be read to know is known from now on
    if let Err(e) = session.env().stamps.save() {
        say(&format!("warning: {}", with_causes(&e)));
    }
    let reports = report::collect(&session, &goals, &errors);
    if json {
        out(&document(&session, &wanted, &errors, &reports))?;
        let well = errors.iter().all(Option::is_none);
        return Ok(if well && reports.iter().all(|(_, r)| passed(r)) { WELL } else { FAILED });
    }
    let mut text = format!("{}\n{}", deliveries(&session), table(&session, &reports));
    let mut well = true;
    for &i in &goals {
        if let Some(e) = &errors[i] {
            text += &format!("{}\n", e.with_cause());
            well = false;
        }
    }
    for (target, report) in &reports {
        if let Reported::Lost(_) = report {
            text += &format!("{target}: its report is gone from the cache; build again\n");
        }
        well &= passed(report);
    }
    out(&text)?;
    Ok(if well { WELL } else { FAILED })
}

/// Whether a report is there and all its gates hold.
fn passed(report: &Reported) -> bool {
    !matches!(report, Reported::Lost(_)) && report::gates_of(report).iter().all(mica_score::Gate::passed)
}

/// What a delivery is made of.
struct Form<'a> {
    delivery: &'a str,
    container: String,
    tensors: usize,
    bytes: u64,
    weights: String,
    captures: &'static str,
    evaluator: Option<&'a str>,
}

/// The deliveries of the workspace's models, by name.
fn forms(session: &Session) -> Vec<Form<'_>> {
    let db = &session.db;
    let models = session.models.iter().filter(|m| m.trial(db).is_none());
    // all models of a delivery say the same of its captures
    let named: BTreeMap<&str, Option<Source>> = models
        .map(|m| (m.delivery(db).name(db).as_str(), m.captures(db).as_ref().map(|c| c.source)))
        .collect();
    named.into_iter().map(|(name, maker)| form(name, Db::delivery(db, name), maker)).collect()
}

fn form<'a>(delivery: &'a str, open: &'a OpenDelivery, maker: Option<Source>) -> Form<'a> {
    let container = match &open.listing.weights {
        Weights::Single(file) => open.listing.file(*file).map_or_else(|_| String::new(), |f| f.name.clone()),
        Weights::Sharded { shards, .. } => format!("{} shards", shards.len()),
    };
    let entries = open.index.tensors.values();
    let scaled = open.index.tensors.keys().any(|name| name.ends_with("w_scale"));
    let weights = match &open.scheme {
        Some(scheme) => scheme.to_string(),
        None if scaled => "integers in int8 containers, with scales".into(),
        None => {
            let mut kinds: Vec<&str> = entries.clone().map(|e| e.dtype.name()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds.join(", ")
        }
    };
    let bytes = entries.map(mica_fetch::TensorEntry::bytes).sum();
    let captures = match maker.filter(|_| open.captures.is_some()) {
        None => "none",
        Some(Source::Published) => "published",
        Some(Source::SelfMade) => "self",
    };
    let evaluator = open.self_made.as_ref().and_then(|label| label.evaluator.as_deref());
    Form { delivery, container, tensors: open.index.tensors.len(), bytes, weights, captures, evaluator }
}

fn deliveries(session: &Session) -> String {
    let mut table = Table::new(&[
        ("delivery", Align::Left),
        ("weights in", Align::Left),
        ("tensors", Align::Right),
        ("MB", Align::Right),
        ("as", Align::Left),
        ("captures by", Align::Left),
    ]);
    for f in forms(session) {
        let megabytes = format!("{:.1}", f.bytes as f64 / 1e6);
        let captures = match f.evaluator {
            Some(evaluator) => format!("{}, {evaluator}", f.captures),
            None => f.captures.to_string(),
        };
        let tensors = f.tensors.to_string();
        table.row([f.delivery.to_string(), f.container, tensors, megabytes, f.weights, captures]);
    }
    table.to_string()
}

/// The same as JSON: the build's document, and the deliveries beside it.
fn document(session: &Session, wanted: &[usize], errors: &[Option<NodeError>], reports: &[Named]) -> String {
    let mut document = report::document(session, wanted, errors, reports);
    let forms = forms(session).into_iter().map(|f| {
        json!({
            "name": f.delivery, "weights_in": f.container, "tensors": f.tensors, "bytes": f.bytes, "as": f.weights,
            "captures_by": f.captures, "evaluator": f.evaluator,
        })
    });
    document["deliveries"] = Value::Array(forms.collect());
    format!("{document:#}\n")
}
