//! A kernel call's buffers in external memory, by the names of the kernel's entries.

use crate::error::{Fault, SimError};
use crate::program::{BUFFER_SHIFT, Program};
use mica_device::object::Direction;
use std::borrow::Cow;

/// One buffer an entry. An `in` buffer may be borrowed, so that the states of a call are the very
/// `out` buffers of the call before.
#[derive(Clone, Debug)]
pub struct Edges<'a> {
    buffers: Vec<Buffer<'a>>,
    /// The buffer of each register, by its number.
    by_register: [Option<u8>; 16],
}

#[derive(Clone, Debug)]
struct Buffer<'a> {
    name: String,
    register: u8,
    bytes: u64,
    content: Content<'a>,
}

#[derive(Clone, Debug)]
enum Content<'a> {
    In(Option<Cow<'a, [u8]>>),
    Out(Vec<u8>),
}

impl<'a> Edges<'a> {
    /// Buffers for the entries of a program: `in` unset, `out` zeroed.
    pub fn new(program: &Program) -> Edges<'a> {
        let mut by_register = [None; 16];
        let buffers = program
            .entries
            .iter()
            .enumerate()
            .map(|(n, e)| {
                // at most 15 entries, so the number fits
                by_register[usize::from(e.register)] = Some(n as u8);
                Buffer {
                    name: e.name.clone(),
                    register: e.register,
                    bytes: e.bytes,
                    content: match e.direction {
                        Direction::In => Content::In(None),
                        Direction::Out => Content::Out(vec![0; e.bytes as usize]),
                    },
                }
            })
            .collect();
        Edges { buffers, by_register }
    }

    /// Sets an `in` edge. Errors: no such edge, or a size other than the entry's.
    pub fn set_in(&mut self, name: &str, bytes: impl Into<Cow<'a, [u8]>>) -> Result<(), SimError> {
        let bytes = bytes.into();
        for b in &mut self.buffers {
            if let (true, Content::In(slot)) = (b.name == name, &mut b.content) {
                if bytes.len() as u64 != b.bytes {
                    return Err(SimError::EdgeSize {
                        name: name.into(),
                        expected: b.bytes,
                        found: bytes.len() as u64,
                    });
                }
                *slot = Some(bytes);
                return Ok(());
            }
        }
        Err(no_edge(name, "in"))
    }

    /// What the last call wrote to an `out` edge. Errors: no such edge.
    pub fn out(&self, name: &str) -> Result<&[u8], SimError> {
        self.buffers
            .iter()
            .find_map(|b| match &b.content {
                Content::Out(bytes) if b.name == name => Some(bytes.as_slice()),
                _ => None,
            })
            .ok_or_else(|| no_edge(name, "out"))
    }

    /// Takes the bytes of an `out` edge away; the next call starts it anew. Errors: no such edge.
    pub fn take_out(&mut self, name: &str) -> Result<Vec<u8>, SimError> {
        self.buffers
            .iter_mut()
            .find_map(|b| match &mut b.content {
                Content::Out(bytes) if b.name == name => Some(std::mem::take(bytes)),
                _ => None,
            })
            .ok_or_else(|| no_edge(name, "out"))
    }

    /// Checks that everything is set for `program`, and zeroes the `out` buffers.
    pub(crate) fn start(&mut self, program: &Program) -> Result<(), SimError> {
        let same = self.buffers.len() == program.entries.len()
            && self
                .buffers
                .iter()
                .zip(&program.entries)
                .all(|(b, e)| b.name == e.name && b.register == e.register && b.bytes == e.bytes);
        if !same {
            return Err(SimError::OtherEdges);
        }
        for b in &mut self.buffers {
            match &mut b.content {
                Content::In(None) => {
                    return Err(SimError::EdgeUnset { name: b.name.clone() });
                }
                Content::In(Some(_)) => {}
                Content::Out(bytes) => {
                    bytes.clear();
                    bytes.resize(b.bytes as usize, 0);
                }
            }
        }
        Ok(())
    }

    fn place(&self, address: u64, bytes: u64) -> Option<(usize, std::ops::Range<usize>)> {
        let register = (address >> BUFFER_SHIFT) as usize;
        let buffer = usize::from(self.by_register.get(register).copied().flatten()?);
        let start = address & ((1 << BUFFER_SHIFT) - 1);
        let end = start.checked_add(bytes)?;
        // both fit: the buffer itself does
        (end <= self.buffers[buffer].bytes).then_some((buffer, start as usize..end as usize))
    }

    pub(crate) fn read(&self, address: u64, bytes: u64) -> Result<&[u8], Fault> {
        let outside = Fault::External { address, bytes };
        let (buffer, range) = self.place(address, bytes).ok_or(outside)?;
        match &self.buffers[buffer].content {
            Content::In(content) => content.as_deref().map(|c| &c[range]).ok_or(outside),
            Content::Out(content) => Ok(&content[range]),
        }
    }

    pub(crate) fn write(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], Fault> {
        let outside = Fault::External { address, bytes };
        let (buffer, range) = self.place(address, bytes).ok_or(outside)?;
        match &mut self.buffers[buffer].content {
            Content::In(_) => Err(Fault::ReadOnly { address }),
            Content::Out(content) => Ok(&mut content[range]),
        }
    }
}

fn no_edge(name: &str, direction: &'static str) -> SimError {
    SimError::NoEdge { name: name.into(), direction }
}
