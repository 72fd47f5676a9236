//! A repository of a hub that speaks Hugging Face's protocol, in the cache folder that its tools share:
//! `models--ORG--REPO/` with `blobs/` named by entity tag, `refs/` that say which commit a revision was, and
//! `snapshots/COMMIT/`, whose names are links to blobs.

use crate::address::{Hub, Source, Url};
use crate::client::{Client, Fault};
use crate::depot::{Checked, Outcome};
use crate::digest;
use crate::error::DownloadError;
use crate::file::{self, Expected, Got, Job, Meta};
use crate::names::{escaped, is_hex, segment, stays_inside};
use crate::place::{self, above, unique};
use crate::record::Record;
use crate::shelf::{Found, Look, Shelf};
use crate::watch::{Voucher, Watch};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Longest description of a repository read: some list a hundred thousand files.
const INFO_LIMIT: u64 = 64 << 20;

/// What the hub says of a repository at a revision.
#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

pub(crate) struct HubShelf {
    hub: Hub,
    endpoint: String,
    record_path: PathBuf,
    record: Record,
    /// `models--ORG--REPO`.
    repo: PathBuf,
    blobs: PathBuf,
    locks: PathBuf,
    /// The commit whose files are taken.
    commit: Option<String>,
    /// The repository's files at that commit, once the hub was asked.
    names: Option<BTreeSet<String>>,
    /// Blobs by the name that was looked at.
    tags: BTreeMap<String, String>,
}

impl HubShelf {
    /// The shelf in the cache folder `cache`, its record in `dir`.
    pub fn open(dir: &Path, source: &Source, hub: &Hub, cache: &Path, endpoint: &str) -> HubShelf {
        let record_path = dir.join("record.json");
        let record = Record::load(&record_path, &source.to_string());
        let folder = format!("models--{}", hub.repo.replace('/', "--"));
        let repo = cache.join(&folder);
        let mut shelf = HubShelf {
            hub: hub.clone(),
            endpoint: endpoint.trim_end_matches('/').into(),
            record_path,
            record,
            blobs: repo.join("blobs"),
            repo,
            locks: cache.join(".locks").join(folder),
            commit: None,
            names: None,
            tags: BTreeMap::new(),
        };
        // what was taken before; else what another tool has here under the revision
        let known = shelf.record.commit.clone().or_else(|| shelf.referred());
        shelf.commit = hub.commit().map(str::to_owned).or(known).filter(|c| is_hex(c, 40));
        shelf
    }

    fn reference(&self) -> PathBuf {
        self.repo.join("refs").join(&self.hub.revision)
    }

    fn referred(&self) -> Option<String> {
        Some(fs::read_to_string(self.reference()).ok()?.trim().to_owned())
    }

    /// A file's name in the repository.
    fn full(&self, name: &str) -> String {
        if self.hub.folder.is_empty() { name.into() } else { format!("{}/{name}", self.hub.folder) }
    }

    fn of_commit(&self, folder: &str, name: &str) -> Option<PathBuf> {
        Some(self.repo.join(folder).join(self.commit.as_ref()?).join(self.full(name)))
    }

    fn url(&self, name: &str) -> Result<Url, DownloadError> {
        let Hub { repo, revision, .. } = &self.hub;
        let revision = self.commit.as_ref().unwrap_or(revision);
        let name = escaped(&self.full(name));
        Url::parse(&format!("{}/{repo}/resolve/{}/{name}", self.endpoint, segment(revision)))
    }

    fn protocol(url: &Url, why: String) -> DownloadError {
        DownloadError::Protocol { url: url.to_string(), why }
    }

