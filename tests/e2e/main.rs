//! The command end to end: real deliveries in, verdicts, events and exit status out.
//!
//! Every test has a workspace and a cache of its own, and runs the command as a person does.

mod bad_input;
mod build;
mod calls;
mod change;
mod corrupt;
mod cutoff;
mod debug;
mod edges;
mod forms;
mod full_disk;
mod gate;
mod network;
mod parameters;
mod predict;
mod status;
mod stress;
mod synth;
mod together;

use mica_fetch::testing::edit_tensor;
use mica_tests::Workspace;
use std::path::Path;

/// The command.
const MICA: &str = env!("CARGO_BIN_EXE_mica-under-test");

/// The default workspace with both models.
fn both() -> Workspace {
    Workspace::shipped(MICA)
}

/// The bf16 model alone, in blocks of 8 tokens, so that states pass from block to block.
fn tiny() -> Workspace {
    let mut workspace = Workspace::only(MICA, "tiny");
    workspace.set("model.tiny.block", 8);
    workspace
}

/// A norm weight of layer 5, which is no layer that ends a group of four.
const NORM_5: &str = "model.language_model.layers.5.input_layernorm.weight";

/// Changes a tensor of the bf16 delivery in `dir` by the last bit of each element.
fn nudge(dir: &Path, tensor: &str) {
    edit_tensor(&dir.join("model.safetensors"), tensor, |bytes| {
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|element| element[0] ^= 1);
    });
}

/// What a nudge of layer 5 runs in [`tiny`]: that layer's own stages, and what its output reaches.
const FROM_LAYER_5: [&str; 5] = [
    "{fetch,pack,quantize}:tiny.layer5",
    "reference:tiny.{layer5,layer6,layer7,head}.block{0,1,2}",
    "simulate:tiny.{layer5,layer6,layer7,head}.{free,forced}.block{0,1,2}",
    "{link,simulate}:tiny.kernel",
    "score:tiny.decode",
];
