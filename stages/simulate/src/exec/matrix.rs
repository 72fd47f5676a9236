//! The matrix–vector product.

use super::{Core, Scratch, count_infinite, expect};
use crate::edges::Edges;
use crate::error::Fault;
use crate::matv::matv as kernel;
use mica_device::format::Format;
use mica_device::isa::Instr;
use mica_device::layout::LANES;
use mica_device::tile::matrix;

/// `T[r0] = W · T[r1]`, W in L2: put off where W is constants as they lie, else done at once.
pub fn matv(core: &mut Core<'_>, at: usize, i: &Instr, edges: &Edges<'_>) -> Result<(), Fault> {
    let (to, from) = (core.of(i, 0, Format::F32)?, core.of(i, 1, Format::F16)?);
    let m = matrix(i, from.len()).ok_or(Fault::Operand { what: "group", value: i.z as i64 })?;
    expect(i, 0, &to, m.rows)?;
    let x = core.lrm.read(&from, 0, from.len())?;
    let elements = || x.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b));
    if let Some(bytes) = core.l2.constants(i.x, m.bytes())? {
        core.batch.product(at, core.isa, (to, from), (m, bytes), elements);
        return Ok(());
    }
    let Scratch { activation, out, .. } = &mut core.scratch;
    activation.prepare(core.isa, &m, elements());
    let bytes = core.l2.read(i.x, m.bytes(), edges)?;
    out.clear();
    out.resize(m.rows.next_multiple_of(LANES) as usize, 0.0);
    kernel(core.isa, &m, bytes, activation, out);
    out.truncate(m.rows as usize);
    count_infinite(out, &mut core.counters);
    core.lrm.store(&to, out, &mut core.counters);
    Ok(())
}
