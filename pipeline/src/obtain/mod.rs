//! Deliveries that lie elsewhere, brought to this disk before anything is opened.
//!
//! What comes out is a workspace whose deliveries are all folders of this disk, so that nothing behind it
//! knows of addresses. What is here is never asked for again, and commands that only look ask nobody.

mod asked;
mod told;

pub use asked::{Role, Roles, needed};
pub use told::{Downloaded, Told};

use crate::error::CliError;
use crate::workspace::{Delivery, Workspace};
use mica_download::{Depot, DownloadError, Held, Network, Setting, Source, Want};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a weights file is called where nobody says otherwise.
const WEIGHTS: &str = "model.safetensors";
/// What its index is called where it is in shards.
const INDEX: &str = "model.safetensors.index.json";

/// How far a command goes for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the network.
    Network,
    /// To this disk; the text says why no further.
    Disk(&'static str),
}

impl Reach {
    /// That of a command that downloads, unless it is told not to.
    pub fn of(offline: bool) -> Reach {
        if offline {
            Reach::Disk("--offline, or MICA_OFFLINE, forbids to ask for it")
        } else {
            Reach::Network
        }
    }

    /// That of a command that only looks.
    pub const LOOK: Reach = Reach::Disk("this command downloads nothing");
}

/// The variable that says where a copy of a delivery is.
pub fn variable(delivery: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("MICA_DELIVERY_{}", delivery.chars().map(plain).collect::<String>())
}

/// Whether a text of the workspace is an address.
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(Source::is_remote)
}

/// An address of a delivery's folder or of its weights file.
///
/// # Errors
/// One that can't be used.
pub fn source(path: &Path, allow_http: bool) -> Result<Source, DownloadError> {
    Source::parse(&path.to_string_lossy(), allow_http, mica_fetch::is_weights)
}

/// An address of one file.
///
/// # Errors
/// One that can't be used, or that ends like a folder's.
pub fn file_source(path: &Path, allow_http: bool) -> Result<(Source, String), DownloadError> {
    let text = path.to_string_lossy();
    let source = Source::parse(&text, allow_http, |_| true)?;
    match source.file.clone() {
        Some(name) => Ok((source, name)),
        None => Err(DownloadError::Address { address: text.into(), why: "it names no file".into() }),
    }
}

/// A workspace whose deliveries are all here.
pub struct Here {
    /// The workspace, its addresses replaced by places.
    pub workspace: Workspace,
    /// What is not in it since it is not here.
    pub left_out: Vec<String>,
}

/// Brings deliveries here.
pub struct Obtain<'a> {
    workspace: &'a Workspace,
    cache: PathBuf,
    reach: Reach,
    depot: OnceCell<Depot>,
    told: &'a Told<'a>,
    update: bool,
}

/// Why a delivery is not here.
enum Lack {
    /// Nobody was asked.
    Unasked(CliError),
    /// It can't be had.
    Failed(CliError),
}

impl Lack {
    fn error(self) -> CliError {
        match self {
            Lack::Unasked(e) | Lack::Failed(e) => e,
        }
    }
}

impl<'a> Obtain<'a> {
    /// Over the cache folder `cache`; `told` is told how downloads go.
    pub fn new(workspace: &'a Workspace, cache: &Path, reach: &Reach, told: &'a Told<'a>) -> Obtain<'a> {
        let (cache, reach) = (cache.to_path_buf(), reach.clone());
        Obtain { workspace, cache, reach, depot: OnceCell::new(), told, update: false }
    }

    /// The depot; a workspace of folders alone does without it and without what the environment says of hubs.
    fn depot(&self) -> &Depot {
        self.depot.get_or_init(|| {
            let mut setting = Setting::of_environment();
            if let Reach::Disk(why) = self.reach {
                setting.network = Network::Closed(why.into());
            }
            Depot::new(self.cache.join("deliveries"), setting)
        })
    }

    /// The same, with everything asked for again: a branch of a hub may have moved, a server's file be another.
    /// What did not change is not downloaded again.
    pub fn updating(self, update: bool) -> Obtain<'a> {
        Obtain { update, ..self }
    }

    fn open(&self, depot: Depot, source: &Source) -> Result<Held, DownloadError> {
        let mut held = depot.open(source)?;
        if self.update {
            held.update()?;
        }
        Ok(held)
    }

    /// The workspace with its deliveries here. Those that `needed` names have to be; others are left out
    /// with their models if they are not. Without `needed`, whatever is here is taken.
    ///
    /// # Errors
    /// A needed delivery that can't be had.
    pub fn all(&self, needed: Option<&BTreeMap<String, Roles>>) -> Result<Here, CliError> {
        let mut here = Here { workspace: self.workspace.clone(), left_out: Vec::new() };
        let config = &self.workspace.config;
        let used: BTreeSet<&String> = config.model.values().map(|m| &m.delivery).collect();
        for name in used {
            let roles = needed.and_then(|n| n.get(name));
            let found = match roles {
                Some(roles) => self.delivery(name, *roles).map(Some)?,
                None => self.if_here(name)?,
            };
            match found {
                Some(delivery) => {
                    if needed.is_none() && delivery.captures.as_ref().is_some_and(|c| c.left_out) {
                        here.left_out.push(format!(
                            "the captures of delivery {name:?} are not here, and what rests on them is left \
                             out; `mica fetch {name}` downloads them"
                        ));
                    }
                    here.workspace.config.delivery.insert(name.clone(), delivery);
                }
                None => {
                    here.workspace.config.model.retain(|_, m| m.delivery != *name);
                    if needed.is_none() {
                        here.left_out.push(format!(
                            "delivery {name:?} is not here, and its models are left out; `mica fetch {name}` \
                             downloads it"
                        ));
                    }
                }
            }
        }
        Ok(here)
    }

