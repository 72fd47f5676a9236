//! Which files a delivery directory has, and what each is for. No tensor is read.
//!
//! Only files with a role are listed, so that a stray README next to the weights changes nothing. Knows
//! names and sizes; the one file it opens is the shard index, for the shards' names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::error::FetchError;
use crate::names::{nearest, stays_inside};
use crate::shard_index::{INDEX_SUFFIX, ShardIndex, set_name};

/// What may be said about a delivery beyond its directory. File names are relative to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListOptions {
    /// The weights: a `.safetensors` file, a `.safetensors.index.json`, or a `.pth`, `.pt` or `.bin` file of
    /// `torch.save`. Without it, `model.safetensors`, the only index, or a set of one shard is taken.
    pub weights: Option<String>,
    /// The configuration, if it is not `config.json`.
    pub config: Option<String>,
    /// The tokenizer, if it is not `tokenizer.json`.
    pub tokenizer: Option<String>,
    /// Capture files to list beside the weights.
    pub captures: Vec<String>,
}

/// One file with a role.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative to the delivery's directory.
    pub name: String,
    /// In bytes.
    pub size: u64,
}

/// The files that hold the weights, by their index in [`Listing::files`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Weights {
    /// One file has them all.
    Single(u32),
    /// Several, and a file that says which has what.
    Sharded {
        /// The `.safetensors.index.json`.
        index: u32,
        /// In the order of their names.
        shards: Vec<u32>,
    },
}

/// The files of a delivery that have a role; each role holds indices into `files`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Listing {
    /// Each once.
    pub files: Vec<FileEntry>,
    /// Where the tensors are.
    pub weights: Weights,
    /// The model's configuration, unless it comes from elsewhere.
    pub config: Option<u32>,
    /// The tokenizer, unless it comes from elsewhere.
    pub tokenizer: Option<u32>,
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<u32>,
    /// How the weights are quantized, where that stands in a file of its own: `quantization_config.json`, or
    /// `quantize_config.json` as GPTQ's tools call it.
    pub quantization: Option<u32>,
    /// The capture files that were asked for, in that order.
    pub captures: Vec<u32>,
}

impl Listing {
    /// The entry of file number `file`.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn file(&self, file: u32) -> Result<&FileEntry, FetchError> {
        let found = usize::try_from(file).ok().and_then(|i| self.files.get(i));
        found.ok_or(FetchError::NoSuchFile { file, files: self.files.len() })
    }
}

/// Lists the delivery in `dir`.
///
/// # Errors
/// If no weights, or no certain ones, are found; if a file that was asked for, or a shard that the index
/// names, is missing; if a shard of the set is not in the index; if a name leaves the directory.
pub fn list(dir: &Path, options: &ListOptions) -> Result<Listing, FetchError> {
    let present = names_in(dir)?;
    let mut files = Files { dir, present: &present, found: Vec::new() };
    let weights = match &options.weights {
        Some(name) => name.clone(),
        None => choose_weights(dir, &present)?,
    };
    let weights = if weights.ends_with(INDEX_SUFFIX) {
        sharded(&mut files, &weights)?
    } else if Container::of(&weights).is_some() {
        Weights::Single(files.required(&weights, "weights")?)
    } else {
        return Err(FetchError::UnknownFormat { name: weights });
    };
    let config = files.named_or_usual(options.config.as_deref(), "config.json", "configuration")?;
    let tokenizer = files.named_or_usual(options.tokenizer.as_deref(), "tokenizer.json", "tokenizer")?;
    let generation_config = files.optional("generation_config.json")?;
    let quantization = match files.optional("quantization_config.json")? {
        Some(file) => Some(file),
        None => files.optional("quantize_config.json")?,
    };
    let captures =
        options.captures.iter().map(|name| files.required(name, "captures")).collect::<Result<_, _>>()?;
    Ok(Listing { files: files.found, weights, config, tokenizer, generation_config, quantization, captures })
}

