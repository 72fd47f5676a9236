//! A packed weight's tensors, read matrix by matrix, checked, and named by what they are in the canonical form.
//! Nothing is stored: who reads the weight unpacks it again ([`InWords`]).

use crate::contents::Contents;
use crate::dtype::Dtype;
use crate::error::{PackError, PackFailure};
use crate::in_words::InWords;
use crate::packed::Source;
use crate::resolve::{ResolvedRole, Virtual};
use crate::words::{BadZero, Unpack};
use rayon::prelude::*;
use std::borrow::Cow;

/// Canonical bytes that are made and hashed at a time, or those of one matrix.
const BATCH: u64 = 8 << 20;
/// Rows that one thread unpacks at a time; a multiple of what a word holds.
const ROWS: u64 = 64;

/// A weight in its canonical form.
pub(crate) struct Unpacked {
    pub data: Source,
    pub scale: Option<Source>,
    /// `None` also where all zero points are 0, so that a symmetric weight in an asymmetric format is what
    /// it is.
    pub zero: Option<Source>,
}

/// Names what has to be unpacked; scales and zero points that lie as they should are the delivery's own.
pub(crate) fn unpacked<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &mut C,
) -> Result<Unpacked, PackFailure<C::Error>> {
    check_order(role, unpack, contents)?;
    check_shape(role, unpack, contents)?;
    let (data, _) = named(role, &InWords::containers(role, unpack), Dtype::I8, &role.shape, contents)?;
    let scaled = unpack.scaled(&role.shape);
    let scale = match (&role.scale, InWords::scales(role, unpack)) {
        (Some(scale), Some(lies)) => Some(named(role, &lies, scale.dtype, &scaled, contents)?.0),
        (Some(scale), None) => Some(delivered(role, scale, &scaled, contents)?),
        (None, _) => None,
    };
    let zero = match (&role.zero, InWords::zeros(role, unpack)) {
        (Some(_), Some(lies)) => {
            let (zero, any) = named(role, &lies, Dtype::I8, &scaled, contents)?;
            any.then_some(zero)
        }
        (Some(zero), None) => {
            let mut any = false;
            each(role, zero, contents, |_, stored| {
                any |= stored.iter().any(|&zero| zero != 0);
                Ok(())
            })?;
            any.then(|| delivered(role, zero, &scaled, contents)).transpose()?
        }
        (None, _) => None,
    };
    Ok(Unpacked { data, scale, zero })
}

/// A tensor that is in the delivery as it should be.
fn delivered<C: Contents>(
    role: &ResolvedRole,
    tensor: &Virtual,
    shape: &[u64],
    contents: &mut C,
) -> Result<Source, PackFailure<C::Error>> {
    let digest = contents.digest(tensor).map_err(failed(role))?;
    Ok(Source { digest, dtype: tensor.dtype, shape: shape.to_vec() })
}

/// The canonical tensor by content, and whether any byte of it is not 0. A few matrices are in memory at a time.
fn named<C: Contents>(
    role: &ResolvedRole,
    lies: &InWords,
    dtype: Dtype,
    shape: &[u64],
    contents: &C,
) -> Result<(Source, bool), PackFailure<C::Error>> {
    let mut hasher = contents.hasher(dtype, shape).map_err(failed(role))?;
    let mut any = false;
    let matrix = lies.rows() * lies.row_bytes();
    let strip = (ROWS * lies.row_bytes()) as usize;
    let strips = matrix.div_ceil(strip as u64) as usize;
    let mut made = Vec::new();
    for names in lies.tensor.pieces.chunks((BATCH / matrix).max(1) as usize) {
        let stored = names.iter().map(|name| contents.bytes(&piece(&lies.tensor, name)));
        let stored: Vec<Cow<'_, [u8]>> = stored.collect::<Result<_, _>>().map_err(failed(role))?;
        made.resize(names.len() * matrix as usize, 0);
        let work = made.chunks_mut(matrix as usize).flat_map(|made| made.chunks_mut(strip)).enumerate();
        let unpacked: Vec<Result<(), BadZero>> = work
            .collect::<Vec<_>>()
            .into_par_iter()
            .map(|(at, made)| {
                let first = (at % strips) as u64 * ROWS;
                lies.unpack(&stored[at / strips], first..lies.rows().min(first + ROWS), made)
            })
            .collect();
        // in order, so that the first is the one told of
        for (at, result) in unpacked.into_iter().enumerate() {
            result.map_err(|bad| PackError::ZeroPoint {
                role: role.role.clone(),
                tensor: names[at / strips].clone(),
                row: bad.place[0],
                group: bad.place[1],
                stored: bad.stored,
                reason: bad.reason,
            })?;
        }
        any |= made.iter().any(|&byte| byte != 0);
        hasher.update_rayon(&made);
    }
    Ok((Source { digest: hasher.finalize(), dtype, shape: shape.to_vec() }, any))
}

/// One piece of a tensor.
fn piece(tensor: &Virtual, name: &str) -> Virtual {
    let shape = if tensor.pieces.len() > 1 { &tensor.shape[1..] } else { &tensor.shape[..] };
    Virtual { pieces: vec![name.into()], dtype: tensor.dtype, shape: shape.to_vec() }
}

/// Every column's group has to be the one of its place.
fn check_order<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &C,
) -> Result<(), PackFailure<C::Error>> {
    let Some(order) = &role.order else { return Ok(()) };
    let group = unpack.cols / unpack.groups;
    each(role, order, contents, |tensor, stored| {
        for (column, &bytes) in (0..).zip(stored.as_chunks().0) {
            let (found, expected) = (i32::from_le_bytes(bytes), column / group);
            if i64::from(found) != expected as i64 {
                let (role, tensor) = (role.role.clone(), tensor.to_owned());
                return Err(PackError::Reordered { role, tensor, column, found, expected });
            }
        }
        Ok(())
    })
}

/// A shape stated in a tensor has to be the weight's.
fn check_shape<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &C,
) -> Result<(), PackFailure<C::Error>> {
    let Some(stated) = &role.stated else { return Ok(()) };
    each(role, stated, contents, |tensor, stored| {
        let found: Vec<i64> = if stated.dtype == Dtype::I64 {
            stored.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()
        } else {
            stored.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect()
        };
        if found == [unpack.rows as i64, unpack.cols as i64] {
            return Ok(());
        }
        let (role, tensor, expected) = (role.role.clone(), tensor.to_owned(), vec![unpack.rows, unpack.cols]);
        Err(PackError::StatedShape { role, tensor, found, expected })
    })
}

/// Looks at each piece's bytes, one at a time.
fn each<C: Contents>(
    role: &ResolvedRole,
    tensor: &Virtual,
    contents: &C,
    mut look: impl FnMut(&str, &[u8]) -> Result<(), PackError>,
) -> Result<(), PackFailure<C::Error>> {
    for name in &tensor.pieces {
        let bytes = contents.bytes(&piece(tensor, name)).map_err(failed(role))?;
        look(name, &bytes)?;
    }
    Ok(())
}

pub(crate) fn failed<E>(role: &ResolvedRole) -> impl Fn(E) -> PackFailure<E> {
    move |error| PackFailure::Contents { role: role.role.clone(), error }
}
