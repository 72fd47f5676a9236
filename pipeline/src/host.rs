//! The host of a kernel: feeds each call a token, or several, and carries states and caches between calls.
//!
//! It goes by the names of a kernel's entries alone: `X.out` returns as the next call's `X.in`, and the
//! rows of `Y_row.out` are appended to `Y_cache.in` at the call's position; to `Y_cache.inout` the kernel appends them
//! itself. What a run leaves does not tell how many tokens a call took. It knows no model and no cache on disk.

mod caches;
mod entries;
mod feed;
mod layout;
mod left;
mod values;

pub use feed::Feed;
pub use left::Run;
pub use values::{Shape, Unfit, encoded, values};

use caches::caches;
use entries::{base, left_as, states};
use feed::forced;
use layout::Layout;
use mica_device::object::{Direction, Kernel};
use mica_simulate::{Counters, Edges, Machine, Program, SimError};
use std::collections::BTreeSet;

/// A kernel that is called.
#[derive(Clone, Copy)]
pub struct Called<'k> {
    /// The kernel, loaded.
    pub program: &'k Program,
    /// The same as linked.
    pub kernel: &'k Kernel,
    /// Tokens that it was compiled to take at each call.
    pub tokens: u64,
}

/// Why a prompt was not run to its end, and in which of its two programs.
#[derive(Debug)]
pub struct Stopped<'k> {
    /// Why.
    pub error: SimError,
    /// The program that said so.
    pub program: &'k Program,
}

/// Runs one call a token, on a kernel whose constants are baked.
///
/// # Errors
/// As [`run_with`].
pub fn run(
    machine: &mut Machine<'_>,
    program: &Program,
    kernel: &Kernel,
    feed: &Feed<'_>,
) -> Result<Run, SimError> {
    let called = Called { program, kernel, tokens: 1 };
    run_with(machine, called, feed, &[], |_, machine, edges| machine.call(edges))
}

/// Runs a prompt: as many calls of `many` as it fills, and what is left by `one`, a kernel of one token a call,
/// which goes on from the states and caches that those have left.
///
/// # Errors
/// As [`run_with`].
pub fn prompt<'c, 'k>(
    (machine, many): (&mut Machine<'c>, Called<'k>),
    (rest, one): (&mut Machine<'c>, Called<'k>),
    feed: &Feed<'_>,
    weights: &[&[u8]],
) -> Result<Run, Stopped<'k>> {
    let stopped = |program| move |error| Stopped { error, program };
    let all = feed.ids.len();
    let full = all - all % many.tokens as usize;
    let call = |_, machine: &mut Machine<'c>, edges: &mut Edges<'_>| machine.call(edges);
    let mut run =
        run_with(machine, many, &feed.part(0..full), weights, call).map_err(stopped(many.program))?;
    if full < all {
        let mut left = feed.part(full..all);
        left.states = run.states.iter().map(|(name, bytes)| (name.clone(), bytes.as_slice())).collect();
        for (name, rows) in &run.rows {
            left.rows.entry(name.clone()).or_default().push(rows);
        }
        let then = run_with(rest, one, &left, weights, call).map_err(stopped(one.program))?;
        run.append(then);
    }
    Ok(run)
}

