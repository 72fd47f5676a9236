//! Tensors that no file holds: every element is a function of its tensor's name and its index.
//!
//! The index (`production.json`) gives a seed and, a tensor, dtype, shape, scale, offset and digests. Element
//! i is the i-th output of SplitMix64 started at seed + FNV-1a(name); its upper 24 bits are a binary32 number
//! of [−1, 1), which is scaled and shifted in binary32 and stored in the tensor's dtype.

use super::Refused;
use mica_models::eval::Tensor;
use mica_pack::{Dtype, TensorInfo};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// What SplitMix64's counter advances by.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Elements that a thread makes at a time.
const CHUNK: usize = 1 << 16;

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
    dtype: String,
    shape: Vec<u64>,
    scale: f32,
    offset: f32,
    blake3: String,
    /// Digests of some rows of axis 0, by number.
    #[serde(default)]
    blake3_of_used_experts: BTreeMap<String, String>,
    /// Elements that are set to a value afterwards.
    #[serde(default)]
    then_set: Vec<Set>,
}

/// An element `[step, channel]` with a value of its own.
#[derive(Debug, Deserialize)]
struct Set {
    step: usize,
    channel: usize,
    value: f64,
}

/// The generator of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    start: u64,
    scale: f32,
    offset: f32,
    bf16: bool,
}

impl Generator {
    fn value(&self, i: u64) -> f32 {
        let mut z = self.start.wrapping_add((i + 1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let v = ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32;
        // the product is rounded, then the sum
        self.scale * v + self.offset
    }

    /// Elements of a range, widened.
    pub fn reals(&self, range: Range<u64>, out: &mut Vec<f64>) {
        match self.bf16 {
            true => out.extend(range.map(|i| half::bf16::from_f32(self.value(i)).to_f64())),
            false => out.extend(range.map(|i| f64::from(self.value(i)))),
        }
    }

    /// Elements of a range as they would be stored.
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let first = range.start;
        let width = if self.bf16 { 2 } else { 4 };
        let mut out = vec![0; (range.end - range.start) as usize * width];
        out.par_chunks_mut(CHUNK * width).enumerate().for_each(|(chunk, out)| {
            let first = first + (chunk * CHUNK) as u64;
            for (i, place) in out.chunks_exact_mut(width).enumerate() {
                let value = self.value(first + i as u64);
                match self.bf16 {
                    true => place.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
                    false => place.copy_from_slice(&value.to_le_bytes()),
                }
            }
        });
        out
    }
}

fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// A file that is not there or is no index.
    pub fn open(path: &Path) -> Result<Index, Refused> {
        let text = std::fs::read_to_string(path).map_err(|e| Refused(format!("{}: {e}", path.display())))?;
        serde_json::from_str(&text).map_err(|e| {
            Refused(format!("{}: {e}; expected an index of generated tensors (seed, tensors)", path.display()))
        })
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
        Some(TensorInfo { dtype: Dtype::from_name(&e.dtype)?, shape: e.shape.clone() })
    }

    /// The generator of a weight.
    pub fn generator(&self, name: &str) -> Option<Generator> {
        self.tensors.get(name).map(|e| self.of(name, e))
    }

    fn of(&self, name: &str, e: &Entry) -> Generator {
        Generator {
            start: self.seed.wrapping_add(fnv1a(name)),
            scale: e.scale,
            offset: e.offset,
            bf16: e.dtype == "BF16",
        }
    }

    /// An input or a weight by name, its set elements set.
    ///
    /// # Errors
    /// A name that is neither.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Refused> {
        let entry = self.inputs.get(name).or_else(|| self.tensors.get(name)).ok_or_else(|| {
            let known: Vec<&str> = self.inputs.keys().map(String::as_str).collect();
            Refused(format!("the index generates no {name:?}, expected a weight or one of: {}", known.join(", ")))
        })?;
        let shape: Vec<usize> = entry.shape.iter().map(|&n| n as usize).collect();
        let mut data = Vec::new();
        self.of(name, entry).reals(0..entry.shape.iter().product(), &mut data);
        let row = shape.iter().skip(1).product::<usize>();
        for set in &entry.then_set {
            data[set.step * row + set.channel] = set.value;
        }
        Ok(Tensor::f64(&shape, data))
    }

    /// Generates every weight whose name begins with `prefix` and compares its digest, and those of single
    /// rows; gives the bytes made.
    ///
    /// # Errors
    /// The first tensor whose digest differs.
    pub fn verify(&self, prefix: &str) -> Result<u64, Refused> {
        let mut made = 0;
        for (name, e) in self.tensors.iter().filter(|(n, _)| n.starts_with(prefix)) {
            let generator = self.of(name, e);
            let count: u64 = e.shape.iter().product();
            let row: u64 = e.shape.iter().skip(1).product();
            let mut whole = blake3::Hasher::new();
            let mut first = 0;
            // a row of experts at a time: the tensor is never held whole
            while first < count {
                let next = (first + row.max(1 << 20)).min(count);
                let bytes = generator.bytes(first..next);
                whole.update(&bytes);
                made += bytes.len() as u64;
                first = next;
            }
            let differs = |what: String| Refused(format!("{name}: the generated {what} has another digest"));
            if whole.finalize().to_hex().as_str() != e.blake3 {
                return Err(differs("tensor".into()));
            }
            for (number, digest) in &e.blake3_of_used_experts {
                let at: u64 = number.parse().map_err(|_| Refused(format!("{name}: no row {number:?}")))?;
                if blake3::hash(&generator.bytes(at * row..(at + 1) * row)).to_hex().as_str() != digest {
                    return Err(differs(format!("row {number}")));
                }
            }
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        let name = "model.language_model.layers.0.input_layernorm.weight";
        let start = 10u64.wrapping_add(fnv1a(name));
        let g = Generator { start, scale: 0.25, offset: 0.125, bf16: true };
        let mut values = Vec::new();
        g.reals(0..4, &mut values);
        assert_eq!(values, [0.130859375, 0.283203125, 0.017822265625, -0.11181640625]);
        assert_eq!(g.bytes(1..3), [0x91, 0x3e, 0x92, 0x3c]);
        let name = "model.language_model.layers.0.linear_attn.A_log";
        let g = Generator { start: 10u64.wrapping_add(fnv1a(name)), scale: 1.5, offset: -0.5, bf16: false };
        let bits = [0xbdb6_9d70u32, 0xbe8e_9966, 0x3e33_6998, 0xbf00_c7c2];
        assert_eq!(g.bytes(0..4), bits.map(u32::to_le_bytes).concat());
    }
}
