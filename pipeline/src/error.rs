//! What can go wrong, in two layers: a node's error, which is a value that other nodes see, and the
//! command's error, which a person sees.

use miette::{Diagnostic, MietteDiagnostic, NamedSource, SourceSpan};
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a node has no result. It is the value of a query, so it is plain and comparable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum NodeError {
    /// The stage refused or failed on its inputs; running it again gives the same.
    #[error("{target}: {message}")]
    Stage {
        /// Whose result is missing.
        target: String,
        /// The stage's own words.
        message: String,
    },
    /// The surroundings failed (disk, permission, a file that changed); never kept, worth a retry.
    #[error("{target}: {message}")]
    Environment {
        /// Whose result is missing.
        target: String,
        /// What happened.
        message: String,
    },
    /// A blob that it reads is gone from the cache or was corrupt; the build makes it again.
    #[error("{target}: the blob {blob} is gone from the cache or was corrupt")]
    Lost {
        /// Whose result is missing.
        target: String,
        /// The blob's digest.
        blob: String,
    },
    /// A node that it needs has no result.
    #[error("{target}: needs {needs}")]
    Needs {
        /// Whose result is missing.
        target: String,
        /// The first node that failed.
        needs: String,
        /// That node's error.
        cause: String,
    },
    /// A dry run: it would run.
    #[error("{target}: would run")]
    WouldRun {
        /// Whose result is missing.
        target: String,
    },
    /// A dry run: something that it needs would run, and the outcome decides.
    #[error("{target}: waits for {needs}")]
    MightRun {
        /// Whose result is missing.
        target: String,
        /// The first node that would run.
        needs: String,
    },
    /// The build was stopped before it got here.
    #[error("{target}: not started")]
    Stopped {
        /// Whose result is missing.
        target: String,
    },
}

impl NodeError {
    /// Whose result is missing.
    pub fn target(&self) -> &str {
        match self {
            NodeError::Stage { target, .. }
            | NodeError::Environment { target, .. }
            | NodeError::Lost { target, .. }
            | NodeError::Needs { target, .. }
            | NodeError::WouldRun { target }
            | NodeError::MightRun { target, .. }
            | NodeError::Stopped { target } => target,
        }
    }

    /// Of what nodes lack, what a person is told first: a failure of a node's own, before what was only not started or
    /// waited for one, which comes first in the graph as often as not.
    pub fn first_of(errors: &[Option<NodeError>]) -> Option<&NodeError> {
        let rank = |e: &&NodeError| match e {
            NodeError::Stage { .. } | NodeError::Environment { .. } | NodeError::Lost { .. } => 0,
            NodeError::Needs { .. } => 1,
            NodeError::WouldRun { .. } | NodeError::MightRun { .. } | NodeError::Stopped { .. } => 2,
        };
        // the first of equals
        errors.iter().flatten().min_by_key(rank)
    }

    /// What a person is told who asks about this node alone: also what its cause said.
    pub fn with_cause(&self) -> String {
        match self {
            // a cause opens with the name of the node that it is of
            NodeError::Needs { target, cause, .. } => format!("{target}: needs {cause}"),
            e => e.to_string(),
        }
    }

    /// The same lack as the node `target` sees it, which needs this one.
    pub fn seen_by(&self, target: &str) -> NodeError {
        if self.target() == target {
            return self.clone();
        }
        let target = target.to_string();
        match self {
            NodeError::Stage { target: needs, .. }
            | NodeError::Environment { target: needs, .. }
            | NodeError::Lost { target: needs, .. } => {
                NodeError::Needs { target, needs: needs.clone(), cause: self.to_string() }
            }
            NodeError::Needs { needs, cause, .. } => {
                NodeError::Needs { target, needs: needs.clone(), cause: cause.clone() }
            }
            NodeError::WouldRun { target: needs } | NodeError::MightRun { needs, .. } => {
                NodeError::MightRun { target, needs: needs.clone() }
            }
            NodeError::Stopped { .. } => NodeError::Stopped { target },
        }
    }
}

/// An error with what caused it, one after the other.
pub fn with_causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let words = c.to_string();
        // some errors print their source themselves
        if !text.contains(&words) {
            text += &format!(": {words}");
        }
        cause = c.source();
    }
    text
}

