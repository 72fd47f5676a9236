//! What can be wrong with a delivery, each with the facts a person needs to put it right.
//!
//! The errors are plain values (`Clone`, `Eq`) since the caller may keep one as a query's result.

use std::path::{Path, PathBuf};

use mica_dtype::Dtype;

use crate::torch::{ArchiveFault, PickleFault};

/// Why a delivery cannot be read. `path` is the file at fault, as the caller spelled its directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum FetchError {
    /// The operating system refused.
    #[error("{}: {message}", path.display())]
    Io { path: PathBuf, kind: std::io::ErrorKind, message: String },
    /// A file is not what it was when the delivery was opened.
    #[error("{} changed while it was being read ({what}); run again once it is complete", path.display())]
    Changed { path: PathBuf, what: &'static str },

    /// Nothing that could be the weights.
    #[error(
        "{}: no model.safetensors and no *.safetensors.index.json; name the weights file in the workspace{}",
        dir.display(),
        listed("; the directory has ", candidates)
    )]
    NoWeights { dir: PathBuf, candidates: Vec<String> },
    /// More than one candidate.
    #[error("{}: {} could each be the weights; name one in the workspace", dir.display(), candidates.join(" and "))]
    AmbiguousWeights { dir: PathBuf, candidates: Vec<String> },
    /// A file that was asked for by name.
    #[error("{}: there is no {name} ({role}){}", dir.display(), listed("; did you mean ", nearest))]
    MissingFile { dir: PathBuf, name: String, role: &'static str, nearest: Vec<String> },
    /// A directory, a pipe or a device where a file was expected.
    #[error("{}: not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// A container that no reader exists for.
    #[error(
        "{name}: not a weights format that mica reads; it reads .safetensors, .safetensors.index.json and what \
         torch.save writes (.pth, .pt, .bin)"
    )]
    UnknownFormat { name: String },
    /// A name that would leave the delivery's directory.
    #[error("{}: the file name {name:?} leaves the delivery; only names below its directory are followed", path.display())]
    PathEscapes { path: PathBuf, name: String },
    /// A file number that the listing does not have: an index of another listing.
    #[error(
        "there is no file {file} in this delivery of {files} files; the tensor index belongs to another listing"
    )]
    NoSuchFile { file: u32, files: usize },

    /// A JSON file that is none, or not of the expected shape.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Json { path: PathBuf, line: usize, column: usize, message: String },

    /// The index names shards that the directory lacks.
    #[error(
        "{}: shards missing from the delivery: {}; download them, or repair the index",
        index.display(),
        shards.join(", ")
    )]
    MissingShards { index: PathBuf, shards: Vec<String> },
    /// A shard of the same set that the index does not name.
    #[error(
        "{}: {shard} lies beside the shards but the index does not name it; remove it or take the matching index",
        index.display()
    )]
    StrayShard { index: PathBuf, shard: String },
    /// The index promises a tensor that the shard does not have.
    #[error(
        "{}: the index puts tensor {tensor} there, and the shard lacks it; shard and index are of different revisions",
        shard.display()
    )]
    MissingFromShard { shard: PathBuf, tensor: String },
    /// A tensor in a shard that the index knows nothing of.
    #[error(
        "{}: tensor {tensor} is not in the index; shard and index are of different revisions",
        shard.display()
    )]
    StrayTensor { shard: PathBuf, tensor: String },
    /// A tensor in another shard than the index says.
    #[error(
        "{}: tensor {tensor} belongs to {expected} by the index; the shards are swapped or of different revisions",
        shard.display()
    )]
    MisplacedTensor { shard: PathBuf, tensor: String, expected: String },

    /// Something else under a weights file's name.
    #[error("{}: this is {what}, not a safetensors file; download the real one", path.display())]
    NotSafetensors { path: PathBuf, what: &'static str },
    /// Too short for a header's length.
    #[error("{}: {size} bytes are too few for a safetensors file; it is cut short", path.display())]
    NoHeader { path: PathBuf, size: u64 },
    /// The header does not fit.
    #[error(
        "{}: the header is said to take {header} bytes and the file has {size}; it is cut short or no safetensors file",
        path.display()
    )]
    HeaderTooLong { path: PathBuf, header: u64, size: u64 },
    /// The header is not the JSON that the format prescribes.
    #[error("{}: header, line {line} column {column}: {message}", path.display())]
    Header { path: PathBuf, line: usize, column: usize, message: String },
    /// A key that occurs twice, which readers resolve differently.
    #[error("{}: {key:?} occurs twice in the header; which one counts is anyone's guess", path.display())]
    DuplicateKey { path: PathBuf, key: String },
    /// A name of an element type that cannot be read.
    #[error("{name:?} is {reason}; mica reads {}", dtypes())]
    DtypeName { name: String, reason: &'static str },
    /// A tensor whose element type cannot be read.
    #[error("{}: tensor {tensor}: {reason}", path.display())]
    UnknownDtype { path: PathBuf, tensor: String, reason: Box<FetchError> },
    /// A shape whose bytes no 64-bit number counts.
    #[error("{}: tensor {tensor}: the shape {shape:?} overflows", path.display())]
    ShapeOverflow { path: PathBuf, tensor: String, shape: Vec<u64> },
    /// Shape and bytes disagree.
    #[error(
        "{}: tensor {tensor}: {dtype} {shape:?} takes {expected} bytes and the header gives it {actual}",
        path.display()
    )]
    SizeMismatch { path: PathBuf, tensor: String, dtype: Dtype, shape: Vec<u64>, expected: u64, actual: u64 },
    /// A range that runs backwards.
    #[error("{}: tensor {tensor}: its data ends ({end}) before it begins ({begin})", path.display())]
    BackwardRange { path: PathBuf, tensor: String, begin: u64, end: u64 },
    /// The data ends early.
    #[error(
        "{}: tensor {tensor} ends at byte {end} of the data and the file has {available}; it is cut short",
        path.display()
    )]
    Truncated { path: PathBuf, tensor: String, end: u64, available: u64 },
    /// Two tensors share bytes.
    #[error("{}: tensor {tensor} begins at byte {begin} of the file, inside {other}, which ends at {end}", path.display())]
    Overlap { path: PathBuf, tensor: String, begin: u64, other: String, end: u64 },
    /// Bytes that no tensor owns, before one.
    #[error("{}: {bytes} bytes before tensor {tensor} belong to no tensor", path.display())]
    Hole { path: PathBuf, tensor: String, bytes: u64 },
    /// Bytes that no tensor owns, at the end.
    #[error("{}: {bytes} bytes after the last tensor belong to no tensor", path.display())]
    TrailingBytes { path: PathBuf, bytes: u64 },

    /// Something else under a name that torch.save's files have.
    #[error("{}: this is {what}, and torch.save writes a zip archive; download the real one", path.display())]
    NotTorch { path: PathBuf, what: &'static str },
    /// torch.save before its version 1.6.
    #[error(
        "{}: this is torch.save's format from before torch 1.6, which is no archive; load it with torch and save it \
         again",
        path.display()
    )]
    LegacyTorch { path: PathBuf },
    /// The archive of a torch.save file.
    #[error("{}: {fault}", path.display())]
    Archive { path: PathBuf, fault: ArchiveFault },
    /// The pickle in a torch.save file.
    #[error("{}: {record}, byte {byte}: {fault}", path.display())]
    Pickle { path: PathBuf, record: String, byte: u64, fault: PickleFault },
    /// A view that jumps about in its storage.
    #[error(
        "{}: tensor {tensor}: shape {shape:?} with strides {strides:?} is not contiguous; call .contiguous() before \
         saving",
        path.display()
    )]
    NotContiguous { path: PathBuf, tensor: String, shape: Vec<u64>, strides: Vec<u64> },
    /// A view that reaches past its storage.
    #[error("{}: tensor {tensor} ends at element {end} of storage {key}, which has {elements}", path.display())]
    OutsideStorage { path: PathBuf, tensor: String, key: String, end: u64, elements: u64 },

    /// A tensor that the index does not have.
    #[error("the delivery has no tensor {name}{}", listed("; nearest: ", nearest))]
    MissingTensor { name: String, nearest: Vec<String> },
    /// Two quantization configurations.
    #[error("{}: {key} is not what config.json says under quantization_config; make them agree", path.display())]
    QuantizationDiffers { path: PathBuf, key: String },
    /// A capture of a type that was not asked for.
    #[error("capture {name} is {dtype}, and {wanted} was asked for")]
    CaptureType { name: String, dtype: Dtype, wanted: &'static str },
    /// A capture with a value that the wanted type cannot hold.
    #[error("capture {name}: element {element} is {value}, which a 64-bit signed integer cannot hold")]
    CaptureRange { name: String, element: usize, value: u64 },
    /// A capture name pattern with the placeholder missing or out of place.
    #[error("capture name {pattern:?}: {message}")]
    CapturePattern { pattern: String, message: &'static str },
    /// A capture file with a label that no reader knows.
    #[error(
        "{}: its metadata says that it was made by {word:?}; only \"self\" is known (a publisher's file has no such label)",
        path.display()
    )]
    CaptureOrigin { path: PathBuf, word: String },

    /// tokenizer.json is none.
    #[error("tokenizer: {message}")]
    Tokenizer { message: String },
}

impl FetchError {
    /// Whether the surroundings and not the delivery's content are at fault: such an error may be gone
    /// on the next try, so it must not be remembered as a result.
    pub fn is_environment(&self) -> bool {
        matches!(self, FetchError::Io { .. } | FetchError::Changed { .. })
    }

    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        FetchError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    pub(crate) fn json(path: &Path, error: &serde_json::Error) -> Self {
        FetchError::Json {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            message: without_position(error),
        }
    }

    pub(crate) fn header(path: &Path, error: &serde_json::Error) -> Self {
        FetchError::Header {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            message: without_position(error),
        }
    }
}

/// serde_json's message without its own "at line 1 column 2", which the errors here say in their own way.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).map(str::to_owned).unwrap_or(text)
}

fn listed(lead: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("{lead}{}", names.join(", ")) }
}

fn dtypes() -> String {
    Dtype::ALL.map(Dtype::name).join(", ")
}
