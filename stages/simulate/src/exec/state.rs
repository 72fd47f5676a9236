//! Products with a matrix in local register memory: the delta rule and attention blocks.
//!
//! Some rows at a time, so that they stay in the cache of the host whatever the format of the matrix.

use super::reduce::{DOTS, dots};
use super::{Core, Scratch, count_infinite, expect};
use crate::convert::{Lane, any_non_finite};
use crate::error::Fault;
use mica_device::format::Format;
use mica_device::isa::Instr;
use mica_device::tile::Tile;

/// Elements that are worked on at a time.
const PIECE: u64 = 4096;

/// The matrix in pieces of whole rows, `by` of them or a multiple: first row, first element, elements.
fn pieces(t: &Tile, by: u64) -> impl Iterator<Item = (usize, u64, u64)> + use<> {
    let (rows, cols) = (u64::from(t.rows), u64::from(t.cols));
    let step = (PIECE / cols.max(1)).max(1).next_multiple_of(by);
    (0..rows).step_by(step as usize).map(move |row| (row as usize, row * cols, step.min(rows - row) * cols))
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
    for (_, first, elements) in pieces(&m, DOTS as u64) {
        core.lrm.load_part(&m, first, elements, a)?;
        dots(a, b, out);
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
    for (row, first, elements) in pieces(&m, 1) {
        if m.format == Format::F32 {
            add_stored_rows(core.lrm.floats(&m, first, elements)?, &b[row..], out);
        } else {
            core.lrm.load_part(&m, first, elements, a)?;
            add_decoded_rows(a, &b[row..], out);
        }
    }
    count_infinite(out, &mut core.counters);
    core.lrm.store(&to, out, &mut core.counters);
    Ok(())
}

/// Columns whose sums stay in registers while the rows go by.
const STRIP: usize = 64;

/// `out[c] += v[r] · a[r][c]`, rows ascending.
#[inline(always)]
fn add_rows<A: Lane<f32>>(a: &[A], v: &[f32], out: &mut [f32]) {
    let cols = out.len();
    let (strips, rest) = out.as_chunks_mut::<STRIP>();
    for (n, strip) in strips.iter_mut().enumerate() {
        let mut sums = *strip;
        for (row, v) in a.chunks_exact(cols).zip(v) {
            for (sum, a) in sums.iter_mut().zip(&row[n * STRIP..(n + 1) * STRIP]) {
                *sum += v * a.get();
            }
        }
        *strip = sums;
    }
    let first = cols - rest.len();
    for (row, v) in a.chunks_exact(cols).zip(v) {
        for (sum, a) in rest.iter_mut().zip(&row[first..]) {
            *sum += v * a.get();
        }
    }
}

wide! {
fn add_stored_rows(a: &[[u8; 4]], v: &[f32], out: &mut [f32]) {
    add_rows(a, v, out);
}
}

wide! {
fn add_decoded_rows(a: &[f32], v: &[f32], out: &mut [f32]) {
    add_rows(a, v, out);
}
}

/// `out[r][c] = a[r][c] + u[r] · v[c]`.
#[inline(always)]
fn add_outer<A: Lane<f32>>(a: &[A], u: &[f32], v: &[f32], out: &mut [f32]) {
    let cols = v.len().max(1);
    for ((row, out), u) in a.chunks_exact(cols).zip(out.chunks_exact_mut(cols)).zip(u) {
        for ((a, out), v) in row.iter().zip(out).zip(v) {
            *out = a.get() + u * v;
        }
    }
}

wide! {
fn add_outer_stored(a: &[[u8; 4]], u: &[f32], v: &[f32], out: &mut [f32]) {
    add_outer(a, u, v, out);
}
}

wide! {
fn add_outer_decoded(a: &[f32], u: &[f32], v: &[f32], out: &mut [f32]) {
    add_outer(a, u, v, out);
}
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
    let Scratch { a, b, c, out, .. } = &mut core.scratch;
    core.lrm.load(&u, b)?;
    core.lrm.load(&v, c)?;
    for (row, first, elements) in pieces(&m, 1) {
        out.resize(elements as usize, 0.0);
        if m.format == Format::F32 {
            add_outer_stored(core.lrm.floats(&m, first, elements)?, &b[row..], c, out);
        } else {
            core.lrm.load_part(&m, first, elements, a)?;
            add_outer_decoded(a, &b[row..], c, out);
        }
        if any_non_finite(out) {
            count_infinite(out, &mut core.counters);
            core.lrm.store_part(&to, first, out, &mut core.counters);
        } else {
            core.lrm.store_finite(&to, first, out, &mut core.counters);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{at_each_width, bits};
    use proptest::prelude::*;

    fn floats(words: &[u32]) -> Vec<f32> {
        words.iter().map(|w| f32::from_bits(*w)).collect()
    }

    proptest! {
        /// Rows as stored and as decoded, at every width, as the rule adds them one by one.
        #[test]
        fn the_state_is_worked_on_as_it_lies(
            (rows, cols) in (1usize..6, 1usize..150),
            words in prop::collection::vec(any::<u32>(), 1200),
        ) {
            let all = floats(&words);
            let (a, rest) = all.split_at(rows * cols);
            let (u, v, start) = (&rest[..rows], &rest[8..8 + cols], &rest[160..160 + cols]);
            let stored: Vec<[u8; 4]> = a.iter().map(|v| v.to_le_bytes()).collect();
            let (mut sums, mut outer) = (start.to_vec(), Vec::new());
            for (row, u) in a.chunks(cols).zip(u) {
                for ((sum, a), v) in sums.iter_mut().zip(row).zip(v) {
                    *sum += u * a;
                    outer.push(a + u * v);
                }
            }
            let found = at_each_width(|| {
                let (mut one, mut two) = (start.to_vec(), start.to_vec());
                add_stored_rows(&stored, u, &mut one);
                add_decoded_rows(a, u, &mut two);
                let (mut three, mut four) = (vec![0.0; a.len()], vec![0.0; a.len()]);
                add_outer_stored(&stored, u, v, &mut three);
                add_outer_decoded(a, u, v, &mut four);
                [one, two, three, four].map(|v| bits(&v))
            });
            for [one, two, three, four] in found {
                prop_assert_eq!(&one, &bits(&sums));
                prop_assert_eq!(&two, &bits(&sums));
                prop_assert_eq!(&three, &bits(&outer));
                prop_assert_eq!(&four, &bits(&outer));
            }
        }
    }
}
