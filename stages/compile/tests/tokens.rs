//! A call of several tokens gives the bits of as many calls of one: outputs, states and caches.

mod support;

use mica_compile::{CompileError, Options, Seams, compile, link_with};
use mica_device::hazards::{self, Hazard};
use mica_device::isa::{self, Instr, Opcode};
use mica_device::object::{Constants, Direction, Entry, Kernel};
use mica_device::product::Product;
use mica_models::hir::{Builder, Dtype, Function, Op, Type};
use mica_simulate::{Edges, Machine, Program};
use std::collections::BTreeMap;
use support::weights::{self, Weights};
use support::{CAPACITY, inputs, options, product, prove, tiny};

const PRODUCTS: [&str; 2] = ["qb1", "qb16"];

/// What calls left, by name: of each output the tokens' bytes one after the other; states; caches.
#[derive(Debug, Default, PartialEq)]
struct Left {
    outputs: BTreeMap<String, Vec<u8>>,
    states: BTreeMap<String, Vec<u8>>,
    caches: BTreeMap<String, Vec<u8>>,
}

fn base(e: &Entry) -> &str {
    e.name.rsplit_once('.').unwrap().0
}

fn kernel(f: &Function, w: &Weights, product: &Product, tokens: u64, mode: Constants) -> Kernel {
    let o = Options { tokens, ..options(f) };
    let object = compile(&f.name, f, &w.plan, product, &o).unwrap();
    let kernel = link_with(&[&object], product, Seams::Segment, mode).unwrap();
    prove(&kernel);
    kernel
}

/// The bytes of one token's input.
fn given(e: &Entry, pos: u64, n: u64) -> Vec<u8> {
    let share = &e.shares[0].2;
    let rank = usize::from(n > 1 && e.name != "pos.in");
    let one: u64 = share.shape[rank.min(share.shape.len())..].iter().product();
    let tokens = if e.name == "pos.in" { pos..pos + 1 } else { pos..pos + n };
    let scalar = share.is_scalar();
    let each = tokens.flat_map(|t| match e.name.as_str() {
        "pos.in" => (t as i64).to_le_bytes().to_vec(),
        _ if scalar => (inputs(&e.name, 1, t)[0].abs() * 2000.0).floor().to_bits().to_le_bytes().to_vec(),
        "forced_ids.in" => vec![0xff; 4 * one as usize],
        _ => support::encode(share, &inputs(base(e), one as usize, t)),
    });
    each.collect()
}

