//! Small sound inputs of every reader, for mutation.

use mica_dtype::Dtype;

use super::pickler::dictionary;
use super::torch::torch_bytes;
use super::writer::{NewTensor, safetensors_bytes};

/// Four tensors, one empty and one a scalar.
pub(super) fn tensors() -> Vec<NewTensor> {
    vec![
        NewTensor::f32("a", &[2, 3], &[0.5; 6]),
        NewTensor::new("b", Dtype::U8, &[5], vec![7; 5]),
        NewTensor::new("none", Dtype::BF16, &[3, 0], vec![]),
        NewTensor::i64("scalar", &[], &[-1]),
    ]
}

pub(super) fn safetensors() -> Vec<Vec<u8>> {
    vec![safetensors_bytes(&tensors()), safetensors_bytes(&[]), safetensors_bytes(&tensors()[2..3])]
}

pub(super) fn torch() -> Vec<Vec<u8>> {
    vec![torch_bytes("m", &tensors()), torch_bytes("m", &[])]
}

pub(super) fn pickle() -> Vec<Vec<u8>> {
    // A state_dict: an OrderedDict with its version numbers as an attribute.
    let plain = dictionary(&["a", "b", "c", "d"].map(|name| NewTensor::f32(name, &[2, 3], &[0.5; 6])));
    let body = &plain[b"\x80\x02}q\x00".len()..plain.len() - 1];
    let ordered = [
        b"\x80\x02ccollections\nOrderedDict\n)R",
        body,
        b"}X\x09\x00\x00\x00_metadataccollections\nOrderedDict\n)Rsb.",
    ]
    .concat();
    vec![plain, ordered]
}

pub(super) fn shard_index() -> Vec<Vec<u8>> {
    let index = r#"{"metadata": {"total_size": 3}, "weight_map": {"a": "m-1-of-2.safetensors", "b": "x/m-2-of-2.safetensors"}}"#;
    vec![index.as_bytes().to_vec(), br#"{"weight_map":{}}"#.to_vec()]
}
