//! `mica build` and `mica why`: run what is out of date, or say what would run.

use super::{FAILED, WELL, here, out, report, summary};
use crate::cli::Build;
use crate::error::{CliError, NodeError, with_causes};
use crate::events::{Event, SCHEMA, Sink, Status};
use crate::obtain::{Obtain, Reach, Told, needed};
use crate::progress::say;
use crate::queries::{self, BuildDb, Retry};
use crate::session::{Session, cache_dir, environment};
use crate::workspace::Workspace;
use crate::{schedule, targets};
use salsa::Setter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

/// Builds.
pub fn run(workspace: &Workspace, cache: Option<&Path>, offline: bool, b: &Build) -> Result<u8, CliError> {
    let start = Instant::now();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = b.jobs.map_or(processors, usize::from);
    // one pool for all stage bodies, by itself as large as the machine and started by the first that needs it;
    // it may exist already in a long-lived process
    if b.jobs.is_some() {
        let _ = rayon::ThreadPoolBuilder::new().num_threads(jobs).build_global();
    }
    let mut env = environment(workspace, cache)?;
    env.dry = b.dry_run;
    env.force = b.always;
    env.threads = jobs;
    if let Some(path) = &b.events {
        env.sink = Sink::create(path).map_err(|source| CliError::Write { path: path.clone(), source })?;
    }
    let asked = if b.targets.is_empty() { vec![workspace.config.default.clone()] } else { b.targets.clone() };
    let (workspace, downloads) = if b.dry_run {
        (here(workspace, cache)?, Vec::new())
    } else {
        let told = Told::new(&env.sink);
        let obtain = Obtain::new(workspace, &cache_dir(workspace, cache), &Reach::of(offline), &told);
        (obtain.all(Some(&needed(&workspace.config, &asked)))?.workspace, told.files())
    };
    let workspace = &workspace;
    let mut session = Session::open(workspace, env)?;
    for w in &session.warnings {
        say(&format!("warning: {w}"));
    }
    let goals = targets::select(&asked, &workspace.config.targets, &session.graph.names)?;
    let wanted = session.graph.closure(&goals);
    let env = session.env();
    env.sink.send(&Event::Plan {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        targets: &asked,
        actions: wanted.len(),
        dry_run: b.dry_run,
    });
    env.progress.start(wanted.len() as u64);
    // a blob that turns out to be corrupt is made again, and may be made from one that is corrupt too; each
    // round loses one that was not lost before, or is the last
    let mut known = BTreeSet::new();
    let (errors, reports) = loop {
        let errors = settle(&session, &wanted, jobs, b.keep_going);
        let reports = if b.dry_run { Vec::new() } else { report::collect(&session, &goals, &errors) };
        let before = known.len();
        known.extend(report::lost(&reports));
        known.extend(errors.iter().flatten().filter_map(|e| match e {
            NodeError::Lost { blob, .. } => Some(blob.clone()),
            _ => None,
        }));
        if known.len() == before {
            break (errors, reports);
        }
        let round = Retry::get(&session.db).round(&session.db);
        Retry::get(&session.db).set_round(&mut session.db).to(round + 1);
    };
    session.env().progress.clear();
    // an error of the memo costs a second reading at the next build, nothing else
    let env = session.env();
    let saved = env.cache.flush().and_then(|()| env.stamps.save());
    if let Err(e) = saved {
        say(&format!("warning: {}", with_causes(&e)));
    }
    tell_errors(&session, &wanted, &errors);
    // that nothing ran is no error of a dry run
    let errors: Vec<_> = errors.into_iter().map(|e| e.filter(is_failure)).collect();
    // what was measured is data and the same in every run; what was reused is talk
    let told = out(&if b.json {
        let mut document = report::document(&session, &wanted, &errors, &reports);
        document["downloads"] = serde_json::json!(downloads);
        format!("{document:#}\n")
    } else if b.dry_run {
        plan(&session, &wanted)
    } else {
        report::text(&reports)
    });
    if !b.dry_run && !b.json {
        say(summary::table(&session, &reports).trim_end());
    }
    let gates = report::gates(&session, &reports);
    let counts = counts(&session);
    let failed = errors.iter().any(Option::is_some);
    let exit = match &told {
        Err(e) => e.exit(),
        Ok(()) if failed || (!b.dry_run && gates[1] + gates[2] > 0) => FAILED,
        Ok(()) => WELL,
    };
    env.sink.send(&Event::End { counts: counts.clone(), gates, exit });
    env.sink.finish()?;
    told?;
    say(&totals(&counts, b.dry_run, start.elapsed().as_secs_f64()));
    // everything is on disk, and the process ends: freeing each memo on its own would be time for nothing
    std::mem::forget(session);
    Ok(exit)
}

