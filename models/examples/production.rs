//! Generates both production layers whole (3.4 GB, streamed), checks every tensor's digest, runs three decode
//! steps of each and prints how closely they agree with the published implementation.
//!
//! `cargo run --release -p mica-models --example production`; `--no-digests` leaves the 3.4 GB out,
//! `--sensitivity` runs every broken variant as well, each of which must fail.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Score;
use common::production::{LAYERS, Production};
use mica_models::testing::{Broken, broken};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let start = Instant::now();
    let production = Production::read();
    let asked = |flag: &str| std::env::args().any(|a| a == flag);
    let mut good = true;
    if !asked("--no-digests") {
        good &= digests(&production);
    }
    println!("\n{:<42} {:>7} {:>10} {:>10}", "against the published run", "values", "worst", "gate");
    for layer in LAYERS {
        let all = production.run(&production.stack, layer);
        for (what, score, gate) in [
            ("float64", &all.f64s, 1e-12),
            ("float32, layer output and logits", &all.outputs, 1e-6),
            ("float32, components", &all.components, 2.5e-6),
        ] {
            good &= line(&format!("layer {layer}: {what}"), score, gate);
        }
        println!("layer {layer}: a decode step with its weights at hand takes {:.3} s", all.seconds);
    }
    good &= line("embedding rows", &production.embedding(), 0.0);
    if asked("--sensitivity") {
        good &= sensitivity(&production);
    }
    println!("\n{:.1} s in all, {:.2} GB at most", start.elapsed().as_secs_f64(), peak_gigabytes());
    match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// What a broken variant gets wrong, in the layer where it is most: each must fail the gates of 1e-12 and 1e-6.
fn sensitivity(production: &Production) -> bool {
    println!("\n{:<42} {:>10} {:>10}", "broken variant", "float64", "float32");
    let mut good = true;
    for what in Broken::ALL {
        let variant = broken(&production.stack, what).expect("rewrites");
        let worst = |score: &Score| score.worst.values().copied().fold(0.0, f64::max);
        let (mut f64s, mut outputs) = (0.0f64, 0.0f64);
        for layer in LAYERS {
            let all = production.run(&variant, layer);
            (f64s, outputs) = (f64s.max(worst(&all.f64s)), outputs.max(worst(&all.outputs)));
        }
        let name = format!("{what:?}");
        println!("{name:<42} {f64s:>10.1e} {outputs:>10.1e}");
        good &= f64s > 1e-12 && outputs > 1e-6;
    }
    good
}

fn line(what: &str, score: &Score, gate: f64) -> bool {
    let worst = score.worst.values().copied().fold(0.0, f64::max);
    let holds = score.worst.values().all(|e| *e <= gate);
    let verdict = if holds { "" } else { "  FAILED" };
    println!("{what:<42} {:>7} {worst:>10.1e} {gate:>10.1e}{verdict}", score.worst.len());
    holds
}

fn digests(production: &Production) -> bool {
    let (mut bytes, clock) = (0usize, Instant::now());
    let mut good = true;
    for (name, made) in production.tensors.iter().chain(&production.inputs) {
        if made.blake3(0, made.elements()) != made.digest {
            println!("{name}: not the published digest {}", made.digest);
            good = false;
        }
        bytes += made.elements() * made.width;
    }
    let n = production.tensors.len() + production.inputs.len();
    let (seconds, gigabytes) = (clock.elapsed().as_secs_f64(), bytes as f64 / 1e9);
    println!("{n} tensors, {gigabytes:.2} GB generated and hashed in {seconds:.1} s");
    good
}

/// The most memory that this process ever held; 0 where the system does not say.
fn peak_gigabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    kib * 1024.0 / 1e9
}
