//! The `mica` command: parses words, runs them, tells errors and exits.

use mica::cli::Cli;
use mica::commands::{FAILED, MISUSED, WELL, written};
use mica::error::{CliError, draw_for, report};
use mica::progress::say;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Memos are many small values, made by several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::of(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            let _ = e.print();
            return ExitCode::from(MISUSED);
        }
        // help and version are no misuse
        Err(told) => {
            let done = written(told.print().and_then(|()| std::io::stdout().flush()));
            return ExitCode::from(done.map_or_else(failed, |()| WELL));
        }
    };
    mica::cut::watch();
    mica::limit::told_not_killed();
    ExitCode::from(match mica::commands::run(&cli) {
        Ok(WELL) if mica::cut::count() > 0 => {
            say(mica::cut::MESSAGE);
            FAILED
        }
        Ok(code) => code,
        Err(e) => failed(e),
    })
}

/// Tells an error; gives the exit status.
fn failed(e: CliError) -> u8 {
    let code = e.exit();
    draw_for(std::io::stderr().is_terminal());
    say(&format!("{:?}", report(e)));
    code
}
