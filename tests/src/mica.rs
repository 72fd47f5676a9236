//! The command, run as a person runs it.

use crate::events::{self, Event, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A command line.
pub struct Mica {
    command: Command,
    events: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub struct Run {
    /// Exit status; `None` where a signal ended it.
    pub exit: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Its events, where it was asked for them.
    pub events: Vec<Event>,
}

impl Mica {
    /// The command without any word. It sees nothing of the tests' own environment that concerns it.
    pub fn new(binary: &Path) -> Mica {
        Mica::of(Command::new(binary))
    }

    /// Any other command line that ends in running it.
    pub fn of(mut command: Command) -> Mica {
        command.env("MICA_NO_PROGRESS", "1").env("NO_COLOR", "1");
        let concerns = |name: &str| name.starts_with("MICA_") || name.starts_with("HF_");
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| concerns(name) && name != "MICA_NO_PROGRESS") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Mica { command, events: None }
    }

    /// One more word.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Mica {
        self.command.arg(word);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Mica {
        self.command.env(name, value);
        self
    }

    /// Asks for events and where to write them.
    pub fn events(self, file: PathBuf) -> Mica {
        let _ = std::fs::remove_file(&file);
        Mica { events: Some(file.clone()), ..self.arg("--events").arg(file) }
    }

    /// The same command line in a shell that sets limits first: `limits` is a line of `sh`.
    pub fn limited(self, limits: &str) -> Mica {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{limits}; exec \"$0\" \"$@\"")).arg(self.command.get_program());
        shell.args(self.command.get_args());
        Mica { events: self.events, ..Mica::of(shell) }
    }

    /// What it reads on standard input.
    ///
    /// # Panics
    /// If there is no temporary file to put it in.
    pub fn input(mut self, text: &str) -> Mica {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("the input is written");
        self.command.stdin(file);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(&mut self) -> Child {
        self.command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", self.command))
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Run {
        let child = self.spawn();
        self.wait(child)
    }

    /// Waits for what was spawned.
    ///
    /// # Panics
    /// If its output cannot be read.
    pub fn wait(&self, child: Child) -> Run {
        let Output { status, stdout, stderr } = child.wait_with_output().expect("the command ends");
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Run {
            exit: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
            events: self.events.as_deref().map(events::read).unwrap_or_default(),
        }
    }
}

impl Run {
    /// Itself, if it ended with this status.
    ///
    /// # Panics
    /// If it did not.
    pub fn exits(self, status: i32) -> Run {
        let Run { exit, stdout, stderr, .. } = &self;
        assert_eq!(*exit, Some(status), "stderr:\n{stderr}\nstdout:\n{stdout}");
        self
    }

    /// Checks that standard output is another run's.
    ///
    /// # Panics
    /// At the first line that differs.
    pub fn says_as(&self, other: &Run, what: &str) {
        for (ours, others) in self.stdout.lines().zip(other.stdout.lines()) {
            assert_eq!(ours, others, "{what}");
        }
        assert_eq!(self.stdout.len(), other.stdout.len(), "{what}: one of the two ends early");
    }

    /// Targets that ended so.
    pub fn with(&self, wanted: Status) -> BTreeSet<String> {
        self.actions().filter(|(_, status, _)| *status == wanted).map(|(target, ..)| target.into()).collect()
    }

    /// Targets whose action ran, under their own name or under another's that asks for the very same: where
    /// two do, one of them runs it, and which one is a matter of timing.
    pub fn ran(&self) -> BTreeSet<String> {
        let ran = |status| status == Status::Ran;
        let keys: BTreeSet<&str> = self.actions().filter(|a| ran(a.1)).filter_map(|a| a.2).collect();
        let shares = |key: Option<&str>| key.is_some_and(|key| keys.contains(key));
        self.actions().filter(|a| ran(a.1) || shares(a.2)).map(|a| a.0.into()).collect()
    }

    /// Action keys by target.
    pub fn keys(&self) -> BTreeMap<&str, &str> {
        self.actions().filter_map(|(target, _, key)| Some((target, key?))).collect()
    }

    /// Files that were downloaded, as `delivery: file`.
    pub fn downloads(&self) -> BTreeSet<String> {
        let of = |event: &Event| match event {
            Event::Download { delivery, file, .. } => Some(format!("{delivery}: {file}")),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// Gates of a target by name: passed, failed, or not run.
    pub fn gates(&self, of: &str) -> BTreeMap<&str, Option<bool>> {
        let of_target = self.events.iter().filter_map(|event| match event {
            Event::Gate { target, name, pass, .. } if target == of => Some((name.as_str(), *pass)),
            _ => None,
        });
        of_target.collect()
    }

    fn actions(&self) -> impl Iterator<Item = (&str, Status, Option<&str>)> {
        self.events.iter().filter_map(|event| match event {
            Event::Action { target, status, key, .. } => Some((target.as_str(), *status, key.as_deref())),
            _ => None,
        })
    }
}
