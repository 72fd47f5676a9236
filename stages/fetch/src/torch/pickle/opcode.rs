//! The instructions: their bytes, their arguments, and the names of those that are refused.

use mica_dtype::Dtype;

use super::{Global, Machine, Pickled, Value};
use crate::torch::fault::PickleFault;

/// torch's storage types and their elements; those that Python can pickle and that have a use here.
const STORAGES: [(&str, Dtype); 10] = [
    ("DoubleStorage", Dtype::F64),
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::Bool),
];

impl<'a> Machine<'a> {
    /// Runs all instructions.
    pub fn run(&mut self) -> Result<Pickled<'a>, PickleFault> {
        if self.pickle.len() > u32::MAX as usize {
            return Err(PickleFault::Limit { what: "bytes", limit: u32::MAX as usize });
        }
        if self.take::<2>()? != [0x80, 2] {
            return Err(PickleFault::Protocol);
        }
        loop {
            self.instruction = self.at;
            let [opcode] = self.take()?;
            match opcode {
                b'(' => self.mark()?,
                b'.' => return self.finish(),
                b'N' => self.push(Value::None)?,
                0x88 | 0x89 => self.push(Value::Bool)?,
                b'K' => {
                    let [byte] = self.take()?;
                    self.push(Value::Int(byte.into()))?;
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.take()?);
                    self.push(Value::Int(value.into()))?;
                }
                b'J' => {
                    let value = i32::from_le_bytes(self.take()?);
                    self.push(Value::Int(value.into()))?;
                }
                0x8a => {
                    let value = self.long()?;
                    self.push(Value::Int(value))?;
                }
                b'X' => {
                    let length = u32::from_le_bytes(self.take()?);
                    let text = self.bytes(length as usize)?;
                    let text = std::str::from_utf8(text).map_err(|_| PickleFault::Text)?;
                    self.push(Value::Text(text))?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    let global = global(module, name)?;
                    self.push(Value::Global(global))?;
                }
                b'q' => {
                    let [index] = self.take()?;
                    self.keep(index.into())?;
                }
                b'r' => {
                    let index = u32::from_le_bytes(self.take()?);
                    self.keep(index)?;
                }
                b'h' => {
                    let [index] = self.take()?;
                    self.kept(index.into())?;
                }
                b'j' => {
                    let index = u32::from_le_bytes(self.take()?);
                    self.kept(index)?;
                }
                b')' => self.small_tuple(0)?,
                0x85 => self.small_tuple(1)?,
                0x86 => self.small_tuple(2)?,
                0x87 => self.small_tuple(3)?,
                b't' => {
                    let from = self.above_mark()?;
                    self.tuple(from)?;
                }
                b'}' => self.dict()?,
                b's' => {
                    self.reach(3)?;
                    self.set_items(self.stack.len() - 2)?;
                }
                b'u' => {
                    let from = self.above_mark()?;
                    self.set_items(from)?;
                }
                b'Q' => self.persistent()?,
                b'R' => self.reduce()?,
                b'b' => self.build()?,
                other => return Err(PickleFault::Opcode { name: opcode_name(other) }),
            }
        }
    }

    fn keep(&mut self, index: u32) -> Result<(), PickleFault> {
        let value = self.top()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn kept(&mut self, index: u32) -> Result<(), PickleFault> {
        let value = *self.memo.get(&index).ok_or(PickleFault::NoMemo { index })?;
        self.push(value)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], PickleFault> {
        let bytes = self.pickle[self.at..].get(..length).ok_or(PickleFault::Short)?;
        self.at += length;
        Ok(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleFault> {
        let bytes = self.pickle[self.at..].first_chunk().ok_or(PickleFault::Short)?;
        self.at += N;
        Ok(*bytes)
    }

    fn line(&mut self) -> Result<&'a str, PickleFault> {
        let rest = &self.pickle[self.at..];
        let length = rest.iter().position(|&b| b == b'\n').ok_or(PickleFault::Short)?;
        let line = self.bytes(length)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| PickleFault::Text)
    }

    /// A two's complement integer of any length; of up to eight bytes here.
    fn long(&mut self) -> Result<i64, PickleFault> {
        let [length] = self.take()?;
        let bytes = self.bytes(length.into())?;
        let sign = if bytes.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
        let mut value = [sign; 8];
        value.get_mut(..bytes.len()).ok_or(PickleFault::Integer)?.copy_from_slice(bytes);
        Ok(i64::from_le_bytes(value))
    }
}

fn global(module: &str, name: &str) -> Result<Global, PickleFault> {
    match (module, name) {
        ("collections", "OrderedDict") => Ok(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
        ("torch", storage) if storage.ends_with("Storage") => {
            match STORAGES.iter().find(|(name, _)| *name == storage) {
                Some(&(_, dtype)) => Ok(Global::Storage(dtype)),
                None => Err(PickleFault::StorageType { name: storage.to_owned() }),
            }
        }
        _ => Err(PickleFault::Global { module: module.to_owned(), name: name.to_owned() }),
    }
}

/// What Python calls the instructions of protocols 0 to 5 that are refused.
const REFUSED: [(u8, &str); 42] = [
    (b'0', "POP"),
    (b'1', "POP_MARK"),
    (b'2', "DUP"),
    (b'F', "FLOAT"),
    (b'I', "INT"),
    (b'L', "LONG"),
    (b'P', "PERSID"),
    (b'S', "STRING"),
    (b'T', "BINSTRING"),
    (b'U', "SHORT_BINSTRING"),
    (b'V', "UNICODE"),
    (b'a', "APPEND"),
    (b'd', "DICT"),
    (b'e', "APPENDS"),
    (b'g', "GET"),
    (b'i', "INST"),
    (b'l', "LIST"),
    (b'o', "OBJ"),
    (b'p', "PUT"),
    (b'G', "BINFLOAT"),
    (b']', "EMPTY_LIST"),
    (b'B', "BINBYTES"),
    (b'C', "SHORT_BINBYTES"),
    (0x80, "PROTO"),
    (0x81, "NEWOBJ"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (0x8b, "LONG4"),
    (0x8c, "SHORT_BINUNICODE"),
    (0x8d, "BINUNICODE8"),
    (0x8e, "BINBYTES8"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
    (0x92, "NEWOBJ_EX"),
    (0x93, "STACK_GLOBAL"),
    (0x94, "MEMOIZE"),
    (0x95, "FRAME"),
    (0x96, "BYTEARRAY8"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
];

fn opcode_name(opcode: u8) -> String {
    let known = REFUSED.iter().find(|(byte, _)| *byte == opcode);
    known.map_or_else(|| format!("{opcode:#04x}"), |(_, name)| (*name).to_owned())
}
