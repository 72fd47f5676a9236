//! What each word of the command does: effects on the terminal and the cache, no stage's work.

pub mod analyze;
pub mod build;
pub mod cache;
pub mod calibrate;
pub mod check;
pub mod debug;
pub mod fetch;
pub mod inspect;
pub mod models;
pub mod report;
pub mod spec;
mod status;
pub mod summary;
mod synth;
pub mod tutorial;
pub mod whole;

use crate::cli::{Cli, Command};
use crate::error::CliError;
use crate::events::Sink;
use crate::obtain::{Obtain, Reach, Told};
use crate::progress::say;
use crate::session::{Session, cache_dir, environment};
use crate::workspace::Workspace;
use std::path::Path;

/// Exit statuses.
pub const WELL: u8 = 0;
/// A gate or an action failed.
pub const FAILED: u8 = 1;
/// Usage or workspace error.
pub const MISUSED: u8 = 2;

/// Of the JSON of commands that list what there is (`targets`, `models`, `spec`, `tutorial`): raised when a field changes its
/// meaning or goes away. A list has it in each of its rows.
const LISTING: u32 = 1;

/// Runs the command; gives the exit status.
pub fn run(cli: &Cli) -> Result<u8, CliError> {
    // as make does it: every path of the command line is relative to that folder
    if cli.dir != Path::new(".") {
        std::env::set_current_dir(&cli.dir)
            .map_err(|source| CliError::Read { path: cli.dir.clone(), source })?;
    }
    let workspace = || {
        let w = Workspace::load(Path::new("."), cli.file.as_deref())?;
        match cli.command.selectors() {
            [] => {
                let default = w.config.default.clone();
                w.with_parameters(&[default])
            }
            asked => w.with_parameters(asked),
        }
    };
    let session = || {
        let w = workspace()?;
        let env = environment(&w, cli.cache.as_deref())?;
        let w = here(&w, cli.cache.as_deref())?;
        let s = Session::open(&w, env)?;
        Ok::<_, CliError>((w, s))
    };
    match &cli.command {
        Command::Build(b) => build::run(&workspace()?, cli.cache.as_deref(), cli.offline, b),
        Command::Fetch(f) => fetch::run(&workspace()?, cli.cache.as_deref(), cli.offline, f),
        Command::Targets { targets, json } => {
            let (w, s) = session()?;
            inspect::targets(&w, &s, targets, *json)
        }
        Command::Invalidate { targets } => {
            let (w, s) = session()?;
            inspect::invalidate(&w, &s, targets)
        }
        Command::Why { targets } => build::why(&workspace()?, cli.cache.as_deref(), targets),
        Command::Status { targets, json } => status::run(&workspace()?, cli.cache.as_deref(), targets, *json),
        Command::Graph { targets, text } => {
            let (w, s) = session()?;
            inspect::graph(&w, &s, targets, *text)
        }
        Command::Disasm { target } => {
            let (w, s) = session()?;
            inspect::disasm(&w, &s, target)
        }
        Command::Debug(a) => {
            let asked = [debug::kernel_of(&a.target)];
            debug::run(&workspace()?.with_parameters(&asked)?, cli.cache.as_deref(), a)
        }
        Command::Synth(s) => synth::run(s),
        Command::Models(a) => models::run(a),
        Command::Spec(a) => spec::run(a),
        Command::Tutorial(a) => tutorial::run(a),
        Command::Check(a) => check::run(cli.file.as_deref(), cli.cache.as_deref(), cli.offline, a),
        Command::Analyze(a) => analyze::run(cli.file.as_deref(), cli.cache.as_deref(), cli.offline, a),
        Command::Calibrate(a) => calibrate::run(&workspace()?, cli.cache.as_deref(), a),
        Command::Cache { command } => cache::run(&workspace()?, cli.cache.as_deref(), command),
        Command::Completions { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, "mica", &mut script);
            out(&String::from_utf8_lossy(&script))?;
            Ok(WELL)
        }
    }
}

/// The workspace as far as its deliveries are here; what is left out is said.
pub fn here(workspace: &Workspace, cache: Option<&Path>) -> Result<Workspace, CliError> {
    let sink = Sink::default();
    let told = Told::new(&sink);
    let here = Obtain::new(workspace, &cache_dir(workspace, cache), &Reach::LOOK, &told).all(None)?;
    here.left_out.iter().for_each(|what| say(&format!("warning: {what}")));
    Ok(here.workspace)
}

/// Writes to standard output; a reader that has gone away is no error.
///
/// # Errors
/// The system's, as where a disk is full: what was to be kept is not all there.
pub fn out(text: &str) -> Result<(), CliError> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// What came of writing to standard output, as [`out`] has it.
///
/// # Errors
/// The system's, but that of a reader that has gone away.
pub fn written(done: std::io::Result<()>) -> Result<(), CliError> {
    match done {
        Err(source) if source.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::Output { source }),
        _ => Ok(()),
    }
}
