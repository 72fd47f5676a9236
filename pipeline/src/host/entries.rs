//! What the names of a kernel's entries say: which inputs are states, and where those leave.
//!
//! Nothing else of an entry is looked at but its direction.

use mica_device::object::{Direction, Entry, Kernel};

/// An entry's name without its direction.
pub(super) fn base(e: &Entry) -> &str {
    e.name.rsplit_once('.').map_or(&e.name, |(base, _)| base)
}

/// The name of the edge on which a state leaves.
pub(super) fn left_as(e: &Entry) -> String {
    format!("{}.out", base(e))
}

/// The entry of a name.
pub(super) fn find<'k>(kernel: &'k Kernel, name: &str) -> Option<&'k Entry> {
    kernel.entries.iter().find(|e| e.name == name)
}

/// Inputs that leave and return under one name.
pub(super) fn states(kernel: &Kernel) -> Vec<&Entry> {
    let ins = kernel.entries.iter().filter(|e| e.direction == Direction::In && base(e) != "hidden");
    ins.filter(|e| find(kernel, &left_as(e)).is_some()).collect()
}
