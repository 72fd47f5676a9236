//! A folder on a web server: `files/` beside a record of what came.

use crate::address::{Source, Url};
use crate::client::{Client, Fault};
use crate::depot::{Checked, Outcome};
use crate::digest;
use crate::error::DownloadError;
use crate::file::{self, Expected, Got, Job};
use crate::manifest::{MANIFESTS, Manifest};
use crate::names::is_slug_of;
use crate::place;
use crate::record::{Kept, Record};
use crate::shelf::{Found, Look, Shelf};
use crate::watch::{Voucher, Watch};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest manifest read.
const MANIFEST_LIMIT: u64 = 64 << 20;

pub(crate) struct Web {
    source: Source,
    folder: Url,
    record_path: PathBuf,
    files: PathBuf,
    parts: PathBuf,
    record: Record,
    begun: bool,
}

impl Web {
    /// The shelf in `dir`.
    pub fn open(dir: &Path, source: &Source, folder: &Url) -> Web {
        let record_path = dir.join("record.json");
        Web {
            record: Record::load(&record_path, &source.to_string()),
            source: source.clone(),
            folder: folder.clone(),
            files: dir.join("files"),
            parts: dir.join("parts"),
            record_path,
            begun: false,
        }
    }

    fn url(&self, name: &str) -> Url {
        let url = self.folder.join(name);
        if self.source.file.as_deref() == Some(name) {
            url.with_query(self.source.query.clone())
        } else {
            url
        }
    }

    fn save(&self) -> Result<(), DownloadError> {
        self.record.save(&self.record_path)
    }

    /// The manifest beside the files. A page or a refusal in its place is what servers give for files that
    /// they do not have.
    fn manifest(&mut self, client: &Client, watch: &dyn Watch) -> Result<(), DownloadError> {
        for name in MANIFESTS {
            let url = self.folder.join(name);
            let got = client.insist(&url, watch, || {
                let answer = match client.get(&url, &[]) {
                    Err(Fault::Never(DownloadError::Refused { .. })) => return Ok(None),
                    other => other?,
                };
                if answer.is_absent() || answer.header("content-type").is_some_and(|t| t.contains("html")) {
                    return Ok(None);
                }
                answer.text(&url, MANIFEST_LIMIT).map(Some)
            })?;
            let Some(bytes) = got.filter(|b| !b.trim_ascii_start().starts_with(b"<")) else { continue };
            let parsed = Manifest::parse(name, &bytes).map_err(|e| match e {
                DownloadError::Manifest { why, .. } => {
                    DownloadError::Manifest { manifest: url.to_string(), why }
                }
                other => other,
            })?;
            if parsed.is_some() {
                place::write(&self.files.join(name), &bytes)?;
                self.record.manifest = parsed;
                break;
            }
        }
        self.record.manifest_looked = true;
        self.save()
    }

    fn expected(&self, name: &str) -> Expected {
        let entry = self.record.manifest.as_ref().and_then(|m| m.files.get(name));
        Expected {
            size: entry.and_then(|e| e.size),
            sha256: entry.map(|e| e.sha256.clone()),
            voucher: entry.map(|_| Voucher::Manifest),
        }
    }

    /// Takes a file that lies there without a record, if the manifest vouches for it.
    fn adopt(&mut self, name: &str, found: &Found) -> Result<bool, DownloadError> {
        let path = self.files.join(name);
        let Some(expected) = &found.expected.sha256 else { return Ok(false) };
        let Ok(metadata) = fs::metadata(&path) else { return Ok(false) };
        if digest::of_file(&path)? != *expected {
            return Ok(false);
        }
        let kept = Kept {
            size: metadata.len(),
            sha256: expected.clone(),
            validator: found.meta.validator.clone(),
            vouched: true,
        };
        self.record.files.insert(name.into(), kept);
        self.record.stale.remove(name);
        self.save()?;
        Ok(true)
    }

    /// Whether what came earlier is what the server has now, by its own words or the manifest's.
    fn unchanged(&self, name: &str, found: &Found) -> bool {
        let Some(kept) = self.record.files.get(name) else { return false };
        let lies = fs::metadata(self.files.join(name)).is_ok_and(|m| m.len() == kept.size);
        lies && match &found.expected.sha256 {
            Some(said) => *said == kept.sha256,
            None => {
                kept.validator.is_some()
                    && kept.validator == found.meta.validator
                    && found.meta.size.is_none_or(|s| s == kept.size)
            }
        }
    }
}

