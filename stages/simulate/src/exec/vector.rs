//! Element-wise operations and copies.

use super::flow::{Stored, convert, converts};
use super::{Core, Scratch, expect};
use crate::convert::{
    Lane, any_non_finite, bf16_to_f32, decode_fx, encode_words, f32_to_bf16, f32_to_fx, saturate,
};
use crate::counters::Counters;
use crate::error::Fault;
use crate::functions;
use crate::team::{Team, Units};
use mica_device::access::Strides;
use mica_device::format::Format;
use mica_device::isa::{Broadcast, Instr, UnaryOp, VectorOp};
use mica_device::tile::Tile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Elements worked on at a time: few enough to stay in the first cache of the host.
const PIECE: u64 = 2048;

/// Elements that a thread takes of a function of each.
const SHARE: usize = 512;

/// Calls `f(a, b)` with each of the first operand's elements from `first` on, the second's that it meets,
/// and puts the results into `out`. `all` elements has the whole first operand.
#[inline(always)]
fn combine<A: Lane<T>, T: Copy>(
    (first, all): (usize, usize),
    a: &[A],
    b: &[T],
    mode: Broadcast,
    out: &mut [T],
    f: impl Fn(T, T) -> T,
) {
    let m = b.len().max(1);
    match mode {
        _ if m == 1 && !b.is_empty() => {
            for (o, a) in out.iter_mut().zip(a) {
                *o = f(a.get(), b[0]);
            }
        }
        Broadcast::Same => {
            for ((o, a), b) in out.iter_mut().zip(a).zip(&b[first..]) {
                *o = f(a.get(), *b);
            }
        }
        Broadcast::Cyclic => {
            let mut at = 0;
            while at < a.len() {
                let b = &b[(first + at) % m..];
                let n = b.len().min(a.len() - at);
                for ((o, a), b) in out[at..at + n].iter_mut().zip(&a[at..at + n]).zip(b) {
                    *o = f(a.get(), *b);
                }
                at += n;
            }
        }
        Broadcast::Stretch => {
            let run = (all / m).max(1);
            let mut at = 0;
            while at < a.len() {
                let n = (run - (first + at) % run).min(a.len() - at);
                let b = b[(first + at) / run];
                for (o, a) in out[at..at + n].iter_mut().zip(&a[at..at + n]) {
                    *o = f(a.get(), b);
                }
                at += n;
            }
        }
    }
}

/// The larger as a real number; NaN if either is.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a >= b { a } else { b }
}

fn smaller(a: f32, b: f32) -> f32 {
    if a.is_nan() || a <= b { a } else { b }
}

#[inline(always)]
fn apply<A: Lane<f32>>(
    op: VectorOp,
    place: (usize, usize),
    a: &[A],
    b: &[f32],
    mode: Broadcast,
    out: &mut [f32],
) {
    match op {
        VectorOp::Add => combine(place, a, b, mode, out, |a, b| a + b),
        VectorOp::Sub => combine(place, a, b, mode, out, |a, b| a - b),
        VectorOp::Mul => combine(place, a, b, mode, out, |a, b| a * b),
        VectorOp::Div => combine(place, a, b, mode, out, |a, b| a / b),
        VectorOp::Max => combine(place, a, b, mode, out, larger),
        VectorOp::Min => combine(place, a, b, mode, out, smaller),
    }
}

wide! {
fn apply_decoded(op: VectorOp, at: (usize, usize), a: &[f32], b: &[f32], mode: Broadcast, out: &mut [f32]) {
    apply(op, at, a, b, mode, out);
}
}

wide! {
fn apply_stored(op: VectorOp, at: (usize, usize), a: &[[u8; 4]], b: &[f32], mode: Broadcast, out: &mut [f32]) {
    apply(op, at, a, b, mode, out);
}
}

