//! The last table of a build: every gate with its figure, bound and verdict, and how much of what stands
//! behind it was reused.

use super::report::{self, Named};
use crate::events::Status;
use crate::session::Session;
use mica_score::table::{Align, Table};
use mica_score::{Verdict, gate};

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
    let names = &session.graph.names;
    let statuses = session.env().statuses();
    let ran: Vec<bool> = names.iter().map(|n| statuses.get(n) == Some(&Status::Ran)).collect();
    for (target, report) in reports {
        let results = results(session, &ran, target);
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

/// How many of the results that a target rests on were made, as `ran` says of each node, and how many were
/// there.
fn results(session: &Session, ran: &[bool], target: &str) -> String {
    let graph = &session.graph;
    let Some(goal) = graph.names.iter().position(|n| n == target) else { return String::new() };
    let all = graph.closure(&[goal]);
    let ran = all.iter().filter(|&&i| ran[i]).count();
    match ran {
        0 => format!("reused {}", all.len()),
        ran if ran == all.len() => format!("ran {ran}"),
        ran => format!("ran {ran}, reused {}", all.len() - ran),
    }
}
