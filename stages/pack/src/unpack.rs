//! A packed weight's tensors, read matrix by matrix, checked, and stored again in the canonical form.

use crate::contents::Contents;
use crate::dtype::Dtype;
use crate::error::{PackError, PackFailure};
use crate::packed::Source;
use crate::resolve::{ResolvedRole, Virtual};
use crate::words::Unpack;

/// A weight in its canonical form.
pub(crate) struct Unpacked {
    pub data: Source,
    pub scale: Option<Source>,
    /// `None` also where all zero points are 0, so that a symmetric weight in an asymmetric format is what
    /// it is.
    pub zero: Option<Source>,
}

/// Unpacks what has to be; scales that lie as they should stay in the delivery.
pub(crate) fn unpacked<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    published: &[u64],
    contents: &mut C,
) -> Result<Unpacked, PackFailure<C::Error>> {
    check_order(role, unpack, contents)?;
    check_shape(role, unpack, contents)?;
    let data = each(role, &role.data, contents, |_, words| Ok(unpack.containers(words)))?;
    let data = store(role, Dtype::I8, published.to_vec(), data, contents)?;
    let scaled = unpack.scaled(published);
    let scale = match &role.scale {
        Some(scale) if unpack.transposed() => {
            let width = scale.dtype.bytes() as usize;
            let bytes = each(role, scale, contents, |_, stored| Ok(unpack.scales(stored, width)))?;
            Some(store(role, scale.dtype, scaled.clone(), bytes, contents)?)
        }
        Some(scale) => {
            let digest = contents.digest(scale).map_err(failed(role))?;
            Some(Source { digest, dtype: scale.dtype, shape: scaled.clone() })
        }
        None => None,
    };
    let zero = match &role.zero {
        Some(zero) => {
            let bytes = each(role, zero, contents, |tensor, stored| {
                if zero.dtype == Dtype::I8 {
                    return Ok(stored.to_vec());
                }
                unpack.zeros(stored).map_err(|bad| PackError::ZeroPoint {
                    role: role.role.clone(),
                    tensor: tensor.to_owned(),
                    row: bad.place[0],
                    group: bad.place[1],
                    stored: bad.stored,
                    reason: bad.reason,
                })
            })?;
            let any = bytes.iter().any(|&zero| zero != 0);
            any.then(|| store(role, Dtype::I8, scaled, bytes, contents)).transpose()?
        }
        None => None,
    };
    Ok(Unpacked { data, scale, zero })
}

/// Every column's group has to be the one of its place.
fn check_order<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &mut C,
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
        Ok(Vec::new())
    })?;
    Ok(())
}

/// A shape stated in a tensor has to be the weight's.
fn check_shape<C: Contents>(
    role: &ResolvedRole,
    unpack: &Unpack,
    contents: &mut C,
) -> Result<(), PackFailure<C::Error>> {
    let Some(stated) = &role.stated else { return Ok(()) };
    each(role, stated, contents, |tensor, stored| {
        let found: Vec<i64> = if stated.dtype == Dtype::I64 {
            stored.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()
        } else {
            stored.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect()
        };
        if found == [unpack.rows as i64, unpack.cols as i64] {
            return Ok(Vec::new());
        }
        let (role, tensor, expected) = (role.role.clone(), tensor.to_owned(), vec![unpack.rows, unpack.cols]);
        Err(PackError::StatedShape { role, tensor, found, expected })
    })?;
    Ok(())
}

/// What `convert` makes of each piece, joined. One piece is in memory at a time, beside the result.
fn each<C: Contents>(
    role: &ResolvedRole,
    tensor: &Virtual,
    contents: &mut C,
    convert: impl Fn(&str, &[u8]) -> Result<Vec<u8>, PackError>,
) -> Result<Vec<u8>, PackFailure<C::Error>> {
    let mut out = Vec::new();
    let shape = if tensor.pieces.len() > 1 { &tensor.shape[1..] } else { &tensor.shape[..] };
    for name in &tensor.pieces {
        let piece = Virtual { pieces: vec![name.clone()], dtype: tensor.dtype, shape: shape.to_vec() };
        let bytes = contents.bytes(&piece).map_err(failed(role))?;
        out.append(&mut convert(name, &bytes)?);
    }
    Ok(out)
}

fn store<C: Contents>(
    role: &ResolvedRole,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: Vec<u8>,
    contents: &mut C,
) -> Result<Source, PackFailure<C::Error>> {
    let digest = contents.store(dtype, &shape, bytes).map_err(failed(role))?;
    Ok(Source { digest, dtype, shape })
}

pub(crate) fn failed<E>(role: &ResolvedRole) -> impl Fn(E) -> PackFailure<E> {
    move |error| PackFailure::Contents { role: role.role.clone(), error }
}