impl Shelf for Web {
    fn dir(&self) -> Option<PathBuf> {
        Some(self.files.clone())
    }

    fn here(&self, name: &str) -> bool {
        !self.record.stale.contains(name)
            && self.record.files.get(name).is_some_and(|kept| {
                fs::metadata(self.files.join(name)).is_ok_and(|m| m.is_file() && m.len() == kept.size)
            })
    }

    fn absent(&self, name: &str) -> bool {
        self.record.absent.contains(name)
    }

    fn begin(&mut self, client: &Client, watch: &dyn Watch) -> Result<(), DownloadError> {
        if !self.begun {
            if self.record.stale.is_empty() {
                self.record = Record::load(&self.record_path, &self.source.to_string());
            }
            if !self.record.manifest_looked {
                self.manifest(client, watch)?;
            }
            self.begun = true;
        }
        Ok(())
    }

    fn look(
        &mut self,
        client: &Client,
        name: &str,
        optional: bool,
        watch: &dyn Watch,
    ) -> Result<Look, DownloadError> {
        let url = self.url(name);
        let meta = match file::look(client, &url, watch) {
            // stores that keep their lists secret say so of what they do not have
            Err(DownloadError::Refused { status: 401 | 403, .. }) if optional => None,
            other => other?,
        };
        let Some(meta) = meta else {
            self.record.absent.insert(name.into());
            self.save()?;
            return Ok(Look::Absent);
        };
        let expected = self.expected(name);
        let found = Found { url, meta, expected };
        if self.record.stale.contains(name) && self.unchanged(name, &found) {
            self.record.stale.remove(name);
            self.save()?;
            return Ok(Look::Here);
        }
        self.record.absent.remove(name);
        Ok(Look::There(found))
    }

    fn store(
        &mut self,
        client: &Client,
        name: &str,
        found: &Found,
        watch: &dyn Watch,
    ) -> Result<bool, DownloadError> {
        if self.adopt(name, found)? {
            return Ok(true);
        }
        let to = self.files.join(name);
        let Found { url, meta, expected } = found;
        let got =
            file::fetch(client, &Job { name, url, meta, expected, parts: &self.parts, to: &to }, watch)?;
        let Got::File(fetched) = got else { return Ok(false) };
        // parts of versions that the server no longer has, and second names of ones that are whole
        place::sweep(&self.parts, |part| {
            part.ends_with(".tmp") || part.strip_suffix(".part").is_some_and(|p| is_slug_of(p, name))
        });
        let kept = Kept {
            size: fetched.bytes,
            sha256: fetched.sha256.clone(),
            validator: meta.validator.clone(),
            vouched: fetched.voucher == Voucher::Manifest,
        };
        self.record.files.insert(name.into(), kept);
        self.record.stale.remove(name);
        self.save()?;
        watch.fetched(&fetched);
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), DownloadError> {
        Ok(())
    }

    fn parts(&self) -> &Path {
        &self.parts
    }

    fn choose(&self) -> &'static str {
        "--cache, MICA_CACHE_DIR or `cache` in the workspace"
    }

    fn check(&mut self, watch: &dyn Watch) -> Result<Vec<Checked>, DownloadError> {
        let mut all = Vec::new();
        for (name, kept) in self.record.files.clone() {
            let path = self.files.join(&name);
            watch.begin(&name, Some(kept.size), 0);
            let voucher = kept.voucher();
            let outcome = if !path.is_file() {
                Outcome::Gone
            } else {
                match digest::of_file(&path)? {
                    got if got == kept.sha256 => Outcome::Good(voucher),
                    got => Outcome::Bad { expected: kept.sha256, got },
                }
            };
            watch.at(kept.size);
            if !matches!(outcome, Outcome::Good(_)) {
                let _ = fs::remove_file(&path);
                self.record.files.remove(&name);
                self.save()?;
            }
            all.push(Checked { name, outcome });
        }
        Ok(all)
    }

    fn forget(&mut self) {
        self.record.stale = self.record.files.keys().cloned().collect();
        self.record.absent.clear();
        self.record.manifest = None;
        self.record.manifest_looked = false;
        self.begun = false;
    }
}
