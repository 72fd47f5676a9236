//! Runs the nodes of a graph on driver threads, the caller's among them, each with its own handle of the
//! database.
//!
//! A node starts when all that it needs has settled; the earliest in the graph's order goes first.
//! Plain threads, never rayon workers: salsa driven from rayon whose bodies use rayon can deadlock.

use crate::error::NodeError;
use crate::graph::Graph;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

struct State {
    ready: BTreeSet<usize>,
    waiting: Vec<usize>,
    left: usize,
    /// Threads that wait for something to be ready.
    idle: usize,
    errors: Vec<Option<NodeError>>,
    halted: bool,
}

/// Runs `wanted` (ascending, closed under needs) on as many threads as there are handles, this one among
/// them. `run` is called once a node with the thread's own handle. Without `keep_going`, nothing starts after
/// a failure that is not a dry run's. Gives the error of each node of the graph that has one.
pub fn run<H: Send>(
    graph: &Graph,
    wanted: &[usize],
    handles: Vec<H>,
    keep_going: bool,
    run: impl Fn(&H, usize) -> Result<(), NodeError> + Sync,
) -> Vec<Option<NodeError>> {
    let n = graph.nodes.len();
    let mut dependents = vec![Vec::new(); n];
    let mut waiting = vec![0; n];
    for &i in wanted {
        waiting[i] = graph.needs[i].len();
        for &d in &graph.needs[i] {
            dependents[d].push(i);
        }
    }
    let ready = wanted.iter().copied().filter(|&i| waiting[i] == 0).collect();
    let state = State { ready, waiting, left: wanted.len(), idle: 0, errors: vec![None; n], halted: false };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let drive = |handle: H| {
        let mut st = state.lock().unwrap_or_else(PoisonError::into_inner);
        while st.left > 0 && !st.halted {
            let Some(i) = st.ready.pop_first() else {
                st.idle += 1;
                st = changed.wait(st).unwrap_or_else(PoisonError::into_inner);
                st.idle -= 1;
                continue;
            };
            drop(st);
            let end = catch_unwind(AssertUnwindSafe(|| run(&handle, i))).unwrap_or_else(|p| {
                let target = graph.names[i].clone();
                Err(match p.downcast::<salsa::Cancelled>() {
                    Ok(_) => NodeError::Stopped { target },
                    Err(p) => {
                        let words = crate::action::panic_text(&*p);
                        NodeError::Stage { target, message: format!("panicked: {words}") }
                    }
                })
            });
            st = state.lock().unwrap_or_else(PoisonError::into_inner);
            st.left -= 1;
            if let Err(e) = end {
                let real = matches!(e, NodeError::Stage { .. } | NodeError::Environment { .. });
                st.halted |= real && !keep_going;
                st.errors[i] = Some(e);
            }
            for &d in &dependents[i] {
                st.waiting[d] -= 1;
                if st.waiting[d] == 0 {
                    st.ready.insert(d);
                }
            }
            // this thread takes one itself; waking another for nothing costs more than a small node
            if st.left == 0 || st.halted {
                changed.notify_all();
            } else {
                let more = st.ready.len().saturating_sub(1);
                (0..more.min(st.idle)).for_each(|_| changed.notify_one());
            }
        }
    };
    std::thread::scope(|s| {
        let drive = &drive;
        let mut handles = handles.into_iter();
        let own = handles.next();
        for handle in handles {
            s.spawn(move || drive(handle));
        }
        own.into_iter().for_each(drive);
    });
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if state.halted {
        // what never started is told apart from what failed
        let done = state.waiting;
        for &i in wanted {
            if state.errors[i].is_none() && (done[i] > 0 || state.ready.contains(&i)) {
                state.errors[i] = Some(NodeError::Stopped { target: graph.names[i].clone() });
            }
        }
    }
    state.errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Job, NodeId};

    /// A graph of `needs`; names are the indices.
    fn graph(needs: &[&[usize]]) -> Graph {
        Graph {
            nodes: (0..needs.len()).map(|i| NodeId { model: 0, job: Job::Fetch(i) }).collect(),
            names: (0..needs.len()).map(|i| i.to_string()).collect(),
            needs: needs.iter().map(|n| n.to_vec()).collect(),
        }
    }

    fn fail(i: usize) -> NodeError {
        NodeError::Stage { target: i.to_string(), message: "no".into() }
    }

    #[test]
    fn every_node_runs_once_and_after_what_it_needs() {
        let g = graph(&[&[], &[0], &[0], &[1, 2], &[], &[3, 4]]);
        for threads in [1, 2, 4] {
            let order = Mutex::new(Vec::new());
            let errors = run(&g, &[0, 1, 2, 3, 4, 5], vec![(); threads], false, |(), i| {
                let done = order.lock().unwrap().clone();
                assert!(g.needs[i].iter().all(|d| done.contains(d)), "{i} before {done:?}");
                order.lock().unwrap().push(i);
                Ok(())
            });
            assert!(errors.iter().all(Option::is_none));
            let mut order = order.into_inner().unwrap();
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn a_failure_stops_the_rest_unless_told_to_keep_going() {
        let g = graph(&[&[], &[0], &[], &[2]]);
        let go = |keep| {
            let ran = Mutex::new(Vec::new());
            let errors = run(&g, &[0, 1, 2, 3], vec![()], keep, |(), i| {
                ran.lock().unwrap().push(i);
                match i {
                    0 => Err(fail(0)),
                    1 => Err(fail(0).seen_by("1")),
                    _ => Ok(()),
                }
            });
            (ran.into_inner().unwrap(), errors)
        };
        let (ran, errors) = go(false);
        assert_eq!(ran, [0]);
        assert!(matches!(errors[3], Some(NodeError::Stopped { .. })), "{errors:?}");
        let (ran, errors) = go(true);
        assert_eq!(ran, [0, 1, 2, 3]);
        assert!(matches!(&errors[1], Some(NodeError::Needs { needs, .. }) if needs == "0"));
        assert!(errors[3].is_none());
    }

    #[test]
    fn a_panic_is_that_nodes_failure() {
        let g = graph(&[&[], &[]]);
        let errors = run(&g, &[0, 1], vec![()], true, |(), i| {
            assert!(i != 0, "boom");
            Ok(())
        });
        assert!(matches!(&errors[0], Some(NodeError::Stage { message, .. }) if message.contains("boom")));
        assert!(errors[1].is_none());
    }
}
