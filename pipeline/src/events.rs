//! What happened, as data: one JSON object a line. It knows no terminal.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Raised when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// How a considered action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The stage ran.
    Ran,
    /// The action cache had the result.
    Cached,
    /// This process already had it.
    Memo,
    /// The stage or its surroundings failed.
    Failed,
    /// Not started: something that it needs failed, or the build stopped.
    Skipped,
    /// Dry run: it would run.
    WouldRun,
    /// Dry run: something that it needs would run, and the outcome decides.
    MightRun,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// What will be considered; always the first but for downloads.
    Plan {
        /// Schema version of all that follows.
        schema: u32,
        /// The command's version.
        version: &'a str,
        /// What was asked for.
        targets: &'a [String],
        /// How many actions there are to consider.
        actions: usize,
        /// Whether nothing will run.
        dry_run: bool,
    },
    /// One considered action.
    Action {
        /// Target name.
        target: &'a str,
        /// The stage.
        stage: &'a str,
        /// How it ended.
        status: Status,
        /// The action key, where it was known.
        key: Option<String>,
        /// Why it ran, failed or was skipped.
        why: Option<&'a str>,
        /// Milliseconds in the stage's body.
        wall_ms: u64,
        /// Bytes of its inputs.
        bytes_in: u64,
        /// Bytes of its outputs.
        bytes_out: u64,
    },
    /// A gate's verdict.
    Gate {
        /// The target that it belongs to.
        target: &'a str,
        /// Its name.
        name: &'a str,
        /// What was measured; absent where it is not a number.
        value: Option<f64>,
        /// The bound, as text.
        bound: &'a str,
        /// Whether it passed; absent where it was not run.
        pass: Option<bool>,
        /// Why it was not run.
        why: Option<&'a str>,
    },
    /// A file of a delivery that came from the network; before the plan, which is drawn from it.
    Download {
        /// Schema version, as in the plan.
        schema: u32,
        /// What came.
        #[serde(flatten)]
        file: &'a crate::obtain::Downloaded,
    },
    /// The end; always the last.
    End {
        /// Actions by status.
        counts: BTreeMap<Status, usize>,
        /// Gates that passed, failed, were not run.
        gates: [usize; 3],
        /// Exit status.
        exit: u8,
    },
}

/// Where events go.
#[derive(Default)]
pub struct Sink {
    out: Option<Mutex<BufWriter<File>>>,
    path: PathBuf,
}

impl Sink {
    /// A sink that writes to a new file.
    pub fn create(path: &Path) -> std::io::Result<Sink> {
        Ok(Sink { out: Some(Mutex::new(BufWriter::new(File::create(path)?))), path: path.into() })
    }

    /// Writes one event; without a file it does nothing.
    pub fn send(&self, event: &Event<'_>) {
        if let Some(out) = &self.out {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            // a failed write shows at `finish`, once: BufWriter keeps what it could not write
            let _ = serde_json::to_writer(&mut *out, event);
            let _ = out.write_all(b"\n");
        }
    }

    /// Writes what is left. Errors with the path.
    pub fn finish(&self) -> Result<(), crate::error::CliError> {
        match &self.out {
            Some(out) => out
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .flush()
                .map_err(|source| crate::error::CliError::Write { path: self.path.clone(), source }),
            None => Ok(()),
        }
    }
}
