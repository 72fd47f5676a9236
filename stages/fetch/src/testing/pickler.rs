//! The pickle of a flat dictionary of tensors, as Python's pickler writes it in protocol 2: every object is
//! kept under the next number, and taken back by it when it occurs again.

use std::collections::BTreeMap;

use mica_dtype::Dtype;

use super::writer::NewTensor;

/// Pairs that Python's pickler writes at once.
const BATCH: usize = 1000;

/// A pickle in the making.
#[derive(Default)]
struct Pickler {
    out: Vec<u8>,
    kept: u32,
    known: BTreeMap<String, u32>,
}

/// The pickle of the tensors, each alone in the storage of its number.
pub fn dictionary(tensors: &[NewTensor]) -> Vec<u8> {
    let mut p = Pickler::default();
    p.out.extend(b"\x80\x02}");
    p.keep();
    for (batch, some) in tensors.chunks(BATCH).enumerate() {
        if let [only] = tensors {
            p.pair(0, only);
            p.out.push(b's');
            continue;
        }
        p.out.push(b'(');
        for (at, tensor) in some.iter().enumerate() {
            p.pair(batch * BATCH + at, tensor);
        }
        p.out.push(b'u');
    }
    p.out.push(b'.');
    p.out
}

impl Pickler {
    fn pair(&mut self, storage: usize, tensor: &NewTensor) {
        self.text(&tensor.name);
        self.once("torch._utils\n_rebuild_tensor_v2\n");
        self.out.extend(b"((");
        self.once("storage");
        self.once(&format!("torch\n{}Storage\n", storage_type(tensor.dtype)));
        self.text(&storage.to_string());
        self.once("cpu");
        self.int(tensor.shape.iter().product());
        self.out.push(b't');
        self.keep();
        self.out.push(b'Q');
        self.int(0);
        self.ints(&tensor.shape);
        let mut strides = vec![1; tensor.shape.len()];
        for axis in (1..strides.len()).rev() {
            strides[axis - 1] = strides[axis] * tensor.shape[axis].max(1);
        }
        self.ints(&strides);
        self.out.push(0x89);
        self.once("collections\nOrderedDict\n");
        self.out.extend(b")R");
        self.keep();
        self.out.push(b't');
        self.keep();
        self.out.push(b'R');
        self.keep();
    }

    fn keep(&mut self) {
        match u8::try_from(self.kept) {
            Ok(number) => self.out.extend([b'q', number]),
            Err(_) => self.out.extend([&b"r"[..], &self.kept.to_le_bytes()].concat()),
        }
        self.kept += 1;
    }

    /// A text, or a global where it has lines, that is written once and taken back later.
    fn once(&mut self, what: &str) {
        if let Some(&number) = self.known.get(what) {
            match u8::try_from(number) {
                Ok(number) => self.out.extend([b'h', number]),
                Err(_) => self.out.extend([&b"j"[..], &number.to_le_bytes()].concat()),
            }
            return;
        }
        self.known.insert(what.to_owned(), self.kept);
        if what.contains('\n') {
            self.out.push(b'c');
            self.out.extend(what.as_bytes());
            self.keep();
        } else {
            self.text(what);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push(b'X');
        self.out.extend((text.len() as u32).to_le_bytes());
        self.out.extend(text.as_bytes());
        self.keep();
    }

    fn int(&mut self, value: u64) {
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.out.extend([b'K', bytes[0]]),
            0x100..=0xffff => self.out.extend([b'M', bytes[0], bytes[1]]),
            0x1_0000..=0x7fff_ffff => self.out.extend([&b"J"[..], &bytes[..4]].concat()),
            _ => {
                let length = (64 - value.leading_zeros()) as usize / 8 + 1;
                self.out.extend([0x8a, length as u8]);
                self.out.extend(&[&bytes[..], &[0]].concat()[..length]);
            }
        }
    }

    fn ints(&mut self, values: &[u64]) {
        if values.is_empty() {
            self.out.push(b')');
            return;
        }
        let long = values.len() > 3;
        if long {
            self.out.push(b'(');
        }
        values.iter().for_each(|&value| self.int(value));
        self.out.push(if long { b't' } else { 0x84 + values.len() as u8 });
        self.keep();
    }
}

fn storage_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "Double",
        Dtype::F32 => "Float",
        Dtype::F16 => "Half",
        Dtype::BF16 => "BFloat16",
        Dtype::I64 => "Long",
        Dtype::I32 => "Int",
        Dtype::I16 => "Short",
        Dtype::I8 => "Char",
        Dtype::U8 => "Byte",
        Dtype::Bool => "Bool",
        Dtype::U16 | Dtype::U32 | Dtype::U64 => panic!("torch has no storage type for {dtype}"),
    }
}
