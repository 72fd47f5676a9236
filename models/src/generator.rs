//! Tensors whose every element is a function of a seed, the tensor's name and the element's index, so that
//! whoever knows the name makes any element, any row or the whole. They stand for weights that are too large
//! to ship, and for random inputs.
//!
//! SplitMix64 started from the seed and the name's FNV-1a; the top 24 bits of an output are a number in
//! [−1, 1), which is scaled and shifted in float32 and rounded to the stored dtype. No fused multiply–add.

use crate::eval::round::round_through;
use crate::hir::Dtype;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The generator of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generator {
    start: u64,
    dtype: Dtype,
    scale: f32,
    offset: f32,
}

impl Generator {
    /// Elements `scale · v + offset`, v in [−1, 1), stored as `dtype`.
    pub fn new(name: &str, seed: u64, dtype: Dtype, scale: f32, offset: f32) -> Generator {
        Generator { start: seed.wrapping_add(fnv1a64(name)), dtype, scale, offset }
    }

    /// The 64 random bits of element `i`.
    pub fn bits(&self, i: u64) -> u64 {
        splitmix64(self.start.wrapping_add(i.wrapping_mul(STEP)))
    }

    /// Element `i`, counted in row-major order.
    pub fn element(&self, i: u64) -> f64 {
        let value = self.float(i);
        match self.dtype {
            Dtype::BF16 => half::bf16::from_f32(value).to_f64(),
            dtype => round_through(dtype, f64::from(value)),
        }
    }

    /// Element `i` before it is rounded to the stored dtype.
    fn float(&self, i: u64) -> f32 {
        let v = ((self.bits(i) >> 40) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 23) as f32);
        self.scale * v + self.offset
    }

    /// Appends the stored little-endian bytes of `count` elements from `first`.
    pub fn bytes(&self, first: u64, count: u64, out: &mut Vec<u8>) {
        let elements = (first..first + count).map(|i| self.float(i));
        match self.dtype {
            Dtype::BF16 => elements.for_each(|v| out.extend(half::bf16::from_f32(v).to_le_bytes())),
            Dtype::F16 => elements.for_each(|v| out.extend(half::f16::from_f32(v).to_le_bytes())),
            Dtype::F32 => elements.for_each(|v| out.extend(v.to_le_bytes())),
            Dtype::I64 => elements.for_each(|v| out.extend((v as i64).to_le_bytes())),
        }
    }

    /// A number below `n` from element `i`'s bits, n from 1; each equally likely but for n / 2^64.
    pub fn below(&self, i: u64, n: u64) -> u64 {
        ((u128::from(self.bits(i)) * u128::from(n)) >> 64) as u64
    }
}

/// FNV-1a of a name's bytes.
pub fn fnv1a64(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// One output of SplitMix64 from its state, the increment inside.
pub fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(1_234_567), 6_457_827_717_110_365_317);
        // The worked example of the production vectors.
        let name = "model.language_model.layers.0.input_layernorm.weight";
        assert_eq!(fnv1a64(name), 0x5dd9_4404_c191_9a32);
        let g = Generator::new(name, 10, Dtype::BF16, 0.25, 0.125);
        let elements: Vec<f64> = (0..4).map(|i| g.element(i)).collect();
        assert_eq!(elements, [0.130859375, 0.283203125, 0.017822265625, -0.11181640625]);
        let mut bytes = Vec::new();
        g.bytes(0, 2, &mut bytes);
        assert_eq!(bytes, [0x06, 0x3e, 0x91, 0x3e]);
    }

    #[test]
    fn numbers_below_a_bound() {
        let g = Generator::new("ids", 1, Dtype::I64, 1.0, 0.0);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|i| g.below(i, 7)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    }
}
