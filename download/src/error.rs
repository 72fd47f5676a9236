//! Why something could not be had from the network, each with what a person needs to put it right.

use std::io;
use std::path::{Path, PathBuf};

/// Why a download failed. No address in it carries its query, which is where servers put secrets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum DownloadError {
    /// A source that can't be used as it is written.
    #[error("{address}: {why}")]
    Address { address: String, why: String },
    /// A name, said by a server, an index or a manifest, that would leave the folder.
    #[error(
        "{said_by}: the file name {name:?} leaves the delivery; only names below its folder are followed"
    )]
    Name { said_by: String, name: String },
    /// The server's last word.
    #[error("{url}: the server answers {status}{hint}")]
    Refused { url: String, status: u16, hint: &'static str },
    /// A file that has to be there.
    #[error("{source_}: there is no {name}")]
    Missing { source_: String, name: String },
    /// No answer, or none that helps, however often.
    #[error("{url}: {last}; given up after {tries} tries in a row; run again to go on from where it stopped")]
    Unreachable { url: String, tries: u32, last: String },
    /// The server is not who it says, as far as the certificates known here tell.
    #[error("{url}: {why}; certificates of your own are taken from the file that SSL_CERT_FILE names")]
    Certificate { url: String, why: String },
    /// Something that no server should send.
    #[error("{url}: {why}")]
    Protocol { url: String, why: String },
    /// A page for people in place of a file.
    #[error(
        "{url}: the server sends {what} and not the file; open the address in a browser: a login, a licence to \
         accept or a wrong address are usual"
    )]
    Page { url: String, what: &'static str },
    /// Fewer or more bytes than there have to be.
    #[error("{url}: {got} bytes where {said_by} says {expected}; nothing of it is kept")]
    Length { url: String, expected: u64, got: u64, said_by: &'static str },
    /// Other bytes than there have to be.
    #[error("{url}: its SHA-256 is {got} where {said_by} says {expected}; nothing of it is kept")]
    Digest { url: String, expected: String, got: String, said_by: &'static str },
    /// The file is replaced again and again while it is read.
    #[error("{url}: the file on the server changes while it is read; try again when it is complete")]
    Changing { url: String },
    /// The disk is too small.
    #[error(
        "{}: {needed} bytes are to be downloaded and {free} are free; make room, or choose another folder ({choose})",
        dir.display()
    )]
    NoSpace { dir: PathBuf, needed: u64, free: u64, choose: &'static str },
    /// The network may not be used and something is missing.
    #[error("{source_}: {what}, and {why}")]
    Offline { source_: String, what: String, why: String },
    /// A manifest that can't be read.
    #[error("{manifest}: {why}")]
    Manifest { manifest: String, why: String },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl DownloadError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> DownloadError {
        let path = path.to_path_buf();
        move |source| DownloadError::Io { path, source }
    }
}
