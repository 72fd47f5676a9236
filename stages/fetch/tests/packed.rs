//! The writer of packed formats, on which other tests rest, writes what the published libraries' own code
//! wrote. The publisher's sets are layers 0 and 3 of the quantized delivery again, so they are derived and
//! only their digests are kept.

use mica_fetch::tensor_digest;
use mica_fetch::testing::{NewTensor, PackedFormat, pack_quantized, read_safetensors, shipped};

/// The digest of all tensors of the publisher's set, by name, and how many there are.
const SETS: [(PackedFormat, &str, usize, &str); 3] = [
    (
        PackedFormat::CompressedTensors,
        "compressed-tensors",
        306,
        "d0b1d4f149ef48f400a02bc224633f2c3669169971bfe06aa70b25fbaaddc15f",
    ),
    (PackedFormat::Gptq, "gptq", 384, "bfb12c4d4897d6402f7a36c533bd0f724c3f7f57c47a173ea808ff5c0fc9df9b"),
    (PackedFormat::Awq, "awq", 288, "d1796ed6c889c597f76392c72c9dd50c053d8ed13536d34cf466f756a9539675"),
];

#[test]
fn the_publishers_sets() {
    let quantized = read_safetensors(&shipped("tiny-w4a16").join("full_model.safetensors"));
    for (format, name, count, digest) in SETS {
        let mut ours = pack_quantized(&quantized, format);
        ours.retain(|t| {
            let layer = t.name.starts_with("model.layers.0.") || t.name.starts_with("model.layers.3.");
            let ending = t.name.rsplit('.').next().unwrap_or_default();
            layer && t.name.contains(".mlp.") && ending != "weight" && ending != "w_scale"
        });
        assert_eq!(ours.len(), count, "{name}");
        assert_eq!(all(ours), digest, "{name}");
        let config = std::fs::read(shipped("formats").join(name).join("quantization_config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let said = format.config(32, true);
        for key in ["quant_method", "format", "bits", "sym", "checkpoint_format", "zero_point"] {
            assert_eq!(config.get(key), said.get(key), "{name}: {key}");
        }
    }
}

/// One digest of all, whatever the prefix.
fn all(mut tensors: Vec<NewTensor>) -> String {
    for tensor in &mut tensors {
        let (_prefix, name) = tensor.name.split_once("layers.").unwrap();
        tensor.name = name.to_owned();
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = blake3::Hasher::new();
    for t in &tensors {
        hasher.update(t.name.as_bytes());
        hasher.update(tensor_digest(t.dtype, &t.shape, [&t.bytes[..]].into_iter()).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
