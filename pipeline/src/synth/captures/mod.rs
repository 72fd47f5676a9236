//! Captures of our own float64 evaluator on a delivery that was just written, under the names and in the layout
//! of a published delivery's, and labelled as our own.
//!
//! Which captures there are is known from the model's description alone ([`plan`]), so the file's header is
//! written first and its tensors as they are computed: part by part, all tokens of a part before the next part.
//! Of the weights no more is in memory than the rows of a matrix that are multiplied at the moment; of the
//! captures, those of one part. Values are computed in float64 and stored in float32; the order of summation is
//! the evaluator's, so the bytes are the same for any number of threads.
//!
//! It must not know how the weights were made: they are read back from the files, as a publisher's would be.

mod places;

pub use places::{Captured, Place, places};

use super::files::{Entry, header};
use super::{SynthError, Tensor};
use crate::check::Refused;
use crate::check::published::{PartWeights, Published};
use mica_fetch::{CaptureMap, EVALUATOR, MADE_BY, SELF};
use mica_models::decode::Carried;
use mica_models::eval::{Data, EvalError, NUMERICS_VERSION, Options, Tensor as Value};
use mica_models::hir::{Function, Node, ValueId};
use mica_models::prepare::{PrepareError, Prepared};
use mica_models::{Part, Stack};
use std::collections::BTreeMap;
use std::io::{self, Write};
use thiserror::Error;

/// The metadata of a file that our own evaluator computed.
pub fn label() -> Vec<(&'static str, String)> {
    let evaluator = format!("float64 evaluator, numerics {NUMERICS_VERSION}");
    vec![(MADE_BY, SELF.into()), (EVALUATOR, evaluator)]
}

/// The metadata of a file that we made and nothing computed: a prompt.
pub fn prompt_label() -> Vec<(&'static str, String)> {
    vec![(MADE_BY, SELF.into())]
}