    /// Asks which commit it is and which files it has.
    fn info(&self, client: &Client, watch: &dyn Watch) -> Result<Info, DownloadError> {
        let Hub { repo, revision, .. } = &self.hub;
        let pinned = self.record.commit.as_ref();
        let revision = segment(pinned.unwrap_or(revision));
        let url = Url::parse(&format!("{}/api/models/{repo}/revision/{revision}", self.endpoint))?;
        let bytes = client.insist(&url, watch, || {
            let answer = client.get(&url, &[])?;
            if answer.is_absent() {
                let hint = "; there is no such repository or revision, or it is private and needs a token in HF_TOKEN";
                let status = answer.status;
                return Err(Fault::Never(DownloadError::Refused { url: url.to_string(), status, hint }));
            }
            answer.text(&url, INFO_LIMIT)
        })?;
        let info: Info = serde_json::from_slice(&bytes)
            .map_err(|e| HubShelf::protocol(&url, format!("this is no description of a repository: {e}")))?;
        if !is_hex(&info.sha, 40) {
            return Err(HubShelf::protocol(&url, format!("{:?} is no commit", info.sha)));
        }
        if pinned.or(self.hub.commit().map(str::to_owned).as_ref()).is_some_and(|p| *p != info.sha) {
            return Err(HubShelf::protocol(&url, format!("the hub answers for commit {}", info.sha)));
        }
        Ok(info)
    }

    /// Gives a blob its name in the snapshot.
    fn link(&self, name: &str, tag: &str) -> Result<(), DownloadError> {
        let Some(at) = self.of_commit("snapshots", name) else { return Ok(()) };
        let up = self.full(name).matches('/').count() + 2;
        let target = PathBuf::from("../".repeat(up)).join("blobs").join(tag);
        place::folder(above(&at))?;
        let temporary = unique(&at);
        symlink(&target, &temporary).map_err(DownloadError::io(&temporary))?;
        fs::rename(&temporary, &at).map_err(DownloadError::io(&at))
    }

    /// The commit that was learned, for this and other tools.
    fn remember(&mut self) -> Result<(), DownloadError> {
        let Some(commit) = self.commit.clone() else { return Ok(()) };
        if self.hub.commit().is_none() && self.referred().as_ref() != Some(&commit) {
            place::write(&self.reference(), commit.as_bytes())?;
        }
        if self.record.commit.as_ref() != Some(&commit) {
            self.record.commit = Some(commit);
            self.record.save(&self.record_path)?;
        }
        Ok(())
    }
}

/// An entity tag as the name of a blob. It comes from a server and becomes a path.
fn blob_name(tag: &str) -> Option<String> {
    let tag = tag.trim().trim_start_matches("W/").trim_matches('"');
    let plain = !tag.is_empty()
        && tag.len() <= 128
        && !tag.starts_with('.')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    plain.then(|| tag.to_string())
}

impl Shelf for HubShelf {
    fn dir(&self) -> Option<PathBuf> {
        self.of_commit("snapshots", "").map(|d| d.components().collect())
    }

    fn here(&self, name: &str) -> bool {
        self.of_commit("snapshots", name).is_some_and(|p| p.is_file())
    }

    fn absent(&self, name: &str) -> bool {
        self.of_commit(".no_exist", name).is_some_and(|p| p.exists())
    }

    fn begin(&mut self, client: &Client, watch: &dyn Watch) -> Result<(), DownloadError> {
        if self.names.is_none() {
            let info = self.info(client, watch)?;
            self.names = Some(info.siblings.into_iter().map(|s| s.rfilename).collect());
            self.commit = Some(info.sha);
            self.remember()?;
        }
        Ok(())
    }

