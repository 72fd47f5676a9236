//! Reductions and the selection of the largest.

use super::{Core, Scratch, count_infinite, expect};
use crate::convert::{decode, encode_words, exp2, words};
use crate::error::Fault;
use mica_device::format::Format;
use mica_device::isa::{Instr, ReduceOp};
use mica_device::tile::register;
use std::cmp::Ordering;

/// The lanes of a sum along a row.
const LANES: usize = 16;

/// `Σ f(n)` of a row: lane j adds the elements n ≡ j mod 16, ascending, from 0; then the lanes are
/// added as a tree, i with i + 8, i + 4, i + 2, i + 1.
#[inline(always)]
pub fn sum_lanes<T>(a: &[T], f: impl Fn(&T) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = a.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += f(v);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += f(v);
    }
    tree(lanes)
}

/// Rows whose sums advance together: one sum alone would wait for itself.
pub const DOTS: usize = 4;

wide! {
/// `Σ a·b` of each row of `a`, as `sum_lanes`, appended to `out`. `a` has a multiple of `DOTS` rows, or the
/// last of a matrix.
pub fn dots(a: &[f32], b: &[f32], out: &mut Vec<f32>) {
    let cols = b.len().max(1);
    let four = a.chunks_exact(cols * DOTS);
    let rest = four.remainder();
    for rows in four {
        let rows: [&[f32]; DOTS] = std::array::from_fn(|r| &rows[r * cols..(r + 1) * cols]);
        let mut lanes = [[0.0; LANES]; DOTS];
        let (wb, rb) = b.as_chunks::<LANES>();
        for (n, b) in wb.iter().enumerate() {
            for (lanes, row) in lanes.iter_mut().zip(rows) {
                for ((lane, a), b) in lanes.iter_mut().zip(&row[n * LANES..(n + 1) * LANES]).zip(b) {
                    *lane += a * b;
                }
            }
        }
        for (lanes, row) in lanes.iter_mut().zip(rows) {
            for ((lane, a), b) in lanes.iter_mut().zip(&row[wb.len() * LANES..]).zip(rb) {
                *lane += a * b;
            }
        }
        out.extend(lanes.map(tree));
    }
    out.extend(rest.chunks_exact(cols).map(|row| dot_lanes(row, b)));
}
}

/// `Σ a·b`, as `sum_lanes`.
#[inline(always)]
fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((wa, ra), (wb, rb)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in wa.iter().zip(wb) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(ra).zip(rb) {
        *lane += a * b;
    }
    tree(lanes)
}

