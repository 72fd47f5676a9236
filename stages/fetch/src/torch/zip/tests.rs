//! One broken archive a rule.

use super::*;
use crate::testing::{Content, Record, zip_bytes};

fn archive(records: &[(&str, &[u8])]) -> Vec<u8> {
    let record = |&(name, bytes): &(&str, &[u8])| Record {
        name: name.to_owned(),
        content: Content::Bytes(bytes.to_vec()),
    };
    zip_bytes(&records.iter().map(record).collect::<Vec<_>>())
}

/// Two records, the second empty, and a third.
fn sound() -> Vec<u8> {
    archive(&[("f/a", b"0123456789"), ("f/empty", b""), ("f/b", &[7; 100])])
}

/// The directory's start, as its end says.
fn directory_start(bytes: &[u8]) -> usize {
    Fields(bytes).u32(bytes.len() - 6) as usize
}

/// The zip64 end and its locator taken out, as archives without them have it.
fn plain(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - END;
    bytes.drain(end - LOCATOR - END64..end);
    bytes
}

/// Without the descriptors, the sizes in the headers: as most zip writers do it.
fn undescribed(name: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = plain(archive(&[(name, content)]));
    let start = directory_start(&bytes);
    bytes.drain(start - 16..start);
    let (end, start) = (bytes.len(), start - 16);
    bytes[end - 6..end - 2].copy_from_slice(&(start as u32).to_le_bytes());
    bytes[6] = 0;
    bytes[start + 8] = 0;
    for at in [18, 22] {
        bytes[at..at + 4].copy_from_slice(&(content.len() as u32).to_le_bytes());
    }
    bytes
}

#[test]
fn records_and_their_places() {
    for bytes in [sound(), plain(sound())] {
        let records = records(&bytes).unwrap();
        let of = |name: &str| &bytes[records[name].start as usize..records[name].end as usize];
        assert_eq!(records.keys().copied().collect::<Vec<_>>(), ["f/a", "f/b", "f/empty"]);
        assert_eq!((of("f/a"), of("f/empty"), of("f/b")), (&b"0123456789"[..], &b""[..], &[7; 100][..]));
        assert!(records.values().all(|range| range.start % 64 == 0));
    }
    let bytes = undescribed("f/a", b"abc");
    assert_eq!(records(&bytes).unwrap()["f/a"], 64..67);
    assert_eq!(records(&archive(&[])).unwrap().len(), 0);
}

type Edit = fn(&mut Vec<u8>);

#[test]
fn one_refusal_a_rule() {
    let cases: &[(&str, Edit, &str)] = &[
        ("a byte after it", |b| b.push(0), "cut short or something follows it"),
        ("a comment", |b| *b.last_mut().unwrap() = 1, "cut short or something follows it"),
        ("nothing", |b| b.clear(), "cut short"),
        ("the zip64 end elsewhere", |b| flip(b, END + LOCATOR - 8, 1), "cut short"),
        ("a longer zip64 end", |b| flip(b, END + LOCATOR + END64 - 4, 1), "cut short"),
        ("two disks", |b| flip(b, END + LOCATOR - 16, 2), "several disks"),
        ("an entry on another disk", |b| at_entry(b, 34, 1), "several disks"),
        ("two ends", |b| flip(b, END - 12, 1), "two ends name different directories"),
        (
            "a directory elsewhere",
            |b| {
                flip(b, END - 16, 1);
                flip(b, END + LOCATOR + END64 - 48, 1)
            },
            "directory is said to take",
        ),
        (
            "one entry too few",
            |b| {
                flip(b, END - 10, 1);
                for at in [24, 32] {
                    flip(b, END + LOCATOR + END64 - at, 1)
                }
            },
            "has 3 entries and says 2",
        ),
        ("no entry's mark", |b| at_entry(b, 0, 1), "entry at byte"),
        ("an entry of names without end", |b| at_entry(b, 29, 0xff), "entry at byte"),
        ("encryption", |b| at_entry(b, 8, 1), "has the flags 0x0809"),
        ("compression", |b| at_entry(b, 10, 8), "record f/a is compressed (method 8)"),
        ("two sizes", |b| at_entry(b, 20, 1), "record f/a is compressed"),
        ("another name in the header", |b| b[32] ^= 1, "record f/a: its name is not"),
        ("a compressed header", |b| b[8] = 8, "record f/a: its flags or method"),
        ("no header's mark", |b| b[0] = 0, "record f/a: its header's mark"),
        ("a size in the header", |b| b[18] = 9, "record f/a: its size is not"),
        (
            "another size in the directory",
            |b| {
                at_entry(b, 20, 1);
                at_entry(b, 24, 1)
            },
            "record f/a: its size or checksum",
        ),
        ("another checksum", |b| at_entry(b, 16, 1), "record f/a: its size or checksum"),
        (
            "an endless size",
            |b| {
                at_entry(b, 23, 0x7f);
                at_entry(b, 27, 0x7f)
            },
            "does not lie before the directory",
        ),
        (
            "a header that the zip64 field lacks",
            |b| {
                for i in 42..46 {
                    at_entry(b, i, 0xff)
                }
            },
            "entry at byte",
        ),
        ("two records in one place", |b| two_in_one_place(b), "record f/b begins inside f/a"),
        ("a hole", |b| hole(b), "5 bytes before the directory"),
    ];
    for &(what, edit, said) in cases {
        let mut bytes = sound();
        assert!(records(&bytes).is_ok());
        edit(&mut bytes);
        let message = records(&bytes).map(|r| r.len()).unwrap_err().to_string();
        assert!(message.contains(said), "{what}: {message}");
    }
}

/// Changes a byte counted from the end.
fn flip(bytes: &mut [u8], from_end: usize, mask: u8) {
    let at = bytes.len() - from_end;
    bytes[at] ^= mask;
}

/// Changes a byte of the first directory entry.
fn at_entry(bytes: &mut [u8], field: usize, mask: u8) {
    let start = directory_start(bytes);
    bytes[start + field] ^= mask;
}

/// The last record's entry says the place, size and name length of the first.
fn two_in_one_place(bytes: &mut [u8]) {
    let start = directory_start(bytes);
    let last = start + 2 * ENTRY + "f/af/empty".len();
    bytes[last + 42..last + 46].fill(0);
}

/// Bytes before the directory that no record owns.
fn hole(bytes: &mut Vec<u8>) {
    *bytes = plain(std::mem::take(bytes));
    let start = directory_start(bytes);
    bytes.splice(start..start, [0; 5]);
    let end = bytes.len();
    bytes[end - 6..end - 2].copy_from_slice(&(start as u32 + 5).to_le_bytes());
}

#[test]
fn names_that_lead_somewhere() {
    for name in ["/etc/passwd", "../a", "f/../a", "f//a", "f/", "./f", "f\\a", "f\0a", "c:/a", "", "f/."] {
        let fault = records(&archive(&[(name, b"x")])).map(|r| r.len()).unwrap_err();
        assert_eq!(fault, ArchiveFault::Name { name: name.to_owned() });
    }
    let mut bytes = sound();
    at_entry(&mut bytes, ENTRY, 0xff);
    assert!(matches!(records(&bytes), Err(ArchiveFault::Name { .. })), "no UTF-8");
    let twice = archive(&[("f/a", b"x"), ("f/a", b"y")]);
    assert_eq!(records(&twice).unwrap_err(), ArchiveFault::Duplicate { record: "f/a".to_owned() });
}

#[test]
fn cut_anywhere() {
    let bytes = sound();
    for length in 0..bytes.len() {
        assert!(records(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
    }
}
