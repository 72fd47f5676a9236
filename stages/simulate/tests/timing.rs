//! The cycle formulas: each pinned by a program of that instruction alone, on every product; then
//! issue, waits and the shared bus.

mod common;

use common::kernel;
use mica_device::isa::{Engine, Opcode};
use mica_device::layout::{MatrixFormat, Scaling, WeightFormat};
use mica_device::object::{Direction, Segment};
use mica_device::product::{Product, Rates};
use mica_device::segment::{SegmentPlan, Storage};
use mica_simulate::timing::{Bound, Inputs, Kind, Report, Share, Span, Transfer, Work, cycles, timeline};
use std::collections::BTreeSet;

const TILES: &str = "
    tdef.f32 t0, lrm=0x0, 40x64, -
    tdef.f32 t1, lrm=0x4000, 40x64, -
    tdef.f32 t2, lrm=0x8000, 1x64, -
    tdef.f32 t3, lrm=0x8200, 1x40, -
    tdef.f16 t4, lrm=0x8400, 1x1024, -
    tdef.i32 t5, lrm=0x9000, 1x8, -
    tdef.f32 t6, lrm=0x9100, 1x8, -
    tdef.f32 t7, lrm=0xa000, 1x300, -
    tdef.f16 t8, lrm=0xb000, 40x64, -
    tdef.f16 t9, lrm=0xd000, 1x256, -
";

fn spans(text: &str, product: &str) -> (Vec<Span>, Report) {
    let k = kernel(text, 1 << 20, 1 << 20, 1 << 20);
    let rates = Rates { bus_bytes: 16, clock_mhz: 1000 };
    let mut all = Vec::new();
    let product = Product::named(product).unwrap();
    let report = timeline(&k, &product, &rates, Inputs::default(), |s| all.push(s)).unwrap();
    assert_eq!(report, cycles(&k, &product, &rates, Inputs::default()).unwrap());
    (all, report)
}

/// Busy cycles of the last instruction before `halt`.
fn busy(line: &str, product: &str) -> u64 {
    let (all, _) = spans(&format!("{TILES}{line}"), product);
    let span = all[all.len() - 2];
    span.end - span.start
}

