//! The second-level memory.
//!
//! A large transfer of constants or from an `in` edge is not copied: the range is noted as an alias of those
//! bytes, and a matrix or a state is read straight from them. Writes cut aliases; a read that no single alias
//! holds copies what it needs. Aliases are an optimisation of the host that no result depends on.

use crate::edges::Edges;
use crate::error::Fault;
use crate::written::Written;
use mica_device::access::Memory;

/// What memory holds before anything is written: NaN in every float format, so that a program that
/// reads it shows.
pub const FILL: u8 = 0xff;
/// Transfers of fewer bytes are copied: cheaper than an alias.
const ALIAS_BYTES: usize = 4096;

/// Bytes that do not change during a call.
#[derive(Clone, Copy, Debug)]
pub enum Base<'c> {
    /// Constants of the kernel.
    Constants(&'c [u8]),
    /// An `in` edge, by its buffer.
    Edge(usize),
}

impl<'c> Base<'c> {
    fn bytes<'e>(self, edges: &'e Edges<'_>) -> &'e [u8]
    where
        'c: 'e,
    {
        match self {
            Base::Constants(bytes) => bytes,
            Base::Edge(buffer) => edges.input(buffer),
        }
    }

    fn same(self, other: Base<'_>) -> bool {
        match (self, other) {
            (Base::Constants(a), Base::Constants(b)) => std::ptr::eq(a, b),
            (Base::Edge(a), Base::Edge(b)) => a == b,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Alias<'c> {
    start: usize,
    len: usize,
    /// What it is of, and where in that the range begins.
    base: Base<'c>,
    from: usize,
}

impl<'c> Alias<'c> {
    fn end(&self) -> usize {
        self.start + self.len
    }

    /// Where in its base it holds `[from, to)`, a range within it.
    fn within(&self, from: usize, to: usize) -> std::ops::Range<usize> {
        self.from + from - self.start..self.from + to - self.start
    }

    /// The part `[from, to)` of it.
    fn part(&self, from: usize, to: usize) -> Alias<'c> {
        Alias { start: from, len: to - from, base: self.base, from: self.from + from - self.start }
    }
}

/// The second-level memory; its bytes grow as they are touched.
#[derive(Clone, Debug)]
pub struct L2<'c> {
    size: u64,
    bytes: Vec<u8>,
    aliases: Vec<Alias<'c>>,
    written: Option<Written>,
}

