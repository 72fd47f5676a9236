//! Deliveries of the workspace, opened: which files, which tensors, under which stamps. Headers are
//! read, tensors are not; nothing is written there.

use crate::action::BodyError;
use crate::error::CliError;
use crate::workspace::{Delivery, Workspace};
use mica_cache::{Digest, Stamp, StampMemo};
use mica_fetch::{
    CaptureSet, DeliveryFiles, FetchError, ListOptions, Listing, MappedDelivery, RawConfig, SelfMade,
    TensorEntry, TensorIndex, Tokenizer,
};
use mica_pack::Scheme;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// A hasher for a tensor's place in its files: a build asks for thousands.
static PLACE: LazyLock<blake3::Hasher> =
    LazyLock::new(|| blake3::Hasher::new_derive_key("mica 2026 tensor of a delivery file v1"));

/// One delivery, its headers read.
pub struct OpenDelivery {
    /// Its name in the workspace.
    pub name: String,
    /// Its files, mapped when first asked for.
    pub files: MappedDelivery,
    /// Which file is what.
    pub listing: Listing,
    /// The weights' tensors.
    pub index: Arc<TensorIndex>,
    /// The captures' tensors.
    pub captures: Option<Arc<TensorIndex>>,
    /// The captures' own label, where our own evaluator made them.
    pub self_made: Option<SelfMade>,
    /// The model's configuration.
    pub config: RawConfig,
    /// How its integers are packed, where it says so.
    pub scheme: Option<Arc<Scheme>>,
    /// The tokenizer's file.
    pub tokenizer: Option<PathBuf>,
    /// Stamp of each file of the listing.
    pub stamps: Vec<Stamp>,
}

/// What a digest cost.
pub struct Hashed {
    /// The tensor's digest.
    pub digest: Digest,
    /// Bytes that were read for it; 0 where the stamp memo had it.
    pub read: u64,
}

/// The tokenizer of a file.
///
/// # Errors
/// A file that can't be read, or is none; both with its name.
pub fn tokenizer(path: &Path) -> Result<Tokenizer, BodyError> {
    let bytes =
        std::fs::read(path).map_err(|e| BodyError::Environment(format!("{}: {e}", path.display())))?;
    Tokenizer::from_bytes(&bytes).map_err(|e| BodyError::Stage(format!("{}: {e}", path.display())))
}

impl OpenDelivery {
    /// Opens a delivery of the workspace.
    pub fn open(workspace: &Workspace, name: &str, d: &Delivery) -> Result<OpenDelivery, CliError> {
        let failed = |e: FetchError| CliError::Delivery { delivery: name.into(), message: e.to_string() };
        let dir = workspace.path(&d.source);
        let options = ListOptions {
            weights: d.weights.clone(),
            captures: d.captures.iter().filter(|c| !c.left_out).map(|c| c.file.clone()).collect(),
            ..ListOptions::default()
        };
        let listing = mica_fetch::list(&dir, &options).map_err(failed)?;
        let files = MappedDelivery::open(&dir, &listing).map_err(failed)?;
        let index = mica_fetch::index(&files, &listing).map_err(failed)?;
        let (captures, self_made) = match listing.captures.first() {
            Some(&f) => {
                let index = mica_fetch::index_file(&files, f).map_err(failed)?;
                (Some(index), mica_fetch::self_made(&files, f).map_err(failed)?)
            }
            None => (None, None),
        };
        let elsewhere = |given: &Option<PathBuf>, own: Option<u32>| match given {
            Some(p) => Some(workspace.path(p)),
            None => own.map(|f| files.path(f)),
        };
        let config = elsewhere(&d.config, listing.config).ok_or_else(|| CliError::Delivery {
            delivery: name.into(),
            message: format!(
                "{} has no config.json; name one with `config = \"…\"` in [delivery.{name}]",
                dir.display()
            ),
        })?;
        let config = RawConfig::from_bytes(&config, &read(&config)?).map_err(failed)?;
        let scheme = mica_fetch::quantization(&files, &listing, &config).map_err(failed)?;
        let scheme = scheme.map(|fields| Scheme::from_config(&fields)).transpose().map_err(|e| {
            CliError::Delivery { delivery: name.into(), message: format!("quantization configuration: {e}") }
        })?;
        let tokenizer = elsewhere(&d.tokenizer, listing.tokenizer);
        let stamps = (0..listing.files.len() as u32)
            .map(|f| files.metadata(f).map(Stamp::of))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        Ok(OpenDelivery {
            name: name.into(),
            files,
            listing,
            index: Arc::new(index),
            captures: captures.map(Arc::new),
            self_made,
            config,
            scheme: scheme.map(Arc::new),
            tokenizer,
            stamps,
        })
    }

    /// The captured arrays.
    pub fn capture_set(&self) -> Option<CaptureSet<'_>> {
        self.captures.as_ref().map(|index| CaptureSet::new(index, &self.files))
    }

    /// What is wrong with a capture, under its file's name: other deliveries call theirs the same.
    pub fn of_captures(&self, e: &FetchError) -> String {
        match self.listing.captures.first() {
            // it names its file itself
            Some(_) if e.is_environment() => e.to_string(),
            Some(&file) => format!("{}: {e}", self.files.path(file).display()),
            None => e.to_string(),
        }
    }

    /// The digest of a tensor, from the memo where its files' stamps are known.
    pub fn digest(&self, memo: &StampMemo, entry: &TensorEntry) -> Result<Hashed, FetchError> {
        let Some(first) = entry.extents.first() else {
            return Ok(Hashed { digest: entry.digest(&self.files, false)?, read: 0 });
        };
        // the first file's stamp is the memo's key, so the others' stamps stand in the part's name
        let mut what = PLACE.clone();
        what.update(format!("{:?} {:?}", entry.dtype, entry.shape).as_bytes());
        for e in &entry.extents {
            what.update(&e.offset.to_le_bytes()).update(&e.len.to_le_bytes());
            if e.file != first.file {
                what.update(format!("{:?}", self.stamps[e.file as usize]).as_bytes());
            }
        }
        let (stamp, what) = (self.stamps[first.file as usize], what.finalize());
        if let Some(digest) = memo.get(&stamp, &what) {
            return Ok(Hashed { digest, read: 0 });
        }
        let digest = entry.digest(&self.files, entry.bytes() > 8 << 20)?;
        self.unchanged(entry)?;
        memo.put(stamp, what, digest);
        Ok(Hashed { digest, read: entry.bytes() })
    }

    /// Fails where a file of the tensor is no longer what it was when opened.
    pub fn unchanged(&self, entry: &TensorEntry) -> Result<(), FetchError> {
        let mut checked = None;
        for e in &entry.extents {
            if checked.replace(e.file) != Some(e.file) {
                self.files.verify_unchanged(e.file)?;
            }
        }
        Ok(())
    }
}

/// A whole small file.
pub fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|source| CliError::Read { path: path.into(), source })
}
