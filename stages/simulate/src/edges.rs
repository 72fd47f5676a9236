//! A kernel call's buffers in external memory, by the names of the kernel's entries.

use crate::error::{Fault, SimError};
use crate::program::{BUFFER_SHIFT, Program};
use mica_device::object::Direction;
use std::borrow::Cow;

/// One buffer an entry. They stay from call to call: what a call left in an `out` edge is the next call's `in` after
/// [`Edges::turn`], without a copy and without new memory; an `inout` edge is left as the call left it.
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
    Out(Out),
    InOut(Option<Vec<u8>>),
}

/// An `out` buffer. It starts a call as zeros, but is cleared only as far as that is seen: a state is mostly
/// overwritten from its first byte to its last.
#[derive(Clone, Debug, Default)]
struct Out {
    bytes: Vec<u8>,
    /// Up to here it holds what it should; beyond stands what was there before, for zeros.
    clear: usize,
}

impl Out {
    fn start(&mut self, bytes: u64) {
        if self.bytes.len() as u64 != bytes {
            self.bytes = vec![0; bytes as usize];
        }
        self.clear = 0;
    }

    /// The bytes up to `end` are as they should be, but for `[from, end)`, which is about to be overwritten.
    fn reach(&mut self, from: usize, end: usize) {
        if from > self.clear {
            self.bytes[self.clear..from].fill(0);
        }
        self.clear = self.clear.max(end);
    }

    fn finish(&mut self) {
        let end = self.bytes.len();
        self.reach(end, end);
    }
}

