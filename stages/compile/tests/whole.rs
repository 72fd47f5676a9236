//! The whole linked stack is its segments one after another, to the bit.

mod support;

use mica_compile::{CompileError, Options, Seams, compile, link, link_with};
use mica_device::isa::{self, Opcode};
use mica_device::layout::ALIGN;
use mica_device::object::{Constants, Direction, Entry, Kernel, Object};
use mica_models::hir::Function;
use mica_models::{Part, Stack};
use mica_simulate::{Edges, Machine, Program};
use std::collections::BTreeMap;
use std::fmt::Write;
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
    attributed(&kernel, &run);
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

/// Every instruction names its part and an op of it; link's own have one op more, once a part.
fn attributed(kernel: &Kernel, run: &[&Object]) {
    let code = isa::decode(&kernel.code).unwrap();
    let parts: Vec<usize> = code.iter().map(|i| i.src as usize >> 16).collect();
    assert!(parts.is_sorted() && parts.first() == Some(&0) && parts.last() == Some(&(run.len() - 1)));
    for (part, (ops, o)) in kernel.ops.iter().zip(run).enumerate() {
        let own: Vec<u32> =
            code.iter().filter(|i| i.src as usize >> 16 == part).map(|i| i.src & 0xffff).collect();
        let most = *own.iter().max().unwrap() as usize;
        let seam = usize::from(most == o.ops.len());
        assert_eq!((&ops[..o.ops.len()], ops.len()), (&o.ops[..], o.ops.len() + seam), "part {part}");
    }
}

/// Parts that are not a whole model: which entries there are, and how often the residual crosses.
#[test]
fn the_residual_enters_and_leaves_once() {
    let stack = tiny();
    let mut all = objects(&stack, fifteen);
    let mut bare = all["embed"].clone();
    (bare.constants, bare.relocations) = (0, vec![]);
    all.insert("bare".into(), bare);
    let mut text = String::new();
    for (parts, seams) in [
        (&["embed", "linear_attention"][..], Seams::Whole),
        (&["embed", "linear_attention"], Seams::Segment),
        (&["linear_attention", "linear_attention"], Seams::Segment),
        (&["linear_attention", "head"], Seams::Segment),
        (&["bare", "head"], Seams::Whole),
    ] {
        let run: Vec<&Object> = parts.iter().map(|k| &all[*k]).collect();
        let kernel = link_with(&run, &product("qb4"), seams, Constants::Edges).unwrap();
        attributed(&kernel, &run);
        let code = isa::decode(&kernel.code).unwrap();
        let crosses = |i: &&isa::Instr| matches!(i.op, Opcode::Dld | Opcode::Dst);
        let crossings = |e: &Entry| code.iter().filter(crosses).filter(|i| i.r[1] == e.register).count();
        let hidden = kernel.entries.iter().filter(|e| e.name.starts_with("hidden"));
        let hidden: Vec<String> =
            hidden.map(|e| format!("{} s{} {}×", e.name, e.register, crossings(e))).collect();
        let weights = kernel.entries.iter().filter(|e| e.weights_of().is_some()).map(|e| e.name.as_str());
        let (hidden, weights) = (hidden.join(", "), weights.collect::<Vec<_>>().join(" "));
        writeln!(text, "{} {seams:?}: {hidden}; {weights}", parts.join("+")).unwrap();
    }
    insta::assert_snapshot!(text, @"
    embed+linear_attention Whole: hidden.out s8 1×; weights.0.in weights.1.in
    embed+linear_attention Segment: hidden.out s8 1×; weights.0.in weights.1.in
    linear_attention+linear_attention Segment: hidden.in s1 1×, hidden.out s8 1×; weights.0.in weights.1.in
    linear_attention+head Segment: hidden.in s1 1×; weights.0.in weights.1.in
    bare+head Whole: hidden.out s4 1×; weights.1.in
    ");
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
    let segments = kernel.segments.iter().map(|s| {
        let what = if s.literals { "literals" } else { "constants" };
        assert!(s.offset.is_multiple_of(ALIGN));
        format!("{} {what} {}+{}", s.part, s.offset, s.bytes)
    });
    insta::assert_snapshot!(segments.collect::<Vec<_>>().join("\n"), @"
    0 constants 0+393216
    1 constants 393216+336128
    2 constants 729344+336128
    3 constants 1065472+336128
    4 constants 1401600+391168
    4 literals 1792768+32
    5 constants 1792832+336128
    6 constants 2128960+336128
    7 constants 2465088+336128
    8 constants 2801216+391168
    8 literals 3192384+32
    9 constants 3192448+270848
    ");
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
    insta::assert_snapshot!(e, @"part 0 (`head`) takes a residual that the parts before it do not leave: link one that does");
    let mut narrow = all["head"].clone();
    narrow.seam_bytes = 64;
    let e = link(&[&all["embed"], &narrow], &product("qb4"), Seams::Whole).unwrap_err();
    insta::assert_snapshot!(e, @"part 1 (`head`) takes a residual of 64 bytes, but the part before leaves 512");
    let e = link(&[&all["embed"], &narrow], &product("qb4"), Seams::Segment).unwrap_err();
    assert!(matches!(e, CompileError::Seam { part: 1, .. }), "{e:?}");
    // a part that knows of no residual may have anything where it lay
    let mut apart = all["embed"].clone();
    (apart.seam_out, apart.seam_bytes) = (false, 0);
    let e = link(&[&all["embed"], &apart, &all["head"]], &product("qb4"), Seams::Whole).unwrap_err();
    insta::assert_snapshot!(e, @"part 2 (`head`) takes a residual that the parts before it do not leave: link one that does");
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
