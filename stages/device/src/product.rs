//! Products: the sizes and caps of the machines of the family, as data.

use serde::{Deserialize, Serialize};

/// The fields that a compiled program depends on. Clock and bandwidth are not among them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    /// `qb1`, `qb4`, `qb16` or a name of the workspace's own.
    pub name: String,
    /// Side of the square array of processing elements.
    pub side: u32,
    /// Local register memory a processing element, in bytes.
    pub lrm_per_pe: u32,
    /// L2 in bytes.
    pub l2: u64,
    /// Entry pointers.
    pub entries: u32,
}

/// The products by name, with the side of their arrays.
pub const FAMILY: [(&str, u32); 3] = [("qb1", 8), ("qb4", 16), ("qb16", 32)];

/// What a product may be had with: the least and the most of what can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// MiB of L2.
    pub l2_mib: (u64, u64),
    /// Clock in MHz.
    pub clock_mhz: (u64, u64),
    /// Bytes a cycle on the external bus.
    pub bus_bytes: (u64, u64),
    /// The widths of the bus that there are.
    pub bus_widths: &'static [u32],
}

/// The caps of the family.
pub const CAPS: Caps =
    Caps { l2_mib: (2, 32), clock_mhz: (1, 1000), bus_bytes: (8, 32), bus_widths: &[8, 16, 32] };

/// What only the timing model reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a cycle on the external bus: 8, 16 or 32.
    pub bus_bytes: u32,
    /// Clock in MHz, at most 1000.
    pub clock_mhz: u32,
}

/// Energy of what a program does, in picojoules: a proxy for comparing programs, not a measurement.
///
/// The ratios are those of a spatial array whose multiplication costs as much as a register access, 1 : 3 : 70 :
/// 225 a 32-bit element for register, local memory, L2 and external memory; the scale is the 640 pJ of a 32-bit
/// read of external memory in 45 nm (Horowitz, ISSCC 2014). `docs/timing.md` says what that is good for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// A multiplication with its addition.
    pub mac_pj: f64,
    /// A byte read from or written to local register memory.
    pub lrm_byte_pj: f64,
    /// A byte read from or written to L2.
    pub l2_byte_pj: f64,
    /// A byte on the external bus.
    pub ddr_byte_pj: f64,
}

impl Energy {
    const fn of(mac: f64, lrm: f64, l2: f64, ddr: f64) -> Energy {
        // from relative costs a 32-bit element
        let unit = 640.0 / 225.0;
        Energy {
            mac_pj: mac * unit,
            lrm_byte_pj: lrm * unit / 4.0,
            l2_byte_pj: l2 * unit / 4.0,
            ddr_byte_pj: ddr * unit / 4.0,
        }
    }
}

impl Product {
    /// What its work costs: one technology for the whole family.
    pub fn energy(&self) -> Energy {
        Energy::of(1.0, 3.0, 70.0, 225.0)
    }
    /// Processing elements.
    pub fn pes(&self) -> u64 {
        u64::from(self.side) * u64::from(self.side)
    }
    /// Local register memory of the whole array, in bytes.
    pub fn lrm(&self) -> u64 {
        self.pes() * u64::from(self.lrm_per_pe)
    }
    /// A product of the family by name.
    pub fn named(name: &str) -> Option<Product> {
        let &(name, side) = FAMILY.iter().find(|(n, _)| *n == name)?;
        Some(Product { name: name.into(), side, lrm_per_pe: 4096, l2: 8 << 20, entries: 15 })
    }
}
