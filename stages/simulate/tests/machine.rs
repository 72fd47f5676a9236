//! The machine around the instructions: edges, constants, products, observers, budgets, and that
//! neither threads nor vector units show in a result.

mod common;

use common::{f32s, floats, kernel};
use mica_device::object::{Direction, Segment};
use mica_device::product::Product;
use mica_simulate::matv::Isa;
use mica_simulate::{Boundary, Counters, Edges, Machine, Observer, Options, Program, SimError, Tally, View};
use std::ops::ControlFlow;

fn machine<'c>(program: &'c Program, constants: &'c [&'c [u8]]) -> Result<Machine<'c>, SimError> {
    let product = Product::named("qb4").unwrap();
    Machine::new(program, &product, constants, Options::default())
}

const ECHO: &str = "dld l2=0, bytes=8, -, s1, -, off=0
                    tdef.f32 t0, lrm=0, 1x2, -
                    ldt.f32 t0, l2=0
                    opb t0 @0.0
                    vbini.mul t0, t0, 2.0
                    opb t0 @0.1
                    stt.f32 t0, l2=0
                    dst l2=0, bytes=8, -, s2, -, off=0";

#[test]
fn states_pass_from_call_to_call() {
    let program = Program::load(&kernel(ECHO, 8, 8, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut state = f32s(&[1.0, -3.0]);
    let mut total = Counters::default();
    for _ in 0..3 {
        let mut edges = Edges::new(&program);
        edges.set_in("in", state.as_slice()).unwrap();
        total += m.call(&mut edges).unwrap();
        state = edges.take_out("out").unwrap();
    }
    assert_eq!(floats(&state), [8.0, -24.0]);
    assert_eq!(total.instructions, 27);
}

#[test]
fn a_call_leaves_nothing_behind() {
    // the first call stores; the second must find its output zeroed and its memory undefined
    let text = "sld s16, s1, off=0
                loop -, s16, body=2
                dld l2=0, bytes=8, -, s1, -, off=0
                dst l2=0, bytes=8, -, s2, -, off=0
                dst l2=0, bytes=8, -, s2, -, off=8";
    let program = Program::load(&kernel(text, 8, 16, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut edges = Edges::new(&program);
    edges.set_in("in", 1u64.to_le_bytes().to_vec()).unwrap();
    m.call(&mut edges).unwrap();
    assert_eq!(edges.out("out").unwrap()[..8], 1u64.to_le_bytes());
    edges.set_in("in", vec![0; 8]).unwrap();
    m.call(&mut edges).unwrap();
    assert_eq!(edges.out("out").unwrap()[..8], [0; 8]);
    assert_eq!(edges.out("out").unwrap()[8..], [0xff; 8]);
}

#[test]
fn states_turn_without_leaving_anything_behind() {
    // stores one element of two, and says at 8 what it sees of the other: it must be 0 and not what the buffer
    // held two calls ago
    let text = "dld l2=0, bytes=16, -, s1, -, off=0
                tdef.f32 t0, lrm=0, 1x2, -
                ldt.f32 t0, l2=0
                vbini.add t0, t0, 1.0
                stt.f32 t0, l2=0
                dst l2=4, bytes=4, -, s2, -, off=4
                dld l2=64, bytes=8, -, s2, -, off=0
                dst l2=64, bytes=4, -, s2, -, off=8";
    let program = Program::load(&kernel(text, 16, 16, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut edges = Edges::new(&program);
    edges.set_in("in", f32s(&[7.0, 1.0, 8.0, 9.0])).unwrap();
    for n in 0..4 {
        m.call(&mut edges).unwrap();
        assert_eq!(floats(edges.out("out").unwrap()), [0.0, n as f32 + 2.0, 0.0, 0.0]);
        edges.turn("out", "in").unwrap();
    }
    edges.in_mut("in").unwrap()[4..8].copy_from_slice(&5f32.to_le_bytes());
    assert_eq!(floats(&edges.take_in("in").unwrap()), [0.0, 5.0, 0.0, 0.0]);
    assert_eq!(edges.in_mut("in").unwrap_err().to_string(), "edge `in` is not set");
    assert_eq!(edges.turn("out", "state").unwrap_err().to_string(), "the kernel has no in edge `state`");
    let other = Program::load(&kernel(text, 24, 16, 0)).unwrap();
    assert!(Edges::new(&other).turn("out", "in").is_err(), "two sizes");
}

/// An edge in both directions is what was given, what the call writes to it, and what it has left for the next call. A large
/// transfer from it is what was there then, whatever is written there after it.
#[test]
fn an_edge_in_both_directions_is_read_written_and_kept() {
    let text = "dld l2=0x0, bytes=8192, -, s1, -, off=0
                tdef.f32 t0, lrm=0, 1x2048, -
                ldt.f32 t0, l2=0x0
                vbini.add t0, t0, 1.0
                stt.f32 t0, l2=0x4000
                dst l2=0x4000, bytes=4096, -, s1, -, off=0
                dst l2=0x0, bytes=4096, -, s2, -, off=0
                fence
                dld l2=0x8000, bytes=4, -, s1, -, off=4092
                dst l2=0x8000, bytes=4, -, s2, -, off=4096";
    let mut k = kernel(text, 8192, 4100, 0);
    k.entries[0].direction = Direction::InOut;
    let program = Program::load(&k).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut edges = Edges::new(&program);
    assert_eq!(m.call(&mut edges).unwrap_err(), SimError::EdgeUnset { name: "in".into() });
    let size = SimError::EdgeSize { name: "in".into(), expected: 8192, found: 4 };
    assert_eq!(edges.set_in("in", vec![0; 4]).unwrap_err(), size);
    edges.set_in("in", f32s(&[5.0; 2048])).unwrap();
    for call in 1..4 {
        m.call(&mut edges).unwrap();
        let kept = floats(edges.kept("in").unwrap());
        let now = 5.0 + call as f32;
        assert_eq!((kept[0], kept[1023], kept[1024]), (now, now, 5.0));
        let out = floats(edges.out("out").unwrap());
        assert_eq!(
            (out[0], out[1023], out[1024]),
            (now - 1.0, now - 1.0, now),
            "before, and after the store"
        );
    }
    assert!(edges.kept("out").is_err() && edges.take_out("in").is_err() && edges.in_mut("in").is_err());
}

#[test]
fn wrong_edges_and_constants_are_named() {
    let k = kernel(ECHO, 8, 8, 12);
    let program = Program::load(&k).unwrap();
    let short: &[&[u8]] = &[&[0; 11]];
    assert_eq!(
        machine(&program, short).err().unwrap().to_string(),
        "part 0 (embed): expected 12 bytes of constants, found 11"
    );
    let constants: &[&[u8]] = &[&[0; 12]];
    let mut m = machine(&program, constants).unwrap();
    let mut edges = Edges::new(&program);
    let text = |e: SimError| e.to_string();
    assert_eq!(m.call(&mut edges).map_err(text), Err("edge `in` is not set".into()));
    assert_eq!(
        edges.set_in("in", vec![0; 7]).map_err(text),
        Err("edge `in`: expected 8 bytes, found 7".into())
    );
    assert_eq!(edges.set_in("out", vec![0; 8]).map_err(text), Err("the kernel has no in edge `out`".into()));
    assert_eq!(edges.out("logits").map_err(text), Err("the kernel has no out edge `logits`".into()));
    let other = Program::load(&kernel(ECHO, 16, 8, 12)).unwrap();
    assert_eq!(
        m.call(&mut Edges::new(&other)).map_err(text),
        Err("the edges were made for a kernel with other entries".into())
    );
}

#[test]
fn kernels_that_do_not_fit_are_refused() {
    let mut k = kernel(ECHO, 8, 8, 0);
    k.lrm_peak = (1 << 20) + 1;
    let program = Program::load(&k).unwrap();
    assert_eq!(
        machine(&program, &[]).err().unwrap().to_string(),
        "the kernel needs 1048577 bytes of LRM, qb4 has 1048576"
    );
    k.entries[1].register = 1;
    assert_eq!(
        Program::load(&k).err().unwrap().to_string(),
        "entry `out` cannot use register s1: it is taken, or not one of s1 to s15"
    );
    let mut k = kernel(ECHO, 8, 8, 64);
    k.segments.push(Segment { offset: 32, bytes: 4, part: 0, literals: true });
    assert!(matches!(Program::load(&k), Err(SimError::Segments { segment: 1, .. })));
    k.segments[1].offset = 64;
    assert!(matches!(Program::load(&k), Err(SimError::Literals { found: 0, .. })));
    k.code.truncate(40);
    assert!(matches!(Program::load(&k), Err(SimError::Decode(_))));
    k.code.truncate(32);
    assert!(matches!(Program::load(&k), Err(SimError::Malformed(_))));
}

#[test]
fn transfers_stay_in_their_segment() {
    // two segments with a gap; literals come from the kernel
    let text = "dld l2=0, bytes=4, -, s0, -, off=64
                dst l2=0, bytes=4, -, s2, -, off=0
                dld l2=0, bytes=8, -, s0, -, off=0
                dst l2=0, bytes=8, -, s2, -, off=4";
    let mut k = kernel(text, 4, 12, 8);
    k.literals = vec![f32s(&[7.0])];
    k.segments.push(Segment { offset: 64, bytes: 4, part: 0, literals: true });
    let constants = f32s(&[1.0, 2.0]);
    let (out, _) = common::run_kernel(&k, &[0; 4], &constants, true).unwrap();
    assert_eq!(floats(&out), [7.0, 1.0, 2.0]);
    for off in [-1i64, 1, 60, 68] {
        let mut k = kernel(&format!("dld l2=0, bytes=8, -, s0, -, off={off}"), 4, 4, 8);
        k.segments.push(k.segments[0].clone());
        k.segments[1].offset = 64;
        k.segments[1].literals = true;
        k.literals = vec![vec![0; 8]];
        let error = common::run_kernel(&k, &[0; 4], &constants, false).unwrap_err();
        assert!(error.to_string().contains("in no buffer"), "{off}: {error}");
    }
}

#[derive(Default)]
struct Log {
    lines: Vec<String>,
    stop_at: Option<u32>,
    only: Option<u32>,
}

impl Observer for Log {
    fn wants(&self, src: u32) -> bool {
        self.only.is_none_or(|only| only == src)
    }

    fn boundary(&mut self, b: &Boundary<'_>) -> ControlFlow<()> {
        let tile = b.tile.map(|t| (t.rows, t.cols, t.format, t.values.to_vec()));
        self.lines.push(format!("{} {} {tile:?}", b.instruction, b.src));
        if self.stop_at == Some(b.src) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn observers_see_boundaries_and_stop() {
    let program = Program::load(&kernel(ECHO, 8, 8, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let input = f32s(&[1.0, -3.0]);
    let mut watch = |mut log: Log| {
        let mut edges = Edges::new(&program);
        edges.set_in("in", input.as_slice()).unwrap();
        m.call_observed(&mut edges, &mut log).unwrap();
        (log.lines, floats(edges.out("out").unwrap()))
    };
    let first = "3 0 Some((1, 2, F32, [1.0, -3.0]))";
    let second = "5 1 Some((1, 2, F32, [2.0, -6.0]))";
    let (lines, out) = watch(Log::default());
    assert_eq!((lines, out), (vec![first.into(), second.into()], vec![2.0, -6.0]));
    let (lines, _) = watch(Log { only: Some(1), ..Log::default() });
    assert_eq!(lines, [second]);
    let (lines, out) = watch(Log { stop_at: Some(0), ..Log::default() });
    assert_eq!((lines, out), (vec![first.to_string()], vec![0.0, 0.0]));
}

#[test]
fn fixed_point_is_shown_exactly() {
    let text = "tdef.fx32 t0, lrm=0, 1x1, -, frac=30
                dld l2=0, bytes=4, -, s1, -, off=0
                ldt.fx32 t0, l2=0, frac=30
                opb t0";
    let program = Program::load(&kernel(text, 4, 4, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut edges = Edges::new(&program);
    let value = (1i32 << 30) + 1;
    edges.set_in("in", value.to_le_bytes().to_vec()).unwrap();
    struct One(f64);
    impl Observer for One {
        fn boundary(&mut self, b: &Boundary<'_>) -> ControlFlow<()> {
            self.0 = b.tile.map_or(0.0, |t| t.values[0]);
            ControlFlow::Continue(())
        }
    }
    let mut one = One(0.0);
    m.call_observed(&mut edges, &mut one).unwrap();
    assert_eq!(one.0, f64::from(value) / 2f64.powi(30));
}

#[test]
fn the_watchdog_ends_a_call() {
    let text = "sli s16, value=1000000\nloop -, s16, body=1\nnop";
    let program = Program::load(&kernel(text, 4, 4, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap().with_budget(1000);
    let mut edges = Edges::new(&program);
    edges.set_in("in", vec![0; 4]).unwrap();
    assert!(m.call(&mut edges).unwrap_err().to_string().contains("watchdog: 1000 instructions executed"));
}

#[test]
fn threads_and_vector_units_do_not_show() {
    // a matrix large enough to be split, read through an alias of the constants
    let text = "dld l2=0x1000, bytes=526336, -, s0, -, off=0
                dld l2=0, bytes=1024, -, s1, -, off=0
                tdef.f16 t0, lrm=0, 1x512, -
                tdef.f32 t1, lrm=0x1000, 1x1024, -
                ldt.f16 t0, l2=0
                matv.i8 t1, t0, l2=0x1000, rows=1024, group=512
                stt.f32 t1, l2=0x100000
                dst l2=0x100000, bytes=4096, -, s2, -, off=0";
    let program = Program::load(&kernel(text, 1024, 4096, 526_336)).unwrap();
    let constants: Vec<u8> = (0..526_336u32).map(|n| ((n * 7919) >> 7) as u8 & 0x3f).collect();
    let input: Vec<u8> = (0..1024u32).map(|n| (n * 31) as u8 & 0x3f).collect();
    let parts = [constants.as_slice()];
    let product = Product::named("qb16").unwrap();
    let mut results = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 2, 5] {
            let options = Options { threads, strict: true };
            let mut m = Machine::new(&program, &product, &parts, options).unwrap().with_isa(isa);
            let mut edges = Edges::new(&program);
            edges.set_in("in", input.as_slice()).unwrap();
            let counters = m.call(&mut edges).unwrap();
            results.push((edges.take_out("out").unwrap(), counters));
        }
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
    assert!(floats(&results[0].0).iter().any(|v| *v != 0.0));
}

/// Half of these saturate `fx32`, in two ops; matrix products are put off by a run that nobody watches.
const LOUD: &str = "dld l2=0x1000, bytes=4096, -, s0, -, off=0 @0.0
                    dld l2=0, bytes=8, -, s1, -, off=0 @0.0
                    tdef.f32 t0, lrm=0, 1x2, - @0.0
                    tdef.fx32 t1, lrm=0x40, 1x2, -, frac=20 @0.0
                    tdef.f16 t2, lrm=0x80, 1x8, - @0.0
                    tdef.f32 t3, lrm=0x100, 1x16, - @0.0
                    ldt.f32 t0, l2=0 @0.0
                    vun.cvt t1, t0 @0.0
                    ldt.f16 t2, l2=0x1000 @0.1
                    matv.f16 t3, t2, l2=0x1000, rows=16, group=0 @0.1
                    stt.f32 t3, l2=0x2000 @0.1
                    vbini.mul t1, t0, -1000000.0 @0.1
                    stt.fx32 t1, l2=0x2040, frac=20 @0.1
                    dst l2=0x2000, bytes=72, -, s2, -, off=0 @0.1";

#[test]
fn a_watched_run_gives_the_same_bits_and_tells_where_events_were() {
    let program = Program::load(&kernel(LOUD, 8, 72, 4096)).unwrap();
    let constants: Vec<u8> = (0..4096u32).map(|n| ((n * 37) >> 3) as u8 & 0x3b).collect();
    let parts = [constants.as_slice()];
    let mut m = machine(&program, &parts).unwrap();
    let input = f32s(&[5000.0, 0.5]);
    let mut edges = Edges::new(&program);
    edges.set_in("in", input.as_slice()).unwrap();
    let plain = m.call(&mut edges).unwrap();
    let bits = edges.out("out").unwrap().to_vec();
    let mut tally = Tally::default();
    let watched = m.call_observed(&mut edges, &mut tally).unwrap();
    tally.end(watched);
    assert_eq!((watched, edges.out("out").unwrap()), (plain, bits.as_slice()));
    assert_eq!(plain.saturations, 3);
    let saturations: Vec<_> = tally.by_src.iter().map(|(src, c)| (*src, c.saturations)).collect();
    assert_eq!(saturations, [(0, 1), (1, 2)]);
    let instructions: u64 = tally.by_src.values().map(|c| c.instructions).sum();
    assert_eq!(instructions, plain.instructions);
}

#[test]
fn a_view_shows_what_has_been_done() {
    struct Look(Vec<String>);
    impl Observer for Look {
        fn watches(&self, at: usize) -> bool {
            [9, 10, 13].contains(&at)
        }
        fn before(&mut self, v: &View<'_>) -> ControlFlow<()> {
            let (t1, l2) = (v.tile(1).unwrap(), v.l2(0x2000, 4).unwrap());
            let fixed = v.lrm(t1.offset.into(), 4).unwrap();
            self.0.push(format!(
                "{} {} {fixed:?} {l2:?} {}",
                v.instruction,
                v.next.op.text(),
                v.scalars()[1] >> 48
            ));
            assert_eq!((v.l2(8 << 20, 1), v.external(4095, 2), v.external(1 << 48, 9)), (None, None, None));
            assert_eq!(v.external(0, 2).unwrap(), [0, 0]);
            assert_eq!(v.external(1 << 48, 4).unwrap(), f32s(&[5000.0]));
            match self.0.len() {
                3 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
        fn boundary(&mut self, _: &Boundary<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    let program = Program::load(&kernel(LOUD, 8, 72, 4096)).unwrap();
    let constants = vec![0; 4096];
    let parts = [constants.as_slice()];
    let mut m = machine(&program, &parts).unwrap();
    let mut edges = Edges::new(&program);
    edges.set_in("in", f32s(&[5000.0, 0.5])).unwrap();
    let mut look = Look(Vec::new());
    let counters = m.call_observed(&mut edges, &mut look).unwrap();
    let full = [255, 255, 255, 127];
    let none = [255, 255, 255, 255];
    let zero = [0, 0, 0, 0];
    let least = [0, 0, 0, 128];
    assert_eq!(
        look.0,
        [
            format!("9 matv {full:?} {none:?} 1"),
            format!("10 stt {full:?} {none:?} 1"),
            format!("13 dst {least:?} {zero:?} 1"),
        ]
    );
    // it broke before the store, so the edge is as it started
    assert_eq!((counters.instructions, edges.out("out").unwrap()), (13, [0; 72].as_slice()));
}

#[test]
fn a_trap_is_explained_with_the_instructions_around_it() {
    let program =
        Program::load(&kernel("nop\nnop @0.1\ntrap code=7 @0.1\nnop\nnop\nnop\nnop", 4, 4, 0)).unwrap();
    let mut m = machine(&program, &[]).unwrap();
    let mut edges = Edges::new(&program);
    edges.set_in("in", vec![0; 4]).unwrap();
    let e = m.call(&mut edges).unwrap_err();
    assert_eq!(
        mica_simulate::explained(&e, &program, &[]),
        "instruction 2 (trap), part 0 (embed) op 1 matmul mlp.gate: trap 7
; part 0 (embed) op 0 embed embed_tokens
      0  nop
; part 0 (embed) op 1 matmul mlp.gate
      1  nop @0.1
>     2  trap code=7 @0.1
; part 0 (embed) op 0 embed embed_tokens
      3  nop
      4  nop
      5  nop"
    );
    // who linked it knows what its parts are called
    let named = mica_simulate::explained(&e, &program, &["layer3".into()]);
    assert!(
        named.starts_with("instruction 2 (trap), layer3 op 1 matmul mlp.gate: trap 7\n; layer3 op 0 embed"),
        "{named}"
    );
    let other = SimError::EdgeUnset { name: "in".into() };
    assert_eq!(mica_simulate::explained(&other, &program, &[]), other.to_string());
}
