//! What each instruction refuses, and how a fault is told.

mod common;

use common::fault;

#[test]
fn faults_name_instruction_layer_and_op() {
    let tiles = "tdef.f32 t0, lrm=0, 1x4, -\ntdef.f32 t1, lrm=16, 1x3, -\ntdef.i32 t2, lrm=32, 1x4, -\n";
    for (body, expected) in [
        ("trap code=9 @0.1", "instruction 0 (trap), part 0 (embed), op 1 (matmul mlp.gate): trap 9"),
        ("dld l2=0, bytes=65, -, s1, -, off=0", "external address 0x1000000000000, 65 bytes: in no buffer"),
        ("dld l2=0, bytes=8, -, s1, -, off=-8", "external address 0xfffffffffff8, 8 bytes: in no buffer"),
        ("dld l2=0x7fffff, bytes=2, -, s1, -, off=0", "L2 0x7fffff, 2 bytes: past its end"),
        ("dst l2=0, bytes=2, -, s1, -, off=0", "external address 0x1000000000000 is read only"),
        ("dst l2=0, bytes=2, -, s0, -, off=0", "external address 0x0 is read only"),
        ("sld s16, s1, off=60", "in no buffer, or past its end"),
        ("tdef.f32 t0, lrm=0xfffff, 1x4, -", "Lrm 0xfffff, 16 bytes: past its end"),
        ("vun.exp t0, t1", "tile t0 is not defined"),
        (&format!("{tiles}vun.exp t0, t1"), "tile t0 has 4 elements where 3 are meant"),
        (&format!("{tiles}vun.exp t2, t0"), "tile t2 has a format that cannot stand there"),
        (&format!("{tiles}vbin.add.cyclic t0, t0, t1"), "tile t1 has 3 elements where 4 are meant"),
        (&format!("{tiles}sget s16, t0, at=0"), "tile t0 has a format that cannot stand there"),
        (&format!("{tiles}sget s16, t2, at=4"), "tile t2 has 4 elements where 5 are meant"),
        (&format!("{tiles}vmov t0, to=2, t1, from=0, 1x3/0/0"), "tile t0 has 4 elements where 5 are meant"),
        (&format!("{tiles}vrot t0, t0, t1, t1, rotate=3"), "rotate = 3 is out of its range"),
        ("sli s16, value=9\ntdef.f32 t0, lrm=0, 8x1, s16", "rows = 9 is out of its range"),
        ("sli s16, value=-1\nloop -, s16, body=1\nnop", "iterations = -1 is out of its range"),
        ("sli s16, value=9\ndld l2=0, bytes=8, s16, s1, -, off=0", "bytes = 9 is out of its range"),
        (
            "tdef.f16 t0, lrm=0, 1x16, -\ntdef.f32 t1, lrm=64, 1x16, -\nmatv.i4 t1, t0, l2=0, rows=16, group=4",
            "group = 4 is out of its range",
        ),
        (
            "tdef.f32 t0, lrm=0, 2x2, -\ntdef.f32 t1, lrm=8, 2x2, -\ntdef.f32 t2, lrm=64, 1x2, -\ntout t0, t1, t2, t2",
            "tiles t0 and t1 overlap",
        ),
    ] {
        let got = fault(body, false);
        assert!(got.contains(expected), "{body}\n{got}");
    }
    assert!(fault("nop\nsli s16, value=1 @7.7\ntrap code=0", false).starts_with("instruction 2 (trap)"));
}

#[test]
fn strict_runs_stop_at_events() {
    let tiles = "tdef.f32 t0, lrm=0, 1x1, -\ntdef.f16 t1, lrm=16, 1x1, -\n
                 tdef.fx32 t2, lrm=32, 1x1, -, frac=20\ndld l2=0, bytes=4, -, s1, -, off=0\n
                 ldt.f32 t0, l2=0\n";
    for (body, expected) in [
        ("vbini.add t0, t0, 1e6\nvun.cvt t1, t0", "a result overflowed f16"),
        ("vbini.add t0, t0, 1e6\nvun.cvt t2, t0", "a fixed-point result saturated"),
        ("vbin.div.same t0, t0, t0", "a result is not finite"),
        ("vun.rsqrt t0, t0", "a result is not finite"),
        ("vun.cvt t0, t1", "Lrm 0x10, 2 bytes: read before anything wrote all of them"),
        ("ldt.f32 t0, l2=0x40", "L2 0x40, 4 bytes: read before anything wrote all of them"),
    ] {
        let got = fault(&format!("{tiles}{body}"), true);
        assert!(got.contains(expected), "{body}\n{got}");
    }
}