/// Counts results that are infinite though both operands are finite.
fn count_overflow(
    (first, all): (usize, usize),
    a: &[f32],
    b: &[f32],
    mode: Broadcast,
    out: &[f32],
    counters: &mut Counters,
) {
    let m = b.len();
    let run = (all / m.max(1)).max(1);
    for (n, (v, a)) in (first..).zip(out.iter().zip(a)) {
        let b = match mode {
            Broadcast::Same => b[n],
            Broadcast::Cyclic => b[n % m],
            Broadcast::Stretch => b[n / run],
        };
        let overflow = v.is_infinite() && a.is_finite() && b.is_finite();
        counters.non_finite += u64::from(overflow);
    }
}

/// `to = from op b` in floating point, a piece at a time unless the two tiles overlap otherwise than as one.
fn floats(
    core: &mut Core<'_>,
    op: VectorOp,
    (to, from): (&Tile, &Tile),
    b: &[f32],
    mode: Broadcast,
) -> Result<(), Fault> {
    let Scratch { a, c, .. } = &mut core.scratch;
    let (written, read) = (to.range(), from.range());
    let apart = written == read || written.end <= read.start || read.end <= written.start;
    let piece = if apart { PIECE } else { from.len().max(1) };
    for first in (0..from.len()).step_by(piece as usize) {
        let elements = piece.min(from.len() - first);
        let place = (first as usize, from.len() as usize);
        c.resize(elements as usize, 0.0);
        if from.format == Format::F32 {
            apply_stored(op, place, core.lrm.floats(from, first, elements)?, b, mode, c);
        } else {
            core.lrm.load_part(from, first, elements, a)?;
            apply_decoded(op, place, a, b, mode, c);
        }
        if any_non_finite(c) {
            core.lrm.load_part(from, first, elements, a)?;
            count_overflow(place, a, b, mode, c, &mut core.counters);
            core.lrm.store_part(to, first, c, &mut core.counters);
        } else {
            core.lrm.store_finite(to, first, c, &mut core.counters);
        }
    }
    Ok(())
}

/// Whether the operation is done in the fixed point of its destination.
fn fixed(op: VectorOp, to: &Tile) -> bool {
    to.format == Format::Fx32 && matches!(op, VectorOp::Add | VectorOp::Sub)
}

/// The exact sum or difference of fixed-point operands, clamped. Returns how many were.
fn fixed_apply(op: VectorOp, a: &[i32], b: &[i32], mode: Broadcast, out: &mut Vec<i32>) -> u64 {
    let clamped = std::cell::Cell::new(0);
    let sign: i64 = if op == VectorOp::Sub { -1 } else { 1 };
    out.resize(a.len(), 0);
    combine((0, a.len()), a, b, mode, out, |a, b| {
        let mut counters = Counters::default();
        let v = saturate(i64::from(a) + sign * i64::from(b), &mut counters);
        clamped.set(clamped.get() + counters.saturations);
        v
    });
    clamped.get()
}

/// `T[r0] = T[r1] op T[r2]`.
pub fn vbin(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, ta, tb) = (core.number(i, 0)?, core.number(i, 1)?, core.number(i, 2)?);
    // the static check knows both codes
    let op = VectorOp::from_code(i.flags & 15).unwrap_or(VectorOp::Add);
    let mode = Broadcast::from_code(i.flags >> 4).unwrap_or(Broadcast::Same);
    expect(i, 0, &to, ta.len())?;
    let divides = !tb.is_empty() && ta.len().is_multiple_of(tb.len());
    if mode == Broadcast::Same || !divides {
        expect(i, 2, &tb, ta.len())?;
    }
    let Scratch { c, ia, ib, io, .. } = &mut core.scratch;
    let counters = &mut core.counters;
    if fixed(op, &to) {
        ia.clear();
        ib.clear();
        let bytes = core.lrm.read(&ta, 0, ta.len())?;
        decode_fx(ta.format, ta.frac, bytes, to.frac, ia, c, counters);
        let bytes = core.lrm.read(&tb, 0, tb.len())?;
        decode_fx(tb.format, tb.frac, bytes, to.frac, ib, c, counters);
        counters.saturations += fixed_apply(op, ia, ib, mode, io);
        encode_words(io, core.lrm.write(&to, 0, to.len()));
        return Ok(());
    }
    // all of it is read before anything is written
    let mut b = std::mem::take(&mut core.scratch.b);
    let done = core.lrm.load(&tb, &mut b).and_then(|()| floats(core, op, (&to, &ta), &b, mode));
    core.scratch.b = b;
    done
}

