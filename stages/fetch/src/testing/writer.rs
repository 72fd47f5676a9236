//! A safetensors writer that lays tensors out as it is told, the format's rules or not.

use std::path::Path;

use mica_dtype::Dtype;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name in the header.
    pub name: String,
    /// The elements' type.
    pub dtype: Dtype,
    /// Outermost axis first.
    pub shape: Vec<u64>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl NewTensor {
    /// A tensor of raw bytes.
    pub fn new(name: &str, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Self {
        NewTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
    }

    /// A float32 tensor.
    pub fn f32(name: &str, shape: &[u64], values: &[f32]) -> Self {
        NewTensor::new(name, Dtype::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An int64 tensor.
    pub fn i64(name: &str, shape: &[u64], values: &[i64]) -> Self {
        NewTensor::new(name, Dtype::I64, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
}

/// A safetensors file of any header and data, sound or not.
pub fn raw_safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// The tensors as a safetensors file, in the order given, the header padded to eight bytes.
pub fn safetensors_bytes(tensors: &[NewTensor]) -> Vec<u8> {
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = serde_json::json!({
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [begin, data.len()],
        });
        header.push_str(&format!(",{}:{entry}", serde_json::Value::from(tensor.name.as_str())));
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    raw_safetensors(&header, &data)
}

/// Writes the tensors as a safetensors file.
///
/// # Panics
/// If the file cannot be written.
pub fn write_safetensors(path: &Path, tensors: &[NewTensor]) {
    std::fs::write(path, safetensors_bytes(tensors)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