/// Why there are no captures.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The delivery could not be opened.
    #[error("the delivery that was written can't be read: {why}")]
    Delivery {
        /// What is wrong with it.
        why: String,
    },
    /// A part's weights could not be read back.
    #[error("{part}: {why}")]
    Read {
        /// The part whose weights were read.
        part: Part,
        /// What is wrong with them.
        why: String,
    },
    /// The evaluator refused.
    #[error("{part}: {error}")]
    Evaluate {
        /// The part that was run.
        part: Part,
        /// The evaluator's word.
        error: Box<EvalError>,
    },
    /// Something of another size than planned stood at a capture's place.
    #[error("{part}: {name}: {why}")]
    Place {
        /// The part.
        part: Part,
        /// The capture.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The model can't be described so.
    #[error(transparent)]
    Model(#[from] SynthError),
}

/// The captures of a run over a prompt: all that its file will hold.
pub struct Plan {
    prompt: Vec<Tensor>,
    parts: Vec<(Part, Vec<Captured>)>,
    tokens: usize,
}

/// What will be captured of a model over a prompt: the prompt's own tensors, then part by part.
///
/// # Errors
/// A part that the model does not have.
pub fn plan(stack: &Stack, prompt: Vec<Tensor>, tokens: usize) -> Result<Plan, CaptureError> {
    let names = CaptureMap::default();
    let parts = stack.parts().into_iter().map(|part| {
        let function = stack.function(part).map_err(SynthError::Config)?;
        Ok((part, places(part, function, &names)))
    });
    Ok(Plan { prompt, parts: parts.collect::<Result<_, CaptureError>>()?, tokens })
}

impl Plan {
    /// Every tensor of the file, in its order.
    fn entries(&self) -> Vec<Entry> {
        let prompt = self.prompt.iter().map(Entry::of);
        let captured = self.parts.iter().flat_map(|(_, all)| all).map(|c| c.entry(self.tokens));
        prompt.chain(captured).collect()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        let entries = self.entries();
        let header = header(&entries, &label()).len() as u64;
        entries.iter().map(Entry::bytes).fold(header, u64::saturating_add)
    }

    /// Runs the model on its delivery and writes the file; `done` hears of every part.
    ///
    /// # Errors
    /// Files that can't be read or written; what the evaluator says of the weights.
    pub fn write(
        &self,
        stack: &Stack,
        delivery: &Published,
        ids: &[i64],
        out: &mut dyn Write,
        done: &dyn Fn(Part),
    ) -> Result<(), CaptureError> {
        out.write_all(&header(&self.entries(), &label()))?;
        for tensor in &self.prompt {
            let mut bytes = vec![0; tensor.bytes() as usize];
            tensor.values.fill(tensor.stream, tensor.first, 0, &mut bytes);
            out.write_all(&bytes)?;
        }
        let mut hidden: Vec<Value> = Vec::new();
        for (part, captured) in &self.parts {
            let kept = run(stack, delivery, *part, captured, ids, &mut hidden)?;
            for (capture, bytes) in captured.iter().zip(kept) {
                let expected = capture.entry(self.tokens).bytes();
                if bytes.len() as u64 != expected {
                    return Err(CaptureError::Place {
                        part: *part,
                        name: capture.name.clone(),
                        why: format!("{} bytes were computed where {expected} are", bytes.len()),
                    });
                }
                out.write_all(&bytes)?;
            }
            done(*part);
        }
        Ok(())
    }
}

/// Runs one part over all tokens; gives the bytes of its captures, and leaves its residuals in `hidden`.
fn run(
    stack: &Stack,
    delivery: &Published,
    part: Part,
    captured: &[Captured],
    ids: &[i64],
    hidden: &mut Vec<Value>,
) -> Result<Vec<Vec<u8>>, CaptureError> {
    let read = |e: Refused| CaptureError::Read { part, why: e.to_string() };
    let function = stack.function(part).map_err(SynthError::Config)?;
    let published = PartWeights::new(delivery, stack, part).map_err(read)?;
    let weights = Prepared::new(stack, part, &published)
        .map_err(|e: PrepareError| CaptureError::Read { part, why: e.to_string() })?;
    let mut kept = vec![Vec::new(); captured.len()];
    let mut windows: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    let mut carried = Carried::new(function);
    let mut after = Vec::with_capacity(ids.len());
    for (position, &id) in ids.iter().enumerate() {
        let mut own = BTreeMap::new();
        for p in function.activations() {
            let value = match p.name.as_str() {
                "token" => Value::scalar(id),
                "pos" => Value::scalar(position as i64),
                "hidden" => hidden[position].clone(),
                _ => continue,
            };
            own.insert(p.name.clone(), value);
        }
        let mut take = |at: ValueId, value: &Value| {
            for (i, capture) in captured.iter().enumerate() {
                match &capture.place {
                    Place::Each(v) if *v == at => kept[i].extend(stored(value)),
                    Place::Largest(v) if *v == at => kept[i].extend(largest(value).to_le_bytes()),
                    Place::Window { of, .. } if *of == at => {
                        windows.entry(i).or_default().push(value.clone())
                    }
                    _ => {}
                }
            }
        };
        for (i, p) in function.params.iter().enumerate() {
            if let Some(value) = own.get(&p.name) {
                take(ValueId(i as u32), value);
            }
        }
        let mut trace = |node: &Node, value: &Value| {
            if let Some(v) = value_of(function, node) {
                take(v, value);
            }
        };
        let options = Options { trace: Some(&mut trace), ..Options::default() };
        let mut results = carried
            .step(function, own, &weights, options)
            .map_err(|error| CaptureError::Evaluate { part, error: Box::new(error) })?;
        after.extend(results.remove("hidden"));
    }
    for (i, capture) in captured.iter().enumerate() {
        match &capture.place {
            Place::State(name) => kept[i].extend(carried.states.get(name).map(stored).unwrap_or_default()),
            Place::Cache(name) => {
                kept[i].extend(carried.caches.get(name).map(|c| stored(&c.tensor())).unwrap_or_default());
            }
            Place::Window { taps, .. } => kept[i] = window(windows.get(&i).map_or(&[], Vec::as_slice), *taps),
            Place::Each(_) | Place::Largest(_) => {}
        }
    }
    *hidden = after;
    Ok(kept)
}

/// The value that a node of the function gives.
fn value_of(function: &Function, node: &Node) -> Option<ValueId> {
    let at = function.nodes.iter().position(|n| std::ptr::eq(n, node))?;
    Some(ValueId((function.params.len() + at) as u32))
}

/// The last `taps` vectors as columns, zeros before the first: `[channels, taps]`, newest last.
fn window(seen: &[Value], taps: usize) -> Vec<u8> {
    let seen: Vec<&[f64]> = seen.iter().filter_map(Value::as_f64).collect();
    let channels = seen.last().map_or(0, |v| v.len());
    let before = taps.saturating_sub(seen.len());
    let last = &seen[seen.len().saturating_sub(taps)..];
    let column = |c: usize| {
        (0..taps).map(move |t| t.checked_sub(before).map_or(0.0, |t| last[t][c])).map(|v| v as f32)
    };
    (0..channels).flat_map(column).flat_map(f32::to_le_bytes).collect()
}

/// A tensor's elements as the file has them: real numbers in float32.
fn stored(value: &Value) -> Vec<u8> {
    match &value.data {
        Data::F64(v) => v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// The place of the largest number, the first of equal ones.
fn largest(value: &Value) -> i64 {
    let of = value.as_f64().unwrap_or_default();
    (1..of.len()).fold(0, |best, i| if of[i] > of[best] { i } else { best }) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_newest_columns_after_zeros() {
        let seen: Vec<Value> = (1..=3).map(|t| Value::f64(&[2], vec![f64::from(t), f64::from(-t)])).collect();
        let read = |taps| -> Vec<f32> {
            let bytes = window(&seen, taps);
            bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        assert_eq!(read(2), [2.0, 3.0, -2.0, -3.0]);
        assert_eq!(read(4), [0.0, 1.0, 2.0, 3.0, 0.0, -1.0, -2.0, -3.0]);
    }

    #[test]
    fn the_first_of_the_largest_is_chosen() {
        assert_eq!(largest(&Value::f64(&[4], vec![-1.0, 3.0, 3.0, 2.0])), 1);
    }
}
