//! `mica check`: one function of a described model, run and compared with a reference.
//!
//! [`subject`] finds the function, its weights and its machine; [`inputs`] what it is run on; [`run`] runs the
//! checked side and its reference step by step; [`predicates`] judge; [`diverge`] says where they part;
//! [`report`] tells it all, as text and as JSON from one value. The checked side is the evaluator or the
//! module's [`twin`] on the simulator.

pub mod constants;
pub mod diverge;
pub mod generated;
pub mod inputs;
pub mod predicates;
pub mod published;
pub mod report;
pub mod run;
pub mod subject;
pub mod twin;

use crate::error::CliError;
use std::fmt;

/// Why a check was not made: misuse, or something that is not there. It is never a disagreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refused {
    /// Refuses with what another error says.
    pub fn because(e: impl fmt::Display) -> Refused {
        Refused(e.to_string())
    }
}

impl From<Refused> for CliError {
    fn from(r: Refused) -> CliError {
        CliError::Usage(r.0)
    }
}
