//! What a publisher says of its files: `SHA256SUMS`, as `sha256sum` writes it, or `manifest.json`:
//! `{"files": {"model.safetensors": {"sha256": "…", "size": 123}}}`.

use crate::error::DownloadError;
use crate::names::{is_hex, stays_inside};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The names looked for, in this order.
pub const MANIFESTS: [&str; 2] = ["SHA256SUMS", "manifest.json"];

/// One file, as the manifest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Digests of files by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub(crate) files: BTreeMap<String, Entry>,
}

impl Manifest {
    /// Reads a manifest; `name` says which form it is in. `None` for a `manifest.json` that speaks of
    /// other things: the name is a common one.
    ///
    /// # Errors
    /// Lines and digests that are none, names outside the folder, a file said twice.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Option<Manifest>, DownloadError> {
        let bad = |why: String| DownloadError::Manifest { manifest: name.into(), why };
        let files = if name.ends_with(".json") {
            let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
            if value.get("files").is_none() {
                return Ok(None);
            }
            let shape = |e| bad(format!("{e}; it has to be {{\"files\": {{NAME: {{\"sha256\": HEX}}}}}}"));
            let manifest: Manifest = serde_json::from_value(value).map_err(shape)?;
            manifest.files
        } else {
            let text = std::str::from_utf8(bytes).map_err(|_| bad("it is no UTF-8".into()))?;
            sums(text).map_err(bad)?
        };
        let mut lower = BTreeMap::new();
        for (file, mut entry) in files {
            stays_inside(name, &file)?;
            if !is_hex(&entry.sha256, 64) {
                return Err(bad(format!("{file}: {:?} is no SHA-256", entry.sha256)));
            }
            entry.sha256.make_ascii_lowercase();
            lower.insert(file, entry);
        }
        Ok(Some(Manifest { files: lower }))
    }

    /// The SHA-256 of a file that it speaks of, in hexadecimal.
    pub fn sha256(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(|e| e.sha256.as_str())
    }

    /// The files it speaks of.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// Lines of a digest, a space, a space or `*`, and a name, which may begin with `./`.
fn sums(text: &str) -> Result<BTreeMap<String, Entry>, String> {
    let mut files = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim_end_matches('\r');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let split = line.split_once([' ', '\t']);
        let (sha256, name) =
            split.ok_or_else(|| format!("line {}: a digest and a name have to stand there", n + 1))?;
        let name = name.strip_prefix([' ', '*']).unwrap_or(name);
        let name = name.strip_prefix("./").unwrap_or(name);
        if !is_hex(sha256, 64) {
            return Err(format!("line {}: {sha256:?} is no SHA-256", n + 1));
        }
        if files.insert(name.to_string(), Entry { sha256: sha256.into(), size: None }).is_some() {
            return Err(format!("line {}: {name} stands there twice", n + 1));
        }
    }
    if files.is_empty() { Err("it names no file".into()) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn both_forms() {
        let upper = A.to_uppercase();
        let sums = format!("# made by hand\n{A}  model.safetensors\r\n{upper} *./sub/b c.json\n\n");
        let m = Manifest::parse("SHA256SUMS", sums.as_bytes()).unwrap().unwrap();
        assert_eq!(m.names().collect::<Vec<_>>(), ["model.safetensors", "sub/b c.json"]);
        assert_eq!(m.sha256("sub/b c.json"), Some(A));
        let json = format!(r#"{{"version": 2, "files": {{"a": {{"sha256": "{A}", "size": 7, "x": 1}}}}}}"#);
        let m = Manifest::parse("manifest.json", json.as_bytes()).unwrap().unwrap();
        assert_eq!(m.files["a"], Entry { sha256: A.into(), size: Some(7) });
        assert_eq!(Manifest::parse("manifest.json", br#"{"name": "an app"}"#).unwrap(), None);
    }

    #[test]
    fn refusals_say_where() {
        for (name, text, said) in [
            ("SHA256SUMS", format!("{A}  ../x"), "leaves the delivery"),
            ("SHA256SUMS", format!("{A}  /etc/passwd"), "leaves the delivery"),
            ("SHA256SUMS", format!("{A}  a\n{A}  a"), "line 2: a stands there twice"),
            ("SHA256SUMS", format!("\n{}  a", &A[1..]), "line 2: "),
            ("SHA256SUMS", "<html>".into(), "line 1"),
            ("SHA256SUMS", String::new(), "names no file"),
            (
                "manifest.json",
                format!(r#"{{"files": {{"../x": {{"sha256": "{A}"}}}}}}"#),
                "leaves the delivery",
            ),
            ("manifest.json", r#"{"files": {"x": {"sha256": "12"}}}"#.into(), "no SHA-256"),
            ("manifest.json", r#"{"files": ["x"]}"#.into(), "it has to be"),
            ("manifest.json", "[".into(), "EOF"),
        ] {
            let message = Manifest::parse(name, text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(said), "{text}: {message}");
        }
    }
}
