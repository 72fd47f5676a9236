//! What can be wrong inside a file of `torch.save`. [`crate::FetchError`] adds which file.

/// Why the archive is not taken. `record` is a file within it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ArchiveFault {
    /// The last bytes are not the end of a directory.
    #[error("the archive's directory does not end with the file; it is cut short or something follows it")]
    NoEnd,
    /// Split over several files.
    #[error("the archive is said to span several disks; join its parts")]
    ManyDisks,
    /// The two ends, 32-bit and zip64, name different directories.
    #[error("the archive's two ends name different directories; save it again")]
    EndsDisagree,
    /// The directory is not where its end says.
    #[error("the archive's directory is said to take {size} bytes from {offset} on, and it ends at {end}")]
    Directory { offset: u64, size: u64, end: u64 },
    /// The directory has more or fewer entries than its end says.
    #[error("the archive's directory has {found} entries and says {said}")]
    Count { said: u64, found: u64 },
    /// An entry that is none.
    #[error("the directory's entry at byte {offset} is damaged")]
    Entry { offset: u64 },
    /// A name that other tools would follow out of their folder.
    #[error("the record name {name:?} is no plain path; torch.save writes none like it")]
    Name { name: String },
    /// Encryption and the like.
    #[error("record {record} has the flags {flags:#06x}; encrypted or patched records are not read")]
    Flags { record: String, flags: u16 },
    /// Compression, which tensors cannot be mapped through.
    #[error(
        "record {record} is compressed (method {method}); torch.save stores, so save it with torch again"
    )]
    Compressed { record: String, method: u64 },
    /// The name occurs twice.
    #[error("record {record} is there twice; which one counts is anyone's guess")]
    Duplicate { record: String },
    /// Records that share bytes.
    #[error("record {record} begins inside {other}")]
    Overlap { record: String, other: String },
    /// Bytes of no record.
    #[error("{bytes} bytes before {record} belong to no record")]
    Hole { record: String, bytes: u64 },
    /// A record that reaches into the directory or past the file.
    #[error("record {record} does not lie before the directory; the file is cut short or damaged")]
    Outside { record: String },
    /// The directory and the record's own header differ.
    #[error("record {record}: {what} is not what the directory says; the file is damaged")]
    HeadersDisagree { record: String, what: &'static str },

    /// Not what torch.save writes into an archive.
    #[error("the archive has no data.pkl, so torch.save did not write it")]
    NoPickle,
    /// More than one folder.
    #[error("{record} is not in the folder {folder}, where all that torch.save writes has to be")]
    Folder { record: String, folder: String },
    /// A program.
    #[error("this is a TorchScript program ({record}); deliver its state_dict, saved with torch.save")]
    Program { record: String },
    /// Written on a big-endian machine.
    #[error("the byte order is {order:?}; mica reads little-endian files")]
    ByteOrder { order: String },
    /// A storage that the pickle speaks of.
    #[error("the pickle has tensors in storage {key}, and the archive has no record {record}")]
    NoStorage { key: String, record: String },
    /// A storage of another length.
    #[error("record {record} has {found} bytes, and the pickle says {expected}")]
    StorageSize { record: String, expected: u64, found: u64 },
    /// One storage, described in two ways.
    #[error("the pickle describes storage {key} in two ways")]
    StorageDisagrees { key: String },
    /// A storage that no tensor is in.
    #[error("no tensor is in record {record}")]
    UnusedStorage { record: String },
}

/// Why the pickle is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum PickleFault {
    /// The pickle ends within an instruction, or without its last one.
    #[error("it is cut short")]
    Short,
    /// Anything after the last instruction.
    #[error("{bytes} bytes follow its last instruction")]
    Trailing { bytes: u64 },
    /// Another protocol.
    #[error("it does not begin as protocol 2, which torch.save writes unless told otherwise")]
    Protocol,
    /// An instruction that no tensor dictionary needs.
    #[error("the instruction {name} has no place in a dictionary of tensors; nothing of it is executed")]
    Opcode { name: String },
    /// A callable or class that no tensor dictionary needs.
    #[error("it asks for {module}.{name}; only tensors are read, and nothing is executed")]
    Global { module: String, name: String },
    /// A storage type without a use here.
    #[error("it has tensors of torch.{name}, which has no use here")]
    StorageType { name: String },
    /// An instruction on values that it does not go with.
    #[error("{what} takes {takes}")]
    Operand { what: &'static str, takes: &'static str },
    /// A memo entry that was never put.
    #[error("it takes back value {index}, which it never kept")]
    NoMemo { index: u32 },
    /// Too much of something.
    #[error("more than {limit} {what}; no tensor dictionary needs so many")]
    Limit { what: &'static str, limit: usize },
    /// Text that is none.
    #[error("a text in it is not UTF-8")]
    Text,
    /// An integer out of range.
    #[error("an integer in it does not fit 64 bits")]
    Integer,
    /// The key is there twice.
    #[error("{key:?} is there twice; which one counts is anyone's guess")]
    Duplicate { key: String },
    /// The top level is something else.
    #[error("it holds {found}; save the flat dictionary of tensors (a state_dict)")]
    NotADictionary { found: &'static str },
    /// Something else in the dictionary.
    #[error("{key:?} is {found}, not a tensor; save the flat dictionary of tensors (a state_dict)")]
    NotATensor { key: String, found: &'static str },
    /// A key that is no text.
    #[error("a key is {found}, not a name; save the flat dictionary of tensors (a state_dict)")]
    NotAName { found: &'static str },
}
