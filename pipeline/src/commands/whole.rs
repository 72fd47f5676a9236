//! `mica analyze MODEL`: what a call of a whole model's kernel costs, compiled from shapes alone; nothing is built
//! and no weight is read.

use super::{WELL, out};
use crate::check::Refused;
use crate::check::subject::{Places, Subject};
use crate::cli::{ANY, whole};
use crate::commands::analyze::Args;
use crate::error::CliError;
use crate::progress::say;
use crate::timing::shaped::Shaped;
use crate::timing::{Calls, On, Timing, render, trace};
use crate::workspace::MOST_TOKENS;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// How a whole model is timed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Of a whole model")]
pub struct How {
    /// The first so many layers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub layers: Option<u16>,
    /// Position of the call, that is rows cached before it; of several a table [default: 0].
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole::<u64>(ANY))]
    pub position: Vec<u64>,
    /// Tokens that a call takes; of several a table [default: the workspace's, else 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole::<u64>(1..=MOST_TOKENS))]
    pub tokens: Vec<u64>,
    /// Positions that the caches are compiled for [default: the workspace's, else the config's maximum].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    pub capacity: Option<u64>,
    /// Every op, not only the dearest.
    #[arg(long)]
    pub ops: bool,
    /// What lies where in LRM, L2 and external memory.
    #[arg(long)]
    pub memory: bool,
    /// Write the roofline as a picture.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<std::path::PathBuf>,
    /// Write the timeline of the first position, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<std::path::PathBuf>,
}

impl How {
    /// A word that only a whole model takes, if one was said.
    pub fn said(&self) -> Option<&'static str> {
        [
            ("--layers", self.layers.is_some()),
            ("--position", !self.position.is_empty()),
            ("--tokens", !self.tokens.is_empty()),
            ("--capacity", self.capacity.is_some()),
            ("--ops", self.ops),
            ("--memory", self.memory),
            ("--svg", self.svg.is_some()),
            ("--trace", self.trace.is_some()),
        ]
        .into_iter()
        .find_map(|(word, said)| said.then_some(word))
    }
}

/// A report with the name of its model.
#[derive(Serialize)]
struct Named<'n> {
    model: &'n str,
    #[serde(flatten)]
    timing: Timing,
}

/// Runs the command on a model's name, or on every model of the workspace.
pub fn run(places: &Places<'_>, args: &Args) -> Result<u8, CliError> {
    let names = match &args.selector {
        Some(name) => vec![name.clone()],
        None => places.models()?,
    };
    if let (None, Some(word), Some(name)) = (&args.selector, of_one(args), names.first()) {
        let refused = format!("{word} is of one model: name it, as in `mica analyze {name} {word} …`");
        return Err(Refused(refused).into());
    }
    let (mut all, mut texts) = (Vec::new(), Vec::new());
    for name in &names {
        let timings = one(name, places, args)?;
        if !args.json {
            let heading = if names.len() > 1 { format!("{name}\n\n") } else { String::new() };
            texts.push(heading + &text(&timings, &args.how));
        }
        all.extend(timings.into_iter().map(|timing| Named { model: name, timing }));
    }
    out(&match args.json {
        true => serde_json::to_string_pretty(&all).unwrap_or_default() + "\n",
        false => texts.join("\n"),
    })?;
    Ok(WELL)
}

/// A word that says something of one model, if one was said.
fn of_one(args: &Args) -> Option<&'static str> {
    let (asked, how) = (&args.subject, &args.how);
    [
        ("--config", asked.config.is_some()),
        ("--delivery", asked.delivery.is_some()),
        ("--weights", asked.weights.is_some()),
        ("--svg", how.svg.is_some()),
        ("--trace", how.trace.is_some()),
    ]
    .into_iter()
    .find_map(|(word, said)| said.then_some(word))
}

