//! The semantics of every instruction: small programs and what they leave behind. Faults are in `faults`, single bits
//! in `exact`.

mod common;

use common::{floats, kernel, run, run_kernel};
use mica_simulate::convert::{f16_to_f32, f32_to_f16};
use mica_simulate::functions;

/// Runs an instruction on f32 tiles: t1, t2, … are cut from the input in order, t0 is the result.
fn on_tiles(line: &str, tiles: &[(&[f32], (u32, u32))], out: (u32, u32)) -> Vec<f32> {
    on_formats(line, tiles, out, "f32", "")
}

/// The same with a result tile of another format.
fn on_formats(
    line: &str,
    tiles: &[(&[f32], (u32, u32))],
    out: (u32, u32),
    format: &str,
    frac: &str,
) -> Vec<f32> {
    let mut body = format!("tdef.{format} t0, lrm=0x8000, {}x{}, -{frac}\n", out.0, out.1);
    let mut input = Vec::new();
    for (n, (values, (rows, cols))) in tiles.iter().enumerate() {
        let at = input.len() * 4;
        body += &format!("tdef.f32 t{}, lrm={at:#x}, {rows}x{cols}, -\n", n + 1);
        body += &format!("ldt.f32 t{}, l2={at:#x}\n", n + 1);
        input.extend_from_slice(values);
    }
    body += line;
    body += "\nstt.f32 t0, l2=0x10000";
    run(&body, &input, (out.0 * out.1) as usize).0
}

#[test]
fn vbin() {
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0, 20.0]);
    for (line, second, expected) in [
        ("add.same", &[1.0; 6][..], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        ("sub.cyclic", &b[..], [-9.0, -18.0, -7.0, -16.0, -5.0, -14.0]),
        ("mul.stretch", &b[..], [10.0, 20.0, 30.0, 80.0, 100.0, 120.0]),
        ("div.cyclic", &b[..], [0.1, 0.1, 0.3, 0.2, 0.5, 0.3]),
        ("max.same", &[3.5; 6][..], [3.5, 3.5, 3.5, 4.0, 5.0, 6.0]),
        ("min.same", &[3.5; 6][..], [1.0, 2.0, 3.0, 3.5, 3.5, 3.5]),
    ] {
        let got = on_tiles(
            &format!("vbin.{line} t0, t1, t2"),
            &[(&a, (2, 3)), (second, (1, second.len() as u32))],
            (1, 6),
        );
        assert_eq!(got, expected, "{line}");
    }
}

#[test]
fn vbini_and_scalars_agree() {
    let got = on_tiles("vbini.mul t0, t1, 0.5", &[(&[3.0, -1.0], (1, 2))], (1, 2));
    assert_eq!(got, [1.5, -0.5]);
}

#[test]
fn fixed_point_adds_in_its_own_format() {
    // 1 + 2^-30 is lost in f32 but not in fx32 with 30 fraction bits
    let tiny = 2f32.powi(-30);
    let line = "tdef.fx32 t3, lrm=0x9000, 1x1, -, frac=30
                vun.cvt t3, t1
                vbin.add.same t0, t3, t2
                vbini.sub t0, t0, 1.0";
    let got = on_formats(line, &[(&[1.0], (1, 1)), (&[tiny], (1, 1))], (1, 1), "fx32", ", frac=30");
    assert_eq!(got, [tiny]);
}

#[test]
fn fixed_point_saturates_and_counts() {
    let body = "tdef.fx32 t0, lrm=0x0, 1x2, -, frac=20
                tdef.f32 t1, lrm=0x100, 1x2, -
                ldt.f32 t1, l2=0x0
                vun.cvt t0, t1
                vbin.add.same t0, t0, t0
                stt.f32 t0, l2=0x10000";
    let (got, counters) = run(body, &[1500.0, -1.0], 2);
    assert_eq!(got, [2048.0, -2.0]);
    assert_eq!(counters.saturations, 1);
}

#[test]
fn vun() {
    let x = [0.75f32, -3.0, 9.0];
    for (name, f) in [
        ("neg", (|v| -v) as fn(f32) -> f32),
        ("exp", functions::exp),
        ("sigmoid", functions::sigmoid),
        ("silu", functions::silu),
        ("softplus", functions::softplus),
        ("square", |v| v * v),
        ("cvt", |v| v),
    ] {
        let got = on_tiles(&format!("vun.{name} t0, t1"), &[(&x, (1, 3))], (1, 3));
        assert_eq!(got, x.map(f), "{name}");
    }
    let got = on_tiles("vun.rsqrt t0, t1", &[(&[4.0, 0.25], (1, 2))], (1, 2));
    assert_eq!(got, [0.5, 2.0]);
    let got = on_tiles("vun.round.bf16 t0, t1", &[(&[1.003_906_3, 3.0], (1, 2))], (1, 2));
    assert_eq!(got, [1.0, 3.0]);
}