/// What the command reports and exits 2 for.
#[derive(Debug, Error, Diagnostic)]
pub enum CliError {
    /// No workspace in the folder or above.
    #[error("no workspace.toml in {} or a folder above", dir.display())]
    #[diagnostic(help("name one with -f FILE, or the folder that has it with -C DIR"))]
    NoWorkspace {
        /// Where the search began.
        dir: PathBuf,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    #[diagnostic(help("see that it is there and that you may read it"))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    #[diagnostic(help("see that its folder is there, that you may write into it and that it has room"))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// Standard output took not all that was printed.
    #[error("standard output: {source}")]
    #[diagnostic(help("what came out is not all; see that what it goes to has room and can be written"))]
    Output {
        /// The system's word.
        source: std::io::Error,
    },
    /// The workspace's text is wrong at a place.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Toml(Box<TomlError>),
    /// The workspace says something that can't be.
    #[error("{what}: {why}")]
    Config {
        /// The setting.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// No such target.
    #[error("no target is called {name:?}{}", nearest.as_ref().map(|n| format!("; the nearest is {n:?}")).unwrap_or_default())]
    #[diagnostic(help("`mica targets` lists them"))]
    Target {
        /// As it was asked for.
        name: String,
        /// The nearest that exists.
        nearest: Option<String>,
    },
    /// A delivery can't be read.
    #[error("delivery {delivery:?}: {message}")]
    Delivery {
        /// Its name in the workspace.
        delivery: String,
        /// What is wrong: names the file or tensor, and what to do.
        message: String,
    },
    /// The cache can't be used.
    #[error("{0}")]
    Cache(#[from] mica_cache::CacheError),
    /// Anything that was asked for and can't be.
    #[error("{0}")]
    Usage(String),
}

/// A mistake at a place of the workspace's text.
#[derive(Debug, Error, Diagnostic)]
#[error("{file}, line {line}: {why}")]
pub struct TomlError {
    /// The file's name.
    file: String,
    /// Line, from 1.
    line: usize,
    /// What is wrong.
    why: String,
    /// The text, for the picture.
    #[source_code]
    text: NamedSource<String>,
    /// The place, for the picture.
    #[label("here")]
    at: SourceSpan,
}

impl CliError {
    /// An error at a place of the workspace's text.
    pub fn toml(path: &Path, text: &str, why: String, at: Range<usize>) -> CliError {
        let file = path.file_name().map_or_else(String::new, |f| f.to_string_lossy().into_owned());
        CliError::Toml(Box::new(TomlError {
            line: text[..at.start.min(text.len())].matches('\n').count() + 1,
            why,
            text: NamedSource::new(&file, text.to_string()),
            at: (at.start, at.len()).into(),
            file,
        }))
    }
}

/// Has errors drawn for who reads them: a terminal's width breaks lines between words, and a file or a program gets each
/// line whole, so that it can be searched.
pub fn draw_for(terminal: bool) {
    let drawn = move || miette::MietteHandlerOpts::new().wrap_lines(terminal).break_words(false).build();
    // a hook that is there already stays, and draws as well
    let _ = miette::set_hook(Box::new(move |_| Box::new(drawn())));
}

/// An error as a person sees it: each cause once, and what to do.
pub fn report(e: CliError) -> miette::Report {
    match e {
        // with its picture
        CliError::Toml(_) => miette::Report::new(e),
        e => {
            let told = MietteDiagnostic::new(with_causes(&e));
            match e.help() {
                Some(help) => told.with_help(help.to_string()).into(),
                None => told.into(),
            }
        }
    }
}

impl CliError {
    /// The exit status: a delivery that can't be read fails the build, everything else is misuse.
    pub fn exit(&self) -> u8 {
        match self {
            CliError::Delivery { .. } => crate::commands::FAILED,
            _ => crate::commands::MISUSED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_keeps_its_first_cause_however_far_it_is_seen_from() {
        let first = NodeError::Stage { target: "quantize:m.layer0".into(), message: "no group".into() };
        let far = first.seen_by("simulate:m.layer0").seen_by("score:m");
        let NodeError::Needs { target, needs, cause } = far else { panic!("{far:?}") };
        assert_eq!((target.as_str(), needs.as_str()), ("score:m", "quantize:m.layer0"));
        assert_eq!(cause, "quantize:m.layer0: no group");
        assert_eq!(first.seen_by("quantize:m.layer0"), first, "a node's own refusal stays its own");
    }

    #[test]
    fn a_failure_is_told_before_what_was_not_started_for_it() {
        let stopped = |target: &str| Some(NodeError::Stopped { target: target.into() });
        let failed = |target: &str| Some(NodeError::Stage { target: target.into(), message: "NaN".into() });
        let needs = failed("quantize:m.layer5").map(|e| e.seen_by("simulate:m.layer5"));
        let all = [
            None,
            stopped("quantize:m.layer4"),
            needs,
            failed("quantize:m.layer5"),
            failed("quantize:m.layer6"),
        ];
        assert_eq!(NodeError::first_of(&all), all[3].as_ref());
        assert_eq!(NodeError::first_of(&all[..3]), all[2].as_ref());
        assert_eq!(NodeError::first_of(&all[..2]), all[1].as_ref());
        assert_eq!(NodeError::first_of(&all[..1]), None);
    }

    #[test]
    fn causes_are_told_once() {
        let full = std::io::Error::other("no space");
        let e = CliError::Write { path: "a".into(), source: full };
        assert_eq!(with_causes(&e), "a: no space");
        let told = format!("{:?}", report(e));
        assert!(told.matches("no space").count() == 1 && told.contains("has room"), "{told}");
    }
}
