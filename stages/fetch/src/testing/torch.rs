//! What `torch.save` writes for a flat dictionary of tensors, byte for byte, and archives that break its
//! rules.

use std::io::{Cursor, Write};
use std::path::Path;

use super::pickler::dictionary;
use super::writer::NewTensor;

/// The multiple of bytes that records begin at.
const ALIGNMENT: u64 = 64;

/// What a 32-bit field can no longer say.
const WIDE: u64 = u32::MAX as u64;

/// A file within an archive.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its name, with the archive's folder.
    pub name: String,
    /// Its bytes.
    pub content: Content,
}

/// The bytes of a [`Record`].
#[derive(Clone, Debug)]
pub enum Content {
    /// These.
    Bytes(Vec<u8>),
    /// So many zeros, of which a sparse file stores none. Their checksum is left at 0.
    Hole(u64),
}

/// The records of a torch archive: the pickle, the storages `data/0`, `data/1` and so on, and the small
/// records that torch adds.
pub fn torch_records(folder: &str, pickle: &[u8], storages: Vec<Content>) -> Vec<Record> {
    let record = |name: &str, content| Record { name: format!("{folder}/{name}"), content };
    let text = |name: &str, text: &[u8]| record(name, Content::Bytes(text.to_vec()));
    let mut records = vec![
        text("data.pkl", pickle),
        text(".format_version", b"1"),
        text(".storage_alignment", b"64"),
        text("byteorder", b"little"),
    ];
    records.extend(storages.into_iter().enumerate().map(|(i, c)| record(&format!("data/{i}"), c)));
    records.push(text("version", b"3\n"));
    records.push(text(".data/serialization_id", b"0632054373068036358610215776701193439919"));
    records
}

/// The tensors as `torch.save` writes them to `FOLDER.pth`.
pub fn torch_bytes(folder: &str, tensors: &[NewTensor]) -> Vec<u8> {
    let storages = tensors.iter().map(|t| Content::Bytes(t.bytes.clone())).collect();
    zip_bytes(&torch_records(folder, &dictionary(tensors), storages))
}

/// Writes the tensors as [`torch_bytes`], the folder named after the file.
///
/// # Panics
/// If the file cannot be written.
pub fn write_torch(path: &Path, tensors: &[NewTensor]) {
    let folder = path.file_stem().and_then(|stem| stem.to_str()).expect("a file name");
    std::fs::write(path, torch_bytes(folder, tensors)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The records as an archive, as torch's zip writer lays them out.
pub fn zip_bytes(records: &[Record]) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    write_zip(&mut out, records, |out, zeros| out.write_all(&vec![0; zeros as usize]));
    out.into_inner()
}

/// Writes the records to `out`; `skip` writes so many zeros there.
///
/// # Panics
/// If `out` cannot be written.
pub fn write_zip<W: Write>(
    out: &mut W,
    records: &[Record],
    skip: impl Fn(&mut W, u64) -> std::io::Result<()>,
) {
    let mut at = 0;
    let mut directory = Vec::new();
    let put = |out: &mut W, bytes: &[u8]| {
        out.write_all(bytes).expect("the archive is written");
        bytes.len() as u64
    };
    for record in records {
        let header = at;
        let (size, crc) = match &record.content {
            Content::Bytes(bytes) => (bytes.len() as u64, crc32(bytes)),
            Content::Hole(size) => (*size, 0),
        };
        // An empty record has nothing that would have to stand behind it.
        let flags: u16 = if size == 0 { 0x0800 } else { 0x0808 };
        let mut wide = Vec::new();
        for value in [size, size, header] {
            if value >= WIDE {
                wide.extend(value.to_le_bytes());
            }
        }
        let wide = if wide.is_empty() { wide } else { field(&1u16.to_le_bytes(), &wide) };
        let before = header + 30 + record.name.len() as u64 + wide.len() as u64 + 4;
        let padding = field(b"FB", &vec![b'Z'; (before.next_multiple_of(ALIGNMENT) - before) as usize]);
        let mut fixed = b"PK\x03\x04\0\0".to_vec();
        fixed.extend(flags.to_le_bytes());
        fixed.extend([0; 18]);
        fixed.extend((record.name.len() as u16).to_le_bytes());
        fixed.extend(((wide.len() + padding.len()) as u16).to_le_bytes());
        at += put(out, &[&fixed, record.name.as_bytes(), &wide, &padding].concat());
        match &record.content {
            Content::Bytes(bytes) => _ = put(out, bytes),
            Content::Hole(zeros) => skip(out, *zeros).expect("the archive is written"),
        }
        at += size;
        if size > 0 {
            let mut descriptor = b"PK\x07\x08".to_vec();
            descriptor.extend(crc.to_le_bytes());
            let bytes = if wide.is_empty() { 4 } else { 8 };
            descriptor.extend([&size.to_le_bytes()[..bytes]; 2].concat());
            at += put(out, &descriptor);
        }
        let narrow = |value: u64| (value.min(WIDE) as u32).to_le_bytes();
        directory.extend(b"PK\x01\x02\0\0\0\0");
        directory.extend(flags.to_le_bytes());
        directory.extend([0; 6]);
        directory.extend(crc.to_le_bytes());
        directory.extend([narrow(size); 2].concat());
        directory.extend((record.name.len() as u16).to_le_bytes());
        directory.extend((wide.len() as u16).to_le_bytes());
        directory.extend([0; 10]);
        directory.extend(narrow(header));
        directory.extend([record.name.as_bytes(), &wide].concat());
    }
    let (count, size) = (records.len() as u64, directory.len() as u64);
    let mut end = b"PK\x06\x06".to_vec();
    end.extend(44u64.to_le_bytes());
    end.extend([0x1e, 0x03, 0x2d, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    end.extend([count, count, size, at].map(u64::to_le_bytes).concat());
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend((at + size).to_le_bytes());
    end.extend(1u32.to_le_bytes());
    end.extend(b"PK\x05\x06\0\0\0\0");
    end.extend([(count.min(0xffff) as u16).to_le_bytes(); 2].concat());
    end.extend([size, at].map(|value| (value.min(WIDE) as u32).to_le_bytes()).concat());
    end.extend([0, 0]);
    put(out, &[directory, end].concat());
}

/// An extra field of a zip header.
fn field(id: &[u8; 2], content: &[u8]) -> Vec<u8> {
    [&id[..], &(content.len() as u16).to_le_bytes(), content].concat()
}

/// The checksum of zip archives.
fn crc32(bytes: &[u8]) -> u32 {
    let table: Vec<u32> = (0..256u32)
        .map(|byte| (0..8).fold(byte, |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 }))
        .collect();
    !bytes.iter().fold(!0, |c: u32, byte| c >> 8 ^ table[(c as u8 ^ byte) as usize])
}
