//! What a build has at hand that may never influence a result: cache, budget, display, event sink.

use crate::budget::Budget;
use crate::events::{Event, Sink, Status};
use crate::progress::Progress;
use mica_cache::{Cache, StampMemo};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The surroundings of one build.
pub struct Env {
    /// Blobs and records.
    pub cache: Cache,
    /// Digests of delivery files under their stamps.
    pub stamps: StampMemo,
    /// Memory for stage bodies.
    pub budget: Budget,
    /// Events.
    pub sink: Sink,
    /// The display.
    pub progress: Progress,
    /// Nothing runs; what would is reported.
    pub dry: bool,
    /// Everything runs, whatever the cache has.
    pub force: bool,
    /// Threads of the simulator.
    pub threads: usize,
    /// Files of the deliveries, with the bytes that each had when it was opened.
    delivered: Mutex<Vec<(PathBuf, u64)>>,
    stop: AtomicBool,
    settled: Mutex<BTreeMap<String, (Status, Option<String>)>>,
    /// Targets that ran in this build, and why.
    ran: Mutex<BTreeMap<String, Option<String>>>,
}

impl Env {
    /// Surroundings over an open cache.
    pub fn new(cache: Cache, stamps: StampMemo, memory: u64) -> Env {
        Env {
            cache,
            stamps,
            budget: Budget::new(memory),
            sink: Sink::default(),
            progress: Progress::hidden(),
            dry: false,
            force: false,
            threads: 1,
            delivered: Mutex::default(),
            stop: AtomicBool::new(false),
            settled: Mutex::default(),
            ran: Mutex::default(),
        }
    }

    /// Takes note of files that will be mapped, with their bytes now.
    pub fn delivers(&self, files: impl IntoIterator<Item = (PathBuf, u64)>) {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
    }

    /// A file of a delivery that is shorter than when it was opened.
    pub fn shorter(&self) -> Option<PathBuf> {
        let all = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = |(path, had): &&(PathBuf, u64)| std::fs::metadata(path).is_ok_and(|now| now.len() < *had);
        all.iter().find(cut).map(|(path, _)| path.clone())
    }

    /// Starts no further action.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether no further action starts.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reports how an action ended.
    pub fn considered(&self, event: &Event<'_>) {
        self.sink.send(event);
        if let Event::Action { target, status, why, .. } = event {
            let mut end = (*status, why.map(String::from));
            let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
            match status {
                Status::Ran => drop(ran.insert((*target).into(), end.1.clone())),
                // a lost blob had the build go round again: what ran before has run in this build
                Status::Cached | Status::Memo if ran.contains_key(*target) => {
                    end = (Status::Ran, ran[*target].clone());
                }
                _ => {}
            }
            drop(ran);
            self.lock().insert((*target).into(), end);
            self.progress.settled();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Status, Option<String>)>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a target ended in this build, if it was considered.
    pub fn status(&self, target: &str) -> Option<Status> {
        self.lock().get(target).map(|(s, _)| *s)
    }

    /// Why a target ran, would run, failed or was skipped.
    pub fn why(&self, target: &str) -> Option<String> {
        self.lock().get(target).and_then(|(_, w)| w.clone())
    }

    /// Every considered target's status.
    pub fn statuses(&self) -> BTreeMap<String, Status> {
        self.lock().iter().map(|(t, (s, _))| (t.clone(), *s)).collect()
    }
}
