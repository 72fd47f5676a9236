//! Where an element of a packed weight lies in the delivery: packing the other way round, for whoever has to name it to
//! the publisher.

use crate::convert::{keeps_order, order};
use crate::resolve::{ResolvedRole, Virtual};

impl ResolvedRole {
    /// The delivered tensor that has element `index` of the packed weight (counted row-major over its
    /// [shape](ResolvedRole::shape)), and the element's indices in it, outermost first; `None` where it lies in words,
    /// or nowhere.
    #[must_use]
    pub fn delivered(&self, index: u64) -> Option<(&str, Vec<u64>)> {
        if self.unpack.is_some() {
            return None;
        }
        let published = match &self.converter {
            Some(c) if !keeps_order(c) => {
                *order(&self.role, c, &self.shape).ok()?.get(usize::try_from(index).ok()?)? as u64
            }
            _ => index,
        };
        within(&self.data, published)
    }

    /// The same of scale `index` of the packed weight, counted row-major over `[.., rows, groups]`.
    #[must_use]
    pub fn delivered_scale(&self, index: u64) -> Option<(&str, Vec<u64>)> {
        let scale = self.scale.as_ref()?;
        let Some(unpack) = self.unpack.filter(|u| u.transposed()) else { return within(scale, index) };
        // groups outermost, a matrix a tensor
        let (row, group) = (index / unpack.groups, index % unpack.groups);
        let tensor = scale.pieces.get((row / unpack.rows) as usize)?;
        Some((tensor, vec![group, row % unpack.rows]))
    }
}

/// The piece that has an element of a tensor, and the indices in it.
fn within(tensor: &Virtual, index: u64) -> Option<(&str, Vec<u64>)> {
    let each = tensor.shape.iter().product::<u64>().checked_div(tensor.pieces.len() as u64)?;
    let name = tensor.pieces.get(usize::try_from(index.checked_div(each)?).ok()?)?;
    let mut rest = index % each;
    let mut at = tensor.piece(name).shape;
    for axis in at.iter_mut().rev() {
        let extent = *axis;
        *axis = rest % extent;
        rest /= extent;
    }
    Some((name, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Packing, Unpack};
    use mica_dtype::Dtype;
    use mica_models::analysis::WeightUse;
    use mica_models::hir::{Builder, Type};

    fn role(pieces: &[&str], shape: &[u64]) -> ResolvedRole {
        let pieces = pieces.iter().map(ToString::to_string).collect();
        ResolvedRole {
            role: "w".into(),
            weight_use: WeightUse::Matrix,
            data: Virtual { pieces, dtype: Dtype::BF16, shape: shape.to_vec() },
            scale: None,
            zero: None,
            unpack: None,
            order: None,
            stated: None,
            converter: None,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn elements_are_found_in_the_tensor_that_was_delivered() {
        let whole = role(&["whole"], &[2, 3, 4]);
        assert_eq!(whole.delivered(0), Some(("whole", vec![0, 0, 0])));
        assert_eq!(whole.delivered(23), Some(("whole", vec![1, 2, 3])));
        assert_eq!(whole.delivered(24), None);
        // two experts, each of two tensors of two rows
        let pieces = role(&["0.gate", "0.up", "1.gate", "1.up"], &[2, 4, 3]);
        assert_eq!(pieces.delivered(5), Some(("0.gate", vec![1, 2])));
        assert_eq!(pieces.delivered(6), Some(("0.up", vec![0, 0])));
        assert_eq!(pieces.delivered(23), Some(("1.up", vec![1, 2])));
    }

    #[test]
    fn what_was_laid_out_anew_is_found_where_it_was() {
        let mut b = Builder::new("time_major");
        let published = b.param("published", Type::new(mica_models::hir::Dtype::BF16, &[5, 1, 3]));
        let flat = b.reshape(published, &[5, 3]).unwrap();
        let weight = b.transpose(flat, &[1, 0]).unwrap();
        b.result("weight", weight);
        let mut conv = role(&["conv1d"], &[5, 1, 3]);
        conv.converter = Some(b.finish().unwrap());
        conv.shape = vec![3, 5];
        // tap 1 of channel 4
        assert_eq!(conv.delivered(9), Some(("conv1d", vec![4, 0, 1])));
        assert_eq!(conv.delivered(15), None);
    }

    #[test]
    fn scales_are_found_beside_containers_and_words() {
        let mut of = role(&["gate", "up"], &[4, 32]);
        let scale = |shape: &[u64]| Some(Virtual { shape: shape.to_vec(), ..role(&["s0", "s1"], &[]).data });
        of.scale = scale(&[4, 2]);
        assert_eq!(of.delivered_scale(5), Some(("s1", vec![0, 1])));
        let (packing, bits) = (Packing::Awq, 4);
        of.unpack = Some(Unpack { packing, bits, rows: 2, cols: 32, groups: 2, symmetric: true });
        of.scale = scale(&[4, 2]);
        assert_eq!(of.delivered_scale(5), Some(("s1", vec![1, 0])));
        assert_eq!(of.delivered_scale(8), None);
        assert_eq!(of.delivered(0), None, "it lies in words");
    }
}