/// `T[r0] = T[r1] op imm`.
pub fn vbini(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, ta) = (core.number(i, 0)?, core.number(i, 1)?);
    let op = VectorOp::from_code(i.flags).unwrap_or(VectorOp::Add);
    let imm = f32::from_bits(i.x);
    expect(i, 0, &to, ta.len())?;
    let Scratch { c, ia, ib, io, .. } = &mut core.scratch;
    let counters = &mut core.counters;
    let mode = Broadcast::Stretch;
    if fixed(op, &to) {
        ia.clear();
        ib.clear();
        let bytes = core.lrm.read(&ta, 0, ta.len())?;
        decode_fx(ta.format, ta.frac, bytes, to.frac, ia, c, counters);
        ib.push(f32_to_fx(imm, to.frac, counters));
        counters.saturations += fixed_apply(op, ia, ib, mode, io);
        encode_words(io, core.lrm.write(&to, 0, to.len()));
        return Ok(());
    }
    floats(core, op, (&to, &ta), &[imm], mode)
}

/// `T[r0] = f(T[r1])`.
pub fn vun(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let op = UnaryOp::from_code(i.flags).unwrap_or(UnaryOp::Cvt);
    let (to, from) = if op == UnaryOp::Cvt {
        (core.tile(i, 0)?, core.tile(i, 1)?)
    } else {
        (core.number(i, 0)?, core.number(i, 1)?)
    };
    expect(i, 0, &to, from.len())?;
    let Scratch { a, c, bytes, .. } = &mut core.scratch;
    let counters = &mut core.counters;
    if op == UnaryOp::Cvt {
        if !converts(from.format, to.format) {
            return Err(Fault::Format { tile: i.r[1] });
        }
        let stored = |t: &Tile| Stored { format: t.format, frac: t.frac };
        bytes.clear();
        bytes.extend_from_slice(core.lrm.read(&from, 0, from.len())?);
        let out = core.lrm.write(&to, 0, to.len());
        convert(stored(&from), bytes, stored(&to), out, a, counters);
        return Ok(());
    }
    core.lrm.load(&from, a)?;
    c.resize(a.len(), 0.0);
    let team = &core.team;
    match op {
        UnaryOp::Cvt => {}
        UnaryOp::Neg => each(a, c, |v| -v),
        UnaryOp::Square => each(a, c, |v| v * v),
        UnaryOp::RoundBf16 => each(a, c, |v| bf16_to_f32(f32_to_bf16(v))),
        UnaryOp::Exp => shared(team, a, c, functions::exp),
        UnaryOp::Sigmoid => shared(team, a, c, functions::sigmoid),
        UnaryOp::Silu => shared(team, a, c, functions::silu),
        UnaryOp::Softplus => shared(team, a, c, functions::softplus),
        UnaryOp::Rsqrt => shared(team, a, c, functions::rsqrt),
    }
    if any_non_finite(c) {
        let overflow = |(v, a): &(&f32, &f32)| v.is_infinite() && a.is_finite();
        counters.non_finite += c.iter().zip(a.iter()).filter(overflow).count() as u64;
    }
    core.lrm.store(&to, c, counters);
    Ok(())
}

/// `f` of each element.
fn each(a: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    for (o, a) in out.iter_mut().zip(a) {
        *o = f(*a);
    }
}

/// A function of each of many elements, given and left as bits.
struct Mapped {
    f: fn(f32) -> f32,
    values: Vec<AtomicU32>,
}

impl Units for Mapped {
    fn count(&self) -> usize {
        self.values.len().div_ceil(SHARE)
    }

    fn unit(&self, n: usize) {
        for v in self.values.chunks(SHARE).nth(n).unwrap_or_default() {
            // published with the end of the unit
            let x = f32::from_bits(v.load(Ordering::Relaxed));
            v.store((self.f)(x).to_bits(), Ordering::Relaxed);
        }
    }
}

