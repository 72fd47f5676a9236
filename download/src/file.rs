//! One file from an address to its place on disk.
//!
//! What has come so far lies in a partial file that is named by what the whole will be (its digest, or what
//! the server calls its version) and never cut back: two processes that write the same one write the same
//! bytes at the same places, so that they can't hurt each other even where locks do nothing.

use crate::address::Url;
use crate::client::{Answer, Client, Fault, cut};
use crate::digest::{CHUNK, Running};
use crate::error::DownloadError;
use crate::names::{is_hex, slug};
use crate::place::{folder, publish, unique};
use crate::watch::{Fetched, Voucher, Watch};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes by which a page is told from a file.
const HEAD: usize = 64;

/// What is known of a file before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Its length, as the server says before sending it.
    pub size: Option<u64>,
    /// What the server calls this version of it, to ask for the rest of the same.
    pub validator: Option<String>,
    /// What it is named by while it is here in part.
    pub identity: Option<String>,
}

/// What it must be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub size: Option<u64>,
    pub sha256: Option<String>,
    /// Who says so.
    pub voucher: Option<Voucher>,
}

impl Expected {
    fn said_by(&self) -> &'static str {
        match self.voucher {
            Some(Voucher::Manifest) => "the manifest",
            Some(Voucher::Hub) => "the hub",
            _ => "the server",
        }
    }
}

/// What is to be fetched, from where to where.
pub(crate) struct Job<'a> {
    pub name: &'a str,
    pub url: &'a Url,
    pub meta: &'a Meta,
    pub expected: &'a Expected,
    /// Folder of partial files, in the file system of `to`.
    pub parts: &'a Path,
    pub to: &'a Path,
}

/// Asks what the server knows of a file; `None` where there is none.
pub(crate) fn look(client: &Client, url: &Url, watch: &dyn Watch) -> Result<Option<Meta>, DownloadError> {
    client.insist(url, watch, || {
        let answer = match client.head(url, false) {
            // some servers know GET alone, or sign it alone; the body stays unread
            Err(Fault::Never(DownloadError::Refused { status: 400 | 403 | 405 | 501, .. })) => {
                client.get(url, &[])?
            }
            other => other?,
        };
        if answer.is_absent() {
            return Ok(None);
        }
        // some say 0 of what they make on demand
        let size = answer.number("content-length").filter(|&n| n > 0);
        let validator = validator(&answer);
        let identity = validator.as_ref().map(|v| format!("{v} {size:?}"));
        Ok(Some(Meta { size, validator, identity }))
    })
}

/// What tells a version of a file from all others: a strong entity tag, else the date.
fn validator(answer: &Answer) -> Option<String> {
    let tag = answer.header("etag").filter(|t| !t.starts_with("W/") && t.len() > 2);
    tag.or_else(|| answer.header("last-modified")).map(str::to_owned)
}

/// How a fetch ended that did not fail.
pub(crate) enum Got {
    /// With the file in its place.
    File(Fetched),
    /// It is no longer the file that was looked at.
    Changed,
}

/// Fetches a file, or what is missing of it.
pub(crate) fn fetch(client: &Client, job: &Job<'_>, watch: &dyn Watch) -> Result<Got, DownloadError> {
    let start = Instant::now();
    let mut part = Part::open(job)?;
    let resumed = part.have();
    let mut rest_of_another = resumed > 0;
    loop {
        watch.begin(job.name, job.expected.size.or(job.meta.size), part.have());
        let ended =
            client.patiently(job.url, watch, &mut part, |p| p.reached, |p| attempt(client, job, p, watch));
        match ended {
            Ok(true) => {}
            Ok(false) => {
                part.discard();
                return Ok(Got::Changed);
            }
            Err(e) => {
                // what a wrong answer left behind is no beginning of anything
                if !matches!(e, DownloadError::Unreachable { .. } | DownloadError::Io { .. }) {
                    part.discard();
                }
                return Err(e);
            }
        }
        let bytes = part.have();
        let sha256 = std::mem::take(&mut part.digest).finish();
        if let Some(expected) = job.expected.sha256.as_ref().filter(|e| **e != sha256) {
            part.discard();
            if std::mem::take(&mut rest_of_another) {
                watch.note(&format!(
                    "{}: what an earlier run had left was of other bytes; begun anew",
                    job.url
                ));
                part = Part::open(job)?;
                continue;
            }
            return Err(DownloadError::Digest {
                url: job.url.to_string(),
                expected: expected.clone(),
                got: sha256,
                said_by: job.expected.said_by(),
            });
        }
        if !part.publish(job.to)? {
            return Ok(Got::Changed);
        }
        let voucher = match job.expected.voucher {
            Some(v) if job.expected.sha256.is_some() => v,
            _ => Voucher::Length,
        };
        let time = start.elapsed();
        return Ok(Got::File(Fetched { name: job.name.into(), bytes, resumed, sha256, voucher, time }));
    }
}

