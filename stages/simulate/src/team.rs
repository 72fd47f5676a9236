//! A second pair of hands for the length of a call.
//!
//! Waking a thread for every few hundred kilobytes costs more than the work. So a call keeps some threads of
//! rayon's pool, which take units of work as they come and otherwise watch for more. If the pool has none to
//! spare, the calling thread does everything itself; nothing waits for a helper that has not begun.
//!
//! Each thread has a run of consecutive units, which it takes from the front: what it reads lies on in memory as
//! the machine expects. Who is through takes from the back of others' runs.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Work in units that any thread may do, in any order; each unit puts its own results where no other does.
pub trait Units: Send + Sync {
    /// How many there are, below 2^32.
    fn count(&self) -> usize;

    /// Does one of them.
    fn unit(&self, n: usize);
}

/// Work that is being shared.
struct Round<'c> {
    work: Arc<dyn Units + 'c>,
    /// A thread's run of units: the first in the low half, one past the last in the high half.
    runs: Vec<AtomicU64>,
    /// Units not yet done.
    left: AtomicUsize,
}

fn run(first: usize, end: usize) -> u64 {
    first as u64 | (end as u64) << 32
}

impl<'c> Round<'c> {
    fn new(work: Arc<dyn Units + 'c>, threads: usize) -> Round<'c> {
        let count = work.count();
        let bound = |t: usize| count * t / threads;
        Round {
            work,
            runs: (0..threads).map(|t| AtomicU64::new(run(bound(t), bound(t + 1)))).collect(),
            left: AtomicUsize::new(count),
        }
    }

    /// A unit of thread `t`'s run, from its front or its back.
    fn take(&self, t: usize, front: bool) -> Option<usize> {
        let mut taken = None;
        let next = |r: u64| {
            let (first, end) = ((r & 0xffff_ffff) as usize, (r >> 32) as usize);
            taken = (first < end).then_some(if front { first } else { end.wrapping_sub(1) });
            let rest = if front { (first + 1, end) } else { (first, end.wrapping_sub(1)) };
            taken.map(|_| run(rest.0, rest.1))
        };
        // what the units read was there before the round was; what they write is published by `left`
        self.runs[t].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        taken
    }

    /// Does what there is for thread `t`, then what others have left.
    fn work(&self, t: usize) {
        let threads = self.runs.len();
        for other in 0..threads {
            while let Some(n) = self.take((t + other) % threads, other == 0) {
                // counted down even by a panic, which the scope passes on: nobody waits for what never comes
                let _one = One(&self.left);
                self.work.unit(n);
            }
        }
    }
}

/// Those who do the work of a call.
#[derive(Default)]
pub struct Team<'c> {
    round: Mutex<Option<Arc<Round<'c>>>>,
    /// Rounds begun, for those who watch for the next without its lock.
    rounds: AtomicUsize,
    over: AtomicBool,
    helpers: usize,
}

/// Looks for work after which a helper lets others have the processor for a moment.
const WATCH: u32 = 1 << 15;

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
            for t in 1..=self.helpers {
                s.spawn(move |_| self.help(t));
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

    fn help(&self, t: usize) {
        let mut seen = 0;
        let mut watched = 0;
        while !self.over.load(Ordering::Acquire) {
            let rounds = self.rounds.load(Ordering::Acquire);
            if rounds != seen {
                seen = rounds;
                watched = 0;
                let round = lock(&self.round).clone();
                if let Some(round) = round {
                    round.work(t);
                }
                continue;
            }
            watched += 1;
            if watched % WATCH == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Does all units of `work`; returns when they are done, whoever did them.
    pub fn run(&self, work: Arc<dyn Units + 'c>) {
        if self.helpers == 0 {
            return (0..work.count()).for_each(|n| work.unit(n));
        }
        let round = Arc::new(Round::new(work, self.threads()));
        *lock(&self.round) = Some(Arc::clone(&round));
        self.rounds.fetch_add(1, Ordering::Release);
        round.work(0);
        while round.left.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
        // the work is the caller's again as soon as those who looked in late have left
        *lock(&self.round) = None;
    }
}

/// Sends the helpers home when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Counts one unit off when it is dropped.
struct One<'a>(&'a AtomicUsize);

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::{Team, Units};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts how often each unit was done.
    struct Counted(Vec<AtomicUsize>);

    impl Units for Counted {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn unit(&self, n: usize) {
            self.0[n].fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_unit_is_done_once_whoever_does_it() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads);
            let check = || {
                for count in [0, 1, 2, 50, 1000] {
                    let work = Arc::new(Counted((0..count).map(|_| AtomicUsize::new(0)).collect()));
                    team.run(Arc::clone(&work) as Arc<dyn Units>);
                    let done = work.0.iter().map(|n| n.load(Ordering::Relaxed));
                    assert!(done.eq(std::iter::repeat_n(1, count)), "{threads} threads, {count} units");
                }
            };
            team.with(check);
            // a team may meet again, and works without helpers too
            team.with(check);
            check();
        }
    }
}
