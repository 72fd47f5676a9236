//! What a person and the events are told of downloads.

use crate::events::{Event, SCHEMA, Sink};
use crate::progress::Progress;
use mica_download::{Fetched, Watch};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that was downloaded.
#[derive(Clone, Debug, Serialize)]
pub struct Downloaded {
    /// The delivery that it is of.
    pub delivery: String,
    /// Its name there.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes of it that an earlier run had left.
    pub resumed: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// Who vouches for its bytes: `manifest`, `hub`, or its `length` alone.
    pub checked: &'static str,
    /// How long it took.
    pub wall_ms: u64,
}

/// Tells them.
pub struct Told<'a> {
    sink: &'a Sink,
    progress: Progress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    delivery: String,
    files: Vec<Downloaded>,
}

impl<'a> Told<'a> {
    /// With events to `sink`, and a bar where a person can see it.
    pub fn new(sink: &'a Sink) -> Told<'a> {
        Told { sink, progress: Progress::hidden(), state: Mutex::default() }
    }

    /// What comes now is of this delivery.
    pub fn delivery(&self, name: &str) {
        self.state().delivery = name.into();
    }

    /// All that was downloaded.
    pub fn files(&self) -> Vec<Downloaded> {
        self.state().files.clone()
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.progress.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Told<'_> {
    fn begin(&self, name: &str, bytes: Option<u64>, have: u64) {
        let label = format!("{}: {name}", self.state().delivery);
        self.progress.start_bytes(label, bytes, have);
    }

    fn at(&self, have: u64) {
        self.progress.reach(have);
    }

    fn note(&self, text: &str) {
        self.progress.line(text);
    }

    fn fetched(&self, file: &Fetched) {
        self.progress.clear();
        let mut state = self.state();
        let done = Downloaded {
            delivery: state.delivery.clone(),
            file: file.name.clone(),
            bytes: file.bytes,
            resumed: file.resumed,
            sha256: file.sha256.clone(),
            checked: file.voucher.word(),
            wall_ms: file.time.as_millis() as u64,
        };
        self.progress.line(&format!(
            "{}: {}, {} bytes in {:.1} s, checked by {}",
            done.delivery,
            done.file,
            done.bytes,
            file.time.as_secs_f64(),
            file.voucher.said(),
        ));
        self.sink.send(&Event::Download { schema: SCHEMA, file: &done });
        // downloads take long, and who reads along wants to see each; a failed write shows at the end
        let _ = self.sink.finish();
        state.files.push(done);
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.progress.clear();
    }
}
