//! The figures that the project promises, measured on this machine: `cargo bench -p mica-tests --bench figures`.
//!
//! It runs the command and the simulator as a user does and prints one line a figure, with its limit. It
//! judges nothing: a busy machine is no failure.

use mica::host::{self, Feed};
use mica_compile::Seams;
use mica_tests::port::{Captures, Ported, Source, loaded};
use mica_tests::{Workspace, shipped_workspace};
use std::process::{Command, Stdio};
use std::time::Instant;

const MICA: &str = env!("CARGO_BIN_EXE_mica-under-test");

/// What one run of the command took.
struct Taken {
    /// User and system time, in seconds.
    cpu: f64,
    /// From start to end, in seconds.
    wall: f64,
    /// Peak resident memory, in bytes.
    peak: f64,
}

/// A measured figure beside its limit.
struct Figure {
    name: &'static str,
    value: f64,
    limit: f64,
    unit: &'static str,
    /// Whether less is better.
    at_most: bool,
}

fn main() {
    let builds: Vec<(Workspace, Taken)> = (0..3)
        .map(|_| {
            let workspace = Workspace::shipped(MICA);
            let taken = build(&workspace, &[]);
            (workspace, taken)
        })
        .collect();
    let no_ops: Vec<Taken> = (0..10).map(|_| build(&builds[0].0, &[])).collect();
    let validated = Workspace::shipped(MICA);
    let walkthrough = build(&validated, &["walkthrough"]);
    let again: Vec<Taken> = (0..10).map(|_| build(&validated, &["walkthrough"])).collect();
    let at_most = true;
    print(&[
        Figure {
            name: "`mica build` with nothing to do, CPU time, median of 10",
            value: median(no_ops.iter().map(|t| t.cpu * 1e3)),
            limit: 30.0,
            unit: "ms",
            at_most,
        },
        Figure {
            name: "default pipeline from an empty cache, median of 3",
            value: median(builds.iter().map(|(_, t)| t.wall)),
            limit: 10.0,
            unit: "s",
            at_most,
        },
        Figure {
            name: "peak memory of it, largest of 3",
            value: builds.iter().map(|(_, t)| t.peak / 1e6).fold(0.0, f64::max),
            limit: 300.0,
            unit: "MB",
            at_most,
        },
        Figure {
            name: "`mica build walkthrough` from an empty cache",
            value: walkthrough.wall,
            limit: 30.0,
            unit: "s",
            at_most,
        },
        Figure {
            name: "the same with nothing to do, CPU time, median of 10",
            value: median(again.iter().map(|t| t.cpu * 1e3)),
            limit: 40.0,
            unit: "ms",
            at_most,
        },
        Figure {
            name: "simulated decode on one thread, median of 9 runs of 20 tokens",
            value: decode(),
            limit: 500.0,
            unit: "tokens/s",
            at_most: false,
        },
    ]);
}

/// Runs `mica build` on the targets, the default one if there are none.
#[expect(clippy::zombie_processes, reason = "`wait` waits for it, and is told what it took")]
fn build(workspace: &Workspace, targets: &[&str]) -> Taken {
    let mut command = Command::new(MICA);
    command.arg("-C").arg(workspace.dir()).arg("--cache").arg(workspace.cache()).arg("build").args(targets);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().expect("the command starts");
    let (status, usage) = wait(child.id());
    assert_eq!(status, 0, "it builds; run `cargo run --release -- build` to see why not");
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Taken {
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        wall: start.elapsed().as_secs_f64(),
        // Linux counts it in KiB.
        peak: usage.ru_maxrss as f64 * 1024.0,
    }
}

/// Waits for a child; gives its raw status and what it took.
fn wait(child: u32) -> (i32, libc::rusage) {
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the types that the call writes; the child is this
    // process's own and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.cast_signed(), &mut status, 0, &mut usage) };
    assert_eq!(waited, child.cast_signed(), "the child can be waited for");
    (status, usage)
}

/// Tokens a second of the whole linked kernel of the W4A16 model, caches threaded by the host.
fn decode() -> f64 {
    let source = Source::open(&shipped_workspace(), "tiny-w4a16");
    let ids = Captures::read(&source, 20).ids;
    let ported = Ported::of(&source, &source.stack);
    let parts: Vec<_> = ported.parts.iter().collect();
    let rates = loaded(&source, &parts, Seams::Whole, |machine, program, kernel| {
        (0..10)
            .map(|_| {
                let start = Instant::now();
                host::run(machine, program, kernel, &Feed { ids: &ids, ..Feed::default() })?;
                Ok(ids.len() as f64 / start.elapsed().as_secs_f64())
            })
            .collect::<Result<Vec<f64>, _>>()
    });
    // The first run warms caches.
    median(rates.unwrap_or_else(|e| panic!("{e}")).into_iter().skip(1))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(figures: &[Figure]) {
    println!("{:<64} {:>10} {:>10}  {:<8} {:>9}", "figure", "measured", "limit", "", "headroom");
    for f in figures {
        let headroom = if f.at_most { f.limit / f.value } else { f.value / f.limit };
        let bound = if f.at_most { "<" } else { ">" };
        println!("{:<64} {:>10.1} {bound}{:>9}  {:<8} {:>8.1}×", f.name, f.value, f.limit, f.unit, headroom);
    }
}