#[test]
fn sums_take_sixteen_lanes() {
    // the tree order shows: lane 0 holds 1, lane 8 2^24, and 2^24 + 1 rounds to 2^24
    let mut row = [0.0f32; 40];
    (row[0], row[8], row[1]) = (1.0, 16_777_216.0, 1.0);
    let got = on_tiles("red.sum.rows t0, t1", &[(&row, (1, 40))], (1, 1));
    assert_eq!(got, [16_777_216.0]);
    // elements 0 and 16 share a lane and are added before the large one meets them
    (row[1], row[16]) = (0.0, 1.0);
    let got = on_tiles("red.sum.rows t0, t1", &[(&row, (1, 40))], (1, 1));
    assert_eq!(got, [16_777_218.0]);
}

#[test]
fn red() {
    let a = [1.0, -2.0, 3.0, 4.0, 5.0, -6.0];
    for (line, out, expected) in [
        ("sum.rows", 2, vec![2.0, 3.0]),
        ("sumsq.rows", 2, vec![14.0, 77.0]),
        ("max.rows", 2, vec![3.0, 5.0]),
        ("sum.cols", 3, vec![5.0, 3.0, -3.0]),
        ("sumsq.cols", 3, vec![17.0, 29.0, 45.0]),
        ("max.cols", 3, vec![4.0, 5.0, 3.0]),
    ] {
        let line = format!("red.{line} t0, t1");
        assert_eq!(on_tiles(&line, &[(&a, (2, 3))], (1, out)), expected, "{line}");
    }
}

#[test]
fn sums_of_fixed_point_are_exact() {
    // 2^11 − ulp squared and one: f32 would lose the one
    let body = "tdef.fx32 t1, lrm=0x0, 1x3, -, frac=20
                tdef.f32 t0, lrm=0x100, 1x1, -
                ldt.f32 t1, l2=0x0
                red.sumsq.rows t0, t1
                stt.f32 t0, l2=0x10000
                red.sum.rows t0, t1
                stt.f32 t0, l2=0x10004
                red.max.rows t0, t1
                stt.f32 t0, l2=0x10008";
    let x = [2000.0f32, 0.001, -2000.0];
    let (got, _) = run(body, &x, 3);
    let q: Vec<i128> = x.iter().map(|v| (v * 1_048_576.0).round_ties_even() as i128).collect();
    let sumsq: i128 = q.iter().map(|q| q * q).sum();
    assert_eq!(got[0], sumsq as f32 * 2f32.powi(-40));
    assert_eq!(got[1], q[1] as f32 * 2f32.powi(-20));
    assert_eq!(got[2], 2000.0);
}

#[test]
fn topk() {
    let body = |forced: &str| {
        format!(
            "tdef.f32 t1, lrm=0x100, 1x3, -
             tdef.i32 t0, lrm=0x200, 1x3, -
             tdef.f32 t2, lrm=0x300, 1x6, -
             tdef.i32 t3, lrm=0x400, 1x3, -
             ldt.f32 t2, l2=0x0
             sli s16, value={forced}
             sput t3, s16, at=0
             sli s16, value=5
             sput t3, s16, at=1
             sput t3, s16, at=2
             topk t0, t1, t2, t3, k=3
             sget s17, t0, at=0
             salu.mul s17, s17, 100
             sget s18, t0, at=1
             salu.add s17, s17, s18
             salu.mul s17, s17, 100
             sget s18, t0, at=2
             salu.add s17, s17, s18
             tdef.i32 t4, lrm=0x500, 1x1, -
             sput t4, s17, at=0
             stt.f32 t1, l2=0x10000
             stt.i32 t4, l2=0x1000c"
        )
    };
    let x = [2.0, f32::NAN, 7.0, -0.0, 7.0, 0.0];
    let (got, _) = run(&body("-1"), &x, 4);
    assert_eq!(got[..3], [7.0, 7.0, 2.0]);
    assert_eq!(got[3].to_bits(), 20400);
    let (got, _) = run(&body("3"), &x, 4);
    assert_eq!(got[..3], [-0.0, 0.0, 0.0]);
    assert_eq!(got[3].to_bits(), 30505);
}

#[test]
fn nan_comes_last_and_zeros_are_equal() {
    let got = on_tiles(
        "tdef.i32 t5, lrm=0x9000, 1x3, -
         topk t5, t0, t1, -, k=3",
        &[(&[f32::NAN, -0.0, 0.0], (1, 3))],
        (1, 3),
    );
    assert_eq!(got[0].to_bits(), (-0.0f32).to_bits(), "lower index first");
    assert_eq!(got[1].to_bits(), 0);
    assert!(got[2].is_nan());
}

