//! Who a capture file itself says that it was made by.
//!
//! A file of our own evaluator is labelled in its metadata, so that it stays what it is under any workspace. A
//! publisher's files have no such label.

use std::fmt;

use crate::error::FetchError;
use crate::files::DeliveryFiles;
use crate::safetensors_header;

/// The metadata's key for who made a capture file.
pub const MADE_BY: &str = "mica.made_by";
/// The metadata's key for what computed it, with its version.
pub const EVALUATOR: &str = "mica.evaluator";
/// The word for our own evaluator under [`MADE_BY`].
pub const SELF: &str = "self";

/// The label of a capture file that our own evaluator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfMade {
    /// What computed it, with its version, where the file says so.
    pub evaluator: Option<String>,
}

impl fmt::Display for SelfMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.evaluator {
            Some(evaluator) => write!(f, "self, {evaluator}"),
            None => f.write_str(SELF),
        }
    }
}

/// The label of capture file `file`, if it is one of our own.
///
/// # Errors
/// If its header cannot be read, or the label is a word that this reader does not know.
pub fn self_made(files: &dyn DeliveryFiles, file: u32) -> Result<Option<SelfMade>, FetchError> {
    let path = files.path(file);
    if path.extension().is_none_or(|e| e != "safetensors") {
        return Ok(None);
    }
    let mut said = safetensors_header::metadata(&path, files.bytes(file)?)?;
    match said.remove(MADE_BY) {
        None => Ok(None),
        Some(word) if word == SELF => Ok(Some(SelfMade { evaluator: said.remove(EVALUATOR) })),
        Some(word) => Err(FetchError::CaptureOrigin { path, word }),
    }
}
