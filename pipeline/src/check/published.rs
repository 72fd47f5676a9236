//! Where weights come from: a delivery's files, or a generator; and both read as the evaluator asks for them.

use super::Refused;
use super::generated::{self, Index};
use mica_fetch::{DeliveryFiles, ListOptions, Listing, MappedDelivery, RawConfig, TensorIndex};
use mica_models::eval::{EvalError, Resource, Tensor, Weights};
use mica_models::hir::{self, Type};
use mica_models::{Part, Stack};
use mica_pack::{
    Dtype, InWords, Names, Resolved, ResolvedRole, RoleInWords, Scheme, TensorInfo, Virtual, resolve,
};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A delivery's files, mapped.
pub struct Files {
    mapped: MappedDelivery,
    index: TensorIndex,
    scheme: Option<Scheme>,
}

impl Files {
    /// Opens a delivery: its headers are read and no tensor.
    ///
    /// # Errors
    /// What fetch says of it.
    pub fn open(dir: &Path, weights: Option<&str>) -> Result<(Files, Listing), Refused> {
        let failed = |e: mica_fetch::FetchError| Refused(e.to_string());
        let options = ListOptions { weights: weights.map(str::to_string), ..ListOptions::default() };
        let listing = mica_fetch::list(dir, &options).map_err(failed)?;
        let mapped = MappedDelivery::open(dir, &listing).map_err(failed)?;
        let index = mica_fetch::index(&mapped, &listing).map_err(failed)?;
        Ok((Files { mapped, index, scheme: None }, listing))
    }

    /// Opens a delivery with what it says of how its integers are packed: in `config`, else in the configuration that
    /// lies beside the weights.
    ///
    /// # Errors
    /// As [`open`](Files::open), and a configuration that can't be read.
    pub fn delivery(dir: &Path, weights: Option<&str>, config: Option<&Path>) -> Result<Files, Refused> {
        let (files, listing) = Files::open(dir, weights)?;
        let config = config.map(Path::to_path_buf).or_else(|| listing.config.map(|f| files.mapped.path(f)));
        let Some(config) = config else { return Ok(files) };
        let text = crate::delivery::read(&config).map_err(Refused::because)?;
        let config = RawConfig::from_bytes(&config, &text).map_err(Refused::because)?;
        let fields = mica_fetch::quantization(&files.mapped, &listing, &config).map_err(Refused::because)?;
        let scheme = fields.map(|fields| Scheme::from_config(&fields)).transpose();
        Ok(Files { scheme: scheme.map_err(Refused::because)?, ..files })
    }
}

/// A source of published tensors.
pub enum Published {
    /// Files.
    Files(Box<Files>),
    /// Generated.
    Generated(Box<Index>),
}

impl Published {
    /// Bytes of a tensor's elements `range`, as stored.
    fn bytes(&self, name: &str, dtype: Dtype, range: Range<u64>) -> Result<Vec<u8>, String> {
        match self {
            Published::Files(f) => {
                let entry = f.index.get(name).map_err(|e| e.to_string())?;
                let width = dtype.bytes();
                let (from, to) = (range.start * width, range.end * width);
                let mut out = Vec::with_capacity((to - from) as usize);
                let mut at = 0;
                for piece in entry.chunks(&f.mapped).map_err(|e| e.to_string())? {
                    let end = at + piece.len() as u64;
                    let (a, b) = (from.clamp(at, end), to.clamp(at, end));
                    out.extend_from_slice(&piece[(a - at) as usize..(b - at) as usize]);
                    at = end;
                }
                Ok(out)
            }
            Published::Generated(index) => {
                let generator = index.generator(name).ok_or_else(|| format!("{name} is not generated"))?;
                Ok(generated::bytes(&generator, range, dtype.bytes()))
            }
        }
    }

    /// Elements of a tensor in pieces, appended as numbers.
    pub fn reals(&self, v: &Virtual, range: Range<u64>, out: &mut Vec<f64>) -> Result<(), String> {
        each_piece(v, range, |name, range| {
            if let Published::Generated(index) = self {
                let generator = index.generator(name).ok_or_else(|| format!("{name} is not generated"))?;
                out.extend(range.map(|i| generator.element(i)));
                return Ok(());
            }
            widen(v.dtype, &self.bytes(name, v.dtype, range)?, out)
        })
    }

    /// Bytes `range` of a tensor in pieces.
    pub fn raw(&self, v: &Virtual, range: Range<u64>) -> Result<Vec<u8>, String> {
        let width = v.dtype.bytes();
        let mut out = Vec::new();
        each_piece(v, range.start / width..range.end.div_ceil(width), |name, elements| {
            out.extend(self.bytes(name, v.dtype, elements)?);
            Ok(())
        })?;
        Ok(out)
    }
}

