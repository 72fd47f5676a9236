//! The files of a delivery: which tensor goes into which shard, headers, and a shard's bytes as a stream.

use super::{Tensor, Values};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::ops::Range;

/// Bytes made at a time, and the part of them that one thread makes.
const CHUNK: usize = 16 << 20;
const SHARE: usize = 1 << 20;

/// One file of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name.
    pub name: String,
    /// Its tensors, as places in the list of all.
    pub tensors: Range<usize>,
}

/// The files that a list of tensors is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The weights.
    pub shards: Vec<Shard>,
    /// The index and its text, where there are several shards.
    pub index: Option<(&'static str, String)>,
    /// Bytes of all files of weights.
    pub bytes: u64,
}

impl Files {
    /// Shards of at most `most` bytes of tensors, one tensor at least; a single file where all fit.
    pub fn plan(tensors: &[Tensor], most: u64) -> Files {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut room = 0;
        for (i, tensor) in tensors.iter().enumerate() {
            match ranges.last_mut() {
                Some(range) if tensor.bytes() <= room => range.end = i + 1,
                _ => {
                    room = most.max(tensor.bytes());
                    ranges.push(i..i + 1);
                }
            }
            room -= tensor.bytes();
        }
        let count = ranges.len();
        let name = |n: usize| match count {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", n + 1),
        };
        let shards: Vec<Shard> =
            ranges.into_iter().enumerate().map(|(n, tensors)| Shard { name: name(n), tensors }).collect();
        let headers: usize =
            shards.iter().map(|s| header(&entries(&tensors[s.tensors.clone()]), &[]).len()).sum();
        let total = tensors.iter().map(Tensor::bytes).fold(0, u64::saturating_add);
        let index = (count > 1).then(|| {
            let places = shards.iter().flat_map(|s| {
                tensors[s.tensors.clone()].iter().map(|t| (t.name.clone(), Value::from(s.name.as_str())))
            });
            let text =
                json!({ "metadata": { "total_size": total }, "weight_map": places.collect::<Map<_, _>>() });
            ("model.safetensors.index.json", format!("{text:#}\n"))
        });
        Files { shards, index, bytes: total.saturating_add(headers as u64) }
    }
}

/// A tensor's line in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: &'static str,
    /// Outermost first.
    pub shape: Vec<u64>,
}

impl Entry {
    /// That of a tensor.
    pub fn of(t: &Tensor) -> Entry {
        Entry { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> u64 {
        bytes(self.dtype, &self.shape)
    }
}

/// Bytes of a tensor of this element type and shape; the largest number where there are more, for which no disk has
/// room.
pub fn bytes(dtype: &str, shape: &[u64]) -> u64 {
    let width = match dtype {
        "I64" => 8,
        "F32" | "I32" => 4,
        "BF16" | "F16" => 2,
        _ => 1,
    };
    shape.iter().fold(width, |bytes, n| bytes.saturating_mul(*n))
}

/// What a file says of itself beside its format.
pub type Label = [(&'static str, String)];

/// A safetensors file's length and header, padded to 8 bytes.
pub fn header(entries: &[Entry], label: &Label) -> Vec<u8> {
    let mut metadata = json!({ "format": "pt" });
    for (key, said) in label {
        metadata[key] = said.as_str().into();
    }
    let mut text = json!({ "__metadata__": metadata }).to_string();
    text.pop();
    let mut at = 0_u64;
    for t in entries {
        let end = at.saturating_add(t.bytes());
        let entry = json!({ "dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end] });
        text += &format!(",{}:{entry}", Value::from(t.name.as_str()));
        at = end;
    }
    text.push('}');
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn entries(tensors: &[Tensor]) -> Vec<Entry> {
    tensors.iter().map(Entry::of).collect()
}

/// Writes a file of these tensors, a few mebibytes at a time; `wrote` hears of every piece.
///
/// # Errors
/// Those of `out`.
pub fn write_file(
    tensors: &[Tensor],
    label: &Label,
    out: &mut dyn Write,
    wrote: &dyn Fn(u64),
) -> io::Result<()> {
    out.write_all(&header(&entries(tensors), label))?;
    let mut buffer = vec![0; CHUNK];
    for t in tensors {
        let mut at = 0;
        while at < t.bytes() {
            let length = (t.bytes() - at).min(CHUNK as u64) as usize;
            let part = &mut buffer[..length];
            part.par_chunks_mut(SHARE).enumerate().for_each(|(n, share)| {
                t.values.fill(t.stream, t.first, at + (n * SHARE) as u64, share);
            });
            out.write_all(part)?;
            wrote(length as u64);
            at += length as u64;
        }
    }
    Ok(())
}

const _: () = assert!(SHARE.is_multiple_of(Values::GRAIN) && CHUNK.is_multiple_of(SHARE));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::Stream;

    fn tensor(name: &str, elements: u64) -> Tensor {
        Tensor {
            name: name.into(),
            dtype: "I8",
            shape: vec![elements],
            values: Values::Bytes,
            stream: Stream::new(1, name),
            first: 0,
        }
    }

    #[test]
    fn shards_fill_up_in_order() {
        let all = [tensor("a", 60), tensor("b", 40), tensor("c", 10), tensor("d", 500), tensor("e", 1)];
        let shards = |most| -> Vec<Range<usize>> {
            Files::plan(&all, most).shards.into_iter().map(|s| s.tensors).collect()
        };
        assert_eq!(shards(100), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(shards(u64::MAX), vec![Range { start: 0, end: 5 }]);
        let files = Files::plan(&all, 100);
        assert_eq!(files.shards[3].name, "model-00004-of-00004.safetensors");
        assert!(files.index.unwrap().1.contains("\"e\": \"model-00004-of-00004.safetensors\""));
    }

    #[test]
    fn more_bytes_than_a_number_holds_are_the_most_and_not_few() {
        let huge = Tensor { shape: vec![1 << 32, 1 << 32], ..tensor("a", 1) };
        let files = Files::plan(&[huge, tensor("b", 40)], u64::MAX);
        assert_eq!(files.bytes, u64::MAX);
    }

    #[test]
    fn a_file_is_its_plan() {
        let all = [tensor("a", (CHUNK + SHARE) as u64 + 3), tensor("b", 40)];
        let mut file = Vec::new();
        write_file(&all, &[], &mut file, &|_| ()).unwrap();
        assert_eq!(file.len() as u64, Files::plan(&all, u64::MAX).bytes);
        let mut expected = vec![0; all[0].bytes() as usize];
        all[0].values.fill(all[0].stream, 0, 0, &mut expected);
        assert!(file[file.len() - 40 - expected.len()..file.len() - 40] == expected);
    }
}
