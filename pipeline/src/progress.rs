//! What a person sees while a build runs: one bar over all actions, and what is running now.
//!
//! It draws on standard error and only where that is a terminal, so it never blocks or dirties a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The display of one build.
pub struct Progress {
    bar: ProgressBar,
    running: Mutex<Vec<String>>,
}

impl Progress {
    /// A display that draws nothing until it is started.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), running: Mutex::default() }
    }

    /// Draws a bar of `total` steps on standard error; nothing where that is no terminal or where
    /// `MICA_NO_PROGRESS` is set.
    pub fn start(&self, total: u64) {
        if !std::io::stderr().is_terminal() || std::env::var_os("MICA_NO_PROGRESS").is_some() {
            return;
        }
        let style = ProgressStyle::with_template("[{elapsed}] {bar:28} {pos}/{len} {wide_msg}");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_length(total);
        self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Draws a bar of one file's bytes, with rate and time left, where [`Progress::start`] would draw.
    pub fn start_bytes(&self, label: String, bytes: Option<u64>, have: u64) {
        if !std::io::stderr().is_terminal() || std::env::var_os("MICA_NO_PROGRESS").is_some() {
            return;
        }
        let style = ProgressStyle::with_template(match bytes {
            Some(_) => "{bar:28} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left  {wide_msg}",
            None => "{spinner} {bytes} {binary_bytes_per_sec}  {wide_msg}",
        });
        // it may have shown another file before
        self.bar.reset();
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        match bytes {
            Some(bytes) => self.bar.set_length(bytes),
            None => self.bar.unset_length(),
        }
        self.bar.set_position(have);
        // what was here before says nothing of the line's rate
        self.bar.reset_eta();
        self.bar.set_message(label);
        self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn show(&self, change: impl FnOnce(&mut Vec<String>)) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut running);
        self.bar.set_message(running.join("  "));
    }

    /// A stage began.
    pub fn started(&self, target: &str) {
        self.show(|r| r.push(target.into()));
    }

    /// A stage ended.
    pub fn finished(&self, target: &str) {
        self.show(|r| r.retain(|t| t != target));
    }

    /// One action is settled.
    pub fn settled(&self) {
        self.bar.inc(1);
    }

    /// Moves the bar.
    pub fn reach(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Clears the display.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line on standard error without tearing the bar.
    pub fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            say(text);
        } else {
            self.bar.println(text);
        }
    }
}

/// Says a line on standard error; a reader that has gone away is no error.
pub fn say(line: &str) {
    if !line.is_empty() {
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}