/// The names in the directory, sorted. A name that is no UTF-8 cannot be one that is looked for.
fn names_in(dir: &Path) -> Result<Vec<String>, FetchError> {
    let failed = |e: std::io::Error| FetchError::io(dir, &e);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// The one file that must be the weights. Two candidates are an error: which one a framework would take
/// differs between frameworks.
fn choose_weights(dir: &Path, present: &[String]) -> Result<String, FetchError> {
    let candidates = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        present.iter().filter(|name| wanted(name)).cloned().collect()
    };
    let mut sure = candidates(&|name| name == "model.safetensors" || name.ends_with(INDEX_SUFFIX));
    if sure.is_empty() {
        // A set of a single shard needs no index.
        sure = candidates(&|name| set_name(name).is_some() && name.ends_with("-00001-of-00001.safetensors"));
    }
    match sure.len() {
        1 => Ok(sure.remove(0)),
        0 => Err(FetchError::NoWeights {
            dir: dir.to_owned(),
            candidates: candidates(&|name| Container::of(name).is_some()),
        }),
        _ => Err(FetchError::AmbiguousWeights { dir: dir.to_owned(), candidates: sure }),
    }
}

fn sharded(files: &mut Files<'_>, name: &str) -> Result<Weights, FetchError> {
    let index = files.required(name, "weights")?;
    let path = files.dir.join(name);
    let bytes = fs::read(&path).map_err(|e| FetchError::io(&path, &e))?;
    let said = ShardIndex::parse(&path, &bytes)?;
    let folder = folder_of(name);
    let named = said.shards();
    let mut shards = Vec::new();
    let mut missing = Vec::new();
    for shard in &named {
        match files.optional(&format!("{folder}{shard}"))? {
            Some(file) => shards.push(file),
            None => missing.push((*shard).to_owned()),
        }
    }
    if !missing.is_empty() {
        return Err(FetchError::MissingShards { index: path, shards: missing });
    }
    let sets: BTreeSet<&str> = named.iter().filter_map(|shard| set_name(shard)).collect();
    let stray = |file: &String| {
        !named.contains(file.as_str()) && set_name(file).is_some_and(|set| sets.contains(set))
    };
    match names_in(&files.dir.join(folder))?.into_iter().find(stray) {
        Some(shard) => Err(FetchError::StrayShard { index: path, shard }),
        None => Ok(Weights::Sharded { index, shards }),
    }
}

/// The part of a file's name up to its last `/`, from where a shard index names its shards.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rfind('/').map_or("", |slash| &name[..=slash])
}

/// The files found so far.
struct Files<'a> {
    dir: &'a Path,
    present: &'a [String],
    found: Vec<FileEntry>,
}

impl Files<'_> {
    /// The file's number, if it is there.
    fn optional(&mut self, name: &str) -> Result<Option<u32>, FetchError> {
        if let Some(known) = self.found.iter().position(|f| f.name == name) {
            return Ok(Some(known as u32));
        }
        let path = self.dir.join(name);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(FetchError::io(&path, &e)),
        };
        if !metadata.is_file() {
            return Err(FetchError::NotAFile { path });
        }
        self.found.push(FileEntry { name: name.to_owned(), size: metadata.len() });
        Ok(Some(self.found.len() as u32 - 1))
    }

    /// The number of a file that was asked for by name.
    fn required(&mut self, name: &str, role: &'static str) -> Result<u32, FetchError> {
        stays_inside(self.dir, name)?;
        self.optional(name)?.ok_or_else(|| FetchError::MissingFile {
            dir: self.dir.to_owned(),
            name: name.to_owned(),
            role,
            nearest: nearest(name, self.present.iter().map(String::as_str)),
        })
    }

    fn named_or_usual(
        &mut self,
        named: Option<&str>,
        usual: &str,
        role: &'static str,
    ) -> Result<Option<u32>, FetchError> {
        match named {
            Some(name) => self.required(name, role).map(Some),
            None => self.optional(usual),
        }
    }
}

#[cfg(test)]
mod tests;
