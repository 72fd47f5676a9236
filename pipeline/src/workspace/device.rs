//! What the file says of devices: `[device.…]`, and the machine that this is once it is within its product's caps.
//!
//! What a machine can do is `mica_device`'s; no model is known here.

use crate::error::CliError;
use mica_device::object::Constants;
use mica_device::product::{CAPS, FAMILY, Product, Rates};
use serde::Deserialize;
use std::ops::RangeInclusive;

/// A device: a product and what may be said about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// `qb1`, `qb4` or `qb16`.
    pub product: String,
    /// L2 in MiB, 2 to 32.
    #[serde(default)]
    pub l2_mib: Option<u64>,
    /// Bytes a cycle on the external bus: 8, 16 or 32.
    #[serde(default = "default_bus")]
    pub bus_bytes: u32,
    /// Clock in MHz.
    #[serde(default = "default_clock")]
    pub clock_mhz: u32,
    /// Fraction bits of the residual stream.
    #[serde(default = "default_frac")]
    pub frac: u8,
    /// Where kernels get their constants from: `baked`, or on `edges`, an entry a part.
    #[serde(default)]
    pub constants: Constants,
}

fn default_bus() -> u32 {
    32
}
fn default_clock() -> u32 {
    1000
}
fn default_frac() -> u8 {
    20
}

/// A device within its caps, and what was clamped.
pub struct Machine {
    /// What programs depend on.
    pub product: Product,
    /// What the timing model reads.
    pub rates: Rates,
    /// Fraction bits of the residual stream.
    pub frac: u8,
    /// Where kernels get their constants from.
    pub constants: Constants,
    /// One line a clamped value.
    pub warnings: Vec<String>,
}

/// Fraction bits that the residual stream can have.
pub const FRAC: RangeInclusive<u8> = 8..=28;

impl Device {
    /// A product at its usual rates.
    pub fn usual(product: &str) -> Device {
        Device {
            product: product.into(),
            l2_mib: None,
            bus_bytes: default_bus(),
            clock_mhz: default_clock(),
            frac: default_frac(),
            constants: Constants::default(),
        }
    }

    /// The machine, requests above a cap clamped with one warning each. Errors on a product that does
    /// not exist and on values that no clamp mends.
    pub fn machine(&self, name: &str) -> Result<Machine, CliError> {
        let mut product = Product::named(&self.product).ok_or_else(|| CliError::Config {
            what: format!("[device.{name}] product = {:?}", self.product),
            why: format!("there are {}", FAMILY.map(|(name, _)| name).join(", ")),
        })?;
        let mut warnings = Vec::new();
        let mut clamp = |what: &str, value: u64, (low, high): (u64, u64)| {
            let kept = value.clamp(low, high);
            if kept != value {
                warnings.push(format!(
                    "[device.{name}] {what} = {value}: {} has {low} to {high}; {kept} is used",
                    self.product
                ));
            }
            kept
        };
        if let Some(mib) = self.l2_mib {
            product.l2 = clamp("l2_mib", mib, CAPS.l2_mib) << 20;
        }
        let clock = clamp("clock_mhz", self.clock_mhz.into(), CAPS.clock_mhz) as u32;
        let bus = clamp("bus_bytes", self.bus_bytes.into(), CAPS.bus_bytes) as u32;
        if !CAPS.bus_widths.contains(&bus) {
            return Err(CliError::Config {
                what: format!("[device.{name}] bus_bytes = {bus}"),
                why: "the external bus moves 8, 16 or 32 bytes a cycle".into(),
            });
        }
        if !FRAC.contains(&self.frac) {
            return Err(CliError::Config {
                what: format!("[device.{name}] frac = {}", self.frac),
                why: format!("the residual stream has {} to {} fraction bits", FRAC.start(), FRAC.end()),
            });
        }
        Ok(Machine {
            product,
            rates: Rates { bus_bytes: bus, clock_mhz: clock },
            frac: self.frac,
            constants: self.constants,
            warnings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_above_a_cap_is_clamped_with_one_warning_each() {
        let d = Device { clock_mhz: 1400, bus_bytes: 64, ..Device::usual("qb16") };
        let m = d.machine("sim").unwrap();
        assert_eq!((m.rates.clock_mhz, m.rates.bus_bytes), (1000, 32));
        assert_eq!(m.warnings.len(), 2);
        assert!(m.warnings[0].contains("clock_mhz = 1400"), "{:?}", m.warnings);
    }
}
