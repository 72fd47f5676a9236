//! What a validation's first part is given.

/// Where the hidden rows come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// A captured tensor, `[steps, hidden]`.
    Captured(String),
    /// Numbers that only look random.
    Seeded(Seeded),
    /// None: the part takes token ids, the prompt's and then every id of the table.
    Ids,
}

/// Uniform numbers in ±`range`, the same on every machine for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// The seed.
    pub seed: u64,
    /// The largest magnitude.
    pub range: u32,
}

impl Seeded {
    /// `n` numbers, each exact in float32.
    pub fn values(self, n: usize) -> Vec<f64> {
        let mut state = self.seed;
        let mut next = || {
            // SplitMix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let unit = 1.0 / f64::from(1u32 << 23);
        (0..n).map(|_| (((next() >> 40) as f64) * unit - 1.0) * f64::from(self.range)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_numbers_repeat_stay_in_range_and_are_spread() {
        let of = |seed| Seeded { seed, range: 2 }.values(1000);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert!(of(7).iter().all(|v| v.abs() <= 2.0 && f64::from(*v as f32) == *v));
        let mean = of(7).iter().sum::<f64>() / 1000.0;
        assert!(mean.abs() < 0.1, "{mean}");
    }
}