#[test]
fn every_formula() {
    let mut told = BTreeSet::new();
    // (N, P) of the products; the array works on ⌈len / P⌉ elements in turn
    for (product, n, p) in [("qb1", 8u64, 64u64), ("qb4", 16, 256), ("qb16", 32, 1024)] {
        let passes = |len: u64| len.div_ceil(p);
        let flow = |bytes: u64| bytes.div_ceil(4 * n) + n;
        let sweep = 2 * (n - 1);
        let matv = |bytes: u64, rows: u64, k: u64, blocks: u64| {
            let sums = rows.div_ceil(p) * k.div_ceil(4);
            bytes.div_ceil(4 * n).max(sums) + n + 7 + blocks * rows.div_ceil(p)
        };
        for (line, expected) in [
            ("nop", 1),
            ("sli s16, value=1", 1),
            ("salu.add s16, s17, 1", 1),
            ("opb t0", 1),
            ("loop -, s16, body=1\nnop", 1),
            ("tdef.f32 t9, lrm=0, 1x1, -", 1),
            ("fence", 1),
            ("sld s16, s1, off=0", 1),
            ("sget s16, t5, at=0", 1 + n),
            ("sput t5, s16, at=0", 1 + n),
            ("dld l2=0, bytes=1000, -, s1, -, off=0", 63 + 2),
            ("dst l2=0, bytes=1024, -, s2, -, off=0", 64 + 2),
            ("ldt.f32 t0, l2=0", flow(4 * 2560)),
            ("ldt.i8 t0, l2=0", flow(2560)),
            ("stt.f16 t0, l2=0", flow(2 * 2560)),
            ("bct t8, t0", flow(2 * 2560)),
            // 300 rows: four full tiles and one of 48; scales of 8 groups, then 128 vectors a step
            (
                "matv.i4 t7, t4, l2=0, rows=300, group=128",
                matv(4 * (8 * 64 * 2 + 128 * 256) + 8 * 48 * 2 + 128 * 192, 300, 1024, 8),
            ),
            (
                "matv.i8.s32.zero t7, t4, l2=0, rows=300, group=1024",
                matv(4 * (256 + 64 + 256 * 256) + 192 + 64 + 256 * 192, 300, 1024, 8),
            ),
            ("matv.f16 t7, t4, l2=0, rows=300, group=0", matv(4 * 512 * 256 + 512 * 192, 300, 1024, 8)),
            // few rows: the products of a row take longer than its bytes where the array is large
            ("matv.i4 t3, t4, l2=0, rows=16, group=128", matv(8 * 16 * 2 + 128 * 64, 16, 1024, 8)),
            // groups above 512 are cut each by itself (600 into 5, 424 into 4), others are a block each
            ("matv.i4 t3, t4, l2=0, rows=16, group=600", matv(2 * 16 * 2 + 128 * 64, 16, 1024, 9)),
            ("matv.i4 t3, t4, l2=0, rows=16, group=512", matv(2 * 16 * 2 + 128 * 64, 16, 1024, 2)),
            ("matv.i4 t3, t4, l2=0, rows=16, group=64", matv(16 * 16 * 2 + 128 * 64, 16, 1024, 16)),
            ("matv.i4 t3, t4, l2=0, rows=16, group=2049", matv(64 + 128 * 64, 16, 1024, 8)),
            // a group past a short row is the row: one block
            ("matv.i4 t3, t9, l2=0, rows=16, group=600", matv(64 + 32 * 64, 16, 256, 1)),
            ("vbin.add.same t0, t0, t1", passes(2560)),
            ("vbin.div.same t0, t0, t1", 12 * passes(2560)),
            ("vbini.mul t0, t0, 2.0", passes(2560)),
            ("vbini.div t0, t0, 2.0", 12 * passes(2560)),
            ("vun.cvt t0, t1", passes(2560)),
            ("vun.neg t0, t1", passes(2560)),
            ("vun.square t0, t1", passes(2560)),
            ("vun.round.bf16 t0, t1", passes(2560)),
            ("vun.exp t0, t1", 12 * passes(2560)),
            ("vun.rsqrt t0, t1", 12 * passes(2560)),
            ("vun.sigmoid t0, t1", 24 * passes(2560)),
            ("vun.silu t0, t1", 25 * passes(2560)),
            ("vun.softplus t0, t1", 32 * passes(2560)),
            ("red.sum.rows t3, t0", passes(2560) + sweep),
            ("red.max.cols t2, t0", passes(2560) + sweep),
            ("topk t5, t6, t7, -, k=8", 8 * (passes(300) + sweep + 2)),
            ("vmov t0, to=0, t1, from=0, 40x32/64/64", passes(1280)),
            ("vsincos t2, t2, t2, s16", 32 * passes(64)),
            ("vrot t0, t1, t2, t2, rotate=64", 3 * passes(2560)),
            ("tmv t3, t0, t2", passes(2560) + sweep),
            ("tmvt t2, t0, t3", passes(2560) + sweep),
            ("tout t0, t1, t3, t2", passes(2560)),
        ] {
            assert_eq!(busy(line, product), expected, "{line} on {product}");
            told.insert(line.split([' ', '.', '\n']).next().unwrap());
        }
        let (halted, _) = spans("nop", product);
        assert_eq!(halted[1].end - halted[1].start, 1, "halt on {product}");
    }
    // a trap ends the count instead
    told.extend(["halt", "trap"]);
    assert!(Opcode::ALL.iter().all(|op| told.contains(op.text())), "{told:?}");
}

/// Cycles between the end of an instruction's busy time and its retirement.
#[test]
fn transfers_and_loads_retire_later() {
    for (line, latency) in [
        ("sld s16, s1, off=0", 64),
        ("dld l2=0, bytes=8, -, s1, -, off=0", 64),
        ("dst l2=0, bytes=8, -, s2, -, off=0", 64),
        ("nop", 0),
        ("sget s16, t5, at=0", 0),
        ("ldt.f32 t0, l2=0", 0),
        ("stt.f32 t0, l2=0", 0),
        ("bct t8, t0", 0),
        ("matv.f16 t7, t4, l2=0, rows=300, group=0", 0),
        ("red.sum.rows t3, t0", 0),
    ] {
        let (all, _) = spans(&format!("{TILES}{line}"), "qb4");
        let span = all[all.len() - 2];
        assert_eq!(span.retired - span.end, latency, "{line}");
    }
}