/// The same over all threads, for what costs more than passing it on.
fn shared(team: &Team<'_>, a: &[f32], out: &mut [f32], f: fn(f32) -> f32) {
    if team.threads() == 1 || a.len() < 2 * SHARE {
        return each(a, out, f);
    }
    let work = Arc::new(Mapped { f, values: a.iter().map(|v| AtomicU32::new(v.to_bits())).collect() });
    team.run(Arc::clone(&work) as Arc<dyn Units>);
    for (o, v) in out.iter_mut().zip(&work.values) {
        *o = f32::from_bits(v.load(Ordering::Relaxed));
    }
}

/// Strided copy within local register memory.
pub fn vmov(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, from) = (core.tile(i, 0)?, core.tile(i, 1)?);
    if (to.format, to.frac) != (from.format, from.frac) {
        return Err(Fault::Format { tile: i.r[1] });
    }
    let s = Strides::of(i);
    let inside = |n: usize, t: &Tile, first: u32, stride: u16| {
        let expected = u64::from(first) + s.span(stride);
        if expected <= t.len() {
            Ok(())
        } else {
            let tile = i.r[n];
            let found = t.len();
            Err(Fault::Shape { tile, expected, found })
        }
    };
    inside(0, &to, i.x, s.to)?;
    inside(1, &from, i.y, s.from)?;
    let Scratch { bytes, .. } = &mut core.scratch;
    bytes.clear();
    let row = |first: u32, stride: u16, n: u16| u64::from(first) + u64::from(n) * u64::from(stride);
    for n in 0..s.rows {
        let first = row(i.y, s.from, n);
        bytes.extend_from_slice(core.lrm.read(&from, first, u64::from(s.len))?);
    }
    let len = usize::from(s.len) * to.format.bytes() as usize;
    for (n, bytes) in (0..s.rows).zip(bytes.chunks(len.max(1))) {
        let first = row(i.x, s.to, n);
        core.lrm.write(&to, first, u64::from(s.len)).copy_from_slice(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{at_each_width, bits};
    use proptest::prelude::*;

    proptest! {
        /// Elements as stored and as decoded, a piece at a time, at every width, as the rule combines them one by one.
        #[test]
        fn operands_are_read_as_they_lie(
            op in prop::sample::select(vec![
                VectorOp::Add, VectorOp::Sub, VectorOp::Mul, VectorOp::Div, VectorOp::Max, VectorOp::Min,
            ]),
            mode in prop::sample::select(vec![Broadcast::Same, Broadcast::Cyclic, Broadcast::Stretch]),
            (m, times, piece) in (1usize..40, 1usize..9, 1usize..50),
            words in prop::collection::vec(any::<u32>(), 800),
        ) {
            let all: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            let n = if mode == Broadcast::Same { m } else { m * times };
            let (a, b) = (&all[..n], &all[400..400 + m]);
            let stored: Vec<[u8; 4]> = a.iter().map(|v| v.to_le_bytes()).collect();
            let other = |i: usize| match mode {
                Broadcast::Same => b[i],
                Broadcast::Cyclic => b[i % m],
                Broadcast::Stretch => b[i / (n / m)],
            };
            let one = |i: usize| match op {
                VectorOp::Add => a[i] + other(i),
                VectorOp::Sub => a[i] - other(i),
                VectorOp::Mul => a[i] * other(i),
                VectorOp::Div => a[i] / other(i),
                VectorOp::Max => larger(a[i], other(i)),
                VectorOp::Min => smaller(a[i], other(i)),
            };
            let expected: Vec<f32> = (0..n).map(one).collect();
            let found = at_each_width(|| {
                let (mut x, mut y) = (vec![0.0; n], vec![0.0; n]);
                for first in (0..n).step_by(piece) {
                    let end = n.min(first + piece);
                    apply_stored(op, (first, n), &stored[first..end], b, mode, &mut x[first..end]);
                    apply_decoded(op, (first, n), &a[first..end], b, mode, &mut y[first..end]);
                }
                [x, y].map(|v| bits(&v))
            });
            for [x, y] in found {
                prop_assert_eq!(&x, &bits(&expected));
                prop_assert_eq!(&y, &bits(&expected));
            }
        }
    }
}
