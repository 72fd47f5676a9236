//! What each instruction leaves, bit for bit, and what it counts: orders of sums, roundings, NaN, infinities,
//! zeros with signs, ties, saturation. Expected values are worked out from the manual.

mod common;

use common::run;
use mica_simulate::functions::sincos;

const NAN: f32 = f32::from_bits(0x7fc0_0000);
const INF: f32 = f32::INFINITY;
const MAX: f32 = f32::MAX;
/// Adding 1 to it changes nothing.
const BIG: f32 = 16_777_216.0;
/// Its square is `SQUARE` and 2^-24, which rounding loses.
const A: f32 = 1.0 + 1.0 / 4096.0;
const SQUARE: f32 = 1.0 + 1.0 / 2048.0;

/// An `i32` or `fx32` element among f32 ones.
const fn int(v: i32) -> f32 {
    f32::from_bits(v as u32)
}

/// Runs `line` on t1, t2, … (`FORMAT SHAPE[, frac=F]`, separated by `;`), cut from the input in order, with the
/// result t0; saturations, `f16` overflows and non-finite results are counted.
fn check(line: &str, tiles: &str, input: &[f32], out: &str, expected: &[f32], counted: [u64; 3]) {
    let define = |n: usize, tile: &str, lrm: usize| {
        let (kind, frac) =
            tile.split_once(", ").map_or((tile, String::new()), |(k, f)| (k, format!(", {f}")));
        let (format, shape) = kind.split_once(' ').unwrap();
        let size: usize = shape.split('x').map(|s| s.parse::<usize>().unwrap()).product();
        (
            format!("tdef.{format} t{n}, lrm={lrm:#x}, {shape}, -{frac}\n"),
            format!("{format} t{n}"),
            frac,
            size,
        )
    };
    let (mut body, _, _, _) = define(0, out, 0x80000);
    let mut at = 0;
    for (n, tile) in tiles.split("; ").enumerate() {
        let (text, name, frac, size) = define(n + 1, tile, at);
        body += &format!("{text}ldt.{name}, l2={at:#x}{frac}\n");
        at += size * 4;
    }
    let (_, name, frac, _) = define(0, out, 0);
    body += &format!("{line}\nstt.{name}, l2=0x10000{frac}");
    let (got, c) = run(&body, input, expected.len());
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&got), bits(expected), "{line}: {got:?}, not {expected:?}");
    assert_eq!([c.saturations, c.f16_overflows, c.non_finite], counted, "{line} counts");
}

#[test]
fn element_wise() {
    for (line, a, b, expected, non_finite) in [
        (
            "max.same",
            vec![NAN, 1.0, -0.0, 0.0, 2.0],
            vec![1.0, NAN, 0.0, -0.0, 3.0],
            vec![NAN, NAN, -0.0, 0.0, 3.0],
            2,
        ),
        (
            "min.same",
            vec![NAN, 1.0, -0.0, 0.0, 2.0],
            vec![1.0, NAN, 0.0, -0.0, 3.0],
            vec![NAN, NAN, -0.0, 0.0, 2.0],
            2,
        ),
        ("add.same", vec![MAX, INF, 1.0, INF], vec![MAX, 1.0, INF, -INF], vec![INF, INF, INF, NAN], 2),
        ("add.cyclic", vec![MAX, INF, MAX, 1.0], vec![MAX, 1.0], vec![INF, INF, INF, 2.0], 2),
        ("add.cyclic", vec![MAX, 1.0, 1.0, 1.0], vec![MAX, INF], vec![INF, INF, MAX, INF], 1),
        ("add.stretch", vec![MAX, INF, MAX, 1.0], vec![MAX, INF], vec![INF; 4], 1),
        ("sub.stretch", vec![1.0, 2.0, 3.0, 4.0], vec![10.0, 20.0], vec![-9.0, -8.0, -17.0, -16.0], 0),
        ("mul.same", vec![A, MAX], vec![A, -2.0], vec![SQUARE, -INF], 1),
        ("div.same", vec![1.0, 0.0, -1.0], vec![3.0, 0.0, 0.0], vec![1.0 / 3.0, NAN, -INF], 2),
    ] {
        let (n, m) = (a.len(), b.len());
        let tiles = format!("f32 1x{n}; f32 1x{m}");
        let input = [a, b].concat();
        let out = format!("f32 1x{n}");
        check(&format!("vbin.{line} t0, t1, t2"), &tiles, &input, &out, &expected, [0, 0, non_finite]);
    }
    for (line, expected, non_finite) in [
        ("vbini.add t0, t1, 0.5", [3.5, -0.5], 0),
        ("vbini.sub t0, t1, 0.5", [2.5, -1.5], 0),
        ("vbini.div t0, t1, 0.5", [6.0, -2.0], 0),
        ("vbini.max t0, t1, 0.5", [3.0, 0.5], 0),
        ("vbini.min t0, t1, 0.5", [0.5, -1.0], 0),
        ("vbini.max t0, t1, 0x7fc00000", [NAN, NAN], 2),
        ("vbini.add t0, t1, 0x7f800000", [INF, INF], 0),
        ("vbini.div t0, t1, 0.0", [INF, -INF], 2),
        ("vbini.mul t0, t1, 0x7f7fffff", [INF, -MAX], 1),
    ] {
        check(line, "f32 1x2", &[3.0, -1.0], "f32 1x2", &expected, [0, 0, non_finite]);
    }
}

