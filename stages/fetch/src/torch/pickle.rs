//! The pickle of a tensor dictionary, read as data: a small machine for the instructions that such a
//! pickle is made of (protocol 2), which builds descriptions and calls nothing.
//!
//! A pickle is a program, and one from a stranger may be hostile. The machine has no way to import or
//! call: the few globals of a tensor dictionary are an enum, "calling" one builds a description, and any
//! other global or instruction ends the reading. Memory is bounded by the pickle's length. Knows
//! nothing of the archive around the pickle, nor whether a tensor fits its storage.

mod opcode;

use std::collections::{HashMap, HashSet};

use mica_dtype::Dtype;

use super::fault::PickleFault;
use crate::index::MAX_RANK;

/// How deep unfinished tuples and dictionaries may nest; a tensor needs four.
const MAX_MARKS: usize = 64;

/// How many values may wait for an instruction: the pairs of a dictionary, which Python writes in
/// batches of a thousand and others all at once.
const MAX_STACK: usize = 1 << 20;

/// How many values all tuples may hold: those of a quarter of a million tensors.
const MAX_ITEMS: usize = 1 << 22;

/// A fault and the byte of the pickle that it was found at.
pub(crate) type At = (u64, PickleFault);

/// A tensor as the pickle says it, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor<'a> {
    pub storage: Storage<'a>,
    /// From the storage's start, in elements.
    pub offset: u64,
    pub shape: Sizes,
    pub strides: Sizes,
}

/// A run of elements that tensors are views of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Storage<'a> {
    pub dtype: Dtype,
    /// The record's name in the archive's `data` folder.
    pub key: &'a str,
    pub elements: u64,
}

/// A tuple of at most [`MAX_RANK`] integers, none negative; [`Pickled::sizes`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    start: u32,
    len: u32,
}

/// The dictionary, in its own order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pickled<'a> {
    pub tensors: Vec<(&'a str, Tensor<'a>)>,
    items: Vec<Value<'a>>,
}

impl Pickled<'_> {
    /// The numbers of a tuple.
    pub fn sizes(&self, sizes: Sizes) -> Vec<u64> {
        let items = &self.items[sizes.start as usize..][..sizes.len as usize];
        let size = |item: &Value<'_>| if let Value::Int(size) = item { *size as u64 } else { 0 };
        items.iter().map(size).collect()
    }
}

/// The globals that a tensor dictionary may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
}

/// What the machine's values are. Compounds lie in the machine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Text(&'a str),
    Global(Global),
    Tuple { start: u32, len: u32 },
    Dict(u32),
    Storage(u32),
    Tensor(u32),
}

impl Value<'_> {
    fn what(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool => "a bool",
            Value::Int(_) => "an integer",
            Value::Text(_) => "a text",
            Value::Global(_) => "a class or function",
            Value::Tuple { .. } => "a tuple",
            Value::Dict(_) => "a dictionary",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

/// Reads the pickle.
pub(crate) fn read(pickle: &[u8]) -> Result<Pickled<'_>, At> {
    let mut machine = Machine { pickle, ..Machine::default() };
    let result = machine.run();
    result.map_err(|fault| (machine.instruction as u64, fault))
}

#[derive(Default)]
struct Machine<'a> {
    pickle: &'a [u8],
    /// Where the next instruction's bytes are.
    at: usize,
    /// Where the instruction in work begins.
    instruction: usize,
    stack: Vec<Value<'a>>,
    marks: Vec<u32>,
    memo: HashMap<u32, Value<'a>>,
    /// The elements of all tuples.
    items: Vec<Value<'a>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    storages: Vec<Storage<'a>>,
    tensors: Vec<Tensor<'a>>,
}

fn operand<T>(what: &'static str, takes: &'static str) -> Result<T, PickleFault> {
    Err(PickleFault::Operand { what, takes })
}

impl<'a> Machine<'a> {
    /// The values above the last mark, which goes with them.
    fn above_mark(&mut self) -> Result<usize, PickleFault> {
        match self.marks.pop() {
            Some(mark) => Ok(mark as usize),
            None => operand("an instruction on several values", "a mark below them"),
        }
    }

