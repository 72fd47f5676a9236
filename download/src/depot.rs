//! Sources and what is here of them.

use crate::address::{Place, Source, Url};
use crate::client::Client;
use crate::digest;
use crate::error::DownloadError;
use crate::file::partial;
use crate::hub::HubShelf;
use crate::manifest::{MANIFESTS, Manifest};
use crate::names::{slug, stays_inside};
use crate::place;
use crate::policy::{Network, Setting};
use crate::shelf::{Look, Shelf};
use crate::watch::{Voucher, Watch};
use crate::web::Web;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// How often a file is looked at again that changes while it is fetched.
const CHANGES: usize = 3;

/// A file that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its name in the source's folder.
    pub name: String,
    /// Whether it may be missing.
    pub optional: bool,
}

impl Want {
    /// A file that has to be there.
    pub fn required(name: impl Into<String>) -> Want {
        Want { name: name.into(), optional: false }
    }

    /// A file that is taken if there is one.
    pub fn optional(name: impl Into<String>) -> Want {
        Want { name: name.into(), optional: true }
    }
}

/// How a file that is here fared when it was hashed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is what it has to be; [`Voucher::Length`]: what it was when it came.
    Good(Voucher),
    /// It is something else.
    Bad {
        /// SHA-256 that it has to have.
        expected: String,
        /// SHA-256 that it has.
        got: String,
    },
    /// It is not there.
    Gone,
    /// Nobody says what it has to be.
    Unvouched,
}

/// A file that was hashed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its name in the delivery.
    pub name: String,
    /// How it fared.
    pub outcome: Outcome,
}

impl Checked {
    /// Hashes the files of a folder that its own manifest speaks of; `None` without a manifest. Nothing is
    /// changed there.
    ///
    /// # Errors
    /// A manifest or a file that can't be read.
    pub fn folder(dir: &Path, watch: &dyn Watch) -> Result<Option<Vec<Checked>>, DownloadError> {
        for name in MANIFESTS {
            let path = dir.join(name);
            let Ok(bytes) = fs::read(&path) else { continue };
            let Some(manifest) = Manifest::parse(name, &bytes)? else { continue };
            let mut all = Vec::new();
            for file in manifest.names() {
                let path = dir.join(file);
                let size = fs::metadata(&path).map(|m| m.len());
                watch.begin(file, size.as_ref().ok().copied(), 0);
                let expected = manifest.sha256(file).unwrap_or_default().to_owned();
                let outcome = match size {
                    Err(_) => Outcome::Gone,
                    Ok(_) => match digest::of_file(&path)? {
                        got if got == expected => Outcome::Good(Voucher::Manifest),
                        got => Outcome::Bad { expected, got },
                    },
                };
                all.push(Checked { name: file.into(), outcome });
            }
            return Ok(Some(all));
        }
        Ok(None)
    }
}

/// The folder of what came from web servers, and of what is known of hubs.
#[derive(Clone)]
pub struct Depot {
    dir: PathBuf,
    setting: Setting,
}

impl Depot {
    /// The depot in a folder, which is made when something comes.
    pub fn new(dir: PathBuf, setting: Setting) -> Depot {
        Depot { dir, setting }
    }

    /// The same folder under another rule for the network.
    pub fn with_network(&self, network: Network) -> Depot {
        Depot { dir: self.dir.clone(), setting: Setting { network, ..self.setting.clone() } }
    }

    /// A source as it is held here. Asks nobody.
    ///
    /// # Errors
    /// A hub's address that can't be used.
    pub fn open(&self, source: &Source) -> Result<Held, DownloadError> {
        let text = source.to_string();
        let readable = text.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
        let dir = self.dir.join(slug(readable, &text));
        let shelf: Box<dyn Shelf> = match &source.place {
            Place::Web(folder) => Box::new(Web::open(&dir, source, folder)),
            Place::Hub(hub) => {
                let Setting { hub_cache, endpoint, .. } = &self.setting;
                Url::parse(endpoint).map_err(|e| DownloadError::Address {
                    address: text.clone(),
                    why: format!("HF_ENDPOINT is not the address of a hub: {e}"),
                })?;
                Box::new(HubShelf::open(&dir, source, hub, hub_cache, endpoint))
            }
        };
        let mut setting = self.setting.clone();
        if setting.hub_offline && setting.network == Network::Open && matches!(source.place, Place::Hub(_)) {
            setting.network = Network::Closed("HF_HUB_OFFLINE forbids to ask the hub".into());
        }
        let client = Client::new(setting, source.plain);
        Ok(Held { text, dir, shelf, client, looked: BTreeMap::new() })
    }
}

/// A source as it is held here.
pub struct Held {
    text: String,
    dir: PathBuf,
    shelf: Box<dyn Shelf>,
    client: Client,
    looked: BTreeMap<String, Look>,
}

impl Held {
    /// The folder that its files are in; `None` while the hub was not asked which commit it is.
    pub fn dir(&self) -> Option<PathBuf> {
        self.shelf.dir()
    }

    /// Whether a file is here, whole.
    pub fn here(&self, name: &str) -> bool {
        self.shelf.here(name)
    }

