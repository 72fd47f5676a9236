//! Mutates workspace files at random and reads them, for so many seconds:
//!
//!     cargo run --release -p mica --example fuzz_workspace -- SECONDS [SEED]
//!
//! A broken promise panics with the seed and the execution, which happens again with the same arguments. The
//! same for the readers of deliveries is an example of `mica-fetch`.

use mica::workspace::{Workspace, parse};
use mica_fetch::testing::{Checked, drive};
use std::path::Path;
use std::time::Duration;

/// The default workspace, and one with every table.
fn seeds() -> Vec<Vec<u8>> {
    let default = include_bytes!("../../workspace.toml").to_vec();
    let all = br#"
default = "a"
cache = ".mica"
[targets]
a = ["decode[layers=2]", "score:*.decode"]
decode = ["score:m.decode", "timing:m[layers=1].kernel"]
[delivery.d]
source = "d"
captures = { file = "c", precision = "bf16", made_by = "self", names = { layer_output = "h.{layer}.out" } }
[model.m]
description = "x"
delivery = "d"
recipe = "r"
device = "sim"
tokens = 4
layers = 2
perplexity = { text = "t", tokens = 12 }
oracle = "self"
[recipe.r]
rules = [{ pattern = "*", format = "i4", group = 32, scale = "f16" }]
[device.sim]
product = "qb1"
l2_mib = 64
bus_bytes = 7
frac = 20
[gates.lm-head]
tight_cosine = 0.5
"#;
    vec![default, all.to_vec()]
}

/// Reads a file, and what is made of it before any delivery is opened.
fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let path = Path::new("workspace.toml");
    let config = match parse(path, text) {
        Ok(config) => config,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return false;
        }
    };
    let machines = config.device.iter().map(|(name, d)| d.machine(name).map(drop));
    let machines = machines.collect::<Result<Vec<_>, _>>();
    let asked = [config.default.clone(), "decode[layers=3]".into()];
    let workspace = Workspace { root: ".".into(), file: path.into(), config };
    machines.is_ok() && workspace.with_parameters(&asked).is_ok()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("SECONDS and SEED are numbers"));
    let seconds = arguments.next().unwrap_or(10);
    let seed = arguments.next().unwrap_or(1);
    drive(&Checked { name: "workspace", check, seeds }, Duration::from_secs(seconds), seed);
}
