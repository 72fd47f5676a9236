//! What consecutive tokens leave, however many of them a call took.
//!
//! Bytes by name: what they mean is not known here.

use super::Shape;
use mica_simulate::Counters;
use std::collections::BTreeMap;

/// What a run left.
#[derive(Debug, Default, PartialEq)]
pub struct Run {
    /// Outputs that are neither states nor rows, the tokens' one after the other.
    pub outputs: BTreeMap<String, Vec<u8>>,
    /// How to read them.
    pub shapes: BTreeMap<String, Shape>,
    /// States after the last token.
    pub states: BTreeMap<String, Vec<u8>>,
    /// Rows appended to each cache, token after token.
    pub rows: BTreeMap<String, Vec<u8>>,
    /// Counted events.
    pub counters: Counters,
}

impl Run {
    /// Adds what the tokens after these left.
    pub(super) fn append(&mut self, then: Run) {
        for (name, bytes) in then.outputs {
            self.outputs.entry(name).or_default().extend(bytes);
        }
        for (name, bytes) in then.rows {
            self.rows.entry(name).or_default().extend(bytes);
        }
        self.shapes.extend(then.shapes);
        self.states = then.states;
        self.counters += then.counters;
    }
}
