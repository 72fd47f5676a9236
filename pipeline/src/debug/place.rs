//! Places in a program as a person names them: an instruction by its number, a part, an op in one part or in all.

use crate::targets::nearest;
use mica_device::isa::Opcode;
use mica_device::tile::register;
use mica_simulate::Program;
use std::collections::{BTreeMap, BTreeSet};

/// A place that the program does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// An instruction past the end.
    #[error("the program has {instructions} instructions, numbered from 0; {asked} is none of them")]
    Instruction {
        /// As asked for.
        asked: String,
        /// How many there are.
        instructions: usize,
    },
    /// An op by its number without its part.
    #[error("an op's number is counted in its part: say PART:{number}")]
    Number {
        /// As asked for.
        number: u32,
    },
    /// A part where an op is asked for.
    #[error("{part} is a part, and an op of it is needed: say {part}:OP")]
    Part {
        /// Its name.
        part: String,
    },
    /// No part or op of that name.
    #[error(
        "{asked:?} is no place{}: give an instruction's number, PART, PART:OP or OP, an op by its number, its \
         name or where it stands in the model", nearest.as_ref().map(|n| format!(", is it {n:?}?")).unwrap_or_default()
    )]
    Unknown {
        /// As asked for.
        asked: String,
        /// The nearest name.
        nearest: Option<String>,
    },
}

/// The places of a program.
pub struct Places<'p> {
    program: &'p Program,
    parts: &'p [String],
    /// First and last instruction of each op.
    ops: BTreeMap<u32, (usize, usize)>,
    /// Ops that leave a tile.
    results: BTreeSet<u32>,
}

impl<'p> Places<'p> {
    /// The places of a program whose parts have these names.
    pub fn new(program: &'p Program, parts: &'p [String]) -> Places<'p> {
        let mut ops: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        let mut results = BTreeSet::new();
        // after a halt nothing is seen any more
        for (at, i) in program.code().iter().enumerate().filter(|(_, i)| i.op != Opcode::Halt) {
            ops.entry(i.src).or_insert((at, at)).1 = at;
            if i.op == Opcode::Opb && register(i.r[0]).is_some() {
                results.insert(i.src);
            }
        }
        Places { program, parts, ops, results }
    }

    /// The name of a part.
    pub fn part(&self, number: u32) -> String {
        self.program.place(self.parts, number)
    }

    /// The last instruction of an op.
    pub fn last_of(&self, src: u32) -> Option<usize> {
        self.ops.get(&src).map(|o| o.1)
    }

    /// Whether an op leaves a tile.
    pub fn has_result(&self, src: u32) -> bool {
        self.results.contains(&src)
    }

    /// The instructions to stop before: a numbered one, or the first of each op or part that is named.
    ///
    /// # Errors
    /// A place that is not there.
    pub fn stops(&self, word: &str) -> Result<BTreeSet<usize>, PlaceError> {
        if let Ok(at) = word.parse::<usize>() {
            let instructions = self.program.code().len();
            return match at < instructions {
                true => Ok(BTreeSet::from([at])),
                false => Err(PlaceError::Instruction { asked: word.into(), instructions }),
            };
        }
        if let Some(part) = self.parts.iter().position(|p| p == word) {
            let first = self.ops.iter().filter(|(src, _)| **src >> 16 == part as u32).map(|(_, o)| o.0).min();
            return Ok(first.into_iter().collect());
        }
        Ok(self.ops(word)?.iter().filter_map(|src| self.ops.get(src)).map(|o| o.0).collect())
    }

    /// The ops that a word names: `PART:OP`, or `OP` in any part.
    ///
    /// # Errors
    /// None of that name.
    pub fn ops(&self, word: &str) -> Result<BTreeSet<u32>, PlaceError> {
        let (part, op) = match word.split_once(':') {
            Some((part, op)) => {
                let number = self.parts.iter().position(|p| p == part);
                (Some(number.ok_or_else(|| self.unknown(word))? as u32), op)
            }
            None => (None, word),
        };
        let number = op.parse::<u32>().ok().filter(|_| part.is_some());
        let fits = |src: &u32| {
            let here = part.is_none_or(|p| *src >> 16 == p);
            let named = self.program.op(*src).is_some_and(|o| {
                o.label == op && !op.is_empty()
                    || o.op == op
                    || op.strip_prefix(&o.op).is_some_and(|r| r.strip_prefix(' ') == Some(&o.label))
            });
            here && (named || number == Some(*src & 0xffff))
        };
        let found: BTreeSet<u32> = self.ops.keys().copied().filter(fits).collect();
        match found.is_empty() {
            false => Ok(found),
            true if self.parts.iter().any(|p| p == word) => Err(PlaceError::Part { part: word.into() }),
            true => {
                Err(word.parse().map_or_else(|_| self.unknown(word), |number| PlaceError::Number { number }))
            }
        }
    }

    fn unknown(&self, word: &str) -> PlaceError {
        let labels: BTreeSet<&str> =
            self.ops.keys().filter_map(|src| self.program.op(*src)).map(|o| o.label.as_str()).collect();
        let op = word.split_once(':').filter(|(p, _)| self.parts.iter().any(|k| k == p));
        let near = match op {
            Some((part, op)) => nearest(op, labels).map(|n| format!("{part}:{n}")),
            None => nearest(word, labels.into_iter().chain(self.parts.iter().map(String::as_str))),
        };
        PlaceError::Unknown { asked: word.into(), nearest: near.filter(|n| !n.is_empty()) }
    }
}