/// `MATV` of 16 rows of 1024 columns on qb16: 256 for the products, and not 66 for the bytes.
#[test]
fn the_longer_side_of_a_product_counts() {
    let line = "matv.i4 t3, t4, l2=0, rows=16, group=128";
    assert_eq!(busy(line, "qb16"), 256 + 32 + 7 + 8);
    assert_eq!(busy(line, "qb1"), 264 + 8 + 7 + 8);
}

#[test]
fn issue_waits_and_latency() {
    let (all, report) = spans(
        "dld l2=0, bytes=160, -, s1, -, off=0
         dld l2=0x100, bytes=160, -, s1, -, off=0
         tdef.f32 t0, lrm=0, 1x8, -
         ldt.f32 t0, l2=0 ?in-2
         vun.neg t0, t0 ?flow-1",
        "qb1",
    );
    let times: Vec<(u64, u64, u64)> = all.iter().map(|s| (s.start, s.end, s.retired)).collect();
    assert_eq!(times, [(0, 12, 76), (12, 24, 88), (2, 3, 3), (76, 85, 85), (85, 86, 86), (5, 6, 6),]);
    // the total is the last retirement: the second transfer's
    assert_eq!(report.total, 88);
    assert_eq!(report.share.stall, 88 - 24 - 9 - 1);
    assert_eq!(report.share.ddr, 24);
    assert_eq!(report.share.bytes.edges_in, 320);
    assert_eq!(report.share.bound_by, Bound::Stall);
}

#[test]
fn both_dma_engines_share_the_bus() {
    // the store waits for the first load; the second load goes ahead of it on the bus
    let (all, report) = spans(
        "dld l2=0, bytes=160, -, s1, -, off=0
         dst l2=0, bytes=160, -, s2, -, off=0 ?in-1
         dld l2=0x100, bytes=800, -, s1, -, off=0",
        "qb1",
    );
    assert_eq!((all[1].engine, all[1].start), (Engine::DmaOut, 76));
    assert_eq!((all[2].start, all[2].end), (12, 64));
    assert_eq!((report.share.ddr, report.total), (12 + 12 + 52, 88 + 64));
    assert_eq!(report.share.stall, report.total - report.share.ddr, "in whatever order they are listed");
    let (all, _) = spans(
        "dld l2=0, bytes=160, -, s1, -, off=0
         dst l2=0x4000, bytes=160, -, s2, -, off=0",
        "qb1",
    );
    assert_eq!((all[1].start, all[1].end), (12, 24));
}

#[test]
fn scalars_hold_the_front_end_and_fences_wait() {
    let (all, _) = spans("dld l2=0, bytes=160, -, s1, -, off=0\nfence\nnop", "qb1");
    assert_eq!((all[1].start, all[1].end), (76, 77));
    assert_eq!(all[2].start, 77);
    // all engines, of which the last one listed is not the last to retire
    let (all, _) = spans(
        "tdef.f32 t0, lrm=0, 1x8, -
         dld l2=0, bytes=160, -, s1, -, off=0
         vun.neg t0, t0
         fence",
        "qb1",
    );
    assert_eq!((all[1].retired, all[2].retired, all[3].start), (77, 3, 77));
    // a load has arrived before the front end goes on
    let (all, _) = spans("sld s16, s1, off=0\nnop", "qb1");
    assert_eq!((all[0].end, all[1].start), (1, 65));
}

