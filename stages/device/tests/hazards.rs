//! The order proof: small programs, and what it says of each.

use mica_device::access::{Access, TileFile, external};
use mica_device::asm;
use mica_device::hazards::{Hazard, check, check_iterations};
use mica_device::isa::{Engine, Instr, Opcode};
use mica_device::tile::Tile;
use std::ops::Range;

const TILES: &str = "
    tdef.f16 t0, lrm=0x0, 1x64, -
    tdef.f32 t1, lrm=0x100, 1x64, -
    tdef.f32 t2, lrm=0x200, 1x64, -
";

fn verdict(body: &str) -> String {
    let program = asm::parse(&format!("{TILES}{body}")).unwrap();
    check(&program).map_or_else(|e| e.to_string(), |()| "ordered".into())
}

#[test]
fn a_read_must_await_the_write() {
    let load = "dld l2=0x0, bytes=128, -, s1, -, off=0\n";
    assert_eq!(
        verdict(&format!("{load} ldt.f16 t0, l2=0x0")),
        "instruction 4 (ldt) may run before instruction 3 (dld) has retired: both touch L2 0x0..0x80"
    );
    assert_eq!(verdict(&format!("{load} ldt.f16 t0, l2=0x0 ?in-1")), "ordered");
    assert_eq!(verdict(&format!("{load} fence\nldt.f16 t0, l2=0x0")), "ordered");
    assert_eq!(verdict(&format!("{load} ldt.f16 t0, l2=0x80")), "ordered");
    // the wait names the load before the one that matters
    assert_eq!(
        verdict(&format!("dld l2=0x200, bytes=64, -, s1, -, off=0\n{load} ldt.f16 t0, l2=0x0 ?in-2")),
        "instruction 5 (ldt) may run before instruction 4 (dld) has retired: both touch L2 0x0..0x80"
    );
}

#[test]
fn a_write_must_await_the_read() {
    let read = "ldt.f16 t0, l2=0x0\n";
    assert_eq!(
        verdict(&format!("{read} dld l2=0x40, bytes=8, -, s1, -, off=0")),
        "instruction 4 (dld) may run before instruction 3 (ldt) has retired: both touch L2 0x40..0x48"
    );
    assert_eq!(verdict(&format!("{read} dld l2=0x40, bytes=8, -, s1, -, off=0 ?flow-1")), "ordered");
    // two reads need no order
    assert_eq!(verdict(&format!("{read} dst l2=0x0, bytes=128, -, s1, -, off=0")), "ordered");
}

#[test]
fn what_an_awaited_instruction_knew_is_known() {
    // flow awaits in, array awaits flow: so array may read what `in` wrote
    assert_eq!(
        verdict(
            "dld l2=0x0, bytes=4096, -, s1, -, off=0
             ldt.f16 t0, l2=0x0 ?in-1
             matv.f16 t1, t0, l2=0x80, rows=16, group=0 ?flow-1"
        ),
        "ordered"
    );
    // and an instruction of the front end orders all that follows it
    assert_eq!(
        verdict(
            "vun.exp t1, t2
             nop ?array-1
             stt.f32 t1, l2=0x0"
        ),
        "ordered"
    );
}

#[test]
fn the_second_walk_of_a_loop_meets_the_first() {
    let body = |wait: &str| {
        format!(
            "loop s16, s17, body=2
             dld l2=0x0, bytes=128, -, s1, -, off=0 {wait}
             ldt.f16 t0, l2=0x0 ?in-1"
        )
    };
    assert_eq!(
        verdict(&body("")),
        "instruction 4 (dld) may run before instruction 5 (ldt) has retired: both touch L2 0x0..0x80"
    );
    assert_eq!(verdict(&body("?flow-1")), "ordered");
    let program = asm::parse(&format!("{TILES}{}", body(""))).unwrap();
    assert_eq!(check_iterations(&program, 1), Ok(()));
}

