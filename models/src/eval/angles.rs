//! The angles by which rotary embedding turns: exact, as published in float32, or given.
//!
//! Element pair j of R/2 turns by position · theta^(−2j/R). The published implementation takes the angle in
//! float32, so at a long position it is off by up to half a unit of the last place of the angle: 8e-3 radians
//! near position 262,144. That is what the published model computes, so it can be asked for.

/// Which angles rotary embedding takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Angles<'a> {
    /// In float64: position · theta^(−2j/R).
    #[default]
    Exact,
    /// As published: `1 / float32(theta^(2j/R))` in float32, times the position in float32, its cosine and
    /// sine rounded to float32.
    Published,
    /// Cosine and sine of each pair, as someone else computed them for this position.
    Given(&'a [(f64, f64)]),
}

impl Angles<'_> {
    /// Cosine and sine of each of the R/2 pairs, R being `rotary`.
    ///
    /// # Errors
    /// Given pairs of another number.
    pub fn turns(self, rotary: usize, theta: f64, position: i64) -> Result<Vec<(f64, f64)>, String> {
        let half = rotary / 2;
        let exponent = |j: usize| 2.0 * j as f64 / rotary as f64;
        Ok(match self {
            Angles::Exact => (0..half)
                .map(|j| position as f64 * libm::pow(theta, -exponent(j)))
                .map(|angle| (libm::cos(angle), libm::sin(angle)))
                .collect(),
            Angles::Published => (0..half)
                .map(|j| published_angle(libm::pow(theta, exponent(j)), position))
                .map(|angle| (f64::from(libm::cos(angle) as f32), f64::from(libm::sin(angle) as f32)))
                .collect(),
            Angles::Given(pairs) if pairs.len() == half => pairs.to_vec(),
            Angles::Given(pairs) => return Err(format!("{half} given angles, not {}", pairs.len())),
        })
    }
}

/// The published inverse frequency of a power `theta^(2j/R)`, bit for bit.
pub fn published_inv_freq(power: f64) -> f32 {
    1.0 / power as f32
}

fn published_angle(power: f64, position: i64) -> f64 {
    f64::from(position as f32 * published_inv_freq(power))
}