    /// A delivery of the workspace as a folder of this disk.
    ///
    /// # Errors
    /// One that can't be had, with everything that a person needs to have it.
    pub fn delivery(&self, name: &str, roles: Roles) -> Result<Delivery, CliError> {
        self.bring(name, roles, || self.depot().clone()).map_err(Lack::error)
    }

    /// A delivery if all but its captures is here.
    fn if_here(&self, name: &str) -> Result<Option<Delivery>, CliError> {
        let nobody = || self.depot().with_network(Network::Closed("nobody is asked for it".into()));
        match self.bring(name, Roles { captures: false, ..Roles::ALL }, nobody) {
            Ok(delivery) => Ok(Some(delivery)),
            Err(Lack::Unasked(_)) => Ok(None),
            Err(Lack::Failed(e)) => Err(e),
        }
    }

    fn bring(&self, name: &str, roles: Roles, depot: impl Fn() -> Depot) -> Result<Delivery, Lack> {
        let declared = &self.workspace.config.delivery[name];
        let mut d = declared.clone();
        let failed = |e: DownloadError| lack(name, &e);
        self.told.delivery(name);
        if let Some(dir) = copy_of(name, declared).map_err(Lack::Failed)? {
            // an address of a file that the copy has is not followed
            for (given, usual) in [(&mut d.config, "config.json"), (&mut d.tokenizer, "tokenizer.json")] {
                if given.as_deref().is_some_and(is_remote) && dir.join(usual).is_file() {
                    *given = None;
                }
            }
            if is_remote(&d.source) {
                let named = source(&d.source, d.allow_http).map_err(failed)?.file;
                d.weights = d.weights.or(named);
            }
            leave_out(&mut d, roles, |file| dir.join(file).is_file());
            d.source = dir;
        } else if is_remote(&d.source) {
            let source = source(&d.source, d.allow_http).map_err(failed)?;
            let mut held = self.open(depot(), &source).map_err(failed)?;
            self.files(name, &mut d, &source, &mut held, roles)?;
            leave_out(&mut d, roles, |file| held.here(file));
            let unknown =
                || CliError::Delivery { delivery: name.into(), message: "its folder is unknown".into() };
            let dir = held.dir().ok_or_else(|| Lack::Unasked(unknown()))?;
            d.source = absolute(&dir).map_err(Lack::Failed)?;
        }
        for (given, wanted) in [(&mut d.config, roles.config), (&mut d.tokenizer, roles.tokenizer)] {
            if let Some(path) = given.as_ref().filter(|p| is_remote(p)) {
                let (source, file) = file_source(path, d.allow_http).map_err(failed)?;
                let mut held = self.open(depot(), &source).map_err(failed)?;
                if wanted {
                    held.obtain(&[Want::required(&file)], self.told).map_err(failed)?;
                }
                let dir = held.dir().map(|dir| absolute(&dir)).transpose().map_err(Lack::Failed)?;
                *given = dir.map(|dir| dir.join(&file));
            }
        }
        Ok(d)
    }

    /// Brings a delivery's own files: the small ones first, since they say which the large ones are.
    fn files(
        &self,
        name: &str,
        d: &mut Delivery,
        source: &Source,
        held: &mut Held,
        roles: Roles,
    ) -> Result<(), Lack> {
        let failed = |e: DownloadError| lack(name, &e);
        let mut small = Vec::new();
        let mut large = Vec::new();
        if roles.config && d.config.is_none() {
            small.push(Want::required("config.json"));
        }
        if roles.tokenizer && d.tokenizer.is_none() {
            small.push(Want::optional("tokenizer.json"));
        }
        d.weights = source.file.clone().or(d.weights.take());
        let mut index = None;
        if roles.weights {
            small.extend(["quantization_config.json", "quantize_config.json"].map(Want::optional));
            let weights = match &d.weights {
                Some(weights) => weights.clone(),
                None => self.choose(name, source, held)?,
            };
            if mica_fetch::is_index(&weights) {
                small.push(Want::required(&weights));
                index = Some(weights.clone());
            } else {
                large.push(Want::required(&weights));
            }
            d.weights = Some(weights);
        }
        held.obtain(&small, self.told).map_err(failed)?;
        if let (Some(index), Some(dir)) = (index, held.dir()) {
            let shards = mica_fetch::shards(&dir, &index).map_err(|e| {
                Lack::Failed(CliError::Delivery { delivery: name.into(), message: e.to_string() })
            })?;
            large.extend(shards.into_iter().map(Want::required));
        }
        if let Some(captures) = d.captures.as_ref().filter(|_| roles.captures) {
            large.push(Want::required(&captures.file));
        }
        held.obtain(&large, self.told).map_err(failed)
    }

