//! A byte budget for stage bodies, so that parallel actions do not together outgrow memory.
//!
//! First come, first served: a large request is not starved by small ones, and one above the whole
//! budget runs alone. Lock order: a query's claim, then the budget, then rayon.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct State {
    free: u64,
    queue: VecDeque<u64>,
    next: u64,
}

/// A counting semaphore in bytes.
pub struct Budget {
    capacity: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Bytes held until dropped.
pub struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `capacity` bytes.
    pub fn new(capacity: u64) -> Budget {
        let state = State { free: capacity, queue: VecDeque::new(), next: 0 };
        Budget { capacity, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // no code that can panic runs under the lock
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the bytes.
    pub fn acquire(&self, bytes: u64) -> Permit<'_> {
        let bytes = bytes.min(self.capacity);
        let mut s = self.lock();
        let ticket = s.next;
        s.next += 1;
        s.queue.push_back(ticket);
        while s.queue.front() != Some(&ticket) || s.free < bytes {
            s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
        s.queue.pop_front();
        s.free -= bytes;
        self.changed.notify_all();
        Permit { budget: self, bytes }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.budget.lock().free += self.bytes;
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn never_more_than_the_capacity_and_large_requests_run_alone() {
        let budget = Budget::new(10);
        let (held, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            for t in 0..8u64 {
                let (budget, held, peak) = (&budget, &held, &peak);
                s.spawn(move || {
                    for i in 0..200 {
                        let want = 1 + (t * 7 + i) % 14;
                        let permit = budget.acquire(want);
                        let now = held.fetch_add(permit.bytes, SeqCst) + permit.bytes;
                        peak.fetch_max(now, SeqCst);
                        held.fetch_sub(permit.bytes, SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(peak.load(SeqCst) <= 10, "{peak:?}");
        assert_eq!(budget.lock().free, 10);
    }
}