/// A loop in a loop, whose outer iterations are ordered: the inner ones have to be too.
#[test]
fn the_second_walk_of_an_inner_loop_meets_the_first() {
    let body = |wait: &str| {
        verdict(&format!(
            "loop s16, s17, body=4
             fence
             loop s18, s19, body=2
             dld l2=0x0, bytes=128, -, s1, -, off=0 {wait}
             ldt.f16 t0, l2=0x0 ?in-1"
        ))
    };
    assert!(body("").contains("instruction 6 (dld) may run before instruction 7 (ldt)"), "{}", body(""));
    assert_eq!(body("?flow-1"), "ordered");
}

/// What is stored in an edge that the program also reads is external memory in two hands.
#[test]
fn a_load_must_await_the_store_to_its_edge() {
    let stored = "dst l2=0x0, bytes=64, -, s1, -, off=128\n";
    let load = |base: &str, index: &str, off: u64, wait: &str| {
        format!("dld l2=0x100, bytes=64, -, {base}, {index}, off={off} {wait}")
    };
    let after = |load: String| verdict(&format!("{stored}{load}"));
    let meets = "instruction 4 (dld) may run before instruction 3 (dst) has retired: both touch External";
    assert_eq!(after(load("s1", "-", 160, "")), format!("{meets} 0x10000000000a0..0x10000000000c0"));
    assert_eq!(after(load("s1", "-", 160, "?out-1")), "ordered");
    assert_eq!(verdict(&format!("{stored}fence\n{}", load("s1", "-", 160, ""))), "ordered");
    // other bytes of it, and another edge
    assert_eq!(after(load("s1", "-", 192, "")), "ordered");
    assert_eq!(after(load("s2", "-", 160, "")), "ordered");
    // an index may lead to any byte of the edge, a computed base to any edge
    assert!(after(load("s1", "s20", 0, "")).starts_with(meets));
    assert!(after(load("s16", "-", 0, "")).starts_with(meets));
    // a register that something writes is an entry's no more
    let overwritten = format!("sli s2, value=0\n{stored}{}", load("s2", "-", 0, ""));
    assert!(verdict(&overwritten).contains("External"));
    // a scalar load reads external memory as well
    assert!(after("sld s20, s1, off=128".into()).contains("(sld) may run before"));
    // and a store must await the load
    assert!(verdict(&format!("{}\n{stored}", load("s1", "-", 128, ""))).contains("(dst) may run before"));
}

#[test]
fn undefined_tiles_are_named() {
    assert_eq!(verdict("vun.exp t1, t9"), "instruction 3: tile t9 is not defined");
}

/// Knowledge of several engines adds up.
#[test]
fn waits_on_two_engines_are_both_known() {
    let both = |waits: &str| {
        verdict(&format!(
            "vun.exp t1, t2
             dld l2=0x0, bytes=128, -, s1, -, off=0
             ldt.f32 t1, l2=0x0 {waits}"
        ))
    };
    assert_eq!(both("?in-1 ?array-1"), "ordered");
    assert!(both("?in-1").contains("(vun) has retired"));
    assert!(both("?array-1").contains("(dld) has retired"));
}

#[test]
fn tiles_are_taken_where_they_lie_now_and_at_their_most_rows() {
    let load = "dld l2=0x0, bytes=4, -, s1, -, off=0\nldt.f32 t1, l2=0x0 ?in-1\n";
    let moved = format!("vun.exp t2, t2\ntdef.f32 t1, lrm=0x200, 1x64, -\n{load}");
    assert!(
        verdict(&moved).contains("(vun) has retired: both touch Lrm 0x200..0x300"),
        "{}",
        verdict(&moved)
    );
    let taller = format!("vun.exp t2, t2\ntdef.f32 t1, lrm=0x0, 3x64, s20\n{load}");
    assert!(verdict(&taller).contains("both touch Lrm 0x200..0x300"), "{}", verdict(&taller));
}

