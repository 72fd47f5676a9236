//! What is known here of a source: which files came, what they were, what the server does not have.
//!
//! It spares asking again. A record that is lost costs questions and, without a manifest, bytes; a file counts
//! as here only if it lies there with the length that the record says.

use crate::error::DownloadError;
use crate::manifest::Manifest;
use crate::place;
use crate::watch::Voucher;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Raised when a field changes its meaning; other records count as lost.
const SCHEMA: u32 = 1;

/// A file that came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub size: u64,
    pub sha256: String,
    /// What the server called this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validator: Option<String>,
    /// Whether the manifest said the digest, else it was computed here.
    pub vouched: bool,
}

impl Kept {
    pub fn voucher(&self) -> Voucher {
        if self.vouched { Voucher::Manifest } else { Voucher::Length }
    }
}

/// All that is known of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    schema: u32,
    /// As it is written, for people.
    pub source: String,
    /// The commit that a hub's revision stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What the publisher says of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Whether a manifest was asked for.
    #[serde(default)]
    pub manifest_looked: bool,
    #[serde(default)]
    pub files: BTreeMap<String, Kept>,
    /// Files that came earlier and have to be compared with the server's; they count as not here until then,
    /// so that an update that is cut short leaves no mixture.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stale: BTreeSet<String>,
    /// Files that were asked for and that the server does not have.
    #[serde(default)]
    pub absent: BTreeSet<String>,
}

impl Record {
    /// The record of a source; an empty one where there is none that can be read.
    pub fn load(path: &Path, source: &str) -> Record {
        let read = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        match read {
            Some(record) if record.schema == SCHEMA && record.source == source => record,
            _ => Record { schema: SCHEMA, source: source.into(), ..Record::default() },
        }
    }

    pub fn save(&self, path: &Path) -> Result<(), DownloadError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| DownloadError::io(path)(e.into()))?;
        place::write(path, text.as_bytes())
    }
}
