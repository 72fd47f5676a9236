//! A second pair of hands for the length of a call.
//!
//! Waking a thread for every few hundred kilobytes costs more than the work. So a call keeps some threads of
//! rayon's pool, which take pieces of work as they come and otherwise watch for more. If the pool has none to
//! spare, the calling thread does everything itself; nothing waits for a helper that has not begun.

use crate::matv::{Activation, Isa, Piece};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A piece of work that owns what it changes, and where its result belongs.
#[derive(Debug)]
pub enum Job<'c> {
    /// Some tiles of a product.
    Product { piece: Piece<'c>, x: Arc<Activation>, isa: Isa },
    /// A function of each element of the result itself.
    Map(fn(f32) -> f32),
}

/// A job and the numbers that it works on or fills.
#[derive(Debug)]
struct Task<'c> {
    job: Job<'c>,
    /// First element of its result within the whole.
    at: usize,
    values: Vec<f32>,
}

impl Task<'_> {
    fn run(&mut self) {
        match &self.job {
            Job::Product { piece, x, isa } => piece.run(*isa, x, &mut self.values),
            Job::Map(f) => {
                for v in &mut self.values {
                    *v = f(*v);
                }
            }
        }
    }
}

/// The work of a call and those who do it.
#[derive(Debug, Default)]
pub struct Team<'c> {
    tasks: Mutex<VecDeque<Task<'c>>>,
    done: Mutex<Vec<Task<'c>>>,
    /// Tasks that wait in the queue, for those who watch it without its lock.
    waiting: AtomicUsize,
    /// Tasks not yet done.
    left: AtomicUsize,
    over: AtomicBool,
    helpers: usize,
}

/// Looks at the queue after which a helper lets others have the processor for a moment.
const WATCH: u32 = 1 << 12;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'c> Team<'c> {
    /// A team of so many threads, the caller's among them.
    pub fn new(threads: usize) -> Team<'c> {
        Team { helpers: threads.saturating_sub(1), ..Team::default() }
    }

    /// Runs `body` with the helpers at hand.
    pub fn with<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        if self.helpers == 0 {
            return body();
        }
        self.over.store(false, Ordering::Release);
        rayon::scope(|s| {
            for _ in 0..self.helpers {
                s.spawn(|_| self.help());
            }
            // whether `body` returns or panics, the helpers go home
            let _end = End(&self.over);
            body()
        })
    }

    /// The threads that share work.
    pub fn threads(&self) -> usize {
        self.helpers + 1
    }

    fn help(&self) {
        let mut watched = 0;
        while !self.over.load(Ordering::Acquire) {
            if self.waiting.load(Ordering::Acquire) > 0 && self.take_one() {
                watched = 0;
                continue;
            }
            watched += 1;
            if watched % WATCH == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Does one task; false where there is none.
    fn take_one(&self) -> bool {
        let Some(mut task) = lock(&self.tasks).pop_front() else { return false };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        // counted down even by a panic, which the scope passes on: nobody waits for what never comes
        let _one = One(&self.left);
        task.run();
        lock(&self.done).push(task);
        true
    }

    /// Does all of `jobs` (work, first element of its result, the values it works on), and shows each result
    /// to `take`, in any order.
    pub fn run(
        &self,
        jobs: impl IntoIterator<Item = (Job<'c>, usize, Vec<f32>)>,
        mut take: impl FnMut(usize, Vec<f32>),
    ) {
        let tasks: Vec<_> = jobs.into_iter().map(|(job, at, values)| Task { job, at, values }).collect();
        self.left.fetch_add(tasks.len(), Ordering::AcqRel);
        self.waiting.fetch_add(tasks.len(), Ordering::AcqRel);
        lock(&self.tasks).extend(tasks);
        while self.take_one() {}
        while self.left.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
        for task in lock(&self.done).drain(..) {
            take(task.at, task.values);
        }
    }
}

/// Sends the helpers home when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Counts one task off when it is dropped.
struct One<'a>(&'a AtomicUsize);

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Team};

    #[test]
    fn every_job_is_done_once_whoever_does_it() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads);
            let work = |jobs: usize| {
                let jobs = (0..jobs).map(|n| (Job::Map(|v| v + 1.0), n * 10, vec![n as f32; 3]));
                let mut seen = Vec::new();
                team.run(jobs, |at, values| seen.push((at, values)));
                seen.sort_by_key(|s| s.0);
                seen
            };
            let check = || {
                for jobs in [0, 1, 50] {
                    let expected: Vec<_> = (0..jobs).map(|n| (n * 10, vec![n as f32 + 1.0; 3])).collect();
                    assert_eq!(work(jobs), expected);
                }
            };
            team.with(check);
            // a team may meet again, and works without helpers too
            team.with(check);
            check();
        }
    }
}