/// An instruction waits for its turn, for its engine, and for each that it names.
#[test]
fn the_last_to_come_decides() {
    let starts = |text: &str| -> Vec<u64> {
        let (all, _) = spans(&format!("tdef.f32 t0, lrm=0, 40x64, -\n{text}"), "qb1");
        all.iter().map(|s| s.start).collect()
    };
    // 40 cycles of the array each
    assert_eq!(starts("vun.neg t0, t0\nvun.neg t0, t0")[1..3], [1, 41]);
    let load = "dld l2=0, bytes=160, -, s1, -, off=0\n";
    // the load retires at 77, the array at 42
    assert_eq!(starts(&format!("{load}vun.neg t0, t0\nldt.f32 t0, l2=0 ?in-1 ?array-1"))[3], 77);
    assert_eq!(starts(&format!("{load}vun.neg t0, t0\nldt.f32 t0, l2=0 ?array-1"))[3], 42);
    // what it waits for is long past
    assert_eq!(starts(&format!("{load}fence\nnop\nldt.f32 t0, l2=0 ?in-1"))[4], 79);
}

#[test]
fn elapsed_adds_up_and_loops_run() {
    let (all, report) = spans(
        "sli s16, value=3
         loop s17, s16, body=2
         dld l2=0, bytes=160, -, s0, -, off=0 @1.2
         nop ?in-1 @1.3
         nop @2.0",
        "qb4",
    );
    assert_eq!(all.len(), 2 + 6 + 2);
    assert_eq!(report.share.bytes.constants, 480);
    let layers: Vec<u32> = report.layers.iter().map(|l| l.layer).collect();
    assert_eq!(layers, [0, 1, 2]);
    let elapsed: u64 = report.layers.iter().map(|l| l.share.elapsed).sum();
    assert_eq!(elapsed, report.total);
    let ops: u64 = report.layers[1].ops.iter().map(|o| o.share.elapsed).sum();
    assert_eq!(ops, report.layers[1].share.elapsed);
}

#[test]
fn the_position_is_known() {
    let text = "sld s16, s1, off=0
                tdef.f32 t0, lrm=0, 512x1, s16
                loop -, s16, body=1
                vun.neg t0, t0";
    let mut k = kernel(text, 8, 4, 0);
    k.entries[0].name = "pos.in".into();
    let rates = Rates { bus_bytes: 32, clock_mhz: 1000 };
    let at = |position| {
        let product = Product::named("qb1").unwrap();
        cycles(&k, &product, &rates, Inputs { position, ..Inputs::default() }).unwrap().share
    };
    assert_eq!(at(0).compute, 0);
    assert_eq!(at(5).compute, 5);
    assert_eq!(at(130).compute, 130 * 3);
}

/// Which edge is the position's: one that comes in, called so with or without a direction.
#[test]
fn the_position_comes_on_its_edge() {
    let text = "sld s16, s1, off=0\nloop -, s16, body=1\nnop";
    for (name, direction, known) in [
        ("pos.in", Direction::In, true),
        ("pos", Direction::In, true),
        ("position.in", Direction::In, false),
        ("in", Direction::In, false),
        ("pos.out", Direction::Out, false),
    ] {
        let mut k = kernel(text, 8, 4, 0);
        (k.entries[0].name, k.entries[0].direction) = (name.into(), direction);
        let (product, rates) = (Product::named("qb1").unwrap(), Rates { bus_bytes: 32, clock_mhz: 1000 });
        let report = cycles(&k, &product, &rates, Inputs { position: 5, ..Inputs::default() }).unwrap();
        assert_eq!(report.share.instructions, if known { 3 + 5 } else { 3 }, "{name}");
    }
}

/// A plan of a vector, a matrix and four experts.
fn plan() -> SegmentPlan {
    let scaling = Some(Scaling { group: 64, scale: mica_device::format::Format::F16, zero: false });
    let matrix = |weight| MatrixFormat { weight, scaling };
    let mut plan = SegmentPlan::default();
    assert!(plan.push("norm", &[16], Storage::Vector(mica_device::format::Format::F32)));
    assert!(plan.push("gate", &[16, 64], Storage::Matrix(matrix(WeightFormat::I8))));
    assert!(plan.push("experts", &[4, 16, 64], Storage::Experts(matrix(WeightFormat::I4))));
    plan
}

