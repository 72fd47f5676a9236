//! What the two kinds of sources have in common.

use crate::address::Url;
use crate::client::Client;
use crate::depot::Checked;
use crate::error::DownloadError;
use crate::file::{Expected, Meta};
use crate::watch::Watch;
use std::path::{Path, PathBuf};

/// What a question for a file found out.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// It is here after all.
    Here,
    /// There is none.
    Absent,
    /// It can be fetched.
    There(Found),
}

/// A file that can be fetched.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub url: Url,
    pub meta: Meta,
    pub expected: Expected,
}

impl Found {
    /// Its length, as far as anybody says.
    pub fn size(&self) -> Option<u64> {
        self.expected.size.or(self.meta.size)
    }
}

/// A source as it is held on this disk. Names have been checked before they come here.
pub(crate) trait Shelf {
    /// The folder that the files are in; `None` while nobody knows.
    fn dir(&self) -> Option<PathBuf>;
    /// Whether a file is here, whole.
    fn here(&self, name: &str) -> bool;
    /// Whether it is known that the source has no such file.
    fn absent(&self, name: &str) -> bool;
    /// Reads again what other processes may have done, and asks what concerns the source as a whole.
    fn begin(&mut self, client: &Client, watch: &dyn Watch) -> Result<(), DownloadError>;
    /// Asks for a file and notes its absence. One that is `optional` is absent also where the server does
    /// not say whether it has it.
    fn look(
        &mut self,
        client: &Client,
        name: &str,
        optional: bool,
        watch: &dyn Watch,
    ) -> Result<Look, DownloadError>;
    /// Fetches a file; false where it is no longer the one that was found.
    fn store(
        &mut self,
        client: &Client,
        name: &str,
        found: &Found,
        watch: &dyn Watch,
    ) -> Result<bool, DownloadError>;
    /// Notes what the files that are here are of, so that they are taken again.
    fn settle(&mut self) -> Result<(), DownloadError>;
    /// The folder of partial files.
    fn parts(&self) -> &Path;
    /// What the person would set to have the files elsewhere.
    fn choose(&self) -> &'static str;
    /// Hashes every file that is here, drops those that are not what they have to be.
    fn check(&mut self, watch: &dyn Watch) -> Result<Vec<Checked>, DownloadError>;
    /// Lets everything be asked for again; what is unchanged is not fetched again.
    fn forget(&mut self);
}
