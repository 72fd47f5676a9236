//! A zip archive in which every record is stored as it is and bytes belong to one record only.
//!
//! Readers of zip files differ in what they trust, the directory at the end or the headers before the
//! records; an archive is accepted here only if both say the same and together tile the file. Touches
//! the directory and the headers, no record. Knows nothing of what the records are.

use std::collections::BTreeMap;
use std::ops::Range;

use super::fault::ArchiveFault;

/// The end of the directory, without a comment after it.
const END: usize = 22;
/// What says where the zip64 end is, if there is one, right before [`END`].
const LOCATOR: usize = 20;
/// The zip64 end, right before its locator.
const END64: usize = 56;
/// A directory entry before its name.
const ENTRY: usize = 46;
/// A record's header before its name.
const HEADER: usize = 30;

/// Flag: sizes and checksum stand behind the record.
const DESCRIPTOR: u16 = 1 << 3;
/// Flag: names are UTF-8.
const UTF8: u16 = 1 << 11;

/// A 32-bit field that says "see the zip64 field".
const SEE_64: u64 = u32::MAX as u64;
const SEE_64_COUNT: u64 = u16::MAX as u64;

/// Where each record's bytes are, by its name.
pub(crate) fn records(bytes: &[u8]) -> Result<BTreeMap<&str, Range<u64>>, ArchiveFault> {
    let directory = directory(bytes)?;
    let mut entries = Vec::new();
    let mut at = directory.range.start;
    while at < directory.range.end {
        let (entry, next) = entry(bytes, at, directory.range.end)?;
        entries.push(entry);
        at = next;
    }
    if entries.len() as u64 != directory.count {
        let (said, found) = (directory.count, entries.len() as u64);
        return Err(ArchiveFault::Count { said, found });
    }
    entries.sort_unstable_by_key(|entry| entry.header);
    let mut records = BTreeMap::new();
    let mut cursor = 0;
    let mut previous = "";
    for entry in entries {
        let name = || entry.name.to_owned();
        if entry.header < cursor {
            return Err(ArchiveFault::Overlap { record: name(), other: previous.to_owned() });
        }
        if entry.header > cursor {
            return Err(ArchiveFault::Hole { record: name(), bytes: entry.header - cursor });
        }
        let (range, end) = record(bytes, &entry, directory.range.start as u64)?;
        if records.insert(entry.name, range).is_some() {
            return Err(ArchiveFault::Duplicate { record: name() });
        }
        (cursor, previous) = (end, entry.name);
    }
    let directory = directory.range.start as u64;
    if cursor < directory {
        return Err(ArchiveFault::Hole { record: "the directory".to_owned(), bytes: directory - cursor });
    }
    Ok(records)
}

/// Where the directory is and how many entries it should have.
struct Directory {
    range: Range<usize>,
    count: u64,
}

fn directory(bytes: &[u8]) -> Result<Directory, ArchiveFault> {
    let end = bytes.len().checked_sub(END).ok_or(ArchiveFault::NoEnd)?;
    let fields = Fields(&bytes[end..]);
    if &bytes[end..end + 4] != b"PK\x05\x06" || fields.u16(20) != 0 {
        return Err(ArchiveFault::NoEnd);
    }
    let single = |disks: &[u64]| {
        if disks.iter().all(|&disk| disk == 0) { Ok(()) } else { Err(ArchiveFault::ManyDisks) }
    };
    let (mut count, mut size, mut offset) = (fields.u16(10), fields.u32(12), fields.u32(16));
    let mut after = end;
    let locator = end.checked_sub(LOCATOR).filter(|&at| bytes[at..].starts_with(b"PK\x06\x07"));
    if let Some(locator) = locator {
        let says = Fields(&bytes[locator..]);
        // One disk in all; the zip64 end is on the first.
        single(&[says.u32(4), says.u32(16).wrapping_sub(1)])?;
        let end64 = locator.checked_sub(END64).ok_or(ArchiveFault::NoEnd)?;
        let says64 = Fields(&bytes[end64..]);
        let there = says.u64(8) == end64 as u64 && bytes[end64..].starts_with(b"PK\x06\x06");
        if !there || says64.u64(4) != (END64 - 12) as u64 {
            return Err(ArchiveFault::NoEnd);
        }
        single(&[says64.u32(16), says64.u32(20), says64.u64(24) ^ says64.u64(32)])?;
        let wide = (says64.u64(32), says64.u64(40), says64.u64(48));
        let agrees = |narrow: u64, see: u64, wide: u64| narrow == see || narrow == wide;
        if !agrees(count, SEE_64_COUNT, wide.0)
            || !agrees(size, SEE_64, wide.1)
            || !agrees(offset, SEE_64, wide.2)
        {
            return Err(ArchiveFault::EndsDisagree);
        }
        (count, size, offset) = wide;
        after = end64;
    } else {
        single(&[fields.u16(4), fields.u16(6), fields.u16(8) ^ count])?;
    }
    if offset.checked_add(size) != Some(after as u64) {
        return Err(ArchiveFault::Directory { offset, size, end: after as u64 });
    }
    // Both are at most `after`, which is an index.
    Ok(Directory { range: offset as usize..after, count })
}

/// A record as the directory says it.
struct Entry<'a> {
    name: &'a str,
    flags: u16,
    crc: u64,
    size: u64,
    header: u64,
}