#[test]
fn bytes_are_told_by_what_they_are() {
    let plan = plan();
    let [norm, gate, experts] = [0, 1, 2].map(|n| plan.entries[n].offset);
    let text = format!(
        "dld l2=0, bytes=64, -, s0, -, off={norm} @1.0
         dld l2=0x1000, bytes=1024, -, s0, -, off={gate} @1.1
         dld l2=0x2000, bytes=512, -, s0, s20, off={experts} @1.1
         dld l2=0x3000, bytes=8, -, s0, -, off={} @1.1
         dld l2=0x4000, bytes=32, -, s1, -, off=0 @1.1
         dst l2=0x4000, bytes=32, -, s2, -, off=0 @1.1",
        plan.bytes
    );
    let mut k = kernel(&text, 1 << 20, 1 << 20, plan.bytes);
    k.segments[0].part = 1;
    k.segments.push(Segment { offset: plan.bytes, bytes: 8, part: 1, literals: true });
    k.literals = vec![Vec::new(), vec![0; 8]];
    k.entries[0].name = "k_cache.in".into();
    let (product, rates) = (Product::named("qb1").unwrap(), Rates { bus_bytes: 8, clock_mhz: 1000 });
    let none = SegmentPlan::default();
    let told = |plans: &[&SegmentPlan]| {
        let r = cycles(&k, &product, &rates, Inputs { plans, ..Inputs::default() }).unwrap();
        let sum: u64 = r.traffic.iter().map(|t| t.bytes).sum();
        assert_eq!(sum, r.share.bytes.total());
        let bytes = r.share.bytes;
        assert_eq!((bytes.constants, bytes.edges_in, bytes.edges_out), (64 + 1024 + 512 + 8, 32, 32));
        assert_eq!(r.layers[1].traffic, r.traffic, "one layer moves them all");
        let all = r.traffic.iter().map(|t| (t.kind, t.what.clone(), t.bytes, t.transfers));
        all.collect::<Vec<_>>()
    };
    let row = |kind, what: &str, bytes| (kind, what.to_string(), bytes, 1);
    assert_eq!(
        told(&[&none, &plan]),
        [
            row(Kind::Constants, "literals", 8),
            row(Kind::Constants, "matrix i8", 1024),
            row(Kind::Constants, "vector f32", 64),
            row(Kind::Gathered, "experts i4", 512),
            row(Kind::Cache, "k_cache.in", 32),
            row(Kind::EdgeOut, "out", 32),
        ]
    );
    // who does not know the plans counts the same bytes under fewer names
    assert_eq!(
        told(&[])[..3],
        [
            (Kind::Constants, "constants".to_string(), 1088, 2),
            row(Kind::Constants, "literals", 8),
            row(Kind::Gathered, "constants", 512),
        ]
    );
}

/// The sorts of what one transfer each moves: constants of the second part, baked or on an edge, and edges by name.
#[test]
fn bytes_are_found_in_their_part_and_edge() {
    let plan = plan();
    let at = plan.bytes + plan.entries[1].offset;
    let line = |base: &str, off: u64| format!("dld l2=0, bytes=64, -, {base}, -, off={off}");
    let empty = SegmentPlan::default();
    for (name, text, expected) in [
        ("in", line("s0", at), (Kind::Constants, "matrix i8")),
        ("weights.1.in", line("s1", at), (Kind::Constants, "matrix i8")),
        ("weights.1.in", line("s1", 0), (Kind::Constants, "constants")),
        ("k_cache.in", line("s1", 0), (Kind::Cache, "k_cache.in")),
        ("k_cache.inout", line("s1", 0), (Kind::Cache, "k_cache.inout")),
        ("cache_rows.in", line("s1", 0), (Kind::EdgeIn, "cache_rows.in")),
        ("k_cache", line("s1", 0), (Kind::EdgeIn, "k_cache")),
    ] {
        let mut k = kernel(&text, 1 << 20, 1 << 20, plan.bytes);
        k.entries[0].name = name.into();
        let mut share = k.entries[0].shares[0].clone();
        (share.0, share.1) = (1, plan.bytes);
        k.entries[0].shares.push(share);
        k.segments.push(Segment { offset: plan.bytes, bytes: plan.bytes, part: 1, literals: false });
        k.literals.push(Vec::new());
        let (product, rates) = (Product::named("qb1").unwrap(), Rates { bus_bytes: 8, clock_mhz: 1000 });
        let plans = &[&empty, &plan];
        let report = cycles(&k, &product, &rates, Inputs { plans, ..Inputs::default() }).unwrap();
        let found: Vec<_> = report.traffic.iter().map(|t| (t.kind, t.what.as_str())).collect();
        assert_eq!(found, [expected], "{name}: {text}");
    }
}

