//! The figures at the published dimensions, measured on this machine beside what its memory gives in the same run:
//! `cargo bench -p mica-tests --bench full_size`.
//!
//! It takes about 4 GB of memory, 12 GB below the temporary folder (`TMPDIR`), and some minutes. It judges nothing:
//! a busy machine is no failure. Words after `--` name the groups to run: `decode`, `quantized`, `packed`,
//! `bfloat16`, `bound`, `accuracy`; and `forty`, which takes 23 GB of disk and runs only where it is named.

mod command;
mod cpu;
mod decode;
mod delivery;
mod floor;
mod forty;
mod judged;
mod model;
mod probe;
mod prompt;
mod run;
mod shards;

/// A measured figure beside what was promised.
pub struct Figure {
    name: String,
    value: f64,
    limit: f64,
    /// Whether less is better.
    at_most: bool,
    unit: String,
    /// Digits behind the point.
    digits: usize,
}

impl Figure {
    /// A figure that should be at least so much.
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64, unit: impl Into<String>) -> Figure {
        Figure { name: name.into(), value, limit, at_most: false, unit: unit.into(), digits: 2 }
    }

    /// A figure that should be at most so much.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64, unit: impl Into<String>) -> Figure {
        Figure { name: name.into(), value, limit, at_most: true, unit: unit.into(), digits: 2 }
    }

    /// The same, told with so many digits behind the point.
    pub fn told_to(self, digits: usize) -> Figure {
        Figure { digits, ..self }
    }
}

/// The middle one.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The group that is too large to run unasked.
const FORTY: &str = "forty";

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    // under `cargo test` a bench only has to build
    if asked.iter().any(|a| a == "--test") {
        return;
    }
    let forms = [delivery::QUANTIZED, delivery::PACKED, delivery::BFLOAT16];
    let groups =
        [&["decode"][..], &forms.each_ref().map(|form| form.name), &["bound", "accuracy", FORTY]].concat();
    if let Some(unknown) = asked.iter().find(|a| !groups.contains(&a.as_str())) {
        eprintln!("no group {unknown:?}, expected some of: {}", groups.join(", "));
        std::process::exit(2);
    }
    let named = |group: &str| asked.iter().any(|a| a == group);
    let wanted = |group: &str| asked.is_empty() || named(group);
    let mut figures = Vec::new();
    let mut probe = None;
    if wanted("decode") {
        let (found, seen) = decode::figures();
        figures.extend(found);
        probe = Some(seen);
    }
    for form in forms.iter().filter(|form| wanted(form.name)) {
        figures.extend(delivery::figures(form));
    }
    for (group, judge) in [("bound", judged::bound as fn() -> Vec<Figure>), ("accuracy", judged::accuracy)] {
        if wanted(group) {
            figures.extend(judge());
        }
    }
    if named(FORTY) {
        figures.extend(forty::figures());
    }
    println!("{:<62}{:>10}{:>10}", "figure", "measured", "limit");
    if let Some((least, most)) = probe {
        println!("{:<62}{least:>10.1}{:>10}  GB/s, the slowest run", "read probe, two threads", "");
        println!("{:<62}{most:>10.1}{:>10}  GB/s, the fastest run", "", "");
    }
    for f in figures {
        let bound = if f.at_most { "<" } else { ">" };
        let missed = if f.at_most == (f.value > f.limit) { "  MISSED" } else { "" };
        let Figure { name, value, limit, unit, digits, .. } = f;
        println!("{name:<62}{value:>10.digits$}{bound:>4}{limit:>6}  {unit}{missed}");
    }
}
