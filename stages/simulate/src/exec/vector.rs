//! Element-wise operations and copies.

use super::flow::{Stored, convert, converts};
use super::{Core, Scratch, expect};
use crate::convert::{
    any_non_finite, bf16_to_f32, decode_fx, encode_words, f32_to_bf16, f32_to_fx, saturate,
};
use crate::counters::Counters;
use crate::error::Fault;
use crate::functions;
use mica_device::access::Strides;
use mica_device::format::Format;
use mica_device::isa::{Broadcast, Instr, UnaryOp, VectorOp};
use mica_device::tile::Tile;

/// The second operand's element for each of the first's: calls `f(a, b)` for all of them.
fn combine<T: Copy>(a: &[T], b: &[T], mode: Broadcast, out: &mut Vec<T>, f: impl Fn(T, T) -> T) {
    out.clear();
    match mode {
        Broadcast::Same => out.extend(a.iter().zip(b).map(|(&a, &b)| f(a, b))),
        Broadcast::Cyclic => {
            for a in a.chunks(b.len().max(1)) {
                out.extend(a.iter().zip(b).map(|(&a, &b)| f(a, b)));
            }
        }
        Broadcast::Stretch => {
            let run = (a.len() / b.len().max(1)).max(1);
            for (a, &b) in a.chunks(run).zip(b) {
                out.extend(a.iter().map(|&a| f(a, b)));
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

fn apply(op: VectorOp, a: &[f32], b: &[f32], mode: Broadcast, out: &mut Vec<f32>) {
    match op {
        VectorOp::Add => combine(a, b, mode, out, |a, b| a + b),
        VectorOp::Sub => combine(a, b, mode, out, |a, b| a - b),
        VectorOp::Mul => combine(a, b, mode, out, |a, b| a * b),
        VectorOp::Div => combine(a, b, mode, out, |a, b| a / b),
        VectorOp::Max => combine(a, b, mode, out, larger),
        VectorOp::Min => combine(a, b, mode, out, smaller),
    }
}

/// Counts results that are infinite though both operands are finite.
fn count_overflow(a: &[f32], b: &[f32], mode: Broadcast, out: &[f32], counters: &mut Counters) {
    if !any_non_finite(out) {
        return;
    }
    let m = b.len();
    let run = (out.len() / m.max(1)).max(1);
    for (n, (v, a)) in out.iter().zip(a).enumerate() {
        let b = match mode {
            Broadcast::Same => b[n],
            Broadcast::Cyclic => b[n % m],
            Broadcast::Stretch => b[n / run],
        };
        let overflow = v.is_infinite() && a.is_finite() && b.is_finite();
        counters.non_finite += u64::from(overflow);
    }
}

/// Whether the operation is done in the fixed point of its destination.
fn fixed(op: VectorOp, to: &Tile) -> bool {
    to.format == Format::Fx32 && matches!(op, VectorOp::Add | VectorOp::Sub)
}

/// The exact sum or difference of fixed-point operands, clamped. Returns how many were.
fn fixed_apply(op: VectorOp, a: &[i32], b: &[i32], mode: Broadcast, out: &mut Vec<i32>) -> u64 {
    let clamped = std::cell::Cell::new(0);
    let sign: i64 = if op == VectorOp::Sub { -1 } else { 1 };
    combine(a, b, mode, out, |a, b| {
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
    let Scratch { a, b, c, ia, ib, io, .. } = &mut core.scratch;
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
    core.lrm.load(&ta, a)?;
    core.lrm.load(&tb, b)?;
    apply(op, a, b, mode, c);
    count_overflow(a, b, mode, c, counters);
    core.lrm.store(&to, c, counters);
    Ok(())
}

/// `T[r0] = T[r1] op imm`.
pub fn vbini(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, ta) = (core.number(i, 0)?, core.number(i, 1)?);
    let op = VectorOp::from_code(i.flags).unwrap_or(VectorOp::Add);
    let imm = f32::from_bits(i.x);
    expect(i, 0, &to, ta.len())?;
    let Scratch { a, c, ia, ib, io, .. } = &mut core.scratch;
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
    core.lrm.load(&ta, a)?;
    apply(op, a, &[imm], mode, c);
    count_overflow(a, &[imm], mode, c, counters);
    core.lrm.store(&to, c, counters);
    Ok(())
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
    c.clear();
    let each = |f: fn(f32) -> f32, c: &mut Vec<f32>| c.extend(a.iter().map(|&v| f(v)));
    match op {
        UnaryOp::Cvt => {}
        UnaryOp::Neg => c.extend(a.iter().map(|v| -v)),
        UnaryOp::Square => c.extend(a.iter().map(|v| v * v)),
        UnaryOp::RoundBf16 => c.extend(a.iter().map(|&v| bf16_to_f32(f32_to_bf16(v)))),
        UnaryOp::Exp => each(functions::exp, c),
        UnaryOp::Sigmoid => each(functions::sigmoid, c),
        UnaryOp::Silu => each(functions::silu, c),
        UnaryOp::Softplus => each(functions::softplus, c),
        UnaryOp::Rsqrt => each(functions::rsqrt, c),
    }
    if any_non_finite(c) {
        let overflow = |(v, a): &(&f32, &f32)| v.is_infinite() && a.is_finite();
        counters.non_finite += c.iter().zip(a.iter()).filter(overflow).count() as u64;
    }
    core.lrm.store(&to, c, counters);
    Ok(())
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