#[test]
fn fixed_point_arithmetic() {
    let (q, top, bottom) = (|v: i32| int(v << 20), int(i32::MAX), int(i32::MIN));
    for (line, expected, saturations) in [
        ("vbin.add.same t0, t1, t2", [top, q(-1000), q(1)], 1),
        ("vbin.sub.same t0, t1, t2", [q(1000), bottom, q(1)], 1),
        ("vbin.mul.same t0, t1, t2", [top, bottom, q(0)], 2),
        ("vbini.add t0, t1, 1000.0", [top, q(-1000), q(1001)], 1),
        ("vbini.sub t0, t1, 1000.0", [q(1000), bottom, q(-999)], 1),
        // each operand is converted first: 5000 is clamped to 2048 less one, and so is the sum
        ("vbini.add t0, t1, 5000.0", [top, int(i32::MAX - (2000 << 20)), top], 3),
    ] {
        let input = [2000.0, -2000.0, 1.0, 1000.0, 1000.0, 0.0];
        check(line, "f32 1x3; f32 1x3", &input, "fx32 1x3, frac=20", &expected, [saturations, 0, 0]);
    }
    // the destination's fraction counts: 0.75 in one bit is 1 (a tie goes to even), and 1 + 1 is 2
    let line = "vbin.add.same t0, t1, t1";
    check(line, "fx32 1x1, frac=2", &[int(3)], "fx32 1x1, frac=1", &[int(4)], [0; 3]);
    for (line, expected) in [
        // exact where f32 would round each element; then one rounding
        ("red.sum.rows t0, t1", [16_777_218.0, 1.5]),
        ("red.max.rows t0, t1", [16_777_216.0, 2.0]),
        ("red.sumsq.rows t0, t1", [281_475_010_265_088.0, 4.25]),
    ] {
        let (whole, half) = ([int(16_777_217), int(1)], [int(4), int(-1)]);
        check(line, "fx32 1x2, frac=0", &whole, "f32 1x1", &expected[..1], [0; 3]);
        check(line, "fx32 1x2, frac=1", &half, "f32 1x1", &expected[1..], [0; 3]);
        let down = line.replace("rows", "cols");
        check(&down, "fx32 2x1, frac=1", &half, "f32 1x1", &expected[1..], [0; 3]);
    }
}

