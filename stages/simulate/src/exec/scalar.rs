//! The scalar unit: registers, descriptors, single elements of I32 tiles.

use super::Core;
use crate::error::Fault;
use mica_device::format::Format;
use mica_device::isa::{Instr, ScalarOp};
use mica_device::tile::{Tile, register};

/// `op` on 64-bit numbers, wrapping; comparisons are signed, shifts take the low 6 bits of `b`.
pub fn alu(op: ScalarOp, a: u64, b: u64) -> u64 {
    let (sa, sb) = (a as i64, b as i64);
    match op {
        ScalarOp::Add => a.wrapping_add(b),
        ScalarOp::Sub => a.wrapping_sub(b),
        ScalarOp::Mul => a.wrapping_mul(b),
        ScalarOp::Min => sa.min(sb) as u64,
        ScalarOp::Max => sa.max(sb) as u64,
        ScalarOp::Shl => a << (b & 63),
        ScalarOp::Shr => (sa >> (b & 63)) as u64,
    }
}

/// The result of a `SALU` on these registers. The static check knows the operation.
pub fn salu(i: &Instr, scalars: &[u64]) -> u64 {
    let b = if i.flags & 0x80 != 0 { i.z } else { scalars[usize::from(i.r[2])] };
    let a = scalars[usize::from(i.r[1])];
    ScalarOp::from_code(i.flags & 0x7f).map_or(0, |op| alu(op, a, b))
}

/// Defines a tile.
pub fn tdef(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let rows = register(i.r[1]).map(|r| core.scalars[usize::from(r)]);
    let tile =
        Tile::define(i, rows).ok_or(Fault::Operand { what: "rows", value: rows.unwrap_or(i.z) as i64 })?;
    core.lrm.reserve(&tile)?;
    core.tiles.set(i.r[0], tile);
    Ok(())
}

fn element(i: &Instr, n: usize, t: &Tile) -> Result<u64, Fault> {
    let at = u64::from(i.x);
    if at < t.len() { Ok(at) } else { Err(Fault::Shape { tile: i.r[n], expected: at + 1, found: t.len() }) }
}

/// A tile element to a scalar register, its sign extended.
pub fn sget(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let t = core.of(i, 1, Format::I32)?;
    let at = element(i, 1, &t)?;
    let value = crate::convert::words(core.lrm.read(&t, at, 1)?).next().unwrap_or(0);
    core.scalars[usize::from(i.r[0])] = i64::from(value) as u64;
    Ok(())
}

/// A scalar register, cut to 32 bits, to a tile element.
pub fn sput(core: &mut Core<'_>, i: &Instr) -> Result<(), Fault> {
    let t = core.of(i, 0, Format::I32)?;
    let at = element(i, 0, &t)?;
    let value = core.scalars[usize::from(i.r[1])] as i32;
    core.lrm.write(&t, at, 1).copy_from_slice(&value.to_le_bytes());
    Ok(())
}
