//! `workspace.toml`: what is built, from what, for which machine, judged by which bounds.
//!
//! Here is which file that is, and the folder that its paths start from. Its words are below, a file each for what they
//! are of. No delivery is read.

mod addresses;
mod checks;
mod config;
mod delivery;
mod device;
mod model;
mod parameters;
mod validations;

pub use checks::MOST_TOKENS;
pub use config::{Config, parse};
pub use delivery::{Captures, Delivery, Maker, Precision};
pub use device::{Device, FRAC, Machine};
pub use model::{HeldOut, Model, default_capacity};
pub use validations::{Gates, Vectors};

use crate::error::CliError;
use std::path::{Path, PathBuf};

/// The name looked for in a folder.
pub const FILE: &str = "workspace.toml";

/// A workspace as written, with the folder its relative paths start from.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Folder of the file.
    pub root: PathBuf,
    /// Path of the file, for messages.
    pub file: PathBuf,
    /// Its contents.
    pub config: Config,
}

impl Workspace {
    /// Reads a workspace: `file` if given, else `workspace.toml` in `dir` or the nearest folder above.
    pub fn load(dir: &Path, file: Option<&Path>) -> Result<Workspace, CliError> {
        let path = match file {
            Some(f) => dir.join(f),
            None => dir
                .canonicalize()
                .unwrap_or_else(|_| dir.into())
                .ancestors()
                .map(|d| d.join(FILE))
                .find(|p| p.is_file())
                .ok_or_else(|| CliError::NoWorkspace { dir: dir.into() })?,
        };
        let text =
            std::fs::read_to_string(&path).map_err(|source| CliError::Read { path: path.clone(), source })?;
        let root = path.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        let config = parse(&path, &text)?;
        Ok(Workspace { root, file: path, config })
    }

    /// A path of the file, relative to its folder.
    pub fn path(&self, p: &Path) -> PathBuf {
        self.root.join(p)
    }
}
