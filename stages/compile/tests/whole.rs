//! The whole linked stack is its segments one after another, to the bit.

mod support;

use mica_compile::{CompileError, Options, Seams, compile, link, link_with};
use mica_device::object::{Constants, Direction, Kernel, Object};
use mica_models::hir::Function;
use mica_models::{Part, Stack};
use mica_simulate::{Edges, Machine, Program};
use std::collections::BTreeMap;
use support::weights::{self, Weights};
use support::{CAPACITY, FRAC, Lcg, encode, options, product, prove, tiny};

/// All results but the one for which no entry is left.
fn fifteen(f: &Function) -> Options {
    let exports = options(f).exports.into_iter().filter(|n| n != "router_logits").collect();
    Options { frac: FRAC, capacity: CAPACITY, exports, tokens: 1 }
}

fn objects(stack: &Stack, with: fn(&Function) -> Options) -> BTreeMap<String, Object> {
    let product = product("qb4");
    let one = |kind: &str, f: &Function| {
        (kind.to_owned(), compile(kind, f, &weights::plan(f), &product, &with(f)).unwrap())
    };
    let kinds = stack.kinds.iter().map(|k| one(&k.name, &k.function));
    [one("embed", &stack.embed), one("head", &stack.head)].into_iter().chain(kinds).collect()
}

fn kind(stack: &Stack, part: Part) -> String {
    match part {
        Part::Embed => "embed".into(),
        Part::Head => "head".into(),
        Part::Layer(i) => stack.kind(i).unwrap().name.clone(),
    }
}

/// The bytes of a part's input on an edge: what the step before left, or a position and a token.
fn input(e: &mica_device::object::EdgeUse, part: usize) -> Vec<u8> {
    let n = e.shape.iter().product::<u64>() as usize;
    match e.name.as_str() {
        "token.in" => encode(e, &[77.0]),
        "pos.in" => encode(e, &[130.0]),
        "forced_ids.in" => encode(e, &vec![-1.0; n]),
        name => encode(e, &Lcg(part as u64 * 100 + name.len() as u64).vector(n, 0.5)),
    }
}

#[test]
fn whole_equals_segments() {
    let stack = tiny();
    let product = product("qb4");
    let all = objects(&stack, fifteen);
    let parts = stack.parts();
    let w: Vec<Weights> =
        parts.iter().zip(0..).map(|(p, seed)| weights::random(stack.function(*p).unwrap(), seed)).collect();
    let run: Vec<&Object> = parts.iter().map(|p| &all[&kind(&stack, *p)]).collect();

    let kernel = link(&run, &product, Seams::Whole).unwrap();
    prove(&kernel);
    assert_eq!(kernel, link(&run, &product, Seams::Whole).unwrap());
    assert_eq!(kernel.entries.len(), 15);
    let program = Program::load(&kernel).unwrap();
    let constants: Vec<&[u8]> = w.iter().map(|w| w.bytes.as_slice()).collect();
    let strict = mica_simulate::Options { strict: true, ..Default::default() };
    let mut machine = Machine::new(&program, &product, &constants, strict).unwrap();
    let mut edges = Edges::new(&program);
    for e in kernel.entries.iter().filter(|e| e.direction == Direction::In) {
        let mut bytes = vec![0; e.bytes as usize];
        for (part, offset, share) in &e.shares {
            let b = input(share, *part as usize);
            bytes[*offset as usize..][..b.len()].copy_from_slice(&b);
        }
        edges.set_in(&e.name, bytes).unwrap();
    }
    machine.call(&mut edges).unwrap();

    let mut hidden: Vec<u8> = Vec::new();
    let mut compared = 0;
    for (part, o) in run.iter().enumerate() {
        let segment = link(&[o], &product, Seams::Segment).unwrap();
        let program = Program::load(&segment).unwrap();
        let constants = [constants[part]];
        let mut machine = Machine::new(&program, &product, &constants, strict).unwrap();
        let mut own = Edges::new(&program);
        for e in segment.entries.iter().filter(|e| e.direction == Direction::In) {
            match e.name.as_str() {
                "hidden.in" => own.set_in(&e.name, hidden.clone()).unwrap(),
                _ => own.set_in(&e.name, input(&e.shares[0].2, part)).unwrap(),
            }
        }
        machine.call(&mut own).unwrap();
        for e in segment.entries.iter().filter(|e| e.direction == Direction::Out) {
            let bytes = own.out(&e.name).unwrap();
            if e.name == "hidden.out" {
                hidden = bytes.to_vec();
                continue;
            }
            let whole = kernel.entries.iter().find(|w| w.name == e.name).unwrap();
            let (_, offset, _) = whole.shares.iter().find(|s| s.0 as usize == part).unwrap();
            let found = &edges.out(&e.name).unwrap()[*offset as usize..][..bytes.len()];
            assert!(bytes == found, "part {part}: {} differs", e.name);
            compared += 1;
        }
    }
    assert_eq!(edges.out("hidden.out").unwrap(), hidden);
    assert_eq!(compared, 6 * 3 + 2 * 3 + 2);
}

