//! Tensors that no file holds: an index gives a seed and, a tensor, dtype, shape, scale and offset, and
//! `mica_models::generator` makes any element of it. The digests in the index say whether it does so rightly.

use super::Refused;
use mica_models::eval::Tensor;
use mica_models::generator::Generator;
use mica_models::hir;
use mica_models::prepare::prepared_sources;
use mica_models::{Part, SourceForm, Stack};
use mica_pack::{Dtype, TensorInfo};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Elements that a thread makes at a time.
const CHUNK: u64 = 1 << 16;

/// An index of generated tensors.
#[derive(Debug, Deserialize)]
pub struct Index {
    seed: u64,
    /// Fields of the model's configuration.
    #[serde(default)]
    config: Map<String, Value>,
    tensors: BTreeMap<String, Entry>,
    #[serde(default)]
    inputs: BTreeMap<String, Entry>,
}

/// One tensor.
#[derive(Debug, Deserialize)]
pub struct Entry {
    dtype: Stored,
    shape: Vec<u64>,
    scale: f32,
    offset: f32,
    #[serde(default)]
    blake3: Option<String>,
    /// Digests of some rows of axis 0, by number.
    #[serde(default)]
    blake3_of_used_experts: BTreeMap<String, String>,
    /// Elements that are set to a value afterwards.
    #[serde(default)]
    then_set: Vec<Set>,
}

/// What an element is stored as.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Stored {
    /// bfloat16.
    BF16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Stored {
    fn hir(self) -> hir::Dtype {
        match self {
            Stored::BF16 => hir::Dtype::BF16,
            Stored::F16 => hir::Dtype::F16,
            Stored::F32 => hir::Dtype::F32,
        }
    }
    fn pack(self) -> Dtype {
        match self {
            Stored::BF16 => Dtype::BF16,
            Stored::F16 => Dtype::F16,
            Stored::F32 => Dtype::F32,
        }
    }
}

