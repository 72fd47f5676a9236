//! Where files come from, as a person writes it: `https://host/folder`, `https://host/one.file`,
//! `hf://org/repo@revision/folder`.

use crate::error::DownloadError;
use crate::names::{escaped, is_hex, stays_inside};
use percent_encoding::percent_decode_str;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An absolute address of the web, without user, password and fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    secure: bool,
    /// Host, and port where it is said.
    host: String,
    /// From its first slash on, escaped.
    path: String,
    query: Option<String>,
}

impl Url {
    /// Reads an address.
    ///
    /// # Errors
    /// Another scheme than http and https; a user name; spaces and control characters.
    pub fn parse(text: &str) -> Result<Url, DownloadError> {
        let bad = |why: &str| DownloadError::Address { address: text.into(), why: why.into() };
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("an address has no spaces; write %20"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("this is no address"))?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(bad("only https, http and hf are known")),
        };
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, rest) = rest.split_at(end);
        if host.is_empty() {
            return Err(bad("it names no host"));
        }
        if host.contains('@') {
            return Err(bad("user names and passwords do not belong into an address"));
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query.to_string())),
            None => (rest, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        Ok(Url { secure, host: host.to_ascii_lowercase(), path: path.into(), query })
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Whether it leads to this very machine.
    pub fn is_loopback(&self) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => &self.host,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.parse::<Ipv4Addr>().is_ok_and(|a| a.is_loopback())
            || bare.parse::<Ipv6Addr>().is_ok_and(|a| a.is_loopback())
    }

    /// Whether both are of one server, which is whom a secret may be told.
    pub fn same_origin(&self, other: &Url) -> bool {
        (self.secure, &self.host) == (other.secure, &other.host)
    }

    /// The file `name` of this folder; the folder's query is not its files'.
    pub fn join(&self, name: &str) -> Url {
        let folder = self.path.trim_end_matches('/');
        Url { path: format!("{folder}/{}", escaped(name)), query: None, ..self.clone() }
    }

    pub(crate) fn with_query(self, query: Option<String>) -> Url {
        Url { query, ..self }
    }

    /// Where a redirection from here leads.
    pub(crate) fn redirected(&self, location: &str) -> Result<Url, DownloadError> {
        let scheme = if self.secure { "https" } else { "http" };
        if location.contains("://") && !location.starts_with(['/', '?']) {
            Url::parse(location)
        } else if location.starts_with("//") {
            Url::parse(&format!("{scheme}:{location}"))
        } else {
            let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path =
                if location.starts_with('/') { location.into() } else { format!("{folder}/{location}") };
            Url::parse(&format!("{scheme}://{}{path}", self.host))
        }
    }

    /// With its query, to be asked for and not to be shown.
    pub(crate) fn whole(&self) -> String {
        let query = self.query.as_ref().map(|q| format!("?{q}")).unwrap_or_default();
        format!("{self}{query}")
    }
}

impl fmt::Display for Url {
    /// Without its query, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host, self.path)
    }
}

/// A repository of models at a revision, or a folder of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hub {
    /// `org/repo`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Folder in the repository; empty for all of it.
    pub folder: String,
}

impl Hub {
    /// The whole name of a commit, where the revision is one.
    pub fn commit(&self) -> Option<&str> {
        is_hex(&self.revision, 40).then_some(&self.revision)
    }
}

/// A folder of files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On a web server.
    Web(Url),
    /// In a hub.
    Hub(Hub),
}

/// Where files come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The folder.
    pub place: Place,
    /// The file that was named, if it was a file: its name in the folder.
    pub file: Option<String>,
    /// The named file's own query.
    pub(crate) query: Option<String>,
    /// Whether http is well enough though it leads to another machine.
    pub(crate) plain: bool,
}

