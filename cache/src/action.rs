//! What is remembered of an action that ran: the names of its outputs, never their bytes.

use crate::Digest;
use serde::{Deserialize, Serialize};

/// Outputs whose name starts so are state-class: cheap to lose, so gc takes them first.
pub const STATE_PREFIX: &str = "state";

/// The result of one action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionRecord {
    /// Its outputs, in the stage's own order.
    pub outputs: Vec<Output>,
    /// How long it took, in milliseconds. Never part of a key.
    pub wall_ms: u64,
    /// A small value that the stage owns, as encoded by [`crate::encode`]; may be empty.
    pub note: Vec<u8>,
}

/// One output: a blob and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// What the stage calls it.
    pub name: String,
    /// The blob.
    pub digest: Digest,
    /// Its size in bytes, so that one stat tells whether it is still there.
    pub size: u64,
}

impl Output {
    /// Whether this is a state-class output, which may be missing from a record that still holds.
    #[must_use]
    pub fn is_state(&self) -> bool {
        self.name.starts_with(STATE_PREFIX)
    }
}