/// Runs consecutive tokens: `call` makes each call, told its number. `weights` are the parts' constants, for a kernel
/// that takes them on edges.
///
/// # Errors
/// A number of tokens that is no whole number of calls, a position past a cache, and what the calls say.
pub fn run_with<'c>(
    machine: &mut Machine<'c>,
    called: Called<'_>,
    feed: &Feed<'_>,
    weights: &[&[u8]],
    mut call: impl FnMut(usize, &mut Machine<'c>, &mut Edges<'_>) -> Result<Counters, SimError>,
) -> Result<Run, SimError> {
    let Called { program, kernel, tokens } = called;
    let given = feed.ids.len() as u64;
    if !given.is_multiple_of(tokens) {
        return Err(SimError::PartOfCall { given, each: tokens });
    }
    // one set of edges for all calls: what a state's `out` edge holds is turned into the next call's `in`
    let mut edges = Edges::new(program);
    let states = states(kernel);
    for e in &states {
        let seed = feed.states.get(base(e)).map_or_else(|| vec![0; e.bytes as usize], |s| s.to_vec());
        edges.set_in(&e.name, seed)?;
    }
    let caches = caches(kernel, tokens);
    caches.iter().try_for_each(|c| c.room(feed.first + given))?;
    for c in &caches {
        edges.set_in(&c.cache.name, c.held(feed))?;
    }
    for e in &kernel.entries {
        if let Some(part) = e.weights_of() {
            edges.set_in(&e.name, weights.get(part).copied().unwrap_or_default())?;
        }
    }
    let rows = caches.iter().map(|c| c.rows.name.clone());
    let carried: BTreeSet<String> = rows.chain(states.iter().map(|e| left_as(e))).collect();
    let mut out = Run::default();
    for (i, ids) in feed.ids.chunks(tokens as usize).enumerate() {
        let position = feed.first + i as u64 * tokens;
        for e in &kernel.entries {
            match e.name.as_str() {
                "token.in" => {
                    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                    edges.set_in(&e.name, ids)?;
                }
                "pos.in" => edges.set_in(&e.name, position.to_le_bytes().to_vec())?,
                "hidden.in" => {
                    let n = e.bytes as usize;
                    edges.set_in(&e.name, &feed.hidden.unwrap_or_default()[i * n..(i + 1) * n])?;
                }
                "forced_ids.in" => edges.set_in(&e.name, forced(e, feed, i))?,
                _ => {}
            }
        }
        out.counters += call(i, machine, &mut edges)?;
        for c in &caches {
            for t in 0..tokens {
                let row = c.layout.token(edges.out(&c.rows.name)?, t);
                if c.cache.direction == Direction::In {
                    c.append(edges.in_mut(&c.cache.name)?, &row, position + t);
                }
                out.rows.entry(base(c.cache).into()).or_default().extend(row);
            }
        }
        for e in &states {
            edges.turn(&left_as(e), &e.name)?;
        }
        for e in kernel.entries.iter().filter(|e| e.direction == Direction::Out && !carried.contains(&e.name))
        {
            let layout = Layout::new(e, tokens);
            let (bytes, left) = (edges.out(&e.name)?, out.outputs.entry(base(e).into()).or_default());
            (0..tokens).for_each(|t| left.extend(layout.token(bytes, t)));
            if let Some((_, _, first)) = e.shares.first() {
                let elements = layout.bytes / first.format.bytes();
                let shape = Shape { format: first.format, frac: first.frac, elements };
                out.shapes.entry(base(e).into()).or_insert(shape);
            }
        }
    }
    for e in states {
        out.states.insert(base(e).into(), edges.take_in(&e.name)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_device::format::Format;
    use mica_device::object::{EdgeUse, Entry};

    /// A cache of so many rows and the rows that feed it, of calls of some tokens; the kernel does nothing.
    fn with_cache(tokens: u64, capacity: u64) -> Kernel {
        use mica_device::{asm, isa};
        let entry = |name: &str, register, direction, shape: Vec<u64>| {
            let (format, bytes) = (Format::F16, 2 * shape.iter().product::<u64>());
            let share = EdgeUse { name: name.into(), direction, format, frac: 0, shape, bytes };
            Entry { name: name.into(), register, direction, bytes, shares: vec![(0, 0, share)] }
        };
        Kernel {
            code: isa::encode(&asm::parse("halt").unwrap()),
            segments: Vec::new(),
            literals: vec![Vec::new()],
            entries: vec![
                match tokens {
                    1 => entry("k_cache.in", 1, Direction::In, vec![1, capacity, 4]),
                    _ => entry("k_cache.inout", 1, Direction::InOut, vec![1, capacity, 4]),
                },
                entry("k_row.out", 2, Direction::Out, vec![tokens, 1, 4]),
            ],
            ops: vec![Vec::new()],
            parts: vec!["full_attention".into()],
            lrm_peak: 0,
            l2_peak: 0,
        }
    }

    #[test]
    fn a_position_past_the_cache_is_refused_before_anything_runs() {
        let (kernel, product) = (with_cache(1, 2), mica_device::product::Product::named("qb1").unwrap());
        let program = Program::load(&kernel).unwrap();
        let mut calls = 0;
        let mut go = |ids: &[i64], first| {
            let mut machine =
                Machine::new(&program, &product, &[], mica_simulate::Options::default()).unwrap();
            let feed = Feed { ids, first, ..Feed::default() };
            let called = Called { program: &program, kernel: &kernel, tokens: 1 };
            run_with(&mut machine, called, &feed, &[], |_, m, e| {
                calls += 1;
                m.call(e)
            })
        };
        assert_eq!(go(&[1, 2], 0).unwrap().rows["k_cache"].len(), 2 * 8);
        assert!(go(&[1], 1).is_ok());
        for (ids, first) in [(&[1, 2, 3][..], 0), (&[1], 2), (&[1, 2], 1)] {
            let e = go(ids, first).unwrap_err();
            let position = first + ids.len() as u64 - 1;
            assert_eq!(e, SimError::PastCache { edge: "k_cache.in".into(), position, rows: 2 });
            assert!(e.to_string().contains("raise the capacity"), "{e}");
        }
        assert_eq!(calls, 3);
    }

    #[test]
    fn a_call_of_several_tokens_is_refused_where_its_last_one_is_past_the_cache() {
        let (kernel, product) = (with_cache(2, 5), mica_device::product::Product::named("qb1").unwrap());
        let program = Program::load(&kernel).unwrap();
        let go = |ids: &[i64], first| {
            let options = mica_simulate::Options::default();
            let mut machine = Machine::new(&program, &product, &[], options).unwrap();
            let called = Called { program: &program, kernel: &kernel, tokens: 2 };
            let feed = Feed { ids, first, ..Feed::default() };
            run_with(&mut machine, called, &feed, &[], |_, m, e| m.call(e))
        };
        // two rows a call, the caller's seeds among them
        assert_eq!(go(&[1, 2, 3, 4], 1).unwrap().rows["k_cache"].len(), 4 * 8);
        let past = |position| SimError::PastCache { edge: "k_cache.inout".into(), position, rows: 5 };
        assert_eq!(go(&[1, 2], 4).unwrap_err(), past(5));
        assert_eq!(go(&[1, 2, 3, 4, 5, 6], 0).unwrap_err(), past(5));
        let e = go(&[1, 2, 3], 0).unwrap_err();
        assert_eq!(e, SimError::PartOfCall { given: 3, each: 2 });
        assert!(e.to_string().contains("kernel of one token a call"), "{e}");
    }
}
