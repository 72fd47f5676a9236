//! How long the header of a delivery with 61,440 tensors takes: 40 layers, 256 experts, three
//! projections, each with a weight and a scale. The aim is under 150 ms.

use std::time::Instant;

use mica_fetch::testing::{NewTensor, write_safetensors};
use mica_fetch::{Dtype, ListOptions, MappedDelivery, index, list};

const ROUNDS: usize = 9;

fn main() {
    let mut tensors = Vec::new();
    for layer in 0..40 {
        for expert in 0..256 {
            for projection in ["gate", "up", "down"] {
                for part in ["weight", "weight_scale"] {
                    let name = format!(
                        "model.language_model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.{part}"
                    );
                    tensors.push(NewTensor::new(&name, Dtype::I8, &[1, 2], vec![0; 2]));
                }
            }
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    write_safetensors(&dir.path().join("model.safetensors"), &tensors);
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let listing = list(dir.path(), &ListOptions::default()).expect("a listing");
            let files = MappedDelivery::open(dir.path(), &listing).expect("an open delivery");
            let index = index(&files, &listing).expect("an index");
            assert_eq!(index.tensors.len(), tensors.len());
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{} tensors: median {:.1} ms, fastest {:.1} ms", tensors.len(), times[ROUNDS / 2], times[0]);
}
