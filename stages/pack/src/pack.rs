//! From a resolved part to the packed layer: names become digests.

use crate::contents::Contents;
use crate::convert::{convert, keeps_order};
use crate::error::PackFailure;
use crate::integers::{failed, in_containers};
use crate::packed::{PackedLayer, PackedTensor, Source};
use crate::resolve::{Resolved, ResolvedRole, Virtual};
use crate::unpack::{Unpacked, unpacked};

/// Names a part's weights by content. A weight whose converter moves elements is read, converted and stored; integers
/// are read where their name is not that of a delivered tensor; of the others only digests are asked for.
///
/// # Errors
/// A converter that does not lay out its weight; packed tensors whose order, stated shape or zero points are
/// not what they have to be; whatever `contents` says, with the role.
pub fn pack<C: Contents>(
    resolved: &Resolved,
    contents: &mut C,
) -> Result<PackedLayer, PackFailure<C::Error>> {
    let tensors = resolved.roles.iter().map(|role| tensor(role, contents));
    Ok(PackedLayer {
        kind: resolved.kind.clone(),
        fused: resolved.fused.clone(),
        tensors: tensors.collect::<Result<_, _>>()?,
    })
}

fn tensor<C: Contents>(role: &ResolvedRole, contents: &mut C) -> Result<PackedTensor, PackFailure<C::Error>> {
    if let Some(unpack) = &role.unpack {
        // A packed weight has no converter: its own shape is the published one.
        let Unpacked { data, scale, zero } = unpacked(role, unpack, contents)?;
        let (role, weight_use, shape) = (role.role.clone(), role.weight_use, role.shape.clone());
        return Ok(PackedTensor { role, weight_use, shape, data, scale, zero });
    }
    let data = match &role.converter {
        Some(converter) if !keeps_order(converter) => {
            let published = contents.bytes(&role.data).map_err(failed(role))?;
            let (dtype, shape) = (role.data.dtype, role.shape.clone());
            let bytes = convert(&role.role, converter, &shape, &published, dtype.bytes() as usize)?;
            let digest = contents.store(dtype, &shape, bytes).map_err(failed(role))?;
            Source { digest, dtype, shape }
        }
        _ if role.scale.is_some() => in_containers(role, contents)?,
        _ => source(role, &role.data, contents)?,
    };
    let mut companion =
        |tensor: &Option<Virtual>| tensor.as_ref().map(|t| source(role, t, contents)).transpose();
    Ok(PackedTensor {
        role: role.role.clone(),
        weight_use: role.weight_use,
        shape: role.shape.clone(),
        data,
        scale: companion(&role.scale)?,
        zero: companion(&role.zero)?,
    })
}

fn source<C: Contents>(
    role: &ResolvedRole,
    tensor: &Virtual,
    contents: &mut C,
) -> Result<Source, PackFailure<C::Error>> {
    let digest = contents.digest(tensor).map_err(failed(role))?;
    Ok(Source { digest, dtype: tensor.dtype, shape: tensor.shape.clone() })
}
