//! A packed weight's tensors, checked, and named by what they are in the canonical form. Nothing is stored: who reads
//! the weight unpacks it again ([`InWords`]).

use crate::contents::Contents;
use crate::error::{PackError, PackFailure};
use crate::in_words::InWords;
use crate::integers::{failed, in_words, named};
use crate::packed::Source;
use crate::resolve::{ResolvedRole, Virtual};
use crate::words::Unpack;
use mica_dtype::Dtype;

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
    let data = in_words(role, unpack, contents)?;
    let scaled = unpack.scaled(&role.shape);
    let scale = match (&role.scale, InWords::scales(role, unpack)) {
        (Some(scale), Some(words)) => Some(named(role, &words, scale.dtype, &scaled, contents)?.0),
        (Some(scale), None) => Some(delivered(role, scale, &scaled, contents)?),
        (None, _) => None,
    };
    let zero = match (&role.zero, InWords::zeros(role, unpack)) {
        (Some(_), Some(words)) => {
            let (zero, any) = named(role, &words, Dtype::I8, &scaled, contents)?;
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
        let bytes = contents.bytes(&tensor.piece(name)).map_err(failed(role))?;
        look(name, &bytes)?;
    }
    Ok(())
}