impl Source {
    /// Whether a text is meant as a source here, and not as a path on disk.
    pub fn is_remote(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| {
            !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric())
        })
    }

    /// Reads a source. `is_file` says of the last name whether it is a file's, else it is the folder's.
    /// `plain` lets http lead to other machines than this one.
    ///
    /// # Errors
    /// An address that is none, names too little, or is not encrypted without leave.
    pub fn parse(text: &str, plain: bool, is_file: impl Fn(&str) -> bool) -> Result<Source, DownloadError> {
        match text.strip_prefix("hf://") {
            Some(rest) => Source::hub(text, rest, plain, is_file),
            None => Source::web(text, plain, is_file),
        }
    }

    fn web(text: &str, plain: bool, is_file: impl Fn(&str) -> bool) -> Result<Source, DownloadError> {
        let bad = |why: &str| DownloadError::Address { address: text.into(), why: why.into() };
        if text.contains('#') {
            return Err(bad("an address of files has no # in it; write %23"));
        }
        let mut url = Url::parse(text)?;
        allowed(&url, plain)?;
        let (folder, last) = url.path.rsplit_once('/').unwrap_or(("", ""));
        let last =
            percent_decode_str(last).decode_utf8().map_err(|_| bad("its name is no UTF-8"))?.into_owned();
        if !last.is_empty() && is_file(&last) {
            stays_inside(text, &last)?;
            let folder = Url { path: format!("{folder}/"), query: None, ..url.clone() };
            return Ok(Source { place: Place::Web(folder), file: Some(last), query: url.query, plain });
        }
        if url.query.is_some() {
            return Err(DownloadError::Address {
                address: url.to_string(),
                why: "only the address of one file may have a query; this is taken for a folder".into(),
            });
        }
        if !url.path.ends_with('/') {
            url.path.push('/');
        }
        Ok(Source { place: Place::Web(url), file: None, query: None, plain })
    }

    fn hub(
        text: &str,
        rest: &str,
        plain: bool,
        is_file: impl Fn(&str) -> bool,
    ) -> Result<Source, DownloadError> {
        let bad = |why: &str| DownloadError::Address { address: text.into(), why: why.into() };
        let mut parts = rest.splitn(3, '/');
        let (org, repo) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let path = parts.next().unwrap_or_default().trim_end_matches('/');
        let (repo, revision) = match repo.split_once('@') {
            Some((repo, revision)) => (repo, revision),
            None => (repo, "main"),
        };
        let plain_name = |s: &str| {
            !s.is_empty()
                && !s.starts_with('.')
                && !s.contains("--")
                && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        if !plain_name(org) || !plain_name(repo) {
            return Err(bad(
                "a repository is written hf://org/repo, hf://org/repo@revision or with a path behind it",
            ));
        }
        if matches!(org, "datasets" | "spaces" | "models") {
            return Err(bad("only repositories of models are known: hf://org/repo"));
        }
        let revision =
            percent_decode_str(revision).decode_utf8().map_err(|_| bad("its revision is no UTF-8"))?;
        stays_inside(text, &revision)?;
        let path = percent_decode_str(path).decode_utf8().map_err(|_| bad("its path is no UTF-8"))?;
        if !path.is_empty() {
            stays_inside(text, &path)?;
        }
        let (above, last) = path.rsplit_once('/').unwrap_or(("", &path));
        let (folder, file) =
            if !last.is_empty() && is_file(last) { (above, Some(last.to_string())) } else { (&*path, None) };
        let hub = Hub {
            repo: format!("{org}/{repo}"),
            revision: revision.into_owned(),
            folder: folder.to_string(),
        };
        Ok(Source { place: Place::Hub(hub), file, query: None, plain })
    }
}

/// Refuses a connection that is not encrypted to another machine.
pub(crate) fn allowed(url: &Url, plain: bool) -> Result<(), DownloadError> {
    if url.secure || plain || url.is_loopback() {
        return Ok(());
    }
    Err(DownloadError::Address {
        address: url.to_string(),
        why: "http is not encrypted; take https, or say `allow_http = true`".into(),
    })
}

