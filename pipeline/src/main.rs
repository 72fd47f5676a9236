//! The `mica` command: parses words, runs them, tells errors and exits.

use clap::Parser;
use mica::cli::Cli;
use mica::error::{draw_for, report};
use mica::progress::say;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

/// Memos are many small values, made by several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // help and version are no misuse
            let code = if e.use_stderr() { mica::commands::MISUSED } else { mica::commands::WELL };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    mica::cut::watch();
    mica::limit::told_not_killed();
    match mica::commands::run(&cli) {
        Ok(mica::commands::WELL) if mica::cut::count() > 0 => {
            say(mica::cut::MESSAGE);
            ExitCode::from(mica::commands::FAILED)
        }
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            let code = e.exit();
            draw_for(stderr().is_terminal());
            say(&format!("{:?}", report(e)));
            ExitCode::from(code)
        }
    }
}