/// The pieces that a range of elements falls on, each with its own range.
fn each_piece(
    v: &Virtual,
    range: Range<u64>,
    mut each: impl FnMut(&str, Range<u64>) -> Result<(), String>,
) -> Result<(), String> {
    let size = v.shape.iter().product::<u64>() / v.pieces.len().max(1) as u64;
    for (i, name) in v.pieces.iter().enumerate() {
        let first = i as u64 * size;
        let (from, to) = (range.start.max(first), range.end.min(first + size));
        if from < to {
            each(name, from - first..to - first)?;
        }
    }
    Ok(())
}

fn widen(dtype: Dtype, bytes: &[u8], out: &mut Vec<f64>) -> Result<(), String> {
    match dtype {
        Dtype::F64 => out.extend(bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b))),
        Dtype::F32 => out.extend(bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b)))),
        Dtype::F16 => out.extend(bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f64())),
        Dtype::BF16 => out.extend(bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f64())),
        Dtype::I8 => out.extend(bytes.iter().map(|&b| f64::from(b as i8))),
        other => return Err(format!("{other:?} is no dtype of weights")),
    }
    Ok(())
}

impl Names for Published {
    fn find(&self, name: &str) -> Option<TensorInfo> {
        match self {
            Published::Files(f) => {
                let e = f.index.find(name)?;
                Some(TensorInfo { dtype: e.dtype, shape: e.shape.clone() })
            }
            Published::Generated(index) => index.info(name),
        }
    }
    fn all(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Published::Files(f) => Box::new(f.index.tensors.keys().map(String::as_str)),
            Published::Generated(index) => Box::new(index.names()),
        }
    }
    fn scheme(&self) -> Option<&Scheme> {
        match self {
            Published::Files(f) => f.scheme.as_ref(),
            Published::Generated(_) => None,
        }
    }
}

/// The weights of one part of a model by the part's own names, in the layout in which they are published;
/// `mica_models::prepare::Prepared` makes the model's layout of them.
pub struct PartWeights<'a> {
    source: &'a Published,
    /// Roles, and the tensors that they are made of.
    pub resolved: Resolved,
    by_role: BTreeMap<String, usize>,
}

impl<'a> PartWeights<'a> {
    /// Finds a part's weights; shapes and dtypes are checked, nothing is read.
    ///
    /// # Errors
    /// A weight that is missing, ambiguous or of a wrong shape or dtype.
    pub fn new(source: &'a Published, stack: &Stack, part: Part) -> Result<PartWeights<'a>, Refused> {
        let resolved = resolve(source, stack, part).map_err(|e| Refused(e.to_string()))?;
        let by_role = resolved.roles.iter().enumerate().map(|(i, r)| (r.role.clone(), i)).collect();
        Ok(PartWeights { source, resolved, by_role })
    }

    /// Where it reads from.
    pub fn source(&self) -> &'a Published {
        self.source
    }

    fn role(&self, name: &str) -> Result<&ResolvedRole, EvalError> {
        let found = self.by_role.get(name).map(|&i| &self.resolved.roles[i]);
        found.ok_or_else(|| EvalError::MissingWeight { name: name.to_string() })
    }

    /// Elements of a role as published; integers are what they stand for.
    fn elements(&self, role: &ResolvedRole, range: Range<u64>, out: &mut Vec<f64>) -> Result<(), String> {
        let Some(scale) = &role.scale else { return self.source.reals(&role.data, range, out) };
        let count = |shape: &[u64]| shape.iter().product::<u64>();
        // a group of a row shares a scale and a zero point
        let group = count(shape(role)) / count(&scale.shape).max(1);
        let groups = range.start / group..range.end.div_ceil(group);
        let lies = RoleInWords::of(role);
        let lies = lies.as_ref();
        let (first, start) = (out.len(), range.start);
        self.canonical(lies.map(|l| &l.data), &role.data, Dtype::I8, range, out)?;
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        self.canonical(lies.and_then(|l| l.scale.as_ref()), scale, scale.dtype, groups.clone(), &mut scales)?;
        if let Some(zero) = &role.zero {
            let words = lies.and_then(|l| l.zero.as_ref());
            self.canonical(words, zero, Dtype::I8, groups.clone(), &mut zeros)?;
        }
        for (i, q) in out[first..].iter_mut().enumerate() {
            let at = ((start + i as u64) / group - groups.start) as usize;
            let zero = zeros.get(at).copied().unwrap_or_default();
            // what is meant is the product rounded to binary32
            *q = f64::from((*q - zero) as f32 * scales[at] as f32);
        }
        Ok(())
    }