    /// Which file has the weights, where nobody says: the one, or the index of many.
    fn choose(&self, name: &str, source: &Source, held: &mut Held) -> Result<String, Lack> {
        if let Some(here) = [INDEX, WEIGHTS].into_iter().find(|file| held.here(file)) {
            return Ok(here.into());
        }
        let failed = |e: DownloadError| lack(name, &e);
        let index = held.exists(INDEX, self.told).map_err(failed)?;
        let single = held.exists(WEIGHTS, self.told).map_err(failed)?;
        let refused = |why: &str| {
            let message =
                format!("{source}: {why}; name the file with `weights = \"…\"` in [delivery.{name}]");
            Lack::Failed(CliError::Delivery { delivery: name.into(), message })
        };
        match (index, single) {
            (true, false) => Ok(INDEX.into()),
            (false, true) => Ok(WEIGHTS.into()),
            (true, true) => Err(refused(&format!("{WEIGHTS} and {INDEX} could each be the weights"))),
            (false, false) => Err(refused(&format!("it has neither {WEIGHTS} nor {INDEX}"))),
        }
    }

    /// What a delivery's parts that lie elsewhere are held as: its folder, its config, its tokenizer.
    ///
    /// # Errors
    /// An address that can't be used.
    pub fn held(&self, name: &str) -> Result<Vec<Held>, CliError> {
        let d = &self.workspace.config.delivery[name];
        let mut all = Vec::new();
        if is_remote(&d.source) && copy_of(name, d)?.is_none() {
            all.push(source(&d.source, d.allow_http));
        }
        for path in [&d.config, &d.tokenizer].into_iter().flatten().filter(|p| is_remote(p)) {
            all.push(file_source(path, d.allow_http).map(|(source, _)| source));
        }
        let failed = |e: DownloadError| lack(name, &e).error();
        all.into_iter().map(|s| s.and_then(|s| self.depot().open(&s)).map_err(failed)).collect()
    }
}

/// Captures that nobody asked for and that are not here are not opened.
fn leave_out(d: &mut Delivery, roles: Roles, here: impl Fn(&str) -> bool) {
    if let Some(captures) = &mut d.captures {
        captures.left_out = !roles.captures && !here(&captures.file);
    }
}

/// The folder that a variable of the environment names for a delivery.
///
/// # Errors
/// A variable that names no folder.
pub fn copy_of(name: &str, d: &Delivery) -> Result<Option<PathBuf>, CliError> {
    for variable in [Some(variable(name)), d.env.clone()].into_iter().flatten() {
        let Some(value) = std::env::var_os(&variable).filter(|v| !v.is_empty()) else { continue };
        let dir = PathBuf::from(value);
        if !dir.is_dir() {
            return Err(CliError::Delivery {
                delivery: name.into(),
                message: format!("{variable} names {}, which is no folder", dir.display()),
            });
        }
        return absolute(&dir).map(Some);
    }
    Ok(None)
}

/// A place that stays the same beside whatever folder it is taken: paths of a workspace are relative to its
/// file, and these are to the working folder.
fn absolute(dir: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(dir).map_err(|source| CliError::Read { path: dir.into(), source })
}

fn lack(delivery: &str, e: &DownloadError) -> Lack {
    let unasked = matches!(e, DownloadError::Offline { .. });
    let message = match e {
        DownloadError::Offline { .. } => format!("{e}; `mica fetch {delivery}` downloads it"),
        DownloadError::Digest { .. } | DownloadError::Length { .. } => {
            format!(
                "{e}; if the publisher has replaced its files, `mica fetch --update {delivery}` takes the new ones"
            )
        }
        _ => e.to_string(),
    };
    let error = CliError::Delivery { delivery: delivery.into(), message };
    if unasked { Lack::Unasked(error) } else { Lack::Failed(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deliverys_variable() {
        for (name, is) in [("tiny-w4a16", "MICA_DELIVERY_TINY_W4A16"), ("a.b c", "MICA_DELIVERY_A_B_C")] {
            assert_eq!(variable(name), is);
        }
    }

    #[test]
    fn addresses_of_folders_and_of_files() {
        for (path, remote) in [("a/b", false), ("/a", false), ("https://h/a", true), ("hf://a/b", true)] {
            assert_eq!(is_remote(Path::new(path)), remote, "{path}");
        }
        let file = |text: &str| source(Path::new(text), false).unwrap().file;
        assert_eq!(file("https://h/d/full_model.pth").as_deref(), Some("full_model.pth"));
        assert_eq!(file("hf://o/r/model.safetensors.index.json").as_deref(), Some(INDEX));
        assert_eq!(file("https://h/delivery_v1.2"), None);
        assert_eq!(file_source(Path::new("hf://o/r@v/config.json"), false).unwrap().1, "config.json");
        assert!(file_source(Path::new("https://h/"), false).is_err());
    }
}