#[test]
fn functions_of_each() {
    for (line, x, expected, non_finite) in [
        ("neg", [0.0, NAN, INF], [-0.0, NAN, -INF], 1),
        ("square", [A, 1e30, -INF], [SQUARE, INF, INF], 1),
        ("exp", [100.0, INF, -INF], [INF, INF, 0.0], 1),
        ("rsqrt", [0.0, -1.0, INF], [INF, NAN, 0.0], 2),
        ("round.bf16", [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, MAX], [1.0, 1.0 + 1.0 / 64.0, INF], 1),
        // equal formats copy the bits, and count nothing
        ("cvt", [f32::from_bits(0xffc0_1234), INF, -0.0], [f32::from_bits(0xffc0_1234), INF, -0.0], 0),
    ] {
        check(&format!("vun.{line} t0, t1"), "f32 1x3", &x, "f32 1x3", &expected, [0, 0, non_finite]);
    }
    let line = "vun.cvt t0, t1";
    check(line, "i32 1x1", &[int(-7)], "i32 1x1", &[int(-7)], [0; 3]);
    check(
        line,
        "f32 1x3",
        &[NAN, 3000.0, -INF],
        "fx32 1x3, frac=20",
        &[int(0), int(i32::MAX), int(i32::MIN)],
        [2, 0, 1],
    );
    // two halves a word: 65520 overflows, an infinity does not; 65519 does not
    let halves = [int(0x7c00_7c00), int(0x7e00_7bff)];
    check(line, "f32 1x4", &[65520.0, INF, 65519.0, NAN], "f16 1x4", &halves, [0, 1, 1]);
    check(
        line,
        "f32 1x4",
        &[MAX, INF, 1.0, NAN],
        "bf16 1x4",
        &[int(0x7f80_7f80), int(0x7fc0_3f80)],
        [0, 0, 2],
    );
}

#[test]
fn reductions() {
    for (line, shape, x, expected, non_finite) in [
        ("max.rows", "3x3", vec![NAN, 1.0, 2.0, 1.0, NAN, 0.0, NAN, NAN, NAN], vec![2.0, 1.0, NAN], 1),
        ("max.cols", "3x3", vec![NAN, 1.0, NAN, 1.0, NAN, NAN, 2.0, 0.0, NAN], vec![2.0, 1.0, NAN], 1),
        ("max.rows", "2x2", vec![-0.0, 0.0, 0.0, -0.0], vec![-0.0, 0.0], 0),
        ("max.cols", "2x2", vec![-0.0, 0.0, 0.0, -0.0], vec![-0.0, 0.0], 0),
        ("max.rows", "1x2", vec![INF, 1.0], vec![INF], 0),
        ("sum.rows", "1x2", vec![INF, 1.0], vec![INF], 1),
        ("sum.cols", "2x1", vec![MAX, MAX], vec![INF], 1),
        ("sumsq.rows", "1x1", vec![1e30], vec![INF], 1),
        // lanes start from 0.0, columns from the first row
        ("sum.rows", "1x1", vec![-0.0], vec![0.0], 0),
        ("sum.cols", "2x1", vec![-0.0, -0.0], vec![-0.0], 0),
        // rows ascending
        ("sum.cols", "3x1", vec![1.0, BIG, -BIG], vec![0.0], 0),
        ("sumsq.cols", "3x1", vec![1.0, 4096.0, 1.0], vec![BIG], 0),
        // a square is rounded before it is added
        ("sumsq.cols", "2x1", vec![1.0 / 4096.0, A], vec![SQUARE], 0),
    ] {
        let n = expected.len();
        let (tile, out) = (format!("f32 {shape}"), format!("f32 1x{n}"));
        check(&format!("red.{line} t0, t1"), &tile, &x, &out, &expected, [0, 0, non_finite]);
    }
    let mut row = [0.0; 17];
    (row[0], row[16]) = (1.0 / 4096.0, A);
    check("red.sumsq.rows t0, t1", "f32 1x17", &row, "f32 1x1", &[SQUARE], [0; 3]);
}