/// Each fault that an entry names, and the shared ones for each of its operands.
#[test]
fn every_instruction_refuses_what_it_cannot_do() {
    let tiles = "tdef.f32 t0, lrm=0, 1x4, -
                 tdef.f32 t1, lrm=0x40, 1x3, -
                 tdef.i32 t2, lrm=0x80, 1x4, -
                 tdef.f16 t3, lrm=0xc0, 1x4, -
                 tdef.f32 t4, lrm=0x100, 2x4, -
                 tdef.f32 t5, lrm=0x140, 1x2, -
                 tdef.i8 t6, lrm=0x180, 1x4, -
                 tdef.f32 t7, lrm=0x1c0, 1x4, -
                 sli s20, value=0
                 tdef.f32 t8, lrm=0x200, 4x4, s20
                 tdef.i32 t9, lrm=0x240, 1x2, -
                 tdef.f32 t10, lrm=0x280, 2x1, -
                 tdef.fx32 t11, lrm=0x2c0, 1x4, -, frac=3
                 tdef.fx32 t12, lrm=0x300, 1x4, -, frac=4\n";
    let shape = |t: u8, found: u64, expected: u64| {
        format!("tile t{t} has {found} elements where {expected} are meant")
    };
    let format = |t: u8| format!("tile t{t} has a format that cannot stand there");
    let range = |what: &str, value: i64| format!("{what} = {value} is out of its range");
    for (line, expected) in [
        ("opb t63", "tile t63 is not defined".to_string()),
        ("sput t0, s16, at=0", format(0)),
        ("sput t2, s16, at=4", shape(2, 4, 5)),
        ("tdef.f32 t0, lrm=0, 0x1, -", range("rows", 1 << 32)),
        ("tdef.f32 t0, lrm=0, 1x0, -", range("rows", 1)),
        (
            "sli s16, value=3\ntdef.f32 t0, lrm=0xffff0, 8x1, s16",
            "Lrm 0xffff0, 32 bytes: past its end".into(),
        ),
        ("sli s16, value=-1\ntdef.f32 t0, lrm=0, 8x1, s16", range("rows", -1)),
        ("sld s16, s1, off=57", "external address 0x1000000000039, 8 bytes: in no buffer".into()),
        ("sld s16, s1, off=-1", "in no buffer".into()),
        ("dst l2=0x7fffff, bytes=2, -, s2, -, off=0", "L2 0x7fffff, 2 bytes: past its end".into()),
        ("dst l2=0, bytes=8, -, s2, -, off=57", "in no buffer".into()),
        ("sli s16, value=9\ndst l2=0, bytes=8, s16, s2, -, off=0", range("bytes", 9)),
        ("sli s16, value=-1\ndld l2=0, bytes=8, s16, s1, -, off=0", range("bytes", -1)),
        // between L2 and LRM, and which conversions there are not
        ("ldt.f32 t0, l2=0x7ffff1", "L2 0x7ffff1, 16 bytes: past its end".into()),
        ("stt.f32 t0, l2=0x7ffff1", "L2 0x7ffff1, 16 bytes: past its end".into()),
        ("ldt.i32 t0, l2=0", format(0)),
        ("ldt.f32 t2, l2=0", format(2)),
        ("ldt.i8 t2, l2=0", format(2)),
        ("ldt.i8 t6, l2=0", format(6)),
        ("stt.i32 t0, l2=0", format(0)),
        ("stt.f32 t2, l2=0", format(2)),
        ("stt.i8 t0, l2=0", format(0)),
        ("vun.cvt t0, t2", format(2)),
        ("vun.cvt t2, t0", format(0)),
        ("vun.cvt t6, t0", format(0)),
        ("vun.cvt t6, t6", format(6)),
        ("vun.cvt t0, t1", shape(0, 4, 3)),
        ("vun.neg t0, t2", format(2)),
        ("vun.neg t0, t6", format(6)),
        ("bct t0, t0", format(0)),
        ("bct t3, t2", format(2)),
        ("bct t3, t1", shape(3, 4, 3)),
        // the matrix and its operands
        ("matv.i4 t3, t3, l2=0, rows=4, group=4", format(3)),
        ("matv.i4 t0, t0, l2=0, rows=4, group=4", format(0)),
        ("matv.i4 t0, t3, l2=0, rows=5, group=4", shape(0, 4, 5)),
        ("matv.i4 t0, t3, l2=0, rows=4, group=0", range("group", 0)),
        ("matv.i8 t0, t3, l2=0, rows=4, group=3", range("group", 3)),
        ("matv.i8 t0, t3, l2=0, rows=4, group=4294967296", range("group", 1 << 32)),
        ("matv.i8 t8, t3, l2=0, rows=0, group=4", range("group", 4)),
        ("matv.f16 t0, t3, l2=0, rows=4, group=4", range("group", 4)),
        ("matv.f16 t0, t3, l2=0x7fffc0, rows=4, group=0", "L2 0x7fffc0, 128 bytes: past its end".into()),
        // element-wise
        ("vbin.add.same t0, t0, t5", shape(5, 2, 4)),
        ("vbin.add.stretch t0, t0, t1", shape(1, 3, 4)),
        ("vbin.add.cyclic t0, t0, t8", shape(8, 0, 4)),
        ("vbin.add.same t1, t0, t0", shape(1, 3, 4)),
        ("vbin.add.same t2, t0, t0", format(2)),
        ("vbin.add.same t0, t2, t0", format(2)),
        ("vbin.add.same t0, t0, t2", format(2)),
        ("vbini.add t1, t0, 1.0", shape(1, 3, 4)),
        ("vbini.add t2, t0, 1.0", format(2)),
        ("vbini.add t0, t2, 1.0", format(2)),
        // reductions and choices
        ("red.sum.cols t0, t8", range("rows", 0)),
        ("red.max.cols t0, t8", range("rows", 0)),
        ("red.sum.rows t0, t4", shape(0, 4, 2)),
        ("red.sum.cols t5, t4", shape(5, 2, 4)),
        ("red.sum.rows t9, t4", format(9)),
        ("red.sum.rows t5, t2", format(2)),
        ("topk t0, t0, t0, -, k=1", format(0)),
        ("topk t2, t2, t0, -, k=1", format(2)),
        ("topk t2, t0, t2, -, k=1", format(2)),
        ("topk t2, t0, t7, t0, k=1", format(0)),
        ("topk t9, t0, t7, -, k=3", shape(9, 2, 3)),
        ("topk t2, t5, t7, -, k=3", shape(5, 2, 3)),
        ("topk t2, t0, t5, -, k=3", shape(5, 2, 3)),
        ("topk t2, t0, t7, t9, k=3", shape(9, 2, 3)),
        ("sli s16, value=4\nsput t9, s16, at=0\ntopk t2, t0, t7, t9, k=1", range("index", 4)),
        ("sli s16, value=1\nsput t9, s16, at=0\ntopk t2, t0, t7, t9, k=2", range("index", -1)),
        ("vmov t0, to=0, t7, from=2, 1x3/0/0", shape(7, 4, 5)),
        ("vmov t0, to=0, t7, from=0, 2x2/3/2", shape(7, 4, 5)),
        ("vmov t0, to=0, t7, from=0, 2x2/2/3", shape(0, 4, 5)),
        ("vmov t3, to=0, t0, from=0, 1x1/0/0", format(0)),
        ("vmov t11, to=0, t12, from=0, 1x1/0/0", format(12)),
        // positions
        ("vsincos t1, t0, t0, s16", shape(1, 3, 4)),
        ("vsincos t0, t1, t0, s16", shape(1, 3, 4)),
        ("vsincos t3, t0, t0, s16", format(3)),
        ("vsincos t0, t3, t0, s16", format(3)),
        ("vsincos t0, t0, t3, s16", format(3)),
        ("vrot t0, t7, t5, t5, rotate=6", range("rotate", 6)),
        ("vrot t1, t7, t5, t5, rotate=4", shape(1, 3, 4)),
        ("vrot t0, t7, t1, t5, rotate=4", shape(1, 3, 2)),
        ("vrot t0, t7, t5, t1, rotate=4", shape(1, 3, 2)),
        ("vrot t0, t7, t5, t2, rotate=4", format(2)),
        // products in local memory
        ("tmv t3, t4, t0", format(3)),
        ("tmv t0, t4, t0", shape(0, 4, 2)),
        ("tmv t5, t4, t1", shape(1, 3, 4)),
        ("tmv t5, t2, t0", format(2)),
        ("tmvt t3, t4, t5", format(3)),
        ("tmvt t1, t4, t5", shape(1, 3, 4)),
        ("tmvt t0, t4, t1", shape(1, 3, 2)),
        ("tmvt t0, t4, t2", format(2)),
        ("tout t3, t0, t5, t0", format(3)),
        ("tout t0, t4, t5, t0", shape(0, 4, 8)),
        ("tout t4, t4, t1, t0", shape(1, 3, 2)),
        ("tout t4, t4, t5, t1", shape(1, 3, 4)),
        ("tout t4, t4, t5, t2", format(2)),
        // the same bytes, but not as f32
        ("tdef.fx32 t13, lrm=0x100, 2x4, -, frac=3\ntout t4, t13, t5, t0", "tiles t4 and t13 overlap".into()),
    ] {
        let got = fault(&format!("{tiles}{line}"), false);
        assert!(got.contains(&expected), "{line}\n{got}\n{expected}");
    }
}