/// A small random sequence.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// A program of few instructions on few bytes, some in loops, with waits here and there.
fn any_program(seed: u64) -> String {
    let mut next = random(seed);
    let mut text = String::from(
        "tdef.f16 t0, lrm=0x0, 1x4, -\ntdef.f16 t1, lrm=0x4, 1x4, -\ntdef.f16 t2, lrm=0x8, 2x2, s20\n",
    );
    let length = 3 + next(10);
    for at in 0..length {
        let (tile, other, l2, bytes) = (next(3), next(3), 4 * next(4), 1 + next(8));
        let (edge, off) = (1 + next(2), 4 * next(3));
        text += &match next(16) {
            0..3 => format!("dld l2={l2}, bytes={bytes}, -, s{edge}, -, off={off}"),
            3..5 => format!("dst l2={l2}, bytes={bytes}, -, s{edge}, -, off={off}"),
            5..8 => format!("ldt.i8 t{tile}, l2={l2}"),
            8..10 => format!("stt.i8 t{tile}, l2={l2}"),
            10..13 => format!("vun.neg t{tile}, t{other}"),
            13 if at + 1 < length => format!("loop -, s20, body={}", 1 + next((length - at - 1).min(4))),
            14 => "fence".into(),
            _ => "nop".into(),
        };
        for engine in ["in", "out", "flow", "array"] {
            if next(5) < 2 {
                text += &format!(" ?{engine}-{}", 1 + next(2));
            }
        }
        text += "\n";
    }
    text
}

/// The instructions in the order of their issue, loops walked twice.
fn issued(program: &[Instr], range: Range<usize>, order: &mut Vec<usize>) {
    let mut at = range.start;
    while at < range.end {
        order.push(at);
        at += 1;
        if program[at - 1].op == Opcode::Loop {
            let end = (at + program[at - 1].x as usize).min(range.end);
            (0..2).for_each(|_| issued(program, at..end, order));
            at = end;
        }
    }
}

/// The first instruction that may run before one that it has to follow, by the definition: everything against
/// everything before it.
fn plainly_unordered(program: &[Instr]) -> Option<usize> {
    let mut order = Vec::new();
    issued(program, 0..program.len(), &mut order);
    let mut tiles = TileFile::default();
    // what each has to come after, and what it touches
    let mut done: Vec<(Vec<bool>, Vec<Access>)> = Vec::new();
    for (n, &index) in order.iter().enumerate() {
        let i = &program[index];
        let engine = |n: usize| program[order[n]].op.engine();
        let mut after = vec![false; n];
        let mut follow = |m: usize| {
            after[m] = true;
            done[m].0.iter().enumerate().for_each(|(k, &known)| after[k] |= known);
        };
        for m in 0..n {
            let front = engine(m) == Engine::Scalar;
            if front || engine(m) == i.op.engine() || i.op == Opcode::Fence {
                follow(m);
            }
        }
        for (e, &distance) in i.wait.iter().enumerate().filter(|(_, distance)| **distance > 0) {
            let awaited = (0..n).rev().filter(|&m| engine(m) as usize == e).nth(usize::from(distance) - 1);
            awaited.into_iter().for_each(&mut follow);
        }
        if i.op == Opcode::Tdef {
            tiles.set(i.r[0], Tile::define(i, None).unwrap());
        }
        let mut touched = tiles.accesses(i).unwrap();
        touched.extend(external(i, |r| r < 16));
        let meet = |a: &Access, b: &Access| {
            let overlap = a.range.start < b.range.end && b.range.start < a.range.end;
            a.memory == b.memory && overlap && (a.write || b.write)
        };
        let unordered = |m: usize| !after[m] && done[m].1.iter().any(|a| touched.iter().any(|b| meet(a, b)));
        if (0..n).any(unordered) {
            return Some(index);
        }
        done.push((after, touched));
    }
    None
}

#[test]
fn the_walk_forgets_nothing_that_matters() {
    let (mut ordered, mut unordered) = (0, 0);
    for seed in 0..4000 {
        let text = any_program(seed);
        let program = asm::parse(&text).unwrap();
        let found = match check(&program) {
            Ok(()) => None,
            Err(Hazard::Unordered { later, .. }) => Some(later),
            Err(other) => panic!("{other}\n{text}"),
        };
        assert_eq!(found, plainly_unordered(&program), "seed {seed}\n{text}");
        *if found.is_none() { &mut ordered } else { &mut unordered } += 1;
    }
    assert!(ordered > 1000 && unordered > 1000, "{ordered} and {unordered}");
}