impl<'a> Edges<'a> {
    /// Buffers for the entries of a program: `in` and `inout` unset, `out` zeroed.
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
                        Direction::Out => Content::Out(Out { bytes: vec![0; e.bytes as usize], clear: 0 }),
                        Direction::InOut => Content::InOut(None),
                    },
                }
            })
            .collect();
        Edges { buffers, by_register }
    }

    /// Sets an `in` or `inout` edge. Errors: no such edge, or a size other than the entry's.
    pub fn set_in(&mut self, name: &str, bytes: impl Into<Cow<'a, [u8]>>) -> Result<(), SimError> {
        let bytes = bytes.into();
        for b in self.buffers.iter_mut().filter(|b| b.name == name) {
            if matches!(b.content, Content::Out(_)) {
                continue;
            }
            if bytes.len() as u64 != b.bytes {
                let (expected, found) = (b.bytes, bytes.len() as u64);
                return Err(SimError::EdgeSize { name: name.into(), expected, found });
            }
            match &mut b.content {
                Content::In(slot) => *slot = Some(bytes),
                Content::InOut(slot) => *slot = Some(bytes.into_owned()),
                Content::Out(_) => {}
            }
            return Ok(());
        }
        Err(no_edge(name, "in"))
    }

    /// The bytes of an `inout` edge, as given or as the last call left them. Errors: no such edge, or one that is not
    /// set.
    pub fn kept(&self, name: &str) -> Result<&[u8], SimError> {
        let n = self.find(name, Direction::InOut)?;
        match &self.buffers[n].content {
            Content::InOut(Some(bytes)) => Ok(bytes),
            _ => Err(SimError::EdgeUnset { name: name.into() }),
        }
    }

    /// What the last call wrote to an `out` edge. Errors: no such edge.
    pub fn out(&self, name: &str) -> Result<&[u8], SimError> {
        self.buffers
            .iter()
            .find_map(|b| match &b.content {
                Content::Out(out) if b.name == name => Some(out.bytes.as_slice()),
                _ => None,
            })
            .ok_or_else(|| no_edge(name, "out"))
    }

    /// Takes the bytes of an `out` edge away; the next call starts it anew. Errors: no such edge.
    pub fn take_out(&mut self, name: &str) -> Result<Vec<u8>, SimError> {
        let n = self.find(name, Direction::Out)?;
        match &mut self.buffers[n].content {
            Content::Out(out) => Ok(std::mem::take(&mut out.bytes)),
            Content::In(_) | Content::InOut(_) => Err(no_edge(name, "out")),
        }
    }

    /// The bytes of an `in` edge, to be changed between calls; a borrowed one is copied. Errors: no such edge, or
    /// one that is not set.
    pub fn in_mut(&mut self, name: &str) -> Result<&mut [u8], SimError> {
        let n = self.find(name, Direction::In)?;
        match &mut self.buffers[n].content {
            Content::In(Some(bytes)) => Ok(bytes.to_mut()),
            _ => Err(SimError::EdgeUnset { name: name.into() }),
        }
    }

    /// Takes the bytes of an `in` edge away, which is unset then. Errors: no such edge, or one that is not set.
    pub fn take_in(&mut self, name: &str) -> Result<Vec<u8>, SimError> {
        let n = self.find(name, Direction::In)?;
        match &mut self.buffers[n].content {
            Content::In(bytes) => bytes.take().map(Cow::into_owned),
            Content::Out(_) | Content::InOut(_) => None,
        }
        .ok_or_else(|| SimError::EdgeUnset { name: name.into() })
    }

    /// Makes what the last call wrote to the edge `output` the edge `input`, whose memory the next call writes to.
    /// Errors: no such edge, or two sizes.
    pub fn turn(&mut self, output: &str, input: &str) -> Result<(), SimError> {
        let (from, to) = (self.find(output, Direction::Out)?, self.find(input, Direction::In)?);
        let (expected, found) = (self.buffers[to].bytes, self.buffers[from].bytes);
        if found != expected {
            return Err(SimError::EdgeSize { name: input.into(), expected, found });
        }
        let bytes = self.take_out(output)?;
        let old = match &mut self.buffers[to].content {
            Content::In(slot) => slot.replace(Cow::Owned(bytes)),
            Content::Out(_) | Content::InOut(_) => None,
        };
        if let (Content::Out(out), Some(Cow::Owned(old))) = (&mut self.buffers[from].content, old) {
            out.bytes = old;
        }
        Ok(())
    }

    fn find(&self, name: &str, direction: Direction) -> Result<usize, SimError> {
        let found = self.buffers.iter().position(|b| {
            let of = match b.content {
                Content::In(_) => Direction::In,
                Content::Out(_) => Direction::Out,
                Content::InOut(_) => Direction::InOut,
            };
            b.name == name && of == direction
        });
        let text = match direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::InOut => "inout",
        };
        found.ok_or_else(|| no_edge(name, text))
    }

    /// Checks that everything is set for `program`, and starts the `out` buffers as zeros.
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
                Content::In(None) | Content::InOut(None) => {
                    return Err(SimError::EdgeUnset { name: b.name.clone() });
                }
                Content::In(Some(_)) | Content::InOut(Some(_)) => {}
                Content::Out(out) => out.start(b.bytes),
            }
        }
        Ok(())
    }

    /// Clears what the call has left untouched.
    pub(crate) fn finish(&mut self) {
        for b in &mut self.buffers {
            if let Content::Out(out) = &mut b.content {
                out.finish();
            }
        }
    }

    fn place(&self, address: u64, bytes: u64) -> Option<(usize, std::ops::Range<usize>)> {
        let register = (address >> BUFFER_SHIFT) as usize;
        let buffer = usize::from(self.by_register.get(register).copied().flatten()?);
        let start = address & ((1 << BUFFER_SHIFT) - 1);
        let end = start.checked_add(bytes)?;
        // both fit: the buffer itself does
        (end <= self.buffers[buffer].bytes).then_some((buffer, start as usize..end as usize))
    }

    /// The bytes at an address.
    pub(crate) fn read(&mut self, address: u64, bytes: u64) -> Result<&[u8], Fault> {
        let outside = Fault::External { address, bytes };
        let (buffer, range) = self.place(address, bytes).ok_or(outside)?;
        match &mut self.buffers[buffer].content {
            Content::In(content) => content.as_deref().map(|c| &c[range]).ok_or(outside),
            Content::InOut(content) => content.as_deref().map(|c| &c[range]).ok_or(outside),
            Content::Out(out) => {
                out.reach(range.end.max(out.clear), range.end);
                Ok(&out.bytes[range])
            }
        }
    }

    /// The bytes at an address as a program would read them; `None` outside of the buffers.
    pub(crate) fn peek(&self, address: u64, bytes: u64) -> Option<Vec<u8>> {
        let (buffer, range) = self.place(address, bytes)?;
        match &self.buffers[buffer].content {
            Content::In(content) => content.as_deref().map(|c| c[range].to_vec()),
            Content::InOut(content) => content.as_deref().map(|c| c[range].to_vec()),
            Content::Out(out) => {
                let mut found = out.bytes[range.start..range.end.min(out.clear).max(range.start)].to_vec();
                found.resize(range.len(), 0);
                Some(found)
            }
        }
    }

    /// The `in` buffer that holds a range of addresses, by its number, and where in it the range begins.
    pub(crate) fn input_at(&self, address: u64, bytes: u64) -> Option<(usize, usize)> {
        let (buffer, range) = self.place(address, bytes)?;
        matches!(self.buffers[buffer].content, Content::In(Some(_))).then_some((buffer, range.start))
    }

    /// The bytes of an `in` buffer, which nothing changes during a call.
    pub(crate) fn input(&self, buffer: usize) -> &[u8] {
        match self.buffers.get(buffer).map(|b| &b.content) {
            Some(Content::In(Some(bytes))) => bytes,
            _ => &[],
        }
    }

    pub(crate) fn write(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], Fault> {
        let outside = Fault::External { address, bytes };
        let (buffer, range) = self.place(address, bytes).ok_or(outside)?;
        match &mut self.buffers[buffer].content {
            Content::In(_) => Err(Fault::ReadOnly { address }),
            Content::InOut(content) => content.as_deref_mut().map(|c| &mut c[range]).ok_or(outside),
            Content::Out(out) => {
                out.reach(range.start, range.end);
                Ok(&mut out.bytes[range])
            }
        }
    }
}

fn no_edge(name: &str, direction: &'static str) -> SimError {
    SimError::NoEdge { name: name.into(), direction }
}