/// Rows in which each step of the tree, and the lane of element 16, shows: the order loses the ones, or not.
fn tree_rows() -> [([f32; 20], f32); 4] {
    let row = |ones: [usize; 2], big: usize| {
        let mut row = [0.0; 20];
        (row[ones[0]], row[ones[1]], row[big]) = (1.0, 1.0, BIG);
        row
    };
    [(row([0, 1], 8), BIG), (row([0, 2], 4), BIG), (row([0, 1], 2), BIG), (row([0, 16], 8), BIG + 2.0)]
}

#[test]
fn products_in_local_memory() {
    let rows = tree_rows();
    let (mut a, mut expected) = (Vec::new(), Vec::new());
    // four rows that advance together, then three alone
    for n in [0, 1, 2, 3, 3, 1, 2] {
        a.extend(rows[n].0);
        expected.push(rows[n].1);
        check("red.sum.rows t0, t1", "f32 1x20", &rows[n].0, "f32 1x1", &[rows[n].1], [0; 3]);
    }
    a.extend([1.0; 20]);
    check("tmv t0, t1, t2", "f32 7x20; f32 1x20", &a, "f32 1x7", &expected, [0; 3]);
    // a product is rounded before it is added
    for cols in [17, 33] {
        let mut v = vec![0.0; cols];
        (v[0], v[16]) = (-SQUARE, A);
        let mut a = v.repeat(5);
        a.extend(v.iter().map(|&v| if v < 0.0 { 1.0 } else { v }));
        let tiles = format!("f32 5x{cols}; f32 1x{cols}");
        check("tmv t0, t1, t2", &tiles, &a, "f32 1x5", &[0.0; 5], [0; 3]);
    }
    let (tmvt, tout) = ("tmvt t0, t1, t2", "tout t0, t1, t2, t3");
    check(tmvt, "f32 2x1; f32 1x2", &[-SQUARE, A, 1.0, A], "f32 1x1", &[0.0], [0; 3]);
    check(tout, "f32 1x1; f32 1x1; f32 1x1", &[-SQUARE, A, A], "f32 1x1", &[0.0], [0; 3]);
    // it starts from 0.0, or what it holds
    check(tmvt, "f32 1x1; f32 1x1", &[-0.0, 1.0], "f32 1x1", &[0.0], [0; 3]);
    let acc = "vun.cvt t0, t1\ntmvt.acc t0, t1, t2";
    check(acc, "f32 1x1; f32 1x1", &[-0.0, 1.0], "f32 1x1", &[-0.0], [0; 3]);
    // infinities are counted, whatever the operands
    check("tmv t0, t1, t2", "f32 1x1; f32 1x1", &[INF, 1.0], "f32 1x1", &[INF], [0, 0, 1]);
    check(tmvt, "f32 1x1; f32 1x1", &[INF, 1.0], "f32 1x1", &[INF], [0, 0, 1]);
    check(tout, "f32 1x1; f32 1x1; f32 1x1", &[INF, 1.0, 1.0], "f32 1x1", &[INF], [0, 0, 1]);
    // rows ascending, over more elements than are worked on at a time
    let mut tall = vec![0.0; 9 * 1024];
    (tall[0], tall[4 * 1024], tall[8 * 1024]) = (1.0, BIG, -BIG);
    tall.extend([1.0; 9]);
    check(tmvt, "f32 9x1024; f32 1x9", &tall, "f32 1x1024", &[0.0; 1024], [0; 3]);
}

/// A row that an infinite weight makes infinite is counted.
#[test]
fn infinities_of_matrices() {
    // two activations, and from byte 64 on a dword a row of two weights
    let halves = |low: u32| f32::from_bits(low);
    let mut input = [0.0; 32];
    input[0] = halves(0x3c00);
    input[16..].fill(halves(0x7c00));
    input[20] = halves(0x3c00);
    let mut expected = [INF; 16];
    expected[4] = 1.0;
    let line = "matv.f16 t0, t1, l2=0x40, rows=16, group=0";
    check(line, "f16 1x2", &input, "f32 1x16", &expected, [0, 0, 15]);
}

