//! How patient a download is, and what the surroundings say: tokens, folders, whether the network may be used.

use crate::address::Url;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often and how long is tried.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Failures in a row that end a download.
    pub tries: u32,
    /// Wait after the first failure; twice as long after each further one.
    pub first_wait: Duration,
    /// The longest such wait.
    pub longest_wait: Duration,
    /// The longest wait that a server may ask for; one that asks for more is taken at its word and left.
    pub longest_asked: Duration,
    /// Without a byte for so long, a connection is given up.
    pub stall: Duration,
    /// For a connection to come about.
    pub connect: Duration,
    /// Bytes after which the failures in a row are counted anew.
    pub headway: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            tries: 6,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            longest_asked: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            connect: Duration::from_secs(15),
            headway: 1 << 20,
        }
    }
}

impl Policy {
    /// The wait after so many failures in a row (from 1): doubled each time, and between half and all of
    /// it by chance, so that many who were cut off together do not come back together.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let doubled = self.first_wait.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let longest = doubled.min(self.longest_wait);
        // a fresh state is seeded by the system: all the chance that is needed
        let chance = RandomState::new().hash_one(failures) as f64 / u64::MAX as f64;
        longest.mul_f64(0.5 + chance / 2.0)
    }
}

/// Whether the network may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// It may.
    Open,
    /// It may not; the text says who said so.
    Closed(String),
}

/// What the surroundings say. No value of it changes what a file holds. It can't be shown, for the token's sake.
#[derive(Clone)]
pub struct Setting {
    /// How patient.
    pub policy: Policy,
    /// Whether the network may be used.
    pub network: Network,
    /// Whether the hub alone may not be asked.
    pub hub_offline: bool,
    /// Address of the hub.
    pub endpoint: String,
    /// The hub's folder on this disk, shared with other tools.
    pub hub_cache: PathBuf,
    /// The hub's token.
    pub token: Option<String>,
    /// Certificates to trust in place of the built-in list, as PEM.
    pub certificates: Option<PathBuf>,
}

impl Setting {
    /// As the environment says, in the words of Hugging Face's own tools.
    pub fn of_environment() -> Setting {
        Setting::of(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    fn of(var: impl Fn(&str) -> Option<String>) -> Setting {
        let on = |name| {
            var(name).is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true"))
        };
        let home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = var("XDG_CACHE_HOME").map(PathBuf::from);
            let cache =
                cache.unwrap_or_else(|| PathBuf::from(var("HOME").unwrap_or_default()).join(".cache"));
            cache.join("huggingface")
        });
        let hub_cache = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE"));
        let token_file = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let implicit = || if on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token_in(&token_file) };
        Setting {
            policy: Policy::default(),
            network: Network::Open,
            hub_offline: on("HF_HUB_OFFLINE"),
            endpoint: var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            hub_cache: hub_cache.map_or_else(|| home.join("hub"), PathBuf::from),
            token: var("HF_TOKEN").or_else(|| var("HUGGING_FACE_HUB_TOKEN")).and_then(tidy).or_else(implicit),
            certificates: var("SSL_CERT_FILE").map(PathBuf::from),
        }
    }

    /// Whom the hub's token may be told.
    pub(crate) fn secret(&self) -> Option<(Url, String)> {
        Some((Url::parse(&self.endpoint).ok()?, self.token.clone()?))
    }
}

fn token_in(file: &Path) -> Option<String> {
    tidy(std::fs::read_to_string(file).ok()?)
}

/// A token without the line end that editors leave behind it.
fn tidy(token: String) -> Option<String> {
    let token: String = token.chars().filter(|c| !c.is_whitespace()).collect();
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_limit_and_are_scattered() {
        let policy = Policy::default();
        for failures in 1..40 {
            let most = Duration::from_millis(500)
                .saturating_mul(1 << (failures - 1).min(20))
                .min(policy.longest_wait);
            let wait = policy.wait(failures);
            assert!(wait >= most / 2 && wait <= most, "{failures}: {wait:?}");
        }
        let waits: std::collections::HashSet<Duration> = (0..20).map(|_| policy.wait(5)).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }

    #[test]
    fn folders_and_tokens_go_by_the_hubs_own_words() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().display().to_string();
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let of = |vars: &[(&str, &str)]| {
            Setting::of(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
        };
        assert_eq!(of(&[("HOME", "/h")]).hub_cache, PathBuf::from("/h/.cache/huggingface/hub"));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x")]).hub_cache, PathBuf::from("/x/huggingface/hub"));
        assert_eq!(of(&[("HF_HOME", "/f"), ("HOME", "/h")]).hub_cache, PathBuf::from("/f/hub"));
        assert_eq!(of(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f")]).hub_cache, PathBuf::from("/c"));
        assert_eq!(of(&[("HF_HOME", &home)]).token.as_deref(), Some("hf_file"));
        assert_eq!(of(&[("HF_HOME", &home), ("HF_TOKEN", " hf_var\n")]).token.as_deref(), Some("hf_var"));
        assert_eq!(of(&[("HF_HOME", &home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token, None);
        assert!(!of(&[]).hub_offline && of(&[("HF_HUB_OFFLINE", "1")]).hub_offline);
    }
}