#[test]
fn vmov() {
    // two rows of two, from a stride of three to a stride of four
    let line = "vbini.mul t0, t0, 0.0
                vmov t0, to=1, t1, from=1, 2x2/3/4";
    let body = |line: &str| {
        format!(
            "tdef.f32 t0, lrm=0x8000, 1x8, -
             tdef.f32 t1, lrm=0x0, 2x3, -
             ldt.f32 t1, l2=0x0
             ldt.f32 t0, l2=0x0
             {line}
             stt.f32 t0, l2=0x10000"
        )
    };
    let (got, _) = run(&body(line), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0], 8);
    assert_eq!(got, [0.0, 2.0, 3.0, 0.0, 0.0, 5.0, 6.0, 0.0]);
}

#[test]
fn vmov_reads_all_before_it_writes() {
    let got = run(
        "tdef.f32 t0, lrm=0x0, 1x4, -
         ldt.f32 t0, l2=0x0
         vmov t0, to=1, t0, from=0, 1x3/0/0
         stt.f32 t0, l2=0x10000",
        &[1.0, 2.0, 3.0, 4.0],
        4,
    );
    assert_eq!(got.0, [1.0, 1.0, 2.0, 3.0]);
}

#[test]
fn rotary() {
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (position, frequency) = (7.0f32, [1.0f32, 0.01]);
    let line = "sli s16, value=7
                tdef.f32 t3, lrm=0x9000, 1x2, -
                tdef.f32 t4, lrm=0x9100, 1x2, -
                vsincos t3, t4, t2, s16
                vrot t0, t1, t3, t4, rotate=4";
    let got = on_tiles(line, &[(&x, (1, 6)), (&frequency, (1, 2))], (1, 6));
    let sc = frequency.map(|f| functions::sincos(position * f));
    let expected = [
        x[0] * sc[0].1 - x[2] * sc[0].0,
        x[1] * sc[1].1 - x[3] * sc[1].0,
        x[2] * sc[0].1 + x[0] * sc[0].0,
        x[3] * sc[1].1 + x[1] * sc[1].0,
        5.0,
        6.0,
    ];
    assert_eq!(got, expected);
}

#[test]
fn delta_rule_products() {
    let (a, u, v) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0, 20.0], [1.0, 2.0, 3.0]);
    let tiles: [(&[f32], (u32, u32)); 3] = [(&a, (2, 3)), (&u, (1, 2)), (&v, (1, 3))];
    assert_eq!(on_tiles("tmv t0, t1, t3", &tiles, (1, 2)), [14.0, 32.0]);
    assert_eq!(on_tiles("tmvt t0, t1, t2", &tiles, (1, 3)), [90.0, 120.0, 150.0]);
    assert_eq!(on_tiles("tmvt t0, t1, t2\ntmvt.acc t0, t1, t2", &tiles, (1, 3)), [180.0, 240.0, 300.0]);
    assert_eq!(on_tiles("tout t0, t1, t2, t3", &tiles, (2, 3)), [11.0, 22.0, 33.0, 24.0, 45.0, 66.0]);
    let in_place = "tout t1, t1, t2, t3\nvun.cvt t0, t1";
    assert_eq!(on_tiles(in_place, &tiles, (2, 3)), [11.0, 22.0, 33.0, 24.0, 45.0, 66.0]);
}

#[test]
fn conversions_between_memories() {
    let body = "tdef.f32 t0, lrm=0x0, 1x2, -
                ldt.f32 t0, l2=0x0
                stt.f16 t0, l2=0x100
                tdef.fx32 t1, lrm=0x40, 1x2, -, frac=16
                ldt.f16 t1, l2=0x100
                stt.fx32 t1, l2=0x200, frac=8
                tdef.fx32 t2, lrm=0x80, 1x2, -, frac=8
                ldt.fx32 t2, l2=0x200, frac=8
                tdef.f16 t3, lrm=0xc0, 1x2, -
                bct t3, t2
                stt.f32 t3, l2=0x10000
                tdef.f32 t4, lrm=0x100, 1x4, -
                ldt.i8 t4, l2=0x0
                stt.f32 t4, l2=0x10008";
    let x = [1.0 / 3.0, -2.5];
    let (got, counters) = run(body, &x, 6);
    let rounded = f16_to_f32(f32_to_f16(x[0]));
    let fixed = (rounded * 65536.0).round_ties_even() / 65536.0;
    let narrow = (fixed * 256.0).round_ties_even() / 256.0;
    assert_eq!(got[..2], [f16_to_f32(f32_to_f16(narrow)), -2.5]);
    let bytes = x[0].to_le_bytes().map(|b| f32::from(b as i8));
    assert_eq!(got[2..], bytes);
    assert_eq!(counters.events(), 0);
}

