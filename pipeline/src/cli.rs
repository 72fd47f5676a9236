//! The command's words.

use crate::synth::Profile;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Brings a published language model onto an accelerator, and says with numbers whether it computes the same.
#[derive(Debug, Parser)]
#[command(name = "mica", version, about)]
pub struct Cli {
    /// Folder to work in.
    #[arg(short = 'C', global = true, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub dir: PathBuf,
    /// Workspace file, relative to the folder [default: workspace.toml here or in a folder above].
    #[arg(short = 'f', global = true, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Cache folder [default: the workspace's `cache`, else .mica beside the file].
    #[arg(long, global = true, value_name = "DIR", env = "MICA_CACHE_DIR")]
    pub cache: Option<PathBuf>,
    /// Ask nobody for deliveries that are not here.
    #[arg(long, global = true, env = "MICA_OFFLINE", value_parser = clap::builder::FalseyValueParser::new())]
    pub offline: bool,
    #[command(subcommand)]
    /// What to do.
    pub command: Command,
}

impl Cli {
    /// The command line's words, the command's own name first.
    ///
    /// # Errors
    /// Words that are wrong; help and version too, which are for standard output.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let matches = negatives(Cli::command()).try_get_matches_from(words).map_err(untipped)?;
        Cli::from_arg_matches(&matches)
    }
}

/// Takes a negative number after an option for its value, so that what refuses it names the option and what it takes.
fn negatives(command: clap::Command) -> clap::Command {
    let takes = |a: &clap::Arg| !a.is_positional() && a.get_action().takes_values();
    command
        .mut_args(|a| {
            let takes = takes(&a);
            a.allow_negative_numbers(takes)
        })
        .mut_subcommands(negatives)
}

