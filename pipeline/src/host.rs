//! The host of a kernel: feeds each call a token, or several, and carries states and caches between calls.
//!
//! It goes by the names of a kernel's entries alone: `X.out` returns as the next call's `X.in`, and the
//! rows of `Y_row.out` are appended to `Y_cache.in` at the call's position; to `Y_cache.inout` the kernel appends them
//! itself. What a run leaves does not tell how many tokens a call took. It knows no model and no cache on disk.

mod layout;

use layout::Layout;
use mica_device::format::Format;
use mica_device::object::{Direction, Entry, Kernel};
use mica_simulate::{Counters, Edges, Machine, Program, SimError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

/// What a run of some consecutive tokens starts from.
#[derive(Clone, Default)]
pub struct Feed<'a> {
    /// Token ids.
    pub ids: &'a [i64],
    /// Position of the first.
    pub first: u64,
    /// Residuals for kernels that take one, the tokens' one after the other.
    pub hidden: Option<&'a [u8]>,
    /// Forced expert ids, `[tokens, k]` for each share of the edge in order; `None` lets the device choose.
    pub forced: Option<Vec<&'a [i64]>>,
    /// States by name (`conv_state`); zero where absent.
    pub states: BTreeMap<String, &'a [u8]>,
    /// Rows that the caches (`k_cache`) hold already, in blocks, for kernels of one part.
    pub rows: BTreeMap<String, Vec<&'a [u8]>>,
}

/// What lies in an output: enough to read it as numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
    /// Elements of one token.
    pub elements: u64,
}

/// What a run left.
#[derive(Debug, Default, PartialEq)]
pub struct Run {
    /// Outputs that are neither states nor rows, the tokens' one after the other.
    pub outputs: BTreeMap<String, Vec<u8>>,
    /// How to read them.
    pub shapes: BTreeMap<String, Shape>,
    /// States after the last token.
    pub states: BTreeMap<String, Vec<u8>>,
    /// Rows appended to each cache, token after token.
    pub rows: BTreeMap<String, Vec<u8>>,
    /// Counted events.
    pub counters: Counters,
}

/// A cache entry and the rows entry that feeds it.
struct Cache<'k> {
    cache: &'k Entry,
    rows: &'k Entry,
    /// A token's rows.
    layout: Layout,
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

impl<'a> Feed<'a> {
    /// What some of the tokens start from, but for what those before them leave.
    fn part(&self, tokens: std::ops::Range<usize>) -> Feed<'a> {
        let all = self.ids.len().max(1);
        let of = |n: usize| tokens.start * (n / all)..tokens.end * (n / all);
        Feed {
            ids: &self.ids[tokens.clone()],
            first: self.first + tokens.start as u64,
            hidden: self.hidden.map(|h| &h[of(h.len())]),
            forced: self.forced.as_ref().map(|f| f.iter().map(|ids| &ids[of(ids.len())]).collect()),
            ..self.clone()
        }
    }
}

impl Run {
    /// Adds what the tokens after these left.
    fn append(&mut self, then: Run) {
        for (name, bytes) in then.outputs {
            self.outputs.entry(name).or_default().extend(bytes);
        }
        for (name, bytes) in then.rows {
            self.rows.entry(name).or_default().extend(bytes);
        }
        self.shapes.extend(then.shapes);
        self.states = then.states;
        self.counters += then.counters;
    }
}

/// An entry's name without its direction.
fn base(e: &Entry) -> &str {
    e.name.rsplit_once('.').map_or(&e.name, |(base, _)| base)
}

/// The name of the edge on which a state leaves.
fn left_as(e: &Entry) -> String {
    format!("{}.out", base(e))
}

fn find<'k>(kernel: &'k Kernel, name: &str) -> Option<&'k Entry> {
    kernel.entries.iter().find(|e| e.name == name)
}

/// Inputs that leave and return under one name.
fn states(kernel: &Kernel) -> Vec<&Entry> {
    let ins = kernel.entries.iter().filter(|e| e.direction == Direction::In && base(e) != "hidden");
    ins.filter(|e| find(kernel, &left_as(e)).is_some()).collect()
}