/// The first report, and a table of several.
fn text(timings: &[Timing], how: &How) -> String {
    let mut text = render::text(&timings[0], render::Show { ops: how.ops, memory: how.memory });
    if how.tokens.len() > 1 {
        text += &format!("\n{}", render::calls(timings));
    } else if timings.len() > 1 {
        text += &format!("\n{}", render::positions(timings));
    }
    text
}

/// A report a number of tokens and a position; writes the pictures that were asked for.
fn one(name: &str, places: &Places<'_>, args: &Args) -> Result<Vec<Timing>, CliError> {
    let how = &args.how;
    let subject = Subject::whole(name, how.layers, &args.subject, places)?;
    if !args.dim.is_empty() {
        return Err(Refused("--dim is of a function; a whole model takes --position".into()).into());
    }
    let machine = subject.machine()?;
    for w in &machine.warnings {
        say(&format!("warning: {w}"));
    }
    let longest = subject.stack.facts.max_positions;
    let capacity = how.capacity.or(subject.stated_capacity()).unwrap_or(longest);
    let positions = if how.position.is_empty() { vec![0] } else { how.position.clone() };
    let stated = [subject.stated_tokens().unwrap_or(1)];
    let tokens = if how.tokens.is_empty() { &stated[..] } else { &how.tokens };
    for &n in tokens {
        positions.iter().try_for_each(|&p| room(p, n, capacity, longest))?;
    }
    if let (Some(a), Some(b)) = (&how.svg, &how.trace)
        && a == b
    {
        let both = a.display();
        return Err(Refused(format!("--svg and --trace both write {both}; name two files")).into());
    }
    let on = On { product: &machine.product, rates: &machine.rates };
    let mut kernels = Vec::new();
    for &n in tokens {
        kernels.push((n, Shaped::new(&subject, &machine, capacity, n)?));
    }
    let mut all = Vec::new();
    for (tokens, shaped) in &kernels {
        for &position in &positions {
            let calls = Calls { position, tokens: *tokens };
            let timing = Timing::new(&shaped.kernel, &shaped.plans(), &shaped.parts, on, calls);
            all.push(timing.map_err(Refused::because)?);
        }
    }
    let shaped = &kernels[0].1;
    let plans = shaped.plans();
    if let Some(path) = &how.svg {
        let title = format!(
            "{} on {}, position {}: {} cycles",
            name, machine.product.name, all[0].position, all[0].cycles.total
        );
        write(path, all[0].roofline.svg(&title).as_bytes())?;
    }
    if let Some(path) = &how.trace {
        let failed = |source| CliError::Write { path: path.clone(), source };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let written = trace::write(&shaped.kernel, &plans, &shaped.parts, on, positions[0], &mut file);
        match written {
            Ok(_) => file.flush().map_err(failed)?,
            Err(trace::TraceError::Write(e)) => return Err(failed(e)),
            Err(trace::TraceError::Count(e)) => return Err(Refused::because(e).into()),
        }
    }
    Ok(all)
}

/// Checks that the caches and the model reach all positions of a call.
fn room(position: u64, tokens: u64, capacity: u64, longest: u64) -> Result<(), Refused> {
    if capacity > longest {
        return Err(Refused(format!(
            "--capacity {capacity}: the model's config ends at {longest} positions"
        )));
    }
    // one past the last; none where the sum has no number
    let end = position.checked_add(tokens);
    if end.is_some_and(|end| end <= capacity) {
        return Ok(());
    }
    let call = match tokens {
        1 => format!("position {position}"),
        _ => format!("a call of {tokens} tokens at position {position}"),
    };
    Err(Refused(match end.filter(|&end| end <= longest) {
        Some(end) => format!(
            "{call} is past the caches, which are compiled for {capacity} positions; give --capacity {end} or more"
        ),
        None => format!("{call}: the model's config ends at {longest} positions"),
    }))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    std::fs::write(path, bytes).map_err(|source| CliError::Write { path: path.into(), source })
}
