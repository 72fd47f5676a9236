//! The lines of `--events`, read strictly: an unknown event, field or status fails the test.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "as the command documents them")]
pub enum Status {
    Ran,
    Cached,
    Memo,
    Failed,
    Skipped,
    WouldRun,
    MightRun,
}

/// One line.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "as the command documents them")]
pub enum Event {
    Plan {
        schema: u32,
        version: String,
        targets: Vec<String>,
        actions: usize,
        dry_run: bool,
    },
    Action {
        target: String,
        stage: String,
        status: Status,
        key: Option<String>,
        why: Option<String>,
        wall_ms: u64,
        bytes_in: u64,
        bytes_out: u64,
    },
    Gate {
        target: String,
        name: String,
        value: Option<f64>,
        bound: String,
        pass: Option<bool>,
        why: Option<String>,
    },
    Download {
        schema: u32,
        delivery: String,
        file: String,
        bytes: u64,
        resumed: u64,
        sha256: String,
        checked: String,
        wall_ms: u64,
    },
    End {
        counts: BTreeMap<Status, usize>,
        gates: [usize; 3],
        exit: i32,
    },
}

/// The events of a file; none where the command stopped before it wrote one.
///
/// # Panics
/// On a line that is no event, and where the first but for downloads is no plan of schema 1 or the last no end.
pub fn read(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let event = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"));
    let events: Vec<Event> = text.lines().map(event).collect();
    let mut built = events.iter().filter(|event| !matches!(event, Event::Download { schema: 1, .. }));
    if let (Some(first), Some(last)) = (built.next(), events.last()) {
        assert!(matches!(first, Event::Plan { schema: 1, .. }), "{first:?}");
        assert!(matches!(last, Event::End { .. }), "{last:?}");
    }
    events
}