#[inline(always)]
fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for n in 0..half {
            lanes[n] += lanes[n + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Whether `b` replaces `a` as the largest: as reals, NaN below all, ties to the first.
fn beats(b: f32, a: f32) -> bool {
    b > a || (a.is_nan() && !b.is_nan())
}

/// `T[r0] =` reduction of `T[r1]` along each row, or down each column.
pub fn red(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, from) = (core.number(i, 0)?, core.number(i, 1)?);
    let op = ReduceOp::from_code(i.flags & 15).unwrap_or(ReduceOp::Sum);
    let down = i.flags >> 4 == 1;
    let (rows, cols) = (from.rows as usize, from.cols as usize);
    expect(i, 0, &to, if down { cols } else { rows } as u64)?;
    if rows == 0 && down {
        return Err(Fault::Operand { what: "rows", value: 0 });
    }
    let Scratch { a, out, .. } = &mut core.scratch;
    out.clear();
    let bytes = core.lrm.read(&from, 0, from.len())?;
    if from.format == Format::Fx32 {
        exact(bytes, from.frac, op, down, cols, out);
    } else {
        a.clear();
        decode(from.format, from.frac, bytes, a);
        let square = |v: &f32| v * v;
        if down {
            let (first, rest) = a.split_at(cols);
            match op {
                ReduceOp::Sumsq => out.extend(first.iter().map(square)),
                ReduceOp::Sum | ReduceOp::Max => out.extend_from_slice(first),
            }
            for row in rest.chunks(cols) {
                for (o, v) in out.iter_mut().zip(row) {
                    match op {
                        ReduceOp::Sum => *o += v,
                        ReduceOp::Sumsq => *o += v * v,
                        ReduceOp::Max => *o = if beats(*v, *o) { *v } else { *o },
                    }
                }
            }
        } else {
            rows_of(op, a, cols, out);
        }
    }
    if op != ReduceOp::Max {
        count_infinite(out, &mut core.counters);
    }
    core.lrm.store(&to, out, &mut core.counters);
    Ok(())
}

wide! {
/// The reduction of each row of floats.
fn rows_of(op: ReduceOp, a: &[f32], cols: usize, out: &mut Vec<f32>) {
    out.extend(a.chunks(cols).map(|row| match op {
        ReduceOp::Sum => sum_lanes(row, |v| *v),
        ReduceOp::Sumsq => sum_lanes(row, |v| v * v),
        ReduceOp::Max => {
            row.iter().copied().reduce(|m, v| if beats(v, m) { v } else { m }).unwrap_or(f32::NEG_INFINITY)
        }
    }));
}
}

/// Reductions of fixed point: exact integers, rounded to f32 once.
fn exact(bytes: &[u8], frac: u8, op: ReduceOp, down: bool, cols: usize, out: &mut Vec<f32>) {
    let values: Vec<i32> = words(bytes).collect();
    let unit = exp2(-i32::from(frac));
    let finish = |line: &mut dyn Iterator<Item = i32>| match op {
        ReduceOp::Sum => line.map(i128::from).sum::<i128>() as f32 * unit,
        ReduceOp::Sumsq => {
            let sum: i128 = line.map(|v| i128::from(v) * i128::from(v)).sum();
            sum as f32 * unit * unit
        }
        ReduceOp::Max => line.max().unwrap_or(i32::MIN) as f32 * unit,
    };
    if down {
        out.extend((0..cols).map(|c| finish(&mut values.iter().skip(c).step_by(cols).copied())));
    } else {
        out.extend(values.chunks(cols).map(|row| finish(&mut row.iter().copied())));
    }
}

/// The `x` largest of `T[r2]`, or the elements at given indices.
pub fn topk(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let indices = core.of(i, 0, Format::I32)?;
    let values = core.of(i, 1, Format::F32)?;
    let from = core.of(i, 2, Format::F32)?;
    let k = u64::from(i.x);
    for (n, t) in [(0, &indices), (1, &values), (2, &from)] {
        if t.len() < k {
            expect(i, n, t, k)?;
        }
    }
    let Scratch { a, c, ia, order, .. } = &mut core.scratch;
    core.lrm.load(&from, a)?;
    ia.clear();
    if let Some(r) = register(i.r[3]) {
        let forced =
            core.tiles.get(r).filter(|t| t.format == Format::I32).ok_or(Fault::Format { tile: r })?;
        if forced.len() < k {
            expect(i, 3, &forced, k)?;
        }
        ia.extend(words(core.lrm.read(&forced, 0, k)?));
    }
    // a negative first index stands for "not forced"
    if ia.first().is_none_or(|&first| first < 0) {
        order.clear();
        order.extend(0..a.len() as u32);
        let before = |&l: &u32, &r: &u32| {
            let (l, r) = ((a[l as usize], l), (a[r as usize], r));
            if beats(l.0, r.0) {
                Ordering::Less
            } else if beats(r.0, l.0) {
                Ordering::Greater
            } else {
                l.1.cmp(&r.1)
            }
        };
        let k = k as usize;
        if k > 0 && k < order.len() {
            order.select_nth_unstable_by(k - 1, before);
        }
        order.truncate(k);
        order.sort_unstable_by(before);
        ia.clear();
        ia.extend(order.iter().map(|&n| n as i32));
    }
    c.clear();
    for &n in ia.iter() {
        let v = usize::try_from(n).ok().and_then(|n| a.get(n));
        c.push(*v.ok_or(Fault::Operand { what: "index", value: i64::from(n) })?);
    }
    encode_words(ia, core.lrm.write(&indices, 0, k));
    core.lrm.store(&values, c, &mut core.counters);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{at_each_width, bits};
    use proptest::prelude::*;

    /// The sum of a row by the words of the manual.
    fn sum(row: impl Iterator<Item = f32>) -> f32 {
        let mut lanes = [0.0f32; 16];
        for (n, v) in row.enumerate() {
            lanes[n % 16] += v;
        }
        for step in [8, 4, 2, 1] {
            for n in 0..step {
                lanes[n] += lanes[n + step];
            }
        }
        lanes[0]
    }

    /// The largest of a row: NaN only where there is nothing else, the first of equals.
    fn largest(row: &[f32]) -> f32 {
        let mut numbers = row.iter().copied().filter(|v| !v.is_nan());
        let Some(first) = numbers.next() else { return f32::NAN };
        numbers.fold(first, |m, v| if v > m { v } else { m })
    }

    proptest! {
        /// Any bits, at every width, as the rule adds and compares them one by one.
        #[test]
        fn rows_are_reduced_alike_at_every_width(
            (rows, cols) in (1usize..10, 1usize..70),
            words in prop::collection::vec(any::<u32>(), 700),
        ) {
            let all: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            let (a, rest) = all.split_at(rows * cols);
            let v = &rest[..cols];
            let rows = || a.chunks(cols);
            let expected = [
                rows().map(|row| sum(row.iter().zip(v).map(|(a, v)| a * v))).collect::<Vec<_>>(),
                rows().map(|row| sum(row.iter().copied())).collect(),
                rows().map(|row| sum(row.iter().map(|a| a * a))).collect(),
                rows().map(largest).collect(),
            ];
            let found = at_each_width(|| {
                let mut out: [Vec<f32>; 4] = Default::default();
                dots(a, v, &mut out[0]);
                for (op, out) in [ReduceOp::Sum, ReduceOp::Sumsq, ReduceOp::Max].into_iter().zip(&mut out[1..]) {
                    rows_of(op, a, cols, out);
                }
                out.map(|v| bits(&v))
            });
            for found in found {
                prop_assert_eq!(&found, &expected.each_ref().map(|v| bits(v)));
            }
        }
    }
}