impl Entry {
    fn count(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// An element `[step, channel]` with a value of its own.
#[derive(Debug, Deserialize)]
struct Set {
    step: usize,
    channel: usize,
    value: f64,
}

/// Stored bytes of a range of elements.
pub fn bytes(generator: &Generator, range: Range<u64>, width: u64) -> Vec<u8> {
    let chunks = range.clone().step_by(CHUNK as usize).collect::<Vec<_>>().into_par_iter();
    let made = chunks.map(|first| {
        let count = CHUNK.min(range.end - first);
        let mut out = Vec::with_capacity((count * width) as usize);
        generator.bytes(first, count, &mut out);
        out
    });
    made.collect::<Vec<_>>().concat()
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// A file that is not there or is no index.
    pub fn open(path: &Path) -> Result<Index, Refused> {
        let text = std::fs::read_to_string(path).map_err(|e| Refused(format!("{}: {e}", path.display())))?;
        serde_json::from_str(&text).map_err(|e| {
            Refused(format!(
                "{}: {e}; expected an index of generated tensors (seed, tensors)",
                path.display()
            ))
        })
    }

    /// Random weights of a part, under the published names and in the published layout: matrices scaled so that
    /// a product is about as large as its vector, everything else in [−0.5, 0.5).
    ///
    /// # Errors
    /// A part that the stack does not have.
    pub fn random(stack: &Stack, part: Part, seed: u64) -> Result<Index, Refused> {
        let mut tensors = BTreeMap::new();
        for source in prepared_sources(stack, part).map_err(|e| Refused(e.to_string()))? {
            let shape = source.published_shape;
            let scale = match shape.as_slice() {
                // uniform in [−s, s) has a variance of s²/3
                [.., rows, k] if *rows > 1 => (3.0 / *k as f64).sqrt() as f32,
                _ => 0.5,
            };
            let dtype = match source.dtype {
                hir::Dtype::F32 => Stored::F32,
                hir::Dtype::F16 => Stored::F16,
                _ => Stored::BF16,
            };
            if let Some(SourceForm::Whole { names }) = source.forms.first()
                && let Some(name) = names.first()
            {
                let (blake3, then_set) = (None, Vec::new());
                let blake3_of_used_experts = BTreeMap::new();
                let entry =
                    Entry { dtype, shape, scale, offset: 0.0, blake3, blake3_of_used_experts, then_set };
                tensors.insert(name.clone(), entry);
            }
        }
        Ok(Index { seed, config: Map::new(), tensors, inputs: BTreeMap::new() })
    }

    /// The model's configuration: the published one with the index's own fields. A table of which only the
    /// first rows are generated has as many rows.
    pub fn config(&self, published: &Map<String, Value>) -> Map<String, Value> {
        let mut text = published.get("text_config").and_then(Value::as_object).unwrap_or(published).clone();
        text.extend(self.config.clone());
        if let Some(rows) = self.config.get("vocab_rows") {
            text.insert("vocab_size".into(), rows.clone());
        }
        text
    }

    /// Names of the weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type and shape of a weight.
    pub fn info(&self, name: &str) -> Option<TensorInfo> {
        let e = self.tensors.get(name)?;
        Some(TensorInfo { dtype: e.dtype.pack(), shape: e.shape.clone() })
    }

    /// The generator of a weight.
    pub fn generator(&self, name: &str) -> Option<Generator> {
        self.tensors.get(name).map(|e| self.of(name, e))
    }

    fn of(&self, name: &str, e: &Entry) -> Generator {
        Generator::new(name, self.seed, e.dtype.hir(), e.scale, e.offset)
    }

    /// An input or a weight by name, its set elements set.
    ///
    /// # Errors
    /// A name that is neither.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Refused> {
        let entry = self.inputs.get(name).or_else(|| self.tensors.get(name)).ok_or_else(|| {
            let known: Vec<&str> = self.inputs.keys().map(String::as_str).collect();
            Refused(format!(
                "the index generates no {name:?}, expected a weight or one of: {}",
                known.join(", ")
            ))
        })?;
        let shape: Vec<usize> = entry.shape.iter().map(|&n| n as usize).collect();
        let generator = self.of(name, entry);
        let mut data: Vec<f64> = (0..entry.count()).map(|i| generator.element(i)).collect();
        let row = shape.iter().skip(1).product::<usize>();
        for set in &entry.then_set {
            data[set.step * row + set.channel] = set.value;
        }
        Ok(Tensor::f64(&shape, data))
    }

    /// Generates the named weights and compares their digests, and those of single rows; gives the bytes made.
    ///
    /// # Errors
    /// The first tensor whose digest differs or is not known.
    pub fn verify(&self, names: &[String]) -> Result<u64, Refused> {
        let mut made = 0;
        for name in names {
            let known = self.tensors.get(name).and_then(|e| Some((e, e.blake3.as_deref()?)));
            let (e, digest) = known.ok_or_else(|| Refused(format!("the index has no digest of {name}")))?;
            let generator = self.of(name, e);
            let (count, width) = (e.count(), e.dtype.hir().bytes());
            let row: u64 = e.shape.iter().skip(1).product();
            let mut whole = blake3::Hasher::new();
            let mut first = 0;
            // a row of experts at a time: the tensor is never held whole
            while first < count {
                let next = (first + row.max(1 << 20)).min(count);
                let bytes = bytes(&generator, first..next, width);
                whole.update(&bytes);
                made += bytes.len() as u64;
                first = next;
            }
            let differs = |what: String| Refused(format!("{name}: the generated {what} has another digest"));
            if whole.finalize().to_hex().as_str() != digest {
                return Err(differs("tensor".into()));
            }
            for (number, digest) in &e.blake3_of_used_experts {
                let at: u64 = number.parse().map_err(|_| Refused(format!("{name}: no row {number:?}")))?;
                if blake3::hash(&bytes(&generator, at * row..(at + 1) * row, width)).to_hex().as_str()
                    != digest
                {
                    return Err(differs(format!("row {number}")));
                }
            }
        }
        Ok(made)
    }
}