    fn look(
        &mut self,
        client: &Client,
        name: &str,
        _optional: bool,
        watch: &dyn Watch,
    ) -> Result<Look, DownloadError> {
        // the commit may be another one now than when the name was first looked for
        if self.here(name) {
            return Ok(Look::Here);
        }
        let full = self.full(name);
        let url = self.url(name)?;
        let answer = match &self.names {
            Some(names) if !names.contains(&full) => None,
            _ => client.insist(&url, watch, || {
                let answer = client.head(&url, true)?;
                Ok(if answer.is_absent() { None } else { Some(answer) })
            })?,
        };
        let Some(answer) = answer else {
            if let Some(mark) = self.of_commit(".no_exist", name) {
                place::write(&mark, b"")?;
            }
            return Ok(Look::Absent);
        };
        if let (Some(said), Some(commit)) = (answer.header("x-repo-commit"), &self.commit)
            && said != commit
        {
            return Err(HubShelf::protocol(
                &url,
                format!("it is of commit {said}, and {commit} was asked for"),
            ));
        }
        let tag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
        let Some(blob) = tag.and_then(blob_name) else {
            return Err(HubShelf::protocol(&url, format!("its entity tag is {tag:?}, which names no blob")));
        };
        self.tags.insert(name.into(), blob.clone());
        if self.blobs.join(&blob).is_file() {
            self.link(name, &blob)?;
            return Ok(Look::Here);
        }
        let linked = answer.number("x-linked-size");
        let size =
            linked.or_else(|| if answer.is_elsewhere() { None } else { answer.number("content-length") });
        let sha256 = is_hex(&blob, 64).then(|| blob.to_ascii_lowercase());
        let expected = Expected { size: linked, voucher: sha256.as_ref().map(|_| Voucher::Hub), sha256 };
        // the address names a commit, so that the rest of a file is the rest of the same
        let meta = Meta { size, validator: None, identity: Some(blob) };
        Ok(Look::There(Found { url, meta, expected }))
    }

    fn store(
        &mut self,
        client: &Client,
        name: &str,
        found: &Found,
        watch: &dyn Watch,
    ) -> Result<bool, DownloadError> {
        let Some(tag) = self.tags.get(name).cloned() else { return Ok(false) };
        let _lock = place::lock(&self.locks.join(format!("{tag}.lock")), name, watch)?;
        let to = self.blobs.join(&tag);
        if !to.is_file() {
            let Found { url, meta, expected } = found;
            match file::fetch(client, &Job { name, url, meta, expected, parts: &self.blobs, to: &to }, watch)?
            {
                Got::File(fetched) => watch.fetched(&fetched),
                Got::Changed => return Ok(false),
            }
        }
        self.link(name, &tag)?;
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), DownloadError> {
        self.remember()
    }

    fn parts(&self) -> &Path {
        &self.blobs
    }

    fn choose(&self) -> &'static str {
        "HF_HUB_CACHE or HF_HOME"
    }

    fn check(&mut self, watch: &dyn Watch) -> Result<Vec<Checked>, DownloadError> {
        let mut all = Vec::new();
        let Some(dir) = self.dir().filter(|d| d.is_dir()) else { return Ok(all) };
        for name in files_below(&dir, "")? {
            stays_inside("the snapshot", &name)?;
            let link = dir.join(&name);
            let Ok(blob) = link.canonicalize() else {
                all.push(Checked { name, outcome: Outcome::Gone });
                continue;
            };
            let expected = blob.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            if !is_hex(&expected, 64) {
                all.push(Checked { name, outcome: Outcome::Unvouched });
                continue;
            }
            let size = fs::metadata(&blob).map_err(DownloadError::io(&blob))?.len();
            watch.begin(&name, Some(size), 0);
            let got = digest::of_file(&blob)?;
            watch.at(size);
            let outcome = if got == expected {
                Outcome::Good(Voucher::Hub)
            } else {
                fs::remove_file(&link).map_err(DownloadError::io(&link))?;
                fs::remove_file(&blob).map_err(DownloadError::io(&blob))?;
                Outcome::Bad { expected, got }
            };
            all.push(Checked { name, outcome });
        }
        Ok(all)
    }

    fn forget(&mut self) {
        self.record.commit = None;
        self.names = None;
        self.tags.clear();
        self.commit = self.hub.commit().map(str::to_owned);
    }
}

/// Names below a folder, links to files among them, sorted.
fn files_below(dir: &Path, prefix: &str) -> Result<Vec<String>, DownloadError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(DownloadError::io(dir))? {
        let entry = entry.map_err(DownloadError::io(dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            names.extend(files_below(&entry.path(), &format!("{name}/"))?);
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_tag_becomes_a_name_and_nothing_more() {
        for (tag, name) in [
            ("\"abc123\"", Some("abc123")),
            ("W/\"abc-1\"", Some("abc-1")),
            ("\"../../x\"", None),
            ("\"..\"", None),
            ("\"\"", None),
            ("\"a/b\"", None),
        ] {
            assert_eq!(blob_name(tag).as_deref(), name, "{tag}");
        }
    }
}