/// Runs `calls` calls of `n` tokens each from position `first` on.
fn run(
    kernel: &Kernel,
    w: &Weights,
    product: &Product,
    (n, calls): (u64, u64),
    first: u64,
) -> Left {
    let program = Program::load(kernel).unwrap();
    let constants: [&[u8]; 1] = [&w.bytes];
    let strict = mica_simulate::Options { strict: true, ..Default::default() };
    let mut machine = Machine::new(&program, product, &constants, strict).unwrap();
    let mut edges = Edges::new(&program);
    let leaves = |name: String| kernel.entries.iter().any(|e| e.name == name);
    let is_state = |e: &Entry| base(e) != "hidden" && leaves(format!("{}.in", base(e))) && leaves(format!("{}.out", base(e)));
    let is_cache = |e: &Entry| base(e).ends_with("_cache");
    let given_edges: Vec<&Entry> = kernel.entries.iter().filter(|e| e.direction.is_given()).collect();
    for e in &given_edges {
        let share = &e.shares[0].2;
        let count = share.shape.iter().product::<u64>() as usize;
        if is_cache(e) {
            // beyond what is cached an edge may hold anything, even what is no number
            let (heads, rows, dim) = (share.shape[0], share.shape[1], share.shape[2]);
            let mut values = inputs(base(e), count, 7);
            for h in 0..heads {
                let end = (h * rows + rows) * dim;
                values[((h * rows + first) * dim) as usize..end as usize].fill(f64::NAN);
            }
            edges.set_in(&e.name, support::encode(share, &values)).unwrap();
        } else if is_state(e) {
            edges.set_in(&e.name, support::encode(share, &inputs(base(e), count, 3))).unwrap();
        } else if e.weights_of().is_some() {
            edges.set_in(&e.name, w.bytes.as_slice()).unwrap();
        }
    }
    let mut left = Left::default();
    for c in 0..calls {
        let pos = first + c * n;
        for e in given_edges.iter().filter(|e| !is_state(e) && !is_cache(e) && e.weights_of().is_none()) {
            edges.set_in(&e.name, given(e, pos, n)).unwrap();
        }
        machine.call(&mut edges).unwrap();
        for e in kernel.entries.iter().filter(|e| e.direction == Direction::Out) {
            if is_state(e) {
                edges.turn(&e.name, &format!("{}.in", base(e))).unwrap();
            } else {
                left.outputs.entry(base(e).into()).or_default().extend(edges.out(&e.name).unwrap());
            }
        }
        for e in given_edges.iter().filter(|e| is_cache(e) && e.direction == Direction::In) {
            let row = edges.out(&format!("{}_row.out", base(e).strip_suffix("_cache").unwrap())).unwrap().to_vec();
            let shape = &e.shares[0].2.shape;
            let dim = row.len() / shape[0] as usize;
            for (h, row) in row.chunks(dim).enumerate() {
                let at = (h as u64 * shape[1] + pos) as usize * dim;
                edges.in_mut(&e.name).unwrap()[at..at + dim].copy_from_slice(row);
            }
        }
    }
    for e in &given_edges {
        match e.direction {
            Direction::InOut => {
                left.caches.insert(base(e).into(), edges.kept(&e.name).unwrap().to_vec());
            }
            _ if is_cache(e) => {
                left.caches.insert(base(e).into(), edges.take_in(&e.name).unwrap());
            }
            _ if is_state(e) => {
                left.states.insert(base(e).into(), edges.take_in(&e.name).unwrap());
            }
            _ => {}
        }
    }
    left
}

/// Two calls of `n` tokens against the calls of one, on every product and both ways of giving constants.
fn agree(f: &Function, counts: &[u64], first: u64) {
    let w = weights::random(f, first + 1);
    let most = counts.iter().max().unwrap() * 2;
    let one = product("qb4");
    let single = kernel(f, &w, &one, 1, Constants::Baked);
    let all = (1..=most).map(|calls| run(&single, &w, &one, (1, calls), first)).collect::<Vec<_>>();
    for &n in counts {
        let expected = &all[2 * n as usize - 1];
        assert!(!expected.outputs.is_empty());
        for name in PRODUCTS {
            let product = product(name);
            for mode in [Constants::Baked, Constants::Edges] {
                let k = kernel(f, &w, &product, n, mode);
                let found = run(&k, &w, &product, (n, 2), first);
                for (what, expected, found) in [
                    ("output", &expected.outputs, &found.outputs),
                    ("state", &expected.states, &found.states),
                    ("cache", &expected.caches, &found.caches),
                ] {
                    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
                    for (key, bytes) in expected {
                        assert!(
                            bytes == &found[key],
                            "{}: {what} {key} of {n} tokens on {name}, {mode:?}, position {first}",
                            f.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn embedding_and_head() {
    let stack = tiny();
    agree(&stack.embed, &[2, 5], 0);
    agree(&stack.head, &[3], 0);
}

#[test]
fn linear_attention() {
    agree(&tiny().kinds[0].function, &[2, 3, 4], 0);
}

/// Calls that begin with empty caches, end at a block's end, go across it, and lie behind it.
#[test]
fn full_attention() {
    let f = &tiny().kinds[1].function;
    for first in [0, 120, 126, 127, 128, 200] {
        agree(f, &[2, 4], first);
    }
    agree(f, &[3], 123);
}
