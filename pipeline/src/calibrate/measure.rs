//! Runs the float64 chain over the tokens, experts chosen by its own routers, and keeps what is largest.

use super::classes::{Tag, place, tags};
use super::{Arguments, Class, Headroom, Held, Measured, Seen};
use mica_models::decode::Carried;
use mica_models::eval::{EvalError, Options, Tensor, Weights};
use mica_models::hir::{Function, Node};
use std::collections::BTreeMap;

/// A part of the model and the weights that the device has of it.
pub struct Ground<'a> {
    /// The part's name.
    pub name: &'a str,
    /// Its function.
    pub function: &'a Function,
    /// The weights, dequantized.
    pub weights: &'a dyn Weights,
}

/// Runs the parts, in order, over the tokens.
///
/// # Errors
/// As the evaluator's.
pub fn measure(parts: &[Ground<'_>], ids: &[i64], frac: u8) -> Result<Measured, EvalError> {
    let mut book = Book::default();
    let looks: Vec<Vec<Vec<Tag>>> = parts.iter().map(|p| tags(p.function)).collect();
    let mut carried: Vec<Carried> = parts.iter().map(|p| Carried::new(p.function)).collect();
    for (token, &id) in ids.iter().enumerate() {
        let mut hidden = None;
        for ((part, look), carried) in parts.iter().zip(&looks).zip(&mut carried) {
            let mut own = BTreeMap::new();
            for p in part.function.activations() {
                let value = match p.name.as_str() {
                    "token" => Some(Tensor::scalar(id)),
                    "pos" => Some(Tensor::scalar(token as i64)),
                    name if name == mica_compile::SEAM => hidden.take(),
                    _ => None,
                };
                own.extend(value.map(|v| (p.name.clone(), v)));
            }
            let params = &part.function.params;
            let mut look_at = |at: usize, op: String, value: &Tensor| {
                if let (Some(values), false) = (value.as_f64(), look[at].is_empty()) {
                    let here = Here { part: part.name, op, token, shape: &value.shape, values };
                    look[at].iter().for_each(|tag| book.note(tag, &here));
                }
            };
            for (name, value) in &own {
                if let Some(at) = params.iter().position(|p| p.name == *name) {
                    look_at(at, name.clone(), value);
                }
            }
            let mut trace = |node: &Node, value: &Tensor| {
                let at = part.function.nodes.iter().position(|n| std::ptr::eq(n, node));
                if let Some(at) = at {
                    look_at(params.len() + at, place(node), value);
                }
            };
            let options = Options { round: true, trace: Some(&mut trace), ..Options::default() };
            let mut results = carried.step(part.function, own, part.weights, options)?;
            hidden = results.remove(mica_compile::SEAM);
        }
    }
    Ok(book.measured(ids.len(), frac))
}

/// A value and where it stands.
struct Here<'a> {
    part: &'a str,
    op: String,
    token: usize,
    shape: &'a [usize],
    values: &'a [f64],
}

impl Here<'_> {
    fn seen(&self, value: f64, op: String) -> Seen {
        Seen { value, part: self.part.into(), op, token: self.token }
    }

    /// The elements along an axis, a vector each.
    fn along(&self, axis: usize) -> impl Iterator<Item = Vec<f64>> + '_ {
        let n = self.shape.get(axis).copied().unwrap_or(1).max(1);
        let inner: usize = self.shape.iter().skip(axis + 1).product();
        let outer = self.values.len() / (n * inner).max(1);
        (0..outer * inner).map(move |i| {
            let start = i / inner * n * inner + i % inner;
            (0..n).map(|j| self.values[start + j * inner]).collect()
        })
    }
}

/// What was seen so far.
#[derive(Default)]
struct Book {
    largest: BTreeMap<(Class, Held), Seen>,
    arguments: BTreeMap<&'static str, (Seen, Seen)>,
}

/// A magnitude that counts as the largest where it is no number.
fn finite_or_infinite(v: f64) -> f64 {
    if v.is_finite() { v } else { f64::INFINITY }
}

impl Book {
    fn note(&mut self, tag: &Tag, here: &Here<'_>) {
        match tag {
            Tag::Magnitude(class, held) => {
                let most = here.values.iter().fold(0.0, |m: f64, v| m.max(finite_or_infinite(v.abs())));
                let old = self.largest.get(&(*class, *held));
                if old.is_none_or(|old| old.value < most) {
                    self.largest.insert((*class, *held), here.seen(most, here.op.clone()));
                }
            }
            Tag::Argument(function, op) => {
                here.values.iter().for_each(|&v| self.argument(function, v, op, here));
            }
            Tag::Spread(axis, op) => {
                for row in here.along(*axis) {
                    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let least = row.iter().copied().fold(f64::INFINITY, f64::min);
                    self.argument("softmax", most - least, op, here);
                }
            }
            Tag::Size(function, op) => {
                for row in here.along(here.shape.len().saturating_sub(1)) {
                    let squares: f64 = row.iter().map(|v| v * v).sum();
                    self.argument(function, (squares / row.len() as f64).sqrt(), op, here);
                }
            }
        }
    }

    fn argument(&mut self, function: &'static str, value: f64, op: &str, here: &Here<'_>) {
        let value = if value.is_nan() { f64::INFINITY } else { value };
        let seen = || here.seen(value, op.to_string());
        let (least, most) = self.arguments.entry(function).or_insert_with(|| (seen(), seen()));
        if value < least.value {
            *least = seen();
        }
        if value > most.value {
            *most = seen();
        }
    }

    fn measured(self, tokens: usize, frac: u8) -> Measured {
        let row = |((class, held), largest): ((Class, Held), Seen)| {
            let limit = held.limit(frac);
            let bits = (largest.value > 0.0).then(|| (limit / largest.value).log2());
            Headroom { class, held, largest, limit, bits }
        };
        let arguments = self.arguments.into_iter();
        Measured {
            tokens,
            headroom: self.largest.into_iter().map(row).collect(),
            arguments: arguments
                .map(|(function, (least, most))| Arguments { function, least, most })
                .collect(),
        }
    }
}