/// Caches that grow by a row a token.
fn caches(kernel: &Kernel, tokens: u64) -> Vec<Cache<'_>> {
    let given = kernel.entries.iter().filter(|e| e.direction.is_given());
    given
        .filter_map(|cache| {
            let rows =
                base(cache).strip_suffix("_cache").and_then(|n| find(kernel, &format!("{n}_row.out")))?;
            Some(Cache { cache, rows, layout: Layout::new(rows, tokens) })
        })
        .collect()
}

/// The forced ids of one call's tokens, −1 where the device chooses.
fn forced(e: &Entry, feed: &Feed<'_>, call: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; e.bytes as usize];
    for (share, (_, offset, what)) in e.shares.iter().enumerate() {
        let k = what.shape.iter().product::<u64>() as usize;
        if let Some(ids) = feed.forced.as_ref().map(|f| &f[share][call * k..(call + 1) * k]) {
            for (j, &id) in ids.iter().enumerate() {
                let at = *offset as usize + j * 4;
                bytes[at..at + 4].copy_from_slice(&(id as i32).to_le_bytes());
            }
        }
    }
    bytes
}

impl Cache<'_> {
    /// Checks that rows of so many positions fit.
    fn room(&self, positions: u64) -> Result<(), SimError> {
        let short = self.cache.shares.iter().find(|(_, _, share)| share.shape[1] < positions);
        short.map_or(Ok(()), |(_, _, share)| {
            let (position, rows) = (positions - 1, share.shape[1]);
            Err(SimError::PastCache { edge: self.cache.name.clone(), position, rows })
        })
    }

    /// The cache with the rows that it holds at the start.
    fn held(&self, feed: &Feed<'_>) -> Vec<u8> {
        let mut cache = vec![0; self.cache.bytes as usize];
        let held = feed.rows.get(base(self.cache)).into_iter().flatten();
        let held = held.flat_map(|block| block.chunks_exact(self.layout.bytes as usize));
        for (position, row) in held.enumerate() {
            self.append(&mut cache, row, position as u64);
        }
        cache
    }

    /// Puts the rows of one token, `[heads, dim]` a share, at a position of the caches `[heads, capacity, dim]`.
    fn append(&self, to_all: &mut [u8], row: &[u8], position: u64) {
        for ((_, cache_at, cache), rows) in self.cache.shares.iter().zip(&self.layout.shares) {
            let (heads, capacity) = (cache.shape[0], cache.shape[1]);
            let dim = (rows.bytes / heads) as usize;
            for head in 0..heads {
                let from = rows.at as usize + head as usize * dim;
                let to = (*cache_at + (head * capacity + position) * dim as u64) as usize;
                to_all[to..to + dim].copy_from_slice(&row[from..from + dim]);
            }
        }
    }
}

/// Stored elements as float64; every value of every format is one exactly.
pub fn values(bytes: &[u8], shape: &Shape) -> Vec<f64> {
    let four = || bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
    let two = || bytes.chunks_exact(2).map(|c| [c[0], c[1]]);
    match shape.format {
        Format::F32 => four().map(|c| f32::from_le_bytes(c).into()).collect(),
        Format::Fx32 => {
            let unit = (-f64::from(shape.frac)).exp2();
            four().map(|c| f64::from(i32::from_le_bytes(c)) * unit).collect()
        }
        Format::I32 => four().map(|c| i32::from_le_bytes(c).into()).collect(),
        Format::F16 => two().map(|c| half::f16::from_le_bytes(c).to_f64()).collect(),
        Format::Bf16 => two().map(|c| half::bf16::from_le_bytes(c).to_f64()).collect(),
        Format::I8 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
    }
}