#[test]
fn loops_count_nest_and_skip() {
    let body = "tdef.i32 t0, lrm=0x0, 1x1, -
                sli s16, value=3
                sli s17, value=2
                sli s20, value=0
                loop s18, s16, body=3
                loop s19, s17, body=2
                salu.add s20, s20, 10
                salu.add s20, s20, s18
                sli s21, value=0
                loop -, s21, body=1
                trap code=1
                sput t0, s20, at=0
                stt.i32 t0, l2=0x10000";
    // 6 inner iterations of ten, and twice 0 + 1 + 2
    let (got, counters) = run(body, &[0.0], 1);
    assert_eq!(got[0].to_bits(), 66);
    // the listing above, the inner bodies unrolled, and load, store, halt
    assert_eq!(counters.instructions, 5 + 3 * (1 + 4) + 4 + 3);
}

#[test]
fn scalar_operations() {
    let ops: [(&str, i64, i64, i32); 14] = [
        ("add", 7, -3, 4),
        ("sub", 7, -3, 10),
        ("mul", 7, -3, -21),
        ("min", 7, -3, -3),
        ("max", 7, -3, 7),
        ("shl", 7, 3, 56),
        ("shr", -7, 1, -4),
        // 64 bits; shifts take b mod 64
        ("shl", 7, 33, 0),
        ("shl", 7, 67, 56),
        ("shr", 7 << 32, 33, 3),
        ("shr", -7, -1, -1),
        ("mul", 1 << 16, 1 << 16, 0),
        ("min", 1 << 32, 5, 5),
        ("max", 1 << 32, 5, 0),
    ];
    let mut body = String::from("tdef.i32 t0, lrm=0x0, 1x28, -\n");
    for (n, (op, a, b, _)) in ops.iter().enumerate() {
        body += &format!(
            "sli s16, value={a}\nsli s17, value={b}
             salu.{op} s18, s16, s17\nsput t0, s18, at={}
             salu.{op} s18, s16, {b}\nsput t0, s18, at={}\n",
            2 * n,
            2 * n + 1
        );
    }
    body += "stt.i32 t0, l2=0x10000";
    let (got, _) = run(&body, &[0.0], 28);
    let got: Vec<i32> = got.iter().map(|v| v.to_bits() as i32).collect();
    let expected: Vec<i32> = ops.iter().flat_map(|o| [o.3, o.3]).collect();
    assert_eq!(got, expected);
}

#[test]
fn dynamic_lengths_and_addresses() {
    // the first word of the input is a count of rows, read from the edge itself
    let body = "sld s16, s1, off=0
                salu.shl s17, s16, 3
                dld l2=0x100, bytes=64, s17, s1, -, off=8
                tdef.f32 t0, lrm=0x0, 8x2, s16
                ldt.f32 t0, l2=0x100
                tdef.f32 t1, lrm=0x100, 1x2, -
                red.sum.cols t1, t0
                stt.f32 t1, l2=0x10000";
    let count = [f32::from_bits(2), 0.0, 1.0, 2.0, 30.0, 40.0, 500.0, 600.0];
    assert_eq!(run(body, &count, 2).0, [31.0, 42.0]);
}

#[test]
fn constants_are_below_s0() {
    let text = "dld l2=0, bytes=8, -, s0, -, off=4
                dst l2=0, bytes=8, -, s2, -, off=0";
    let constants = common::f32s(&[1.0, 2.0, 3.0]);
    let k = kernel(text, 4, 8, 12);
    let (out, _) = run_kernel(&k, &[0; 4], &constants, true).unwrap();
    assert_eq!(floats(&out), [2.0, 3.0]);
}

#[test]
fn infinities_of_infinite_operands_are_not_counted() {
    let body = "tdef.f32 t0, lrm=0, 1x2, -
                ldt.f32 t0, l2=0x0
                vbini.max t0, t0, 0xff800000
                vbini.sub t0, t0, 1.0
                vun.exp t0, t0
                stt.f32 t0, l2=0x10000";
    let (got, counters) = run(body, &[f32::NEG_INFINITY, 1.0], 2);
    assert_eq!(got, [0.0, 1.0]);
    assert_eq!(counters.events(), 0);
    let (got, counters) = run(
        "tdef.f32 t0, lrm=0, 1x1, -\nldt.f32 t0, l2=0x0\nvbini.div t0, t0, 0.0\nstt.f32 t0, l2=0x10000",
        &[1.0],
        1,
    );
    assert_eq!((got[0], counters.non_finite), (f32::INFINITY, 1));
}
