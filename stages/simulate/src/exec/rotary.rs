//! Rotary positions: angles, and the rotation of heads.

use super::{Core, Scratch, count_infinite, expect};
use crate::error::Fault;
use crate::functions::sincos;
use mica_device::format::Format;
use mica_device::isa::Instr;

/// Cosine and sine of the angles `f32(S[r3]) · T[r2]`.
pub fn vsincos(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let cos = core.of(i, 0, Format::F32)?;
    let sin = core.of(i, 1, Format::F32)?;
    let frequency = core.of(i, 2, Format::F32)?;
    expect(i, 0, &cos, frequency.len())?;
    expect(i, 1, &sin, frequency.len())?;
    let position = core.scalars[usize::from(i.r[3])] as i64 as f32;
    let Scratch { a, b, c, .. } = &mut core.scratch;
    core.lrm.load(&frequency, a)?;
    b.clear();
    c.clear();
    for f in a.iter() {
        let (s, co) = sincos(position * f);
        b.push(co);
        c.push(s);
    }
    core.lrm.store(&cos, b, &mut core.counters);
    core.lrm.store(&sin, c, &mut core.counters);
    Ok(())
}

/// Rotates the first `x` elements of each row of `T[r1]`; the rest is converted only.
pub fn vrot(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let (to, from) = (core.number(i, 0)?, core.number(i, 1)?);
    let (cos, sin) = (core.number(i, 2)?, core.number(i, 3)?);
    expect(i, 0, &to, from.len())?;
    let rotated = i.x;
    if rotated % 2 == 1 || rotated > from.cols {
        return Err(Fault::Operand { what: "rotate", value: i64::from(rotated) });
    }
    let half = rotated as usize / 2;
    for (n, t) in [(2, &cos), (3, &sin)] {
        // a tile of the whole width repeats its first half
        if t.len() != u64::from(rotated) {
            expect(i, n, t, half as u64)?;
        }
    }
    let Scratch { a, b, c, .. } = &mut core.scratch;
    core.lrm.load(&from, a)?;
    core.lrm.load_part(&cos, 0, half as u64, b)?;
    core.lrm.load_part(&sin, 0, half as u64, c)?;
    for row in a.chunks_mut(from.cols as usize) {
        let (low, rest) = row.split_at_mut(half);
        for (((x, y), cos), sin) in low.iter_mut().zip(rest).zip(b.iter()).zip(c.iter()) {
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
    count_infinite(a, &mut core.counters);
    core.lrm.store(&to, a, &mut core.counters);
    Ok(())
}