/// Values as an edge of a format holds them, to nearest, ties to even.
///
/// # Errors
/// A finite value outside the format's range, or in a format of integers one that is no number: what the device would
/// be given would be another one.
pub fn encoded(values: &[f64], format: Format, frac: u8) -> Result<Vec<u8>, Unfit> {
    // both bounds of each format are exact, so that a value fits exactly if it rounds to one between them
    let whole = |v: f64, unit: f64, [least, most]: [f64; 2]| {
        let n = (v * unit).round_ties_even();
        (least..=most).contains(&n).then_some(n as i32)
    };
    let float = |v: f64, stored: f64| !(v.is_finite() && stored.is_infinite());
    let word = [i32::MIN, i32::MAX].map(f64::from);
    let mut out = Vec::with_capacity(values.len() * format.bytes() as usize);
    for (index, &v) in values.iter().enumerate() {
        let fits = match format {
            Format::Fx32 => whole(v, f64::from(frac).exp2(), word).map(|n| out.extend(n.to_le_bytes())),
            Format::I32 => whole(v, 1.0, word).map(|n| out.extend(n.to_le_bytes())),
            Format::I8 => {
                whole(v, 1.0, [i8::MIN, i8::MAX].map(f64::from)).map(|n| out.push((n as i8).cast_unsigned()))
            }
            Format::F32 => float(v, f64::from(v as f32)).then(|| out.extend((v as f32).to_le_bytes())),
            Format::F16 => {
                let h = half::f16::from_f64(v);
                float(v, h.to_f64()).then(|| out.extend(h.to_le_bytes()))
            }
            Format::Bf16 => {
                let h = half::bf16::from_f64(v);
                float(v, h.to_f64()).then(|| out.extend(h.to_le_bytes()))
            }
        };
        if fits.is_none() {
            return Err(Unfit { index, value: v, format, frac });
        }
    }
    Ok(out)
}

/// A value that an edge cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "element {index} is {value}, which {format:?}{} does not hold", 
    if *format == Format::Fx32 { format!(" of {frac} fraction bits") } else { String::new() }
)]
pub struct Unfit {
    /// Its place.
    pub index: usize,
    /// The value.
    pub value: f64,
    /// The edge's format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_device::object::EdgeUse;

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

    #[test]
    fn what_an_edge_holds_reads_back_as_it_was() {
        for (format, kept) in [
            (Format::Fx32, vec![0.5, -3.25, 2047.0]),
            (Format::F32, vec![1.5 * 2f64.powi(-100), -7.0]),
            (Format::F16, vec![0.333_251_953_125, 65504.0]),
            (Format::Bf16, vec![1.0078125]),
            (Format::I32, vec![-5.0, 7.0]),
            (Format::I8, vec![-128.0, 127.0]),
        ] {
            let shape = Shape { format, frac: 20, elements: kept.len() as u64 };
            assert_eq!(values(&encoded(&kept, format, 20).unwrap(), &shape), kept, "{format:?}");
        }
    }

    #[test]
    fn what_an_edge_cannot_hold_is_refused_and_not_clamped() {
        let unit = 2f64.powi(-20);
        for (format, fits, not) in [
            (Format::Fx32, [2048.0 - unit, -2048.0], [2048.0, -2048.0 - unit]),
            (Format::F32, [3e38, f64::INFINITY], [4e38, -1e300]),
            (Format::F16, [65519.0, f64::NEG_INFINITY], [65520.0, -1e6]),
            (Format::Bf16, [3e38, f64::NAN], [3.4e38, -1e39]),
            (Format::I32, [-2147483648.0, 2147483647.0], [2147483648.0, f64::NAN]),
            (Format::I8, [-128.0, 127.4], [127.6, -129.0]),
        ] {
            for v in fits {
                assert!(encoded(&[0.0, v], format, 20).is_ok(), "{format:?} {v}");
            }
            for v in not {
                let e = encoded(&[0.0, v], format, 20).unwrap_err();
                assert_eq!((e.index, e.value.to_bits()), (1, v.to_bits()), "{format:?}");
                assert!(e.to_string().starts_with("element 1 is"), "{e}");
            }
        }
    }
}
