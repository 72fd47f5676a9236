//! Names that come from elsewhere: which may be followed, how they stand in an address and on disk.

use crate::error::DownloadError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};
use std::path::{Component, Path};

/// What is escaped in a segment of an address: all but the unreserved characters.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether a name stays below its folder: relative, no `..`, no backslash (which some systems take for a
/// separator), no control character.
pub(crate) fn stays_inside(said_by: &str, name: &str) -> Result<(), DownloadError> {
    let plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    let tidy = name.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    if plain && tidy && !name.contains('\\') && !name.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(DownloadError::Name { said_by: said_by.into(), name: name.into() })
    }
}

/// A name as the end of an address.
pub(crate) fn escaped(name: &str) -> String {
    let segments: Vec<String> = name.split('/').map(segment).collect();
    segments.join("/")
}

/// A text as one segment of an address, slashes escaped.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// A folder's or file's name for a text of any characters: what is readable of it, and what tells it from
/// all others.
pub(crate) fn slug(readable: &str, whole: &str) -> String {
    format!("{}-{}", plain(readable), &hex(&Sha256::digest(whole.as_bytes()))[..16])
}

/// Whether a name is the slug of that readable text, whatever the whole.
pub(crate) fn is_slug_of(name: &str, readable: &str) -> bool {
    let rest = name.strip_prefix(&plain(readable)).and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|digest| is_hex(digest, 16))
}

fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') { c } else { '-' };
    let kept: String = text.chars().map(plain).take(80).collect();
    kept.trim_matches(['-', '.']).to_owned()
}

/// Lowercase hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether a text is so many hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_folder() {
        for good in ["model.safetensors", "shards/a.safetensors", "a..b", "日本 $.safetensors", ".hidden"] {
            assert!(stays_inside("index", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "./a",
            "a/./b",
            "a\\..\\b",
            "a/",
            "a//b",
            "a\0b",
            "..",
            "a\nb",
        ] {
            let said = stays_inside("index", bad).unwrap_err().to_string();
            assert!(said.contains("leaves the delivery"), "{said}");
        }
    }

    #[test]
    fn a_name_in_an_address_and_on_disk() {
        assert_eq!(escaped("a b/日.bin"), "a%20b/%E6%97%A5.bin");
        assert_eq!(segment("refs/pr/1"), "refs%2Fpr%2F1");
        let (a, b) = (slug("x/y z", "https://h/1"), slug("x/y z", "https://h/2"));
        assert!(a.starts_with("x-y-z-") && a != b, "{a} {b}");
        assert!(!slug("../..", "").contains('/'));
        assert!(is_slug_of(&a, "x/y z") && is_slug_of(&b, "x/y z"));
        assert!(!is_slug_of(&a, "x") && !is_slug_of(&slug("x-1", ""), "x"));
    }
}