#[test]
fn only_what_ran_is_reported() {
    let (_, report) = spans("nop @2.3\nnop @2.5", "qb1");
    let listed: Vec<(u32, Vec<u32>)> =
        report.layers.iter().map(|l| (l.layer, l.ops.iter().map(|o| o.op).collect())).collect();
    assert_eq!(listed, [(0, vec![0]), (2, vec![3, 5])]);
}

#[test]
fn work_is_counted_as_it_is_done() {
    let of = |line: &str| {
        let (_, report) = spans(&format!("{TILES}{line}"), "qb1");
        report.share.work
    };
    let f32s = |n: u64| 4 * n;
    for (line, macs, l2_bytes, lrm_bytes) in [
        ("nop", 0, 0, 0),
        ("dld l2=0, bytes=1000, -, s1, -, off=0", 0, 1000, 0),
        ("dst l2=0, bytes=1000, -, s2, -, off=0", 0, 1000, 0),
        ("sli s20, value=8\ndst l2=0, bytes=1000, s20, s2, -, off=0", 0, 8, 0),
        ("ldt.f32 t0, l2=0", 0, f32s(2560), f32s(2560)),
        ("stt.f16 t0, l2=0", 0, 2 * 2560, f32s(2560)),
        ("bct t8, t0", 0, 0, f32s(2560) + 2 * 2560),
        (
            "matv.f16 t7, t4, l2=0, rows=300, group=0",
            300 * 1024,
            4 * 512 * 256 + 512 * 192,
            2 * 1024 + f32s(300),
        ),
        ("vbin.add.same t0, t0, t1", 0, 0, 3 * f32s(2560)),
        ("vmov t0, to=0, t1, from=0, 40x32/64/64", 0, 0, 2 * f32s(1280)),
        ("tmv t3, t0, t2", 2560, 0, f32s(2560 + 64 + 40)),
        ("tmvt t2, t0, t3", 2560, 0, f32s(2560 + 40 + 64)),
        ("tout t0, t1, t3, t2", 2560, 0, f32s(2 * 2560 + 64 + 40)),
    ] {
        assert_eq!(of(line), Work { macs, l2_bytes, lrm_bytes }, "{line}");
    }
}

/// A tile whose rows a scalar gives counts as large as it is.
#[test]
fn work_follows_the_rows() {
    let (_, report) = spans(
        "sli s16, value=3
         tdef.f32 t0, lrm=0, 512x1, s16
         vun.neg t0, t0",
        "qb1",
    );
    assert_eq!(report.share.work.lrm_bytes, 2 * 3 * 4);
}

/// Addresses and lengths that scalars give are followed.
#[test]
fn transfers_go_by_the_scalars() {
    let s1 = 1 << 48;
    for (scalar, operands, expected) in [
        (8, "s20, s1, -, off=32", (s1 + 32, 8, false)),
        // no more than the instruction says
        (1000, "s20, s1, -, off=0", (s1, 160, false)),
        (64, "-, s1, s20, off=32", (s1 + 96, 160, true)),
        (0, "-, s0, -, off=32", (32, 160, false)),
    ] {
        let (all, report) =
            spans(&format!("sli s20, value={scalar}\ndld l2=0, bytes=160, {operands}"), "qb1");
        let (address, bytes, indexed) = expected;
        assert_eq!(all[1].transfer, Some(Transfer { address, bytes, indexed }), "{operands}");
        assert_eq!(all[1].end - all[1].start, bytes.div_ceil(16) + 2, "{operands}");
        assert_eq!(report.share.bytes.total(), bytes, "{operands}");
    }
}

