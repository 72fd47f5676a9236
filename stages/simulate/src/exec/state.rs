//! Products with a matrix in local register memory: the delta rule and attention blocks.
//!
//! Row by row, so that a row stays in the cache of the host whatever the format of the matrix.

use super::reduce::dot_lanes;
use super::{Core, Scratch, count_infinite, expect};
use crate::error::Fault;
use mica_device::format::Format;
use mica_device::isa::Instr;
use mica_device::tile::Tile;

fn row(t: &Tile, n: u32) -> (u64, u64) {
    let cols = u64::from(t.cols);
    (u64::from(n) * cols, cols)
}

/// `T[r0] = A · v`.
pub fn tmv(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let to = core.of(i, 0, Format::F32)?;
    let (m, v) = (core.number(i, 1)?, core.number(i, 2)?);
    expect(i, 0, &to, u64::from(m.rows))?;
    expect(i, 2, &v, u64::from(m.cols))?;
    let Scratch { a, b, out, .. } = &mut core.scratch;
    core.lrm.load(&v, b)?;
    out.clear();
    for n in 0..m.rows {
        let (first, cols) = row(&m, n);
        core.lrm.load_part(&m, first, cols, a)?;
        out.push(dot_lanes(a, b));
    }
    count_infinite(out, &mut core.counters);
    core.lrm.store(&to, out, &mut core.counters);
    Ok(())
}

/// `T[r0] = vᵀ · A`, or that added to what `T[r0]` holds.
pub fn tmvt(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let to = core.of(i, 0, Format::F32)?;
    let (m, v) = (core.number(i, 1)?, core.number(i, 2)?);
    expect(i, 0, &to, u64::from(m.cols))?;
    expect(i, 2, &v, u64::from(m.rows))?;
    let Scratch { a, b, out, .. } = &mut core.scratch;
    core.lrm.load(&v, b)?;
    if i.flags & 1 == 1 {
        core.lrm.load(&to, out)?;
    } else {
        out.clear();
        out.resize(m.cols as usize, 0.0);
    }
    for (n, v) in (0..m.rows).zip(b.iter()) {
        let (first, cols) = row(&m, n);
        core.lrm.load_part(&m, first, cols, a)?;
        for (o, a) in out.iter_mut().zip(a.iter()) {
            *o += v * a;
        }
    }
    count_infinite(out, &mut core.counters);
    core.lrm.store(&to, out, &mut core.counters);
    Ok(())
}

/// `T[r0] = T[r1] + u ⊗ v`; `T[r0]` may be `T[r1]` itself, but may not overlap it otherwise.
pub fn tout(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let to = core.of(i, 0, Format::F32)?;
    let (m, u, v) = (core.number(i, 1)?, core.number(i, 2)?, core.number(i, 3)?);
    expect(i, 0, &to, m.len())?;
    expect(i, 2, &u, u64::from(m.rows))?;
    expect(i, 3, &v, u64::from(m.cols))?;
    let (ra, rb) = (to.range(), m.range());
    let itself = ra == rb && m.format == Format::F32;
    if !itself && ra.start < rb.end && rb.start < ra.end {
        return Err(Fault::Overlap { a: i.r[0], b: i.r[1] });
    }
    let Scratch { a, b, c, .. } = &mut core.scratch;
    core.lrm.load(&u, b)?;
    core.lrm.load(&v, c)?;
    for (n, u) in (0..m.rows).zip(b.iter()) {
        let (first, cols) = row(&m, n);
        core.lrm.load_part(&m, first, cols, a)?;
        for (a, v) in a.iter_mut().zip(c.iter()) {
            *a += u * v;
        }
        count_infinite(a, &mut core.counters);
        core.lrm.store_part(&to, first, a, &mut core.counters);
    }
    Ok(())
}
