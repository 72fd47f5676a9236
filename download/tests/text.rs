//! Texts from elsewhere: whatever they are, they are taken or refused, and what is taken leads nowhere else.

use mica_download::{Manifest, Place, Source};
use proptest::prelude::*;

/// Pieces of names and addresses, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "host",
        "127.0.0.1",
        "[::1]",
        ":80",
        "/",
        "/",
        "//",
        "..",
        ".",
        "%2e%2e",
        "%2F",
        "%",
        "?",
        "#",
        "@",
        "org/",
        "repo",
        "@main",
        "a.pth",
        " ",
        "\0",
        "é",
        "\\",
        "--",
        "a",
        "b",
    ]);
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

fn address() -> impl Strategy<Value = String> {
    let scheme = prop::sample::select(vec![
        "https://host",
        "http://127.0.0.1",
        "hf://org/repo",
        "hf://",
        "http://",
        "",
    ]);
    (scheme, pieces()).prop_map(|(scheme, rest)| format!("{scheme}{rest}"))
}

fn leads_nowhere_else(name: &str) -> bool {
    !name.starts_with('/') && name.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}

proptest! {
    #[test]
    fn a_source_is_below_its_folder(text in address()) {
        if let Ok(source) = Source::parse(&text, false, |name| name.ends_with(".pth")) {
            prop_assert!(source.file.as_deref().is_none_or(leads_nowhere_else), "{text}: {:?}", source.file);
            match &source.place {
                Place::Web(url) => prop_assert!(url.is_secure() || url.is_loopback(), "{text}"),
                Place::Hub(hub) => {
                    prop_assert!(leads_nowhere_else(&hub.revision) && leads_nowhere_else(&hub.repo), "{text}");
                    prop_assert!(hub.folder.is_empty() || leads_nowhere_else(&hub.folder), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_manifest_names_files_below_its_folder(name in pieces(), cut in 0usize..200) {
        let digest = "0a".repeat(32);
        let sums = format!("{digest}  {name}\n");
        let json = serde_json::json!({ "files": { &name: { "sha256": digest } } }).to_string();
        for (form, text) in [("SHA256SUMS", sums), ("manifest.json", json)] {
            let whole = Manifest::parse(form, text.as_bytes());
            prop_assert_eq!(whole.is_ok(), matches!(&whole, Ok(Some(_))));
            let cut = Manifest::parse(form, &text.as_bytes()[..cut.min(text.len())]);
            for manifest in [whole, cut].into_iter().flatten().flatten() {
                prop_assert!(manifest.names().all(leads_nowhere_else), "{text}");
            }
        }
    }
}