/// What only an execution could tell reads as 0, and a tile has no more rows than it was defined with.
#[test]
fn what_is_not_known_is_nothing() {
    for read in ["sget s16, t5, at=0", "sld s16, s1, off=0"] {
        let (all, _) = spans(
            &format!("tdef.i32 t5, lrm=0x9000, 1x8, -\nsli s16, value=3\n{read}\nloop -, s16, body=1\nnop"),
            "qb1",
        );
        assert_eq!(all.len(), 5, "no iteration: {read}");
    }
    let (_, report) = spans("sli s16, value=1000\ntdef.f32 t0, lrm=0, 512x1, s16\nvun.neg t0, t0", "qb1");
    assert_eq!(report.share.work.lrm_bytes, 2 * 512 * 4);
}

#[test]
fn what_the_stream_shows_to_be_wrong_is_refused() {
    for (text, said) in [
        ("trap code=7 @0.1", "instruction 0 (trap), part 0 (embed), op 1 (matmul mlp.gate): trap 7"),
        (
            "nop\nvun.neg t3, t3",
            "instruction 1 (vun), part 0 (embed), op 0 (embed embed_tokens): tile t3 is not",
        ),
    ] {
        let (product, rates) = (Product::named("qb1").unwrap(), Rates { bus_bytes: 16, clock_mhz: 1000 });
        let refused = cycles(&kernel(text, 8, 8, 0), &product, &rates, Inputs::default());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

/// Where two are busy alike the bus is what bounds, then the array; nothing does what more cycles pass without.
#[test]
fn the_busiest_bounds() {
    let share =
        |elapsed, [compute, ddr, flow]: [u64; 3]| Share { elapsed, compute, ddr, flow, ..Share::default() };
    let cases = [
        (100, [60, 50, 40], Bound::Compute, 40),
        (100, [60, 60, 60], Bound::Ddr, 40),
        (100, [60, 40, 60], Bound::Compute, 40),
        (100, [40, 50, 60], Bound::Flow, 40),
        (100, [50, 0, 0], Bound::Compute, 50),
        (101, [50, 0, 0], Bound::Stall, 51),
        (0, [0, 0, 0], Bound::Stall, 0),
        // engines work side by side
        (50, [60, 0, 0], Bound::Compute, 0),
    ];
    for (elapsed, busy, bound, stall) in cases {
        let sum = Share::default().plus(&share(elapsed, busy));
        assert_eq!((sum.bound_by, sum.stall), (bound, stall), "{elapsed} {busy:?}");
    }
    let (one, other) = (share(10, [1, 2, 3]), share(20, [4, 5, 6]));
    let sum = one.plus(&Share { scalar: 7, instructions: 8, ..other });
    let Share { elapsed, compute, ddr, flow, scalar, instructions, .. } = sum;
    assert_eq!((elapsed, compute, ddr, flow, scalar, instructions), (30, 5, 7, 9, 7, 8));
}

/// Cycles in which none of the three works are the whole's stall: overlaps count once, whatever their order.
#[test]
fn a_stall_is_when_nothing_works() {
    // the array is busy for 40 cycles from 1 on, the bus for 12 from 2 on and then until 76 on its way
    let (all, report) = spans(
        "tdef.f32 t0, lrm=0, 40x64, -
         vun.neg t0, t0
         dld l2=0, bytes=160, -, s1, -, off=0
         nop ?in-1 @1.0",
        "qb1",
    );
    let busy: Vec<(u64, u64)> = all[1..3].iter().map(|s| (s.start, s.end)).collect();
    assert_eq!(busy, [(1, 41), (2, 14)]);
    assert_eq!(report.total, all[4].retired);
    assert_eq!(report.share.stall, report.total - 40);
    assert_eq!((report.share.scalar, report.share.instructions), (3, 5));
    // each layer has its name and its ops theirs, where the kernel says so
    let named: Vec<(&str, &str)> =
        report.layers.iter().map(|l| (l.kind.as_str(), l.ops[0].label.as_str())).collect();
    assert_eq!(named, [("embed", "embed_tokens"), ("", "")]);
}
