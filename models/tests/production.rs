//! The generator of the production vectors, against the digests of its tensors. That the layers agree is a row
//! of `tests/contract.rs`.
//!
//! Only the experts that the steps choose are made here. `cargo run --release -p mica-models --example
//! production` makes all 3.4 GB and checks every digest.

mod common;

use common::production::Production;

#[test]
fn the_generator_makes_the_published_bytes() {
    let production = Production::read();
    let mut checked = 0usize;
    for (name, made) in production.tensors.iter().chain(&production.inputs) {
        // Of the experts, the first that a step chooses; the whole is the example's.
        match made.experts.iter().next() {
            Some((e, digest)) => {
                let n = made.elements() / made.shape[0];
                assert_eq!(made.blake3(e * n, n), *digest, "expert {e} of {name}");
            }
            None => assert_eq!(made.blake3(0, made.elements()), made.digest, "{name}"),
        }
        checked += 1;
    }
    assert_eq!(checked, 38);
}