/// One request and as much of its body as comes. True when the file is whole, false when it is another.
fn attempt(client: &Client, job: &Job<'_>, part: &mut Part, watch: &dyn Watch) -> Result<bool, Fault> {
    let said = job.expected.size;
    if part.have() > 0 && said.or(job.meta.size) == Some(part.have()) {
        return Ok(true);
    }
    let range = format!("bytes={}-", part.have());
    let mut headers = Vec::new();
    if part.have() > 0 {
        headers.push(("range", range.as_str()));
        headers.extend(job.meta.validator.as_ref().map(|v| ("if-range", v.as_str())));
    }
    let answer = client.get(job.url, &headers)?;
    let protocol = |why: String| Fault::Never(DownloadError::Protocol { url: job.url.to_string(), why });
    let total = match answer.status {
        206 if part.have() > 0 => match content_range(&answer) {
            Some((first, total)) if first == part.have() => total,
            _ => {
                part.restart(watch)?;
                return Err(Fault::again("the server answers with another range than it was asked for"));
            }
        },
        200 => {
            // the server knows no ranges, or the file is another: all of it comes
            part.restart(watch)?;
            answer.number("content-length")
        }
        416 => {
            part.restart(watch)?;
            return Err(Fault::again("the server has no such range"));
        }
        404 | 410 => {
            let url = job.url.to_string();
            return Err(Fault::Never(DownloadError::Refused { url, status: answer.status, hint: "" }));
        }
        status => return Err(protocol(format!("the server answers {status} to a plain question"))),
    };
    if let (Some(was), Some(is)) = (&job.meta.validator, validator(&answer))
        && *was != is
    {
        return Ok(false);
    }
    if answer.header("content-type").is_some_and(is_page_type) && !is_page_name(job.name) {
        return Err(Fault::Never(DownloadError::Page { url: job.url.to_string(), what: "an HTML page" }));
    }
    if let Some(packed) = answer.header("content-encoding").filter(|e| !e.eq_ignore_ascii_case("identity")) {
        return Err(protocol(format!("the server sends it packed ({packed}) though it was asked not to")));
    }
    let length = |got: u64, expected: u64| {
        let (url, said_by) = (job.url.to_string(), job.expected.said_by());
        Fault::Never(DownloadError::Length { url, expected, got, said_by })
    };
    if let (Some(total), Some(said)) = (total, said)
        && total != said
    {
        return Err(length(total, said));
    }
    if let (Some(total), Some(before)) = (total, job.meta.size)
        && total != before
    {
        return Ok(false);
    }
    let chunked = answer.header("transfer-encoding").is_some();
    let whole = said.or(total);
    if whole.is_none() && !chunked && job.expected.sha256.is_none() {
        return Err(protocol(
            "the server does not say how long the file is, so that nobody knows its end".into(),
        ));
    }
    let mut body = answer.into_reader();
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = body.read(&mut chunk).map_err(|e| cut(&e))?;
        if n == 0 {
            break;
        }
        if let Some(whole) = whole.filter(|w| part.have() + n as u64 > *w) {
            return Err(length(part.have() + n as u64, whole));
        }
        part.push(&chunk[..n])?;
        watch.at(part.have());
    }
    if let Some(whole) = whole.filter(|w| part.have() < *w) {
        return Err(Fault::again(format!("the connection ended after {} of {whole} bytes", part.have())));
    }
    if let Some(what) = part.impostor().filter(|_| !is_page_name(job.name)) {
        return Err(Fault::Never(DownloadError::Page { url: job.url.to_string(), what }));
    }
    if part.have() == 0 && said != Some(0) {
        return Err(protocol("the file is empty".into()));
    }
    Ok(true)
}

/// First byte and total length of `bytes 5-9/10`.
fn content_range(answer: &Answer) -> Option<(u64, Option<u64>)> {
    let (range, total) = answer.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.trim().parse().ok()?) };
    Some((first.trim().parse().ok()?, total))
}

fn is_page_type(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(kind.as_str(), "text/html" | "application/xhtml+xml")
}

fn is_page_name(name: &str) -> bool {
    [".html", ".htm", ".xml"].iter().any(|ending| name.ends_with(ending))
}

/// What is often sent in a file's stead, by its first bytes. Each is so long that no header of weights, which
/// begins with a length, can look like it.
fn impostor(head: &[u8]) -> Option<&'static str> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start().to_ascii_lowercase();
    let begins = |with: &[&str]| with.iter().any(|w| text.starts_with(w.as_bytes()));
    if begins(&["<!doctype", "<html", "<head", "<body", "<?xml", "<error>"]) {
        Some("an HTML or XML page")
    } else if begins(&["version https://git-lfs"]) {
        Some("a Git LFS pointer")
    } else {
        None
    }
}

/// Where the part of a file lies, if there is something to name it by.
fn path_of(parts: &Path, name: &str, meta: &Meta, expected: &Expected) -> Option<PathBuf> {
    let digest = expected.sha256.as_ref().filter(|d| is_hex(d, 64));
    let identity = digest.or(meta.identity.as_ref())?;
    Some(parts.join(format!("{}.part", slug(name, &format!("{name} {identity}")))))
}