    /// Elements of a tensor in its canonical form, from the words that it lies in where it does.
    fn canonical(
        &self,
        words: Option<&InWords>,
        tensor: &Virtual,
        dtype: Dtype,
        range: Range<u64>,
        out: &mut Vec<f64>,
    ) -> Result<(), String> {
        let Some(lies) = words else { return self.source.reals(tensor, range, out) };
        let width = dtype.bytes();
        let stored = |range| self.source.raw(&lies.tensor, range).map(Cow::Owned).map_err(io::Error::other);
        let bytes = lies.read(range.start * width..range.end * width, stored).map_err(|e| e.to_string())?;
        widen(dtype, &bytes, out)
    }
}

/// The shape in which a role is published, that of its integers where they are packed.
fn shape(role: &ResolvedRole) -> &[u64] {
    if role.unpack.is_some() { &role.shape } else { &role.data.shape }
}

fn unread(name: &str, reason: String) -> EvalError {
    EvalError::Weight { name: name.to_string(), reason }
}

impl Weights for PartWeights<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let role = self.role(name)?;
        let mut all = Vec::new();
        self.elements(role, 0..shape(role).iter().product(), &mut all).map_err(|e| unread(name, e))?;
        Ok(Cow::Owned(all))
    }

    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let role = self.role(name)?;
        let mut out = Vec::with_capacity(rows.len() * row_len);
        let len = row_len as u64;
        for run in rows.chunk_by(|a, b| *b == *a + 1) {
            let first = run[0] as u64;
            let range = first * len..(first + run.len() as u64) * len;
            self.elements(role, range, &mut out).map_err(|e| unread(name, e))?;
        }
        Ok(Cow::Owned(out))
    }
}

impl Resource for PartWeights<'_> {
    fn ty(&self, name: &str) -> Option<Type> {
        let role = self.role(name).ok()?;
        // integer containers with scales stand for real numbers
        let dtype = match role.data.dtype {
            Dtype::BF16 => hir::Dtype::BF16,
            Dtype::F16 => hir::Dtype::F16,
            _ => hir::Dtype::F32,
        };
        Some(Type::new(dtype, shape(role)))
    }
}

/// A tensor of a safetensors file, or one that an index (a `.json` file) generates.
///
/// # Errors
/// A file or a key that is not there; a dtype that has no use here.
pub fn tensor(file: &Path, key: &str) -> Result<Tensor, Refused> {
    if file.extension().is_some_and(|e| e == "json") {
        return Index::open(file)?.tensor(key);
    }
    Captures::open(file)?.tensor(key)
}

/// A file of arrays by name.
pub struct Captures {
    path: PathBuf,
    mapped: MappedDelivery,
    index: TensorIndex,
    self_made: bool,
}

impl Captures {
    /// Opens a safetensors file.
    ///
    /// # Errors
    /// What fetch says of it.
    pub fn open(file: &Path) -> Result<Captures, Refused> {
        let dir = match file.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let (files, listing) = Files::open(dir, Some(&name))?;
        let self_made = match listing.weights {
            mica_fetch::Weights::Single(f) => {
                mica_fetch::self_made(&files.mapped, f).map_err(Refused::because)?.is_some()
            }
            mica_fetch::Weights::Sharded { .. } => false,
        };
        Ok(Captures { path: file.into(), mapped: files.mapped, index: files.index, self_made })
    }

    /// Whether the file says that our own evaluator made it.
    pub fn is_self_made(&self) -> bool {
        self.self_made
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has an array.
    pub fn has(&self, key: &str) -> bool {
        self.index.find(key).is_some()
    }

    /// An array by name.
    ///
    /// # Errors
    /// A name that is not there, with the nearest ones.
    pub fn tensor(&self, key: &str) -> Result<Tensor, Refused> {
        let failed = |e: mica_fetch::FetchError| Refused(format!("{}: {e}", self.path.display()));
        let entry = self.index.get(key).map_err(failed)?;
        let set = mica_fetch::CaptureSet::new(&self.index, &self.mapped);
        match entry.dtype.is_float() {
            true => set.get_f64(key).map(|a| Tensor::f64(&a.shape, a.values)),
            false => set.get_i64(key).map(|a| Tensor::i64(&a.shape, a.values)),
        }
        .map_err(failed)
    }
}

/// The fields of a config file.
///
/// # Errors
/// A file that is not there, or is no JSON object.
pub fn config(path: &Path) -> Result<Map<String, Value>, Refused> {
    let bytes = std::fs::read(path).map_err(|e| Refused(format!("{}: {e}", path.display())))?;
    let raw = mica_fetch::RawConfig::from_bytes(path, &bytes).map_err(|e| Refused(e.to_string()))?;
    Ok(raw.text)
}
