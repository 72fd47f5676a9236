//! Tensors of the production and long vectors: a table of names, shapes, dtypes and scales, whose elements the
//! library's generator makes.

use mica_models::eval::{EvalError, Tensor, Weights};
use mica_models::generator::Generator;
use mica_models::hir::Dtype;
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// One tensor of a table.
pub struct Made {
    pub generator: Generator,
    pub shape: Vec<usize>,
    /// Bytes of a stored element.
    pub width: usize,
    pub digest: String,
    /// Digests of single experts, by number.
    pub experts: BTreeMap<usize, String>,
}

impl Made {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
    pub fn tensor(&self) -> Tensor {
        Tensor::f64(&self.shape, (0..self.elements() as u64).map(|i| self.generator.element(i)).collect())
    }
    /// BLAKE3 of the stored bytes of a range of elements, streamed.
    pub fn blake3(&self, first: usize, count: usize) -> String {
        const CHUNK: usize = 1 << 16;
        const AT_ONCE: usize = 64;
        let mut hasher = blake3::Hasher::new();
        let mut chunks = vec![Vec::new(); AT_ONCE];
        for start in (first..first + count).step_by(CHUNK * AT_ONCE) {
            chunks.par_iter_mut().enumerate().for_each(|(i, bytes)| {
                bytes.clear();
                let start = (start + i * CHUNK).min(first + count);
                let len = CHUNK.min(first + count - start);
                self.generator.bytes(start as u64, len as u64, bytes);
            });
            chunks.iter().for_each(|bytes| {
                hasher.update(bytes);
            });
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The tensors of a table as `production.json` and `long.json` have it.
pub fn table(file: &Map<String, Value>, key: &str) -> BTreeMap<String, Made> {
    let seed = file["seed"].as_u64().expect("a seed");
    let made = |(name, entry): (&String, &Value)| {
        let dtype = match entry["dtype"].as_str() {
            Some("BF16") => Dtype::BF16,
            Some("F16") => Dtype::F16,
            Some("F32") => Dtype::F32,
            other => panic!("{name} is {other:?}"),
        };
        let number = |field: &str| entry[field].as_f64().expect("a number") as f32;
        let text = |v: &Value| v.as_str().expect("a digest").to_string();
        let length = |n: &Value| n.as_u64().expect("a length") as usize;
        let used = entry.get("blake3_of_used_experts").and_then(Value::as_object);
        let expert = |(e, d): (&String, &Value)| (e.parse().expect("an expert"), text(d));
        let tensor = Made {
            width: dtype.bytes() as usize,
            generator: Generator::new(name, seed, dtype, number("scale"), number("offset")),
            shape: entry["shape"].as_array().expect("a shape").iter().map(length).collect(),
            digest: text(&entry["blake3"]),
            experts: used.into_iter().flatten().map(expert).collect(),
        };
        (name.clone(), tensor)
    };
    file[key].as_object().expect("a table").iter().map(made).collect()
}

/// Rows that were read, by weight; no rows stand for the whole.
pub type Read = BTreeMap<(String, Vec<usize>), Vec<f64>>;

/// Weights under a prefix, made as they are read. While `read` is some, what is made is kept there, for another
/// run without the generator.
pub struct Generated<'a> {
    pub table: &'a BTreeMap<String, Made>,
    pub prefix: String,
    pub read: Mutex<Option<Read>>,
}

impl<'a> Generated<'a> {
    pub fn new(table: &'a BTreeMap<String, Made>, prefix: &str) -> Generated<'a> {
        Generated { table, prefix: prefix.to_string(), read: Mutex::default() }
    }

    fn made(&self, name: &str) -> Result<&Made, EvalError> {
        let whole = match name {
            "lm_head.weight" => name.to_string(),
            _ => format!("{}{name}", self.prefix),
        };
        self.table.get(&whole).ok_or(EvalError::MissingWeight { name: whole })
    }

    fn keep(&self, name: &str, rows: &[usize], data: Vec<f64>) -> Cow<'_, [f64]> {
        if let Some(read) = self.read.lock().expect("no panic").as_mut() {
            read.insert((name.to_string(), rows.to_vec()), data.clone());
        }
        Cow::Owned(data)
    }
}

impl Weights for Generated<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let made = self.made(name)?;
        let (n, taps) = (made.elements(), made.shape[made.shape.len() - 1]);
        // The convolution is published as [C, 1, K] and taken as [K, C].
        let place = |i: usize| match name.ends_with("conv1d.weight") {
            true => i % (n / taps) * taps + i / (n / taps),
            false => i,
        };
        let data = (0..n).map(|i| made.generator.element(place(i) as u64)).collect();
        Ok(self.keep(name, &[], data))
    }

    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let made = self.made(name)?;
        let row = |r: &usize| (r * row_len..(r + 1) * row_len).map(|i| made.generator.element(i as u64));
        Ok(self.keep(name, rows, rows.iter().flat_map(row).collect()))
    }
}

/// What was read, as weights that cost nothing to make.
pub struct Kept(pub Read);

impl Weights for Kept {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        self.rows(name, &[], 0)
    }
    fn rows(&self, name: &str, rows: &[usize], _: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        let found = self.0.get(&(name.to_string(), rows.to_vec()));
        Ok(Cow::Borrowed(found.expect("read in the run before")))
    }
}