#[test]
fn shares_are_aligned_and_the_position_is_shared() {
    let stack = tiny();
    let all = objects(&stack, fifteen);
    let run: Vec<&Object> = stack.parts().iter().map(|p| &all[&kind(&stack, *p)]).collect();
    let kernel = link(&run, &product("qb4"), Seams::Whole).unwrap();
    let text: Vec<String> = kernel
        .entries
        .iter()
        .map(|e| {
            let shares: Vec<String> = e.shares.iter().map(|(p, at, _)| format!("{p}@{at}")).collect();
            format!("s{} {} {:?} {}: {}", e.register, e.name, e.direction, e.bytes, shares.join(" "))
        })
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn a_sixteenth_entry_is_refused() {
    let stack = tiny();
    let all = objects(&stack, options);
    let run = ["embed", "linear_attention", "full_attention", "head"].map(|k| &all[k]);
    let e = link(&run, &product("qb4"), Seams::Whole).unwrap_err();
    assert!(matches!(&e, CompileError::Entries { names, limit: 15, .. } if names.len() == 16));
    insta::assert_snapshot!(e, @"the kernel has 16 edges and qb4 has 15 entry pointers: token.in, conv_state.in, recurrent_state.in, forced_ids.in, conv_state.out, recurrent_state.out, expert_ids.out, router_logits.out, pos.in, k_cache.in, v_cache.in, k_row.out, v_row.out, normed.out, logits.out, hidden.out; leave out a result in `exports`, or link fewer parts");
}

#[test]
fn seams_must_meet() {
    let stack = tiny();
    let all = objects(&stack, fifteen);
    let e = link(&[&all["head"]], &product("qb4"), Seams::Whole).unwrap_err();
    insta::assert_snapshot!(e, @"part 0 (`head`) takes a residual that no part before it leaves: link that part too");
    let mut narrow = all["head"].clone();
    narrow.seam_bytes = 64;
    let e = link(&[&all["embed"], &narrow], &product("qb4"), Seams::Whole).unwrap_err();
    insta::assert_snapshot!(e, @"part 1 (`head`) takes a residual of 64 bytes, but the part before leaves 512");
}

/// Every output of one call of a kernel, its constants given as it takes them.
fn outputs(kernel: &Kernel, constants: &[&[u8]]) -> BTreeMap<String, Vec<u8>> {
    let product = product("qb4");
    let program = Program::load(kernel).unwrap();
    let strict = mica_simulate::Options { strict: true, ..Default::default() };
    let mut machine = Machine::new(&program, &product, constants, strict).unwrap();
    let mut edges = Edges::new(&program);
    for e in kernel.entries.iter().filter(|e| e.direction == Direction::In) {
        match e.weights_of() {
            Some(part) => edges.set_in(&e.name, constants[part]).unwrap(),
            None => edges.set_in(&e.name, input(&e.shares[0].2, 1)).unwrap(),
        }
    }
    machine.call(&mut edges).unwrap();
    let outs = kernel.entries.iter().filter(|e| e.direction == Direction::Out);
    outs.map(|e| (e.name.clone(), edges.out(&e.name).unwrap().to_vec())).collect()
}

/// The function of the first part of a kind.
fn function<'s>(stack: &'s Stack, name: &str) -> &'s Function {
    let part = stack.parts().into_iter().find(|p| kind(stack, *p) == name).unwrap();
    stack.function(part).unwrap()
}

/// The same parts, their constants baked and on edges: the same bits, and the entries that it costs.
#[test]
fn constants_on_edges_give_the_same_bits() {
    let stack = tiny();
    let all = objects(&stack, fifteen);
    let kinds = ["embed", "head", "linear_attention", "full_attention"];
    let weights: BTreeMap<&str, Weights> =
        kinds.iter().zip(0..).map(|(k, seed)| (*k, weights::random(function(&stack, k), seed))).collect();
    for (parts, seams, entries) in [
        (&["embed", "linear_attention", "head"][..], Seams::Whole, [10, 13]),
        (&["embed", "full_attention", "head"], Seams::Whole, [11, 14]),
        (&["full_attention"], Seams::Segment, [9, 10]),
    ] {
        let run: Vec<&Object> = parts.iter().map(|k| &all[*k]).collect();
        let constants: Vec<&[u8]> = parts.iter().map(|k| weights[k].bytes.as_slice()).collect();
        let [baked, on_edges] = [Constants::Baked, Constants::Edges]
            .map(|mode| link_with(&run, &product("qb4"), seams, mode).unwrap());
        prove(&on_edges);
        assert_eq!([baked.entries.len(), on_edges.entries.len()], entries, "{parts:?}");
        assert!(on_edges.segments.iter().all(|s| s.literals), "only what the compiler made stays baked");
        let expected = outputs(&baked, &constants);
        assert!(outputs(&on_edges, &constants) == expected, "{parts:?}");
        // the bits do come from the edges
        let last = parts[parts.len() - 1];
        let other = weights::random(function(&stack, last), 9);
        let changed: Vec<&[u8]> =
            constants.iter().take(parts.len() - 1).copied().chain([&other.bytes[..]]).collect();
        assert!(outputs(&on_edges, &changed) != expected, "{parts:?}");
    }
}

#[test]
fn constants_on_edges_stop_at_fifteen_pointers() {
    let stack = tiny();
    let all = objects(&stack, fifteen);
    let run = ["embed", "linear_attention", "full_attention", "head"].map(|k| &all[k]);
    let e = link_with(&run, &product("qb4"), Seams::Whole, Constants::Edges).unwrap_err();
    assert!(matches!(&e, CompileError::Entries { weights: 4, limit: 15, names, .. } if names.len() == 19));
    insta::assert_snapshot!(e, @"the kernel has 19 edges and qb4 has 15 entry pointers: token.in, conv_state.in, recurrent_state.in, forced_ids.in, conv_state.out, recurrent_state.out, expert_ids.out, pos.in, k_cache.in, v_cache.in, k_row.out, v_row.out, normed.out, logits.out, hidden.out, weights.0.in, weights.1.in, weights.2.in, weights.3.in; 4 of them are the constants of a part each: bake them (constants = \"baked\", which costs no entry), or link fewer parts");
}
