//! The shipped deliveries and the stack of their config.

use mica_models::stack::{Part, Stack};
use mica_pack::testing::MemoryDelivery;
use mica_pack::{PackedLayer, pack, resolve};
use std::fs;
use std::path::{Path, PathBuf};

fn delivery(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/delivery").join(path)
}

/// As published, in bfloat16.
#[allow(dead_code, reason = "not every test takes it")]
pub fn bf16() -> MemoryDelivery {
    MemoryDelivery::from_safetensors(&fs::read(delivery("tiny/model.safetensors")).unwrap())
}

/// Quantized by its publisher.
#[allow(dead_code, reason = "not every test takes it")]
pub fn w4a16() -> MemoryDelivery {
    MemoryDelivery::from_safetensors(&fs::read(delivery("tiny-w4a16/full_model.safetensors")).unwrap())
}

pub fn stack() -> Stack {
    let config = fs::read_to_string(delivery("tiny/config.json")).unwrap();
    let config = serde_json::from_str(&config).unwrap();
    mica_models::describe(mica_models::model_for(&config).unwrap(), &config).unwrap()
}

#[allow(dead_code, reason = "not every test packs")]
pub fn packed(delivery: &mut MemoryDelivery, stack: &Stack, part: Part) -> PackedLayer {
    let resolved = resolve(delivery, stack, part).unwrap_or_else(|error| panic!("{error}"));
    pack(&resolved, delivery).unwrap_or_else(|error| panic!("{error}"))
}
