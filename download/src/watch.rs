//! Who is told how a download goes.

use std::time::Duration;

/// Who says that a file's bytes are the right ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voucher {
    /// The manifest beside it.
    Manifest,
    /// The hub's own digest of the file.
    Hub,
    /// Nobody: its length alone was right.
    Length,
}

impl Voucher {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Voucher::Manifest => "manifest",
            Voucher::Hub => "hub",
            Voucher::Length => "length",
        }
    }

    /// For people.
    pub fn said(self) -> &'static str {
        match self {
            Voucher::Manifest => "the manifest",
            Voucher::Hub => "the hub's digest",
            Voucher::Length => "its length alone",
        }
    }
}

/// A file that has been downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its name in the delivery.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// How many of them an earlier run had left here.
    pub resumed: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// Who says that they are right.
    pub voucher: Voucher,
    /// How long it took.
    pub time: Duration,
}

/// Is told how a download goes. Every call returns at once.
pub trait Watch {
    /// So many files and bytes are going to be fetched; bytes of unknown length are not counted.
    fn plan(&self, _files: usize, _bytes: u64) {}
    /// A file of so many bytes is begun, or gone on with; `have` are here.
    fn begin(&self, _name: &str, _bytes: Option<u64>, _have: u64) {}
    /// So many bytes of the file are here now; less than before where it had to be begun anew.
    fn at(&self, _have: u64) {}
    /// Something that a waiting person wants to know.
    fn note(&self, _text: &str) {}
    /// A file is complete and in its place.
    fn fetched(&self, _file: &Fetched) {}
}

/// Tells nobody.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Watch for Silent {}
