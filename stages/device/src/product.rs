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

/// What only the timing model reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a cycle on the external bus: 8, 16 or 32.
    pub bus_bytes: u32,
    /// Clock in MHz, at most 1000.
    pub clock_mhz: u32,
}

impl Product {
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
        let side = match name {
            "qb1" => 8,
            "qb4" => 16,
            "qb16" => 32,
            _ => return None,
        };
        Some(Product { name: name.into(), side, lrm_per_pe: 4096, l2: 8 << 20, entries: 15 })
    }
}