/// How many bytes of a file an earlier run has left.
pub(crate) fn partial(parts: &Path, name: &str, meta: &Meta, expected: &Expected) -> u64 {
    let path = path_of(parts, name, meta, expected);
    path.and_then(|p| std::fs::metadata(p).ok()).map_or(0, |m| m.len())
}

/// A file that is here in part.
struct Part {
    path: PathBuf,
    file: File,
    digest: Running,
    head: Vec<u8>,
    /// The furthest that it came, also where it had to be begun anew since.
    reached: u64,
    /// Whether a later run may go on with it.
    lasting: bool,
}

impl Part {
    /// What an earlier run has left of this very file, or nothing yet.
    fn open(job: &Job<'_>) -> Result<Part, DownloadError> {
        folder(job.parts)?;
        let (path, lasting) = match path_of(job.parts, job.name, job.meta, job.expected) {
            Some(path) => (path, true),
            // nothing tells this version from another, so nobody may go on with it
            None => (unique(&job.parts.join(slug(job.name, ""))), false),
        };
        let mut part = Part::at(path, lasting)?;
        let have = part.file.metadata().map_err(DownloadError::io(&part.path))?.len();
        match job.expected.size.or(job.meta.size) {
            Some(whole) if have > whole => part.anew()?,
            _ => part.take_in(have)?,
        }
        Ok(part)
    }

    fn at(path: PathBuf, lasting: bool) -> Result<Part, DownloadError> {
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = opened.map_err(DownloadError::io(&path))?;
        Ok(Part { path, file, digest: Running::default(), head: Vec::new(), reached: 0, lasting })
    }

    fn take_in(&mut self, have: u64) -> Result<(), DownloadError> {
        self.digest.push_file(&self.path, have)?;
        self.reached = self.have();
        self.head = vec![0; HEAD.min(self.have() as usize)];
        self.file.read_exact_at(&mut self.head, 0).map_err(DownloadError::io(&self.path))
    }

    fn have(&self) -> u64 {
        self.digest.bytes
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        self.file.write_all_at(bytes, self.have()).map_err(DownloadError::io(&self.path))?;
        let wanted = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..wanted]);
        self.digest.push(bytes);
        self.reached = self.reached.max(self.have());
        Ok(())
    }

    fn impostor(&self) -> Option<&'static str> {
        impostor(&self.head)
    }

    /// Begins anew, if it had begun.
    fn restart(&mut self, watch: &dyn Watch) -> Result<(), DownloadError> {
        if self.have() > 0 {
            self.anew()?;
            watch.at(0);
        }
        Ok(())
    }

    /// A new file under the name: another process may be writing the old one.
    fn anew(&mut self) -> Result<(), DownloadError> {
        self.discard();
        let reached = self.reached;
        *self = Part::at(self.path.clone(), self.lasting)?;
        self.reached = reached;
        Ok(())
    }

    /// Removes it, unless another process has put another file under the name.
    fn discard(&self) {
        if self.is_at(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        let id = |m: Metadata| (m.dev(), m.ino());
        let here = std::fs::symlink_metadata(path).map(id);
        matches!((here, self.file.metadata().map(id)), (Ok(a), Ok(b)) if a == b)
    }

    /// Gives the whole file its name; false where it has lost its own before anybody gave it that one.
    ///
    /// Another process that shares it may have been first, and a third may have begun a new part under the old
    /// name. A second name is made for what lies there, and looked at: that leaves everybody's file in place.
    fn publish(mut self, to: &Path) -> Result<bool, DownloadError> {
        self.lasting = true;
        let second = unique(&self.path);
        match std::fs::hard_link(&self.path, &second) {
            Ok(()) => {
                let done = if self.is_at(&second) { Some(publish(&second, to)) } else { None };
                let _ = std::fs::remove_file(&second);
                match done {
                    Some(done) => {
                        done?;
                        self.discard();
                        Ok(true)
                    }
                    None => Ok(to.exists()),
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(to.exists()),
            // a file system where a file has one name
            Err(_) => publish(&self.path, to).map(|()| true),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.lasting {
            self.discard();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_pointers_are_known_by_their_first_bytes() {
        for (head, what) in [
            (&b"\n <!DOCTYPE html>"[..], Some("an HTML or XML page")),
            (b"\xef\xbb\xbf<html lang", Some("an HTML or XML page")),
            (b"<?xml version='1.0'?><Error>", Some("an HTML or XML page")),
            (b"version https://git-lfs.github.com/spec/v1", Some("a Git LFS pointer")),
            (b"<\0\0\0\0\0\0\0{\"a\":", None),
            (b"<html\0\0\0{", Some("an HTML or XML page")),
            (b"{\"html\": \"<html>\"}", None),
            (b"PK\x03\x04", None),
            (b"", None),
        ] {
            assert_eq!(impostor(head), what, "{}", String::from_utf8_lossy(head));
        }
        assert!(is_page_type("Text/HTML; charset=utf-8") && !is_page_type("application/octet-stream"));
    }
}