/// Of what looks like a list of negative numbers nobody knows whether it was meant as a value: no tip says that it was
/// a positional one.
fn untipped(mut e: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(word)) = e.get(ContextKind::InvalidArg)
        && word.starts_with('-')
        && word[1..].starts_with(|c: char| c.is_ascii_digit())
    {
        e.remove(ContextKind::Suggested);
    }
    e
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build targets: run what is out of date, reuse the rest, print the gates.
    Build(Build),
    /// Download deliveries that lie elsewhere, ahead of a build; or check what is here.
    Fetch(Fetch),
    /// List the targets.
    Targets {
        /// Only those that these name.
        targets: Vec<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forget results for this workspace, so that the next build makes them again.
    Invalidate {
        /// Which.
        #[arg(required = true)]
        targets: Vec<String>,
    },
    /// Say why targets would run again: the first input that differs, old and new value.
    Why {
        /// Which.
        #[arg(required = true)]
        targets: Vec<String>,
    },
    /// Say how each delivery lies, and of each judged target what its gates last said, or that it would run;
    /// nothing runs.
    Status {
        /// Only these.
        targets: Vec<String>,
        /// As one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Print what targets need, as Graphviz or text.
    Graph {
        /// Which [default: the workspace's default target].
        targets: Vec<String>,
        /// Indented text instead of Graphviz.
        #[arg(long)]
        text: bool,
    },
    /// Print a linked kernel or an object: each instruction with its source op and layer.
    Disasm {
        /// `link:MODEL.kernel` or `compile:MODEL.KIND`.
        target: String,
    },
    /// Run one call of a linked kernel under the debugger: stop, step, show what ops leave. Reads commands from
    /// standard input; `help` lists them.
    Debug(crate::commands::debug::Args),
    /// Write a synthetic delivery at a model's published dimensions; prints the path of its workspace.
    Synth(Synth),
    /// List the described models, print one as a tree, or its source.
    Models(crate::commands::models::Args),
    /// Read the specification: topics, an outline, a section.
    Spec(crate::commands::spec::Args),
    /// Read the tutorial, its code quoted from the shipped source.
    Tutorial(crate::commands::tutorial::Args),
    /// Run a function of a described model and compare it with a reference.
    Check(Box<crate::commands::check::Args>),
    /// Time a whole model's kernel, or count a function's arithmetic and bytes and bound its time on the device.
    Analyze(Box<crate::commands::analyze::Args>),
    /// Measure how near values come to the device's limits, and propose the residual's fraction bits.
    Calibrate(crate::commands::calibrate::Args),
    /// Look after the cache.
    Cache {
        /// What.
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Print a completion script.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// The targets that the command is asked about; none of commands that have no such words.
    pub fn selectors(&self) -> &[String] {
        match self {
            Command::Build(b) => &b.targets,
            Command::Targets { targets, .. }
            | Command::Invalidate { targets }
            | Command::Why { targets }
            | Command::Status { targets, .. }
            | Command::Graph { targets, .. } => targets,
            Command::Disasm { target } => std::slice::from_ref(target),
            _ => &[],
        }
    }
}

/// How to build.
#[derive(Debug, Args)]
pub struct Build {
    /// What to build [default: the workspace's default target].
    pub targets: Vec<String>,
    /// Only say what would run.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Go on with what does not depend on a failure.
    #[arg(short = 'k', long)]
    pub keep_going: bool,
    /// Threads [default: one a processor].
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Run everything, whatever the cache has.
    #[arg(short = 'B', long)]
    pub always: bool,
    /// Write JSON lines of what happens.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// The report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// What to fetch.
#[derive(Debug, Args)]
pub struct Fetch {
    /// Deliveries of the workspace [default: all that lie elsewhere].
    pub deliveries: Vec<String>,
    /// Only files that are for this.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<crate::obtain::Role>,
    /// Ask what is new, the commit of a hub's branch too, and download what changed.
    #[arg(long, conflicts_with = "check")]
    pub update: bool,
    /// Download nothing; hash what is here, and drop what is not what it has to be.
    #[arg(long, conflicts_with = "only")]
    pub check: bool,
    /// Write JSON lines of what happens.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// The report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// What to do with the cache.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Sizes and counts.
    Stats,
    /// Hash every blob again; drop what is corrupt.
    Verify,
    /// Drop what no recent build needs.
    Gc {
        /// Keep what was used within so many days.
        #[arg(long, default_value_t = 30)]
        days: u32,
        /// Only say what would go.
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// What delivery to make up.
#[derive(Debug, Args)]
pub struct Synth {
    /// Name of the described model.
    pub model: String,
    /// Layers.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub layers: u16,
    /// Folder to write, new or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What the weights are stored as.
    #[arg(long, value_enum, default_value_t = SynthFormat::W4a16)]
    pub format: SynthFormat,
    /// Seed of all numbers.
    #[arg(long, default_value_t = 10, value_parser = whole::<u64>(ANY))]
    pub seed: u64,
    /// Rows of vocabulary [default: the published number].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab: Option<u32>,
    /// Other numbers in fields of the published configuration, for example hidden_size=256,num_experts=32.
    #[arg(long, value_name = "FIELD=N,…", value_delimiter = ',', value_parser = field)]
    pub set: Vec<(String, u32)>,
    /// How the weights are distributed.
    #[arg(long, value_enum, default_value_t = Profile::Plain)]
    pub profile: Profile,
    /// Experts packed, two weights a byte (compressed-tensors), instead of in 8-bit containers.
    #[arg(long)]
    pub packed: bool,
    /// Repeat the bytes of so many layers.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub distinct_layers: Option<u16>,
    /// Bytes of weights a file, for example 5000000000 [default: one file].
    #[arg(long, value_name = "BYTES", value_parser = whole::<u64>(1..=u64::MAX))]
    pub shard_size: Option<u64>,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub tokens: u16,
    /// Run the model on the prompt and write captures beside the weights [default: the prompt's ids alone].
    #[arg(long, value_enum, value_name = "BY")]
    pub captures: Option<CapturesBy>,
}

/// Who computes the captures of a synthetic delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CapturesBy {
    /// Our own float64 evaluator, on the weights as they are written. They are labelled so, satisfy no gate that
    /// asks for the published implementation, and the workspace asks for none that does.
    #[value(name = "self")]
    Own,
}

/// Any whole number.
pub const ANY: RangeInclusive<u64> = 0..=u64::MAX;

/// Reads a whole number within a range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|n| range.contains(n)).and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| match *range.end() {
            u64::MAX => format!("expected a whole number from {} on", range.start()),
            most => format!("expected a whole number from {} to {most}", range.start()),
        })
    }
}

/// A field and its number.
fn field(text: &str) -> Result<(String, u32), String> {
    let (name, value) = text.split_once('=').ok_or("expected FIELD=N")?;
    let value = value.parse().map_err(|_| format!("{value:?} is no whole number from 0 to {}", u32::MAX))?;
    Ok((name.into(), value))
}

/// What the weights of a synthetic delivery are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SynthFormat {
    /// Experts of 4 bits, projections, embedding and head of 8, with scales.
    W4a16,
    /// bfloat16, as published.
    Bf16,
}