impl<'c> L2<'c> {
    pub fn new(size: u64, strict: bool) -> L2<'c> {
        L2 { size, bytes: Vec::new(), aliases: Vec::new(), written: strict.then(Written::default) }
    }

    /// Undefined contents again.
    pub fn reset(&mut self) {
        self.bytes.fill(FILL);
        self.aliases.clear();
        if let Some(w) = &mut self.written {
            w.clear();
        }
    }

    fn range(&self, start: u32, bytes: u64) -> Result<std::ops::Range<usize>, Fault> {
        let start = u64::from(start);
        // the size fits usize, so what lies below it does
        match start.checked_add(bytes).filter(|&end| end <= self.size) {
            Some(end) => Ok(start as usize..end as usize),
            None => Err(Fault::Range { memory: Memory::L2, start, bytes }),
        }
    }

    fn grow(&mut self, end: usize) {
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(1 << 16), FILL);
        }
    }

    /// Notes that `[start, start + len)` holds the bytes of `base` from `from` on.
    pub fn load(
        &mut self,
        start: u32,
        base: Base<'c>,
        from: usize,
        len: usize,
        edges: &Edges<'_>,
    ) -> Result<(), Fault> {
        if len < ALIAS_BYTES {
            self.write(start, len as u64)?.copy_from_slice(&base.bytes(edges)[from..from + len]);
            return Ok(());
        }
        let range = self.range(start, len as u64)?;
        self.cut(&range);
        if let Some(w) = &mut self.written {
            w.set(u64::from(start), len as u64);
        }
        // a matrix that arrives in several transfers is one alias again
        let joins =
            |a: &&mut Alias<'_>| a.end() == range.start && a.base.same(base) && a.from + a.len == from;
        match self.aliases.iter_mut().find(joins) {
            Some(a) => a.len += len,
            None => self.aliases.push(Alias { start: range.start, len, base, from }),
        }
        Ok(())
    }

    /// Removes a range from the aliases: they keep what lies before and behind it.
    fn cut(&mut self, range: &std::ops::Range<usize>) {
        let mut n = 0;
        while n < self.aliases.len() {
            let a = self.aliases[n];
            if a.start >= range.end || a.end() <= range.start {
                n += 1;
                continue;
            }
            self.aliases.swap_remove(n);
            if a.start < range.start {
                self.aliases.push(a.part(a.start, range.start));
            }
            if a.end() > range.end {
                self.aliases.push(a.part(range.end, a.end()));
            }
            // the pieces do not overlap the range, so meeting them again changes nothing
        }
    }

    /// The bytes `[start, start + bytes)`, to be overwritten whole.
    pub fn write(&mut self, start: u32, bytes: u64) -> Result<&mut [u8], Fault> {
        let range = self.range(start, bytes)?;
        self.cut(&range);
        self.grow(range.end);
        if let Some(w) = &mut self.written {
            w.set(u64::from(start), bytes);
        }
        Ok(&mut self.bytes[range])
    }

    /// The bytes `[start, start + bytes)`.
    pub fn read<'e>(&'e mut self, start: u32, bytes: u64, edges: &'e Edges<'_>) -> Result<&'e [u8], Fault> {
        let range = self.to_read(start, bytes)?;
        Ok(match self.holder(&range, edges, true) {
            Some(a) => &a.base.bytes(edges)[a.within(range.start, range.end)],
            None => &self.bytes[range],
        })
    }

    /// The same, held apart from the edges, which may be written then.
    pub fn read_apart(&mut self, start: u32, bytes: u64, edges: &Edges<'_>) -> Result<&[u8], Fault> {
        let range = self.to_read(start, bytes)?;
        Ok(match self.holder(&range, edges, false) {
            Some(Alias { base: Base::Constants(bytes), start, from, .. }) => {
                let first = from + range.start - start;
                &bytes[first..first + range.len()]
            }
            _ => &self.bytes[range],
        })
    }

    fn to_read(&self, start: u32, bytes: u64) -> Result<std::ops::Range<usize>, Fault> {
        let range = self.range(start, bytes)?;
        match &self.written {
            Some(w) if !w.all(u64::from(start), bytes) => {
                Err(Fault::Unwritten { memory: Memory::L2, start: u64::from(start), bytes })
            }
            _ => Ok(range),
        }
    }

    /// The alias that holds a range, if need be one of constants; otherwise the bytes hold it afterwards.
    fn holder(&mut self, range: &std::ops::Range<usize>, edges: &Edges<'_>, any: bool) -> Option<Alias<'c>> {
        let met = self.aliases.iter().copied().find(|a| a.start < range.end && range.start < a.end());
        match met {
            Some(a)
                if a.start <= range.start
                    && range.end <= a.end()
                    && (any || matches!(a.base, Base::Constants(_))) =>
            {
                return Some(a);
            }
            Some(_) => self.copy_in(range, edges),
            None => self.grow(range.end),
        }
        None
    }

    /// Bytes as they are, whether or not anything wrote them; `None` past the end.
    pub fn peek(&self, start: u64, bytes: u64, edges: &Edges<'_>) -> Option<Vec<u8>> {
        let end = start.checked_add(bytes).filter(|&end| end <= self.size)? as usize;
        let start = start as usize;
        let mut out = self.bytes.get(start..self.bytes.len().min(end)).unwrap_or_default().to_vec();
        out.resize(end - start, FILL);
        for a in &self.aliases {
            let (from, to) = (a.start.max(start), a.end().min(end));
            if from < to {
                out[from - start..to - start].copy_from_slice(&a.base.bytes(edges)[a.within(from, to)]);
            }
        }
        Some(out)
    }

    /// The bytes `[start, start + bytes)` where they are constants as they lie in their segment.
    pub fn constants(&self, start: u32, bytes: u64) -> Result<Option<&'c [u8]>, Fault> {
        let range = self.range(start, bytes)?;
        let found = self.aliases.iter().find(|a| a.start <= range.start && range.end <= a.end());
        Ok(found.and_then(|a| match a.base {
            Base::Constants(bytes) => Some(&bytes[a.within(range.start, range.end)]),
            Base::Edge(_) => None,
        }))
    }

    /// Copies what the aliases hold of a range into the bytes, and cuts it from them.
    fn copy_in(&mut self, range: &std::ops::Range<usize>, edges: &Edges<'_>) {
        self.grow(range.end);
        for a in &self.aliases {
            let (from, to) = (a.start.max(range.start), a.end().min(range.end));
            if from < to {
                self.bytes[from..to].copy_from_slice(&a.base.bytes(edges)[a.within(from, to)]);
            }
        }
        self.cut(range);
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIAS_BYTES, Base, L2};
    use crate::edges::Edges;
    use crate::program::Program;
    use mica_device::object::{Direction, Entry, Kernel};
    use proptest::prelude::*;

    /// An `in` edge of these bytes.
    fn edge(bytes: Vec<u8>) -> Edges<'static> {
        let entry = Entry {
            name: "in".into(),
            register: 1,
            direction: Direction::In,
            bytes: bytes.len() as u64,
            shares: Vec::new(),
        };
        let halt = mica_device::isa::encode(&mica_device::asm::parse("halt").unwrap());
        let kernel = Kernel {
            code: halt,
            segments: Vec::new(),
            literals: Vec::new(),
            entries: vec![entry],
            ops: Vec::new(),
            parts: Vec::new(),
            lrm_peak: 0,
            l2_peak: 0,
        };
        let mut edges = Edges::new(&Program::load(&kernel).unwrap());
        edges.set_in("in", bytes).unwrap();
        edges
    }

    #[test]
    fn a_large_load_is_not_copied() {
        let constants = vec![7; 2 * ALIAS_BYTES];
        let edges = edge(vec![8; 2 * ALIAS_BYTES]);
        let mut l2 = L2::new(1 << 20, false);
        for base in [Base::Constants(&constants), Base::Edge(0)] {
            l2.load(64, base, 0, ALIAS_BYTES, &edges).unwrap();
            l2.load(64 + ALIAS_BYTES as u32, base, ALIAS_BYTES, ALIAS_BYTES, &edges).unwrap();
            let read = l2.read(128, ALIAS_BYTES as u64, &edges).unwrap();
            assert!(std::ptr::eq(read.as_ptr(), &base.bytes(&edges)[64]));
        }
        let apart = l2.read_apart(128, ALIAS_BYTES as u64, &edges).unwrap();
        assert!(!std::ptr::eq(apart.as_ptr(), &edges.input(0)[64]));
        assert_eq!(apart, [8; ALIAS_BYTES]);
    }

    proptest! {
        /// Loads, writes and reads in any order give what a plain copy gives.
        #[test]
        fn aliases_change_nothing(
            steps in prop::collection::vec(
                (0u8..5, 0u32..20_000, 0usize..8_000, 0usize..4_000), 1..40)
        ) {
            let constants: Vec<u8> = (0..12_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
            let edges = edge((0..12_000u32).map(|n| ((n * 17) >> 2) as u8).collect());
            let mut l2 = L2::new(32_000, false);
            let mut plain = vec![super::FILL; 32_000];
            for (n, (kind, start, len, from)) in steps.into_iter().enumerate() {
                let place = start as usize..start as usize + len;
                match kind {
                    0 | 1 => {
                        let base = [Base::Constants(&constants), Base::Edge(0)][usize::from(kind)];
                        l2.load(start, base, from, len, &edges).unwrap();
                        plain[place].copy_from_slice(&base.bytes(&edges)[from..from + len]);
                    }
                    2 => {
                        l2.write(start, len as u64).unwrap().fill(n as u8);
                        plain[place].fill(n as u8);
                    }
                    3 => prop_assert_eq!(l2.read(start, len as u64, &edges).unwrap(), &plain[place]),
                    _ => prop_assert_eq!(l2.read_apart(start, len as u64, &edges).unwrap(), &plain[place]),
                }
            }
            prop_assert_eq!(l2.peek(0, 32_000, &edges).unwrap(), plain.clone());
            prop_assert_eq!(l2.read(0, 32_000, &edges).unwrap(), &plain[..]);
        }
    }

    #[test]
    fn the_end_is_checked() {
        let edges = edge(Vec::new());
        let mut l2 = L2::new(100, true);
        assert!(l2.read(90, 11, &edges).is_err());
        assert!(l2.write(0, 101).is_err());
        assert!(l2.read(0, 1, &edges).is_err(), "strict: nothing was written");
        assert_eq!((l2.peek(98, 2, &edges), l2.peek(99, 2, &edges)), (Some(vec![super::FILL; 2]), None));
        l2.write(0, 1).unwrap();
        assert!(l2.read(0, 1, &edges).is_ok());
    }
}
