//! The last table of a build, and all of `mica status`: every gate with its figure, bound and verdict, and
//! how much of what stands behind it was reused.

use super::report::{self, Named, Reported};
use super::{FAILED, WELL, build, out};
use crate::error::CliError;
use crate::events::Status;
use crate::graph::Job;
use crate::progress::say;
use crate::session::{Session, environment};
use crate::targets;
use crate::workspace::Workspace;
use mica_score::table::{Align, Table};
use mica_score::{Verdict, gate};
use std::path::Path;

/// A row a gate, the target named on its first; nothing where nothing was judged.
pub fn table(session: &Session, reports: &[Named]) -> String {
    let left = |heading| (heading, Align::Left);
    let mut table = Table::new(&[
        left("target"),
        left("gate"),
        ("value", Align::Right),
        left("bound"),
        left("verdict"),
        left("results"),
    ]);
    let mut rows = 0;
    for (target, report) in reports {
        let results = results(session, target);
        for (n, g) in report::gates_of(report).iter().enumerate() {
            let value = match g.verdict {
                Verdict::NotRun(_) => "-".into(),
                Verdict::Pass | Verdict::Fail => gate::figure(g.value),
            };
            let first = |text: &str| if n == 0 { text.to_string() } else { String::new() };
            table.row([
                first(target),
                g.name.clone(),
                value,
                g.bound.to_string(),
                g.verdict.to_string(),
                first(&results),
            ]);
            rows += 1;
        }
    }
    if rows == 0 { String::new() } else { format!("{table}\n") }
}

/// How many of the results that a target rests on were made and how many were there.
fn results(session: &Session, target: &str) -> String {
    let graph = &session.graph;
    let Some(goal) = graph.names.iter().position(|n| n == target) else { return String::new() };
    let all = graph.closure(&[goal]);
    let ran = all.iter().filter(|&&i| session.env().status(&graph.names[i]) == Some(Status::Ran)).count();
    match ran {
        0 => format!("reused {}", all.len()),
        ran if ran == all.len() => format!("ran {ran}"),
        ran => format!("ran {ran}, reused {}", all.len() - ran),
    }
}

/// Says of each judged target what its gates last said, or that it would run. Nothing runs.
pub fn status(workspace: &Workspace, cache: Option<&Path>, selectors: &[String]) -> Result<u8, CliError> {
    let mut env = environment(workspace, cache)?;
    env.dry = true;
    let session = Session::open(workspace, env)?;
    let judged = |i: &usize| matches!(session.graph.nodes[*i].job, Job::Score | Job::Judge);
    let goals: Vec<usize> = match selectors {
        [] => (0..session.graph.nodes.len()).filter(judged).collect(),
        s => targets::select(s, &workspace.config.targets, &session.graph.names)?
            .into_iter()
            .filter(judged)
            .collect(),
    };
    let wanted = session.graph.closure(&goals);
    let errors = build::settle(&session, &wanted, 1, true);
    // what had to be read to know is known from now on
    if let Err(e) = session.env().stamps.save() {
        say(&format!("warning: {e}"));
    }
    let reports = report::collect(&session, &goals, &errors);
    let mut text = table(&session, &reports);
    let mut well = true;
    for &i in &goals {
        if let Some(e) = &errors[i] {
            text += &format!("{e}\n");
            well = false;
        }
    }
    for (target, report) in &reports {
        if let Reported::Lost(_) = report {
            text += &format!("{target}: its report is gone from the cache; build again\n");
            well = false;
        }
        well &= report::gates_of(report).iter().all(mica_score::Gate::passed);
    }
    out(&text);
    Ok(if well { WELL } else { FAILED })
}
