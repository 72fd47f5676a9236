//! All forty layers with the whole vocabulary, from a delivery on disk to four scored tokens, nothing of it in memory at
//! first (`docs/full-size.md`). It takes 23 GB of disk and some minutes.

use crate::Figure;
use crate::command::{MICA, MODEL, Place, run};
use crate::shards::{SETTLED, change, shards};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tokens that `mica synth` captures, and that are decoded.
const TOKENS: f64 = 4.0;
/// The action that runs the linked kernel.
const KERNEL: &str = "simulate:full.kernel";

/// Makes the delivery, builds all of it, and changes one layer.
pub fn figures() -> Vec<Figure> {
    let place = Place(std::env::temp_dir().join(format!("mica-forty-{}", std::process::id())));
    fs::create_dir_all(&place.0).expect("a temporary folder");
    let delivery = place.0.join("delivery");
    let mut synth = Command::new(MICA);
    synth.args([
        "synth",
        MODEL,
        "--layers",
        "40",
        "--distinct-layers",
        "4",
        "--packed",
        "--captures",
        "self",
    ]);
    synth.args(["--shard-size", "1000000000", "--out"]).arg(&delivery);
    let made = run(synth);
    let files = shards(&delivery);
    let bytes: u64 = files.iter().map(|file| file.1).sum();
    eprintln!(
        "forty: {:.1} GB in {} files, made in {:.0} s with {:.2} GB of memory",
        bytes as f64 / 1e9,
        files.len(),
        made.wall,
        made.memory as f64 / 1e9
    );
    forget(&files);
    let events = place.0.join("events");
    // it ends well only if every gate passes
    let built = place.mica(&["build", "--events", events.to_str().expect("a folder of plain letters")]);
    let kernel = seconds(&events, KERNEL);
    let file = change(&delivery, &files);
    std::thread::sleep(SETTLED);
    let scanned = place.mica(&["build", "fetch:full.embed", "fetch:full.layer*", "fetch:full.head"]);
    let changed = place.mica(&["build", "link:full.kernel"]);
    eprintln!("forty: a changed file of {:.2} GB scanned in {:.1} s", file as f64 / 1e9, scanned.wall);
    vec![
        Figure::at_most("forty layers: delivery on disk to four scored tokens", built.wall, 900.0, "s, cold"),
        Figure::at_most("forty layers: memory beside mapped files", built.memory as f64 / 1e9, 3.0, "GB"),
        Figure::at_most("forty layers: a token of the linked kernel", kernel / TOKENS, 1.0, "s"),
        Figure::at_most("forty layers: memory of synth", made.memory as f64 / 1e9, 3.0, "GB"),
        Figure::at_most("forty layers: one changed layer, pack, quantize, link", changed.wall, 5.0, "s"),
    ]
}

/// Has the system keep nothing of the files in memory.
fn forget(files: &[(PathBuf, u64)]) {
    for (path, _) in files {
        let file = File::open(path).expect("a file of weights");
        // what is not on disk yet is kept
        file.sync_all().expect("a disk");
        fadvise(&file, 0, None, Advice::DontNeed).expect("a file system with a page cache");
    }
}

/// What an action took.
fn seconds(events: &Path, target: &str) -> f64 {
    let text = fs::read_to_string(events).expect("the events of the build");
    let mut events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event a line"));
    let action = events.find(|event| event["target"] == target && event["status"] == "ran");
    action.expect("the kernel ran")["wall_ms"].as_f64().expect("milliseconds") / 1e3
}