/// The entry at `at`, and where the next one begins.
fn entry(bytes: &[u8], at: usize, end: usize) -> Result<(Entry<'_>, usize), ArchiveFault> {
    let broken = || ArchiveFault::Entry { offset: at as u64 };
    let fixed = bytes[at..end].get(..ENTRY).filter(|e| e.starts_with(b"PK\x01\x02")).ok_or_else(broken)?;
    let fields = Fields(fixed);
    let [name, extra, comment] = [28, 30, 32].map(|at| fields.u16(at) as usize);
    let rest = bytes[at + ENTRY..end].get(..name + extra + comment).ok_or_else(broken)?;
    let name_bytes = &rest[..name];
    let shown = || String::from_utf8_lossy(name_bytes).into_owned();
    let name = std::str::from_utf8(name_bytes).map_err(|_| ArchiveFault::Name { name: shown() })?;
    safe(name)?;
    let (flags, method) = (fields.u16(8) as u16, fields.u16(10));
    if flags & !(DESCRIPTOR | UTF8) != 0 {
        return Err(ArchiveFault::Flags { record: shown(), flags });
    }
    if method != 0 {
        return Err(ArchiveFault::Compressed { record: shown(), method });
    }
    let disk = fields.u16(34);
    let mut wide = Wide::of(&rest[name_bytes.len()..][..extra]).ok_or_else(broken)?;
    let size = wide.or(fields.u32(24)).ok_or_else(broken)?;
    let stored = wide.or(fields.u32(20)).ok_or_else(broken)?;
    let header = wide.or(fields.u32(42)).ok_or_else(broken)?;
    if size != stored {
        return Err(ArchiveFault::Compressed { record: shown(), method });
    }
    if disk != 0 {
        return Err(ArchiveFault::ManyDisks);
    }
    Ok((Entry { name, flags, crc: fields.u32(16), size, header }, at + ENTRY + rest.len()))
}

/// Where the bytes of a record are, and where it ends with all that belongs to it. `limit` is where the
/// directory begins.
fn record(bytes: &[u8], entry: &Entry<'_>, limit: u64) -> Result<(Range<u64>, u64), ArchiveFault> {
    let record = || entry.name.to_owned();
    let outside = || ArchiveFault::Outside { record: record() };
    // Nothing of a record lies in the directory, so that none can be read as another thing.
    let before = &bytes[..limit as usize];
    let at = |offset: u64, length: u64| {
        let end = offset.checked_add(length).and_then(|end| usize::try_from(end).ok());
        end.and_then(|end| before.get(offset as usize..end)).ok_or_else(outside)
    };
    let fixed = at(entry.header, HEADER as u64)?;
    let disagree = |what| Err(ArchiveFault::HeadersDisagree { record: record(), what });
    if !fixed.starts_with(b"PK\x03\x04") {
        return disagree("its header's mark");
    }
    let fields = Fields(fixed);
    let (name, extra) = (fields.u16(26), fields.u16(28));
    let variable = at(entry.header + HEADER as u64, name + extra)?;
    if &variable[..name as usize] != entry.name.as_bytes() {
        return disagree("its name");
    }
    if fields.u16(6) as u16 != entry.flags || fields.u16(8) != 0 {
        return disagree("its flags or method");
    }
    let described = entry.flags & DESCRIPTOR != 0;
    let wide = Wide::of(&variable[name as usize..]);
    let sizes = wide.and_then(|mut wide| Some([wide.or(fields.u32(22))?, wide.or(fields.u32(18))?]));
    let sizes = sizes.ok_or_else(outside)?;
    if !(sizes == [entry.size; 2] || described && sizes == [0; 2]) {
        return disagree("its size");
    }
    let start = entry.header + HEADER as u64 + name + extra;
    at(start, entry.size)?;
    let end = start + entry.size;
    if !described {
        return Ok((start..end, end));
    }
    // Mark, checksum and two sizes; of eight bytes each where the writer thought it might need them.
    let narrow = at(end, 16)?;
    let says = Fields(narrow);
    if narrow.starts_with(b"PK\x07\x08") && says.u32(4) == entry.crc {
        if [says.u32(8), says.u32(12)] == [entry.size; 2] {
            return Ok((start..end, end + 16));
        }
        let says = Fields(at(end, 24)?);
        if [says.u64(8), says.u64(16)] == [entry.size; 2] {
            return Ok((start..end, end + 24));
        }
    }
    disagree("its size or checksum")
}

/// A record's name may not lead anywhere, though nothing here is ever unpacked: other tools do.
fn safe(name: &str) -> Result<(), ArchiveFault> {
    let parts = |part: &str| !part.is_empty() && part != "." && part != "..";
    if name.split('/').all(parts) && !name.contains(['\\', '\0', ':']) {
        Ok(())
    } else {
        Err(ArchiveFault::Name { name: name.to_owned() })
    }
}

/// The 64-bit values of a zip64 extra field, which stand for those 32-bit fields that say so, in order.
struct Wide<'a>(&'a [u8]);

impl<'a> Wide<'a> {
    /// `None` where the extra fields do not fit their lengths, or zip64's comes twice.
    fn of(mut extra: &'a [u8]) -> Option<Self> {
        let mut found = None;
        while !extra.is_empty() {
            let (head, rest) = extra.split_at_checked(4)?;
            let (field, rest) = rest.split_at_checked(Fields(head).u16(2) as usize)?;
            if Fields(head).u16(0) == 1 && found.replace(field).is_some() {
                return None;
            }
            extra = rest;
        }
        Some(Wide(found.unwrap_or(&[])))
    }

    /// The next value, if `narrow` refers to it.
    fn or(&mut self, narrow: u64) -> Option<u64> {
        if narrow != SEE_64 {
            return Some(narrow);
        }
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }
}

/// Little-endian fields at offsets that are known to be there.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u64 {
        u64::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }

    fn u32(&self, at: usize) -> u64 {
        self.u16(at) | self.u16(at + 2) << 16
    }

    fn u64(&self, at: usize) -> u64 {
        self.u32(at) | self.u32(at + 4) << 32
    }
}

#[cfg(test)]
mod tests;
