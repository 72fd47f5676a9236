//! From a delivery to constant segments: rates a core, memory, bytes written, and what one changed layer costs.

use crate::Figure;
use crate::command::{MICA, MODEL, Place, Taken, run};
use crate::cpu::Cpu;
use crate::floor::floor;
use crate::model::constant_bytes;
use crate::shards::{SETTLED, change, shards};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Rows of vocabulary.
const VOCABULARY: u64 = 32_768;
/// Bytes of a file: about a layer each, so that a changed layer is a changed file.
const SHARD: &str = "1000000000";

/// How often a delivery is scanned, packed and quantized.
const RUNS: usize = 3;

/// What is measured of one form of delivery.
pub struct Form {
    /// What the bench calls it.
    pub name: &'static str,
    /// What `mica synth` is told of it.
    arguments: &'static [&'static str],
    layers: u64,
    /// Delivery bytes a second of a core, in units of 10^9.
    rate: f64,
}

/// Quantized by its publisher, four-bit experts in 8-bit containers.
pub const QUANTIZED: Form =
    Form { name: "quantized", arguments: &["--format", "w4a16"], layers: 4, rate: 1.0 };
/// The same with experts in words, two a byte.
pub const PACKED: Form =
    Form { name: "packed", arguments: &["--format", "w4a16", "--packed"], layers: 4, rate: 1.0 };
/// bfloat16, quantized here.
pub const BFLOAT16: Form = Form { name: "bfloat16", arguments: &["--format", "bf16"], layers: 2, rate: 0.4 };

/// The run of the middle CPU time.
fn median_run(mut runs: Vec<Taken>) -> Taken {
    runs.sort_by(|a, b| a.cpu.total().total_cmp(&b.cpu.total()));
    runs.swap_remove(runs.len() / 2)
}

/// Has the page cache hold a file of so many bytes once, so that its memory has been used before. The host of a virtual
/// machine may take back what lies free and charges ten times a copy for giving it again, which is no cost of the command.
fn touch_memory(dir: &Path, bytes: u64) {
    let path = dir.join("touched");
    let mut file = fs::File::create(&path).expect("a file");
    let block = vec![1; 16 << 20];
    for _ in 0..bytes.div_ceil(block.len() as u64) {
        file.write_all(&block).expect("room for a file as large as the constants");
    }
    drop(file);
    fs::remove_file(&path).expect("the file of this bench");
}

/// Makes a delivery, and measures every step from it to constant segments.
pub fn figures(form: &Form) -> Vec<Figure> {
    let place = Place(std::env::temp_dir().join(format!("mica-full-size-{}", std::process::id())));
    fs::create_dir_all(&place.0).expect("a temporary folder");
    let delivery = place.0.join("delivery");
    let mut synth = Command::new(MICA);
    synth.args(["synth", MODEL, "--shard-size", SHARD]).args(form.arguments);
    synth.args(["--vocab", &VOCABULARY.to_string()]);
    synth.arg("--layers").arg(form.layers.to_string()).arg("--out").arg(&delivery);
    let made = run(synth);
    let shards = shards(&delivery);
    let bytes: u64 = shards.iter().map(|s| s.1).sum();
    eprintln!(
        "{}: {:.2} GB in {} files, made in {:.1} s",
        form.name,
        bytes as f64 / 1e9,
        shards.len(),
        made.wall
    );
    let rate = |bytes: u64, t: &Taken| bytes as f64 / 1e9 / t.cpu.total();
    // else every command scans the new files again, for itself
    std::thread::sleep(SETTLED);

    // the model's own parts, not those of its validations
    let scan = ["build", "fetch:full.embed", "fetch:full.layer*", "fetch:full.head"];
    let build = ["build", "quantize:full.embed", "quantize:full.layer*", "quantize:full.head"];
    let constants = constant_bytes(form.layers as usize, VOCABULARY);
    let cache = place.0.join("cache");
    let mut scans = Vec::new();
    let mut builds = Vec::new();
    let mut floors = Vec::new();
    let files: Vec<&Path> = shards.iter().map(|(path, _)| path.as_path()).collect();
    for _ in 0..RUNS {
        if cache.exists() {
            fs::remove_dir_all(&cache).expect("a cache of this bench");
        }
        scans.push(place.mica(&scan));
        touch_memory(&place.0, constants);
        floors.push(floor(&files, constants, &place.0));
        builds.push(place.mica(&build));
    }
    for (build, Cpu { user, system }) in builds.iter().zip(&floors) {
        eprintln!(
            "{}: pack and quantize {:.2} s user + {:.2} s system; reading, hashing and writing alone {user:.2} + {system:.2}",
            form.name, build.cpu.user, build.cpu.system
        );
    }
    let floor = bytes as f64 / 1e9 / floors.iter().map(|floor| floor.total()).fold(f64::INFINITY, f64::min);
    let (scanned, built) = (median_run(scans), median_run(builds));
    let layer = bytes / form.layers;
    let linked = place.mica(&["build", "link:full.kernel"]);
    let file = change(&delivery, &shards);
    std::thread::sleep(SETTLED);
    let rescanned = place.mica(&scan);
    let changed = place.mica(&["build", "link:full.kernel"]);
    let named = |what: &str| format!("{}: {what}", form.name);
    eprintln!(
        "{}: scan {:.1} s, pack and quantize {:.1} s, link {:.2} s, {:.2} GB of constants; memory of the scan {:.0} MB",
        form.name,
        scanned.wall,
        built.wall,
        linked.wall,
        constants as f64 / 1e9,
        scanned.memory as f64 / 1e6
    );
    vec![
        Figure::at_least(named("scan (digests)"), rate(bytes, &scanned), 2.0, "GB/s a core"),
        Figure::at_least(
            named("pack and quantize, delivery bytes"),
            rate(bytes, &built),
            form.rate,
            format!("GB/s a core; {floor:.2} if it only read, hashed and wrote"),
        ),
        Figure::at_most(
            named("memory of it beside mapped files"),
            built.memory as f64 / layer as f64,
            3.0,
            format!("layers' bytes, {:.0} MB", built.memory as f64 / 1e6),
        ),
        Figure::at_most(
            named("bytes written"),
            built.written as f64 / constants as f64,
            1.05,
            format!("of the constants, {:.2} GB", built.written as f64 / 1e9),
        ),
        Figure::at_least(named("rescan of a changed file"), rate(file, &rescanned), 2.0, "GB/s a core"),
        Figure::at_most(named("one changed layer: pack, quantize, link"), changed.wall, 5.0, "s"),
    ]
}