impl fmt::Display for Source {
    /// The folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Web(url) => write!(f, "{url}"),
            Place::Hub(Hub { repo, revision, folder }) => {
                write!(f, "hf://{repo}@{revision}")?;
                if folder.is_empty() { Ok(()) } else { write!(f, "/{folder}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, DownloadError> {
        Source::parse(text, false, |name| name.ends_with(".pth"))
    }

    #[test]
    fn what_a_source_names() {
        for (text, folder, file) in [
            ("https://h/a/b", "https://h/a/b/", None),
            ("https://h/a/b/", "https://h/a/b/", None),
            ("https://H", "https://h/", None),
            ("https://h:8443/a%20b/full.pth", "https://h:8443/a%20b/", Some("full.pth")),
            ("https://h/a/f%20u.pth?sig=1", "https://h/a/", Some("f u.pth")),
            ("http://127.0.0.1:80/x", "http://127.0.0.1:80/x/", None),
            ("http://[::1]:80/x", "http://[::1]:80/x/", None),
            ("http://localhost/x", "http://localhost/x/", None),
            ("hf://org/repo", "hf://org/repo@main", None),
            ("hf://org/repo@v1.0", "hf://org/repo@v1.0", None),
            ("hf://org/repo@refs%2Fpr%2F1/sub/dir", "hf://org/repo@refs/pr/1/sub/dir", None),
            ("hf://org/repo/sub/full.pth", "hf://org/repo@main/sub", Some("full.pth")),
            ("hf://org/repo@v2/full.pth", "hf://org/repo@v2", Some("full.pth")),
        ] {
            let source = parse(text).unwrap();
            assert_eq!((source.to_string().as_str(), source.file.as_deref()), (folder, file), "{text}");
            assert!(Source::is_remote(text));
        }
        for path in ["a/b", "/a/b", "C:\\a", "hf:/x", "://", "a b://c"] {
            assert!(!Source::is_remote(path), "{path}");
        }
    }

    #[test]
    fn refusals_say_why() {
        for (text, said) in [
            ("ftp://h/a", "only https, http and hf"),
            ("https:///a", "no host"),
            ("https://user:secret@h/a", "user names"),
            ("https://h/a b", "no spaces"),
            ("https://h/a#b", "no # in it"),
            ("https://h/a?token=secret", "query"),
            ("http://example.org/a", "not encrypted"),
            ("http://127.0.0.1.example.org/a", "not encrypted"),
            ("https://h/..%2Fa.pth", "leaves the delivery"),
            ("hf://org", "hf://org/repo"),
            ("hf://datasets/org/name", "repositories of models"),
            ("hf://org/..", "hf://org/repo"),
            ("hf://org/repo@../../x", "leaves the delivery"),
            ("hf://org/repo@..%2F..%2Fx", "leaves the delivery"),
            ("hf://org/repo/a/../b", "leaves the delivery"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(said) && !message.contains("token=secret"), "{text}: {message}");
        }
        assert!(Source::parse("http://example.org/a", true, |_| false).is_ok());
    }

    #[test]
    fn redirections_lead_where_they_say() {
        let from = Url::parse("https://h:1/a/b?q").unwrap();
        for (location, to) in [
            ("https://other/x?sig=2", "https://other/x"),
            ("//cdn/x", "https://cdn/x"),
            ("/x/y", "https://h:1/x/y"),
            ("c", "https://h:1/a/c"),
            ("/x?next=https://evil/", "https://h:1/x"),
        ] {
            let url = from.redirected(location).unwrap();
            assert_eq!(url.to_string(), to, "{location}");
        }
        assert!(from.redirected("https://other/x?sig=2").unwrap().whole().ends_with("?sig=2"));
        assert!(from.redirected("file:///etc/passwd").is_err());
    }
}