#[test]
fn copies_and_choices() {
    let x = [1.0, 2.0, 3.0, 4.0];
    check("vmov t0, to=0, t1, from=0, 2x2/2/0", "f32 1x4", &x, "f32 1x2", &[3.0, 4.0], [0; 3]);
    check("vmov t0, to=0, t1, from=0, 2x2/2/1", "f32 1x4", &x, "f32 1x3", &[1.0, 3.0, 4.0], [0; 3]);
    let payload = [f32::from_bits(0xffc0_1234), INF];
    check("vmov t0, to=0, t1, from=0, 1x2/0/0", "f32 1x2", &payload, "f32 1x2", &payload, [0; 3]);
    check(
        "topk t2, t0, t1, -, k=2",
        "f32 1x3; i32 1x2",
        &[1.0, INF, NAN, 0.0, 0.0],
        "f32 1x2",
        &[INF, 1.0],
        [0; 3],
    );
    check(
        "topk t0, t2, t1, -, k=2",
        "f32 1x3; f32 1x2",
        &[5.0, 7.0, 7.0, 0.0, 0.0],
        "i32 1x2",
        &[int(1), int(2)],
        [0; 3],
    );
    // index 0 is one like others where indices are given, and a negative one says that none are
    for (forced, expected) in [([0, 1], [5.0, 7.0]), ([2, 0], [9.0, 5.0]), ([-1, 0], [9.0, 7.0])] {
        let input = [&[5.0, 7.0, 9.0, 0.0, 0.0][..], &forced.map(int)].concat();
        let tiles = "f32 1x3; i32 1x2; i32 1x2";
        check("topk t2, t0, t1, t3, k=2", tiles, &input, "f32 1x2", &expected, [0; 3]);
    }
    check("topk t2, t0, t1, -, k=1", "f32 1x1; i32 1x1", &[NAN, 0.0], "f32 1x1", &[NAN], [0, 0, 1]);
}

#[test]
fn scalars_and_elements() {
    // sign extended; the low 32 bits
    let line = "sget s16, t1, at=1\nsalu.shr s16, s16, 32\nsput t0, s16, at=0
                sli s16, value=4294967301\nsput t0, s16, at=1";
    check(line, "i32 1x2", &[int(5), int(-7)], "i32 1x2", &[int(-1), int(5)], [0; 3]);
}

#[test]
fn rotation() {
    let x = [1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0, 7.0, 8.0, 10.0];
    let rotated = [-13.0, -22.0, 11.0, 26.0, 9.0, -25.0, -38.0, 39.0, 66.0, 10.0];
    for (tables, tiles) in [
        (&[2.0, 3.0, 5.0, 7.0][..], "f32 2x5; f32 1x2; f32 1x2"),
        // the whole width: the first half is read
        (&[2.0, 3.0, 90.0, 90.0, 5.0, 7.0, 90.0, 90.0], "f32 2x5; f32 1x4; f32 1x4"),
    ] {
        let input = [&x, tables].concat();
        check("vrot t0, t1, t2, t3, rotate=4", tiles, &input, "f32 2x5", &rotated, [0; 3]);
    }
    // each product is rounded, then the difference, and the sum
    let tiles = "f32 1x2; f32 1x1; f32 1x1";
    let line = "vrot t0, t1, t2, t3, rotate=2";
    check(line, tiles, &[A, SQUARE, A, 1.0], "f32 1x2", &[0.0, 2.0 + 1.0 / 1024.0], [0; 3]);
    check(line, tiles, &[INF, 1.0, 1.0, 0.0], "f32 1x2", &[INF, NAN], [0, 0, 2]);
    // the position is signed, and rounded to even
    for (position, frequency, angle) in [(-1, 1.0, -1.0), (16_777_219, 1.0 / BIG, 1.0 + 4.0 / BIG)] {
        let (sin, cos) = sincos(angle);
        for (line, expected) in [("t0, t2, t1", cos), ("t2, t0, t1", sin)] {
            let line = format!("sli s16, value={position}\nvsincos {line}, s16");
            check(&line, "f32 1x1; f32 1x1", &[frequency, 0.0], "f32 1x1", &[expected], [0; 3]);
        }
    }
}
