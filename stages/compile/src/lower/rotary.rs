//! Rotary embedding. The frequencies are literals, computed as the published models do, in f32:
//! `1 / theta^(2j/rotary)` with the power rounded once.

use super::{Lower, Tensor};
use crate::error::CompileError;
use crate::ir::build::{self, Place};
use mica_device::format::Format;
use mica_device::layout::ALIGN;
use mica_device::object::Symbol;
use mica_models::hir::ValueId;

/// What a rotary table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rotation {
    /// The position, and whose it is.
    position: ValueId,
    token: u64,
    /// Rotating elements, and the bits of their base.
    elements: u64,
    base: u64,
}

/// The frequencies of `rotary` rotating elements, `rotary / 2` of them.
pub(super) fn frequencies(rotary: u64, theta: f64) -> Vec<f32> {
    (0..rotary / 2)
        .map(|j| {
            let exponent = (2 * j) as f32 / rotary as f32;
            1.0 / libm::pow(theta, f64::from(exponent)) as f32
        })
        .collect()
}

impl Lower<'_> {
    /// Offset of f32 literals in the part's literals.
    pub(super) fn literal(&mut self, values: &[f32]) -> u64 {
        let all = &mut self.program.literals;
        all.resize(all.len().next_multiple_of(ALIGN as usize), 0);
        let at = all.len() as u64;
        all.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        at
    }

    /// cos and sin at a position, made once for all who rotate by it.
    fn rotation(&mut self, pos: ValueId, rotary: u64, theta: f64) -> Result<(Tensor, Tensor), CompileError> {
        let (position, token, base) = (self.g.root(pos), self.token, theta.to_bits());
        let key = Rotation { position, token, elements: rotary, base };
        if let Some((_, cos, sin)) = self.rotations.iter().find(|(k, _, _)| *k == key) {
            return Ok((cos.clone(), sin.clone()));
        }
        let freq = self.frequencies(rotary, theta);
        let n = freq.count();
        let (cos, sin) = (self.fresh(&[n], Format::F32), self.fresh(&[n], Format::F32));
        self.scoped(|l| {
            let pos = l.scalar_of(pos)?;
            l.emit(build::vsincos(cos.tile(), sin.tile(), freq.tile(), pos));
            Ok(())
        })?;
        self.rotations.push((key, cos.clone(), sin.clone()));
        Ok((cos, sin))
    }

    /// The frequencies in LRM, loaded once.
    fn frequencies(&mut self, rotary: u64, theta: f64) -> Tensor {
        let key = (rotary, theta.to_bits());
        if let Some((_, freq)) = self.frequencies.iter().find(|(k, _)| *k == key) {
            return freq.clone();
        }
        let values = frequencies(rotary, theta);
        let at = self.literal(&values);
        let n = values.len() as u64;
        let span = self.fetch(&Place::new(Symbol::Literals, at), n * Format::F32.bytes());
        let freq = self.load(span, Format::F32, &[n]);
        self.frequencies.push((key, freq.clone()));
        freq
    }

    pub(super) fn rope(
        &mut self,
        x: ValueId,
        pos: ValueId,
        rotary: u64,
        theta: f64,
    ) -> Result<Tensor, CompileError> {
        let x = self.tensor(x)?;
        let (cos, sin) = self.rotation(pos, rotary, theta)?;
        let to = self.out(&x.shape, Format::F32);
        self.emit(build::vrot(to.tile(), x.tile(), cos.tile(), sin.tile(), rotary as u32));
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::frequencies;

    #[test]
    fn frequencies_fall_from_one() {
        let f = frequencies(16, 1e7);
        assert_eq!(f.len(), 8);
        assert_eq!(f[0], 1.0);
        assert_eq!(f[4], 1.0 / 3162.2776_f32);
        assert!(f.is_sorted_by(|a, b| a > b));
    }
}
