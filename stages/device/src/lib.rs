//! The virtual accelerator `vg1` as data: products, number formats, the weight layout, the
//! instruction set, and the objects that `compile` emits and `simulate` runs.
//!
//! It knows neither who emits instructions nor how they are executed, no model, no file and no
//! cache. The rules behind these types are stated in `docs/spec/device.md`.

pub mod access;
pub mod asm;
pub mod check;
pub mod disasm;
pub mod format;
pub mod hazards;
pub mod isa;
pub mod layout;
pub mod object;
pub mod product;
pub mod segment;
pub mod signature;
pub mod tile;

/// The version of the arithmetic rules in `docs/spec/device.md`. It is part of the key of every
/// action whose result depends on them; raise it whenever a rule there changes a bit.
pub const NUMERICS: u32 = 1;