/// Settles every wanted node and reports those that no action reported itself.
pub fn settle(session: &Session, wanted: &[usize], jobs: usize, keep_going: bool) -> Vec<Option<NodeError>> {
    // the closure crosses threads, which the session's own handle of the database may not
    let (graph, models) = (&session.graph, &session.models);
    let handles: Vec<BuildDb> = (0..jobs.min(wanted.len()).max(1)).map(|_| session.db.clone()).collect();
    let errors = schedule::run(graph, wanted, handles, keep_going, |db, i| {
        let node = graph.nodes[i];
        queries::node(db, models[node.model], node.job)
    });
    let env = session.env();
    for &i in wanted {
        let target = &graph.names[i];
        let status = match &errors[i] {
            // the action itself reported it
            Some(NodeError::WouldRun { .. }) => continue,
            None if env.status(target).is_some() => continue,
            None => Status::Memo,
            Some(NodeError::MightRun { .. }) => Status::MightRun,
            Some(NodeError::Needs { .. } | NodeError::Stopped { .. }) => Status::Skipped,
            Some(NodeError::Stage { .. } | NodeError::Environment { .. } | NodeError::Lost { .. }) => {
                Status::Failed
            }
        };
        let why = errors[i].as_ref().map(ToString::to_string);
        env.considered(&Event::Action {
            target,
            stage: target.split(':').next().unwrap_or_default(),
            status,
            key: None,
            why: why.as_deref(),
            wall_ms: 0,
            bytes_in: 0,
            bytes_out: 0,
        });
    }
    errors
}

/// The causes on standard error, each once, then how many nodes they kept from running. A cause may lie
/// outside the graph: a delivery's config, a plan that no wanted node makes.
pub fn tell_errors(session: &Session, wanted: &[usize], errors: &[Option<NodeError>]) {
    let mut waiting = 0;
    let mut causes = Vec::new();
    for &i in wanted {
        let cause = match &errors[i] {
            Some(e @ (NodeError::Stage { .. } | NodeError::Environment { .. } | NodeError::Lost { .. })) => {
                e.to_string()
            }
            Some(NodeError::Needs { cause, .. }) => {
                waiting += 1;
                cause.clone()
            }
            Some(NodeError::Stopped { .. }) => {
                waiting += 1;
                continue;
            }
            _ => continue,
        };
        if !causes.contains(&cause) {
            session.env().progress.line(&format!("error: {cause}"));
            causes.push(cause);
        }
    }
    if waiting > 0 {
        say(&format!("{waiting} more were not built"));
    }
}

/// Whether a node failed, or kept from running because another did; not so where a dry run had it wait.
fn is_failure(e: &NodeError) -> bool {
    !matches!(e, NodeError::WouldRun { .. } | NodeError::MightRun { .. })
}

/// A dry run's plan.
fn plan(session: &Session, wanted: &[usize]) -> String {
    let mut text = String::new();
    for &i in wanted {
        let target = &session.graph.names[i];
        match session.env().status(target) {
            Some(Status::WouldRun) => {
                let why = session.env().why(target).unwrap_or_default();
                text += &format!("run    {target}  ({why})\n");
            }
            Some(Status::MightRun) => text += &format!("maybe  {target}\n"),
            _ => {}
        }
    }
    text
}

/// Says why each target would run, by the very decision that a build takes.
pub fn why(workspace: &Workspace, cache: Option<&Path>, selectors: &[String]) -> Result<u8, CliError> {
    let mut env = environment(workspace, cache)?;
    env.dry = true;
    let workspace = &here(workspace, cache)?;
    let session = Session::open(workspace, env)?;
    let goals = targets::select(selectors, &workspace.config.targets, &session.graph.names)?;
    let wanted = session.graph.closure(&goals);
    let errors = settle(&session, &wanted, 1, true);
    let env = session.env();
    // what had to be read to know is known from now on
    if let Err(e) = env.stamps.save() {
        say(&format!("warning: {}", with_causes(&e)));
    }
    let mut text = String::new();
    for &i in &goals {
        let target = &session.graph.names[i];
        text += &match &errors[i] {
            None => format!("{target}: up to date\n"),
            Some(NodeError::WouldRun { .. }) => {
                format!("{target}: would run: {}\n", env.why(target).unwrap_or_default())
            }
            Some(NodeError::MightRun { needs, .. }) => {
                let cause = env.why(needs).unwrap_or_default();
                format!("{target}: depends on {needs}, which would run: {cause}\n")
            }
            Some(e) => format!("{}\n", e.with_cause()),
        };
    }
    out(&text)?;
    Ok(WELL)
}

fn counts(session: &Session) -> BTreeMap<Status, usize> {
    let mut counts = BTreeMap::new();
    for status in session.env().statuses().into_values() {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

fn totals(counts: &BTreeMap<Status, usize>, dry: bool, seconds: f64) -> String {
    let n = |s| counts.get(&s).copied().unwrap_or(0);
    let reused = n(Status::Cached) + n(Status::Memo);
    if dry {
        return format!("{} would run, {} might, {reused} reused", n(Status::WouldRun), n(Status::MightRun));
    }
    let mut line = format!("ran {}, reused {reused}", n(Status::Ran));
    for (what, s) in [("failed", Status::Failed), ("not built", Status::Skipped)] {
        if n(s) > 0 {
            line += &format!(", {what} {}", n(s));
        }
    }
    line + &format!(" ({seconds:.2} s)")
}