    /// The topmost value. Those below a mark are out of reach until the mark is gone.
    fn pop(&mut self) -> Result<Value<'a>, PickleFault> {
        self.reach(1)?;
        self.stack.pop().ok_or(PickleFault::Short)
    }

    fn top(&self) -> Result<Value<'a>, PickleFault> {
        self.reach(1)?;
        self.stack.last().copied().ok_or(PickleFault::Short)
    }

    fn reach(&self, values: usize) -> Result<(), PickleFault> {
        let floor = self.marks.last().map_or(0, |&mark| mark as usize);
        if self.stack.len() >= floor + values {
            Ok(())
        } else {
            operand("an instruction", "more values than there are above the mark")
        }
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), PickleFault> {
        if self.stack.len() == MAX_STACK {
            return Err(PickleFault::Limit { what: "values at once", limit: MAX_STACK });
        }
        self.stack.push(value);
        Ok(())
    }

    fn mark(&mut self) -> Result<(), PickleFault> {
        if self.marks.len() == MAX_MARKS {
            return Err(PickleFault::Limit { what: "open tuples and dictionaries", limit: MAX_MARKS });
        }
        self.marks.push(self.stack.len() as u32);
        Ok(())
    }

    /// Makes a tuple of the values from `from` on. The tables are shorter than the pickle, which is
    /// shorter than 4 GiB.
    fn tuple(&mut self, from: usize) -> Result<(), PickleFault> {
        let (start, len) = (self.items.len() as u32, (self.stack.len() - from) as u32);
        if self.items.len() + len as usize > MAX_ITEMS {
            return Err(PickleFault::Limit { what: "values in tuples", limit: MAX_ITEMS });
        }
        self.items.extend(self.stack.drain(from..));
        self.push(Value::Tuple { start, len })
    }

    fn small_tuple(&mut self, len: usize) -> Result<(), PickleFault> {
        self.reach(len)?;
        self.tuple(self.stack.len() - len)
    }

    fn dict(&mut self) -> Result<(), PickleFault> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() as u32 - 1))
    }

    /// Adds the pairs from `from` on to the dictionary below them.
    fn set_items(&mut self, from: usize) -> Result<(), PickleFault> {
        let below = from.checked_sub(1).and_then(|at| self.stack.get(at));
        let floor = self.marks.last().map_or(0, |&mark| mark as usize);
        let (Some(&Value::Dict(dict)), true) = (below, from > floor) else {
            return operand("SETITEMS", "a dictionary and pairs");
        };
        let (pairs, rest) = self.stack[from..].as_chunks();
        if !rest.is_empty() {
            return operand("SETITEMS", "a dictionary and pairs");
        }
        self.dicts[dict as usize].extend(pairs.iter().map(|&[key, value]| (key, value)));
        self.stack.truncate(from);
        Ok(())
    }

    fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::Tuple { start, len } => self.items.get(start as usize..start as usize + len as usize),
            _ => None,
        }
    }

    /// What `BINPERSID` stands for in torch's pickles: a storage, by its key in the archive.
    fn persistent(&mut self) -> Result<(), PickleFault> {
        let value = self.pop()?;
        let Some(
            &[
                Value::Text("storage"),
                Value::Global(Global::Storage(dtype)),
                Value::Text(key),
                Value::Text(_location),
                Value::Int(elements @ 0..),
            ],
        ) = self.items(value)
        else {
            return operand("BINPERSID", "(\"storage\", type, key, location, size)");
        };
        self.storages.push(Storage { dtype, key, elements: elements as u64 });
        self.push(Value::Storage(self.storages.len() as u32 - 1))
    }

    /// What calling one of the globals would give.
    fn reduce(&mut self) -> Result<(), PickleFault> {
        let arguments = self.pop()?;
        let callable = self.pop()?;
        let items = self.items(arguments);
        match (callable, items) {
            (Value::Global(Global::OrderedDict), Some([])) => self.dict(),
            (
                Value::Global(Global::RebuildTensor),
                Some(
                    &[
                        Value::Storage(storage),
                        Value::Int(offset @ 0..),
                        size,
                        strides,
                        Value::Bool,
                        Value::Dict(_),
                    ],
                ),
            ) => {
                let (shape, strides) = (self.sizes(size)?, self.sizes(strides)?);
                let storage = self.storages[storage as usize];
                self.tensors.push(Tensor { storage, offset: offset as u64, shape, strides });
                self.push(Value::Tensor(self.tensors.len() as u32 - 1))
            }
            (
                Value::Global(Global::RebuildParameter),
                Some(&[tensor @ Value::Tensor(_), Value::Bool, Value::Dict(_)]),
            ) => self.push(tensor),
            _ => operand("REDUCE", "one of torch's rebuilding functions with the arguments that it takes"),
        }
    }

    fn sizes(&self, tuple: Value<'a>) -> Result<Sizes, PickleFault> {
        let (Value::Tuple { start, len }, Some(items)) = (tuple, self.items(tuple)) else {
            return operand("_rebuild_tensor_v2", "tuples of sizes and strides");
        };
        // Before anything is looked at: one long tuple may be used many times.
        if items.len() > MAX_RANK {
            return Err(PickleFault::Limit { what: "axes", limit: MAX_RANK });
        }
        if items.iter().all(|item| matches!(item, Value::Int(0..))) {
            Ok(Sizes { start, len })
        } else {
            operand("_rebuild_tensor_v2", "sizes and strides of 0 or more")
        }
    }

    /// `BUILD` sets attributes; a state_dict has one, its version numbers, which say nothing of tensors.
    fn build(&mut self) -> Result<(), PickleFault> {
        let (state, object) = (self.pop()?, self.top()?);
        let (Value::Dict(state), Value::Dict(_)) = (state, object) else {
            return operand("BUILD", "a dictionary with the attribute _metadata");
        };
        match self.dicts[state as usize][..] {
            [(Value::Text("_metadata"), Value::Dict(_))] => Ok(()),
            _ => operand("BUILD", "a dictionary with the attribute _metadata"),
        }
    }

    /// What is left at the end has to be one dictionary of tensors.
    fn finish(&mut self) -> Result<Pickled<'a>, PickleFault> {
        let rest = (self.pickle.len() - self.at) as u64;
        if rest > 0 {
            return Err(PickleFault::Trailing { bytes: rest });
        }
        let top = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() {
            return operand("STOP", "a single value");
        }
        let Value::Dict(dict) = top else {
            return Err(PickleFault::NotADictionary { found: top.what() });
        };
        let mut tensors = Vec::with_capacity(self.dicts[dict as usize].len());
        let mut names = HashSet::new();
        for &(key, value) in &self.dicts[dict as usize] {
            let Value::Text(name) = key else {
                return Err(PickleFault::NotAName { found: key.what() });
            };
            let Value::Tensor(tensor) = value else {
                return Err(PickleFault::NotATensor { key: name.to_owned(), found: value.what() });
            };
            if !names.insert(name) {
                return Err(PickleFault::Duplicate { key: name.to_owned() });
            }
            tensors.push((name, self.tensors[tensor as usize]));
        }
        Ok(Pickled { tensors, items: std::mem::take(&mut self.items) })
    }
}

#[cfg(test)]
mod tests;