    /// Whether the source has a file. Asks only where nobody knows.
    ///
    /// # Errors
    /// As [`Held::obtain`]; [`DownloadError::Offline`] where it would have to be asked for.
    pub fn exists(&mut self, name: &str, watch: &dyn Watch) -> Result<bool, DownloadError> {
        stays_inside(&self.text, name)?;
        if self.shelf.here(name) {
            return Ok(true);
        }
        if self.shelf.absent(name) {
            return Ok(false);
        }
        self.network(|| format!("whether it has {name} is not known here"))?;
        let _lock = self.begin(watch)?;
        Ok(!matches!(self.look(name, true, watch)?, Look::Absent))
    }

    /// Brings files here that are not. Asks nobody where all are, or are known not to exist.
    ///
    /// # Errors
    /// A file that has to be there and is not; one that is not what it has to be; no network, or none that
    /// answers; too small a disk. What came until then is kept.
    pub fn obtain(&mut self, wants: &[Want], watch: &dyn Watch) -> Result<(), DownloadError> {
        for want in wants {
            stays_inside(&self.text, &want.name)?;
        }
        let open = |shelf: &dyn Shelf| -> Vec<Want> {
            let settled = |w: &&Want| shelf.here(&w.name) || (w.optional && shelf.absent(&w.name));
            wants.iter().filter(|w| !settled(w)).cloned().collect()
        };
        let missing = open(&*self.shelf);
        if missing.is_empty() {
            return self.shelf.settle();
        }
        let required: Vec<&str> = missing.iter().filter(|w| !w.optional).map(|w| w.name.as_str()).collect();
        if matches!(self.client.setting.network, Network::Closed(_)) && required.is_empty() {
            return Ok(());
        }
        self.network(|| match &required[..] {
            [one] => format!("{one} is not here"),
            all => format!("{} are not here", all.join(", ")),
        })?;
        let _lock = self.begin(watch)?;
        let mut todo = Vec::new();
        for want in open(&*self.shelf) {
            match self.look(&want.name, want.optional, watch)? {
                Look::Here => {}
                Look::Absent if want.optional => {}
                Look::Absent => {
                    return Err(DownloadError::Missing { source_: self.text.clone(), name: want.name });
                }
                Look::There(found) => todo.push((want, found)),
            }
        }
        let left = |(want, found): &(Want, crate::shelf::Found)| {
            let have = partial(self.shelf.parts(), &want.name, &found.meta, &found.expected);
            found.size().unwrap_or(0).saturating_sub(have)
        };
        let bytes = todo.iter().map(left).fold(0, u64::saturating_add);
        place::room(self.shelf.parts(), bytes, self.shelf.choose())?;
        if !todo.is_empty() {
            watch.plan(todo.len(), bytes);
        }
        for (want, mut found) in todo {
            let mut changes = 0;
            while !self.shelf.store(&self.client, &want.name, &found, watch)? {
                changes += 1;
                let url = found.url.to_string();
                self.looked.remove(&want.name);
                match self.look(&want.name, want.optional, watch)? {
                    Look::There(again) if changes < CHANGES => found = again,
                    Look::There(_) => return Err(DownloadError::Changing { url }),
                    Look::Here => break,
                    Look::Absent => {
                        return Err(DownloadError::Missing { source_: self.text.clone(), name: want.name });
                    }
                }
            }
        }
        self.shelf.settle()
    }

    /// Hashes every file that is here. What is not what it has to be is dropped, to be fetched again when it
    /// is wanted. Asks nobody.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn check(&mut self, watch: &dyn Watch) -> Result<Vec<Checked>, DownloadError> {
        self.shelf.check(watch)
    }

    /// Lets everything be asked for again, the hub's revision too; what did not change is not fetched again.
    ///
    /// # Errors
    /// [`DownloadError::Offline`].
    pub fn update(&mut self) -> Result<(), DownloadError> {
        self.network(|| "it would have to be asked what is new".into())?;
        self.shelf.forget();
        self.looked.clear();
        Ok(())
    }

    fn network(&self, what: impl FnOnce() -> String) -> Result<(), DownloadError> {
        match &self.client.setting.network {
            Network::Open => Ok(()),
            Network::Closed(why) => {
                let (source_, why) = (self.text.clone(), why.clone());
                Err(DownloadError::Offline { source_, what: what(), why })
            }
        }
    }

    fn begin(&mut self, watch: &dyn Watch) -> Result<place::Lock, DownloadError> {
        let lock = place::lock(&self.dir.join("lock"), &self.text, watch)?;
        place::sweep(&self.dir, |name| name.ends_with(".tmp"));
        self.shelf.begin(&self.client, watch)?;
        Ok(lock)
    }

    fn look(&mut self, name: &str, optional: bool, watch: &dyn Watch) -> Result<Look, DownloadError> {
        match self.looked.get(name) {
            Some(known) if !matches!(known, Look::Absent) || optional => Ok(known.clone()),
            _ => {
                let look = self.shelf.look(&self.client, name, optional, watch)?;
                self.looked.insert(name.into(), look.clone());
                Ok(look)
            }
        }
    }
}
