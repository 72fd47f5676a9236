//! `mica check`: runs a function of a described model and judges it against a reference.

use super::{FAILED, WELL, out};
use crate::check::Refused;
use crate::check::constants::Constants;
use crate::check::inputs::{FileKey, From, Given, real_expected};
use crate::check::predicates::{self, Predicates};
use crate::check::published::{self, PartWeights, Published};
use crate::check::report::Report;
use crate::check::run::{Check, Expected, Run};
use crate::check::subject::{self, Places, Subject};
use crate::check::twin::{Device, SimTwin, verified};
use crate::cli::{ANY, whole};
use crate::error::CliError;
use crate::progress::say;
use mica_models::dims::{Pin, closed, pinned};
use mica_models::eval::{Scoped, Weights};
use mica_models::hir::Dims;
use mica_models::prepare::Prepared;
use mica_quantize::Dequantized;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to check: `MODEL:PATH`, a function or a module's entry, as in `qwen3_5_35b_a3b:layer3.mixer`.
    pub selector: String,
    #[command(flatten)]
    /// Dimensions, weights and machine.
    pub subject: subject::Asked,
    /// Check the module's twin, compiled and run on the simulator, instead of the evaluator.
    #[arg(long)]
    pub twin: bool,
    /// An input from a file: an activation, a start of what is carried, or a value a step along a first axis.
    #[arg(long, value_name = "[NAME=]FILE:KEY", help_heading = "Inputs")]
    pub input: Vec<FileKey>,
    /// The other way to inputs: drawn, or the delivery's captured ones.
    #[arg(long, value_enum, help_heading = "Inputs", conflicts_with = "input")]
    pub inputs: Option<Inputs>,
    /// The seed of random inputs.
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(ANY), help_heading = "Inputs")]
    pub seed: u64,
    /// An open dimension's value; each of several is a run of its own.
    #[arg(long, value_name = "NAME=N,…", help_heading = "Inputs")]
    pub dim: Vec<Pin>,
    /// Consecutive decode steps, states and caches carried.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Inputs")]
    pub steps: u16,
    /// What an output, or the value at a label, should be [default: for a twin, what the evaluator says].
    #[arg(long, value_name = "[NAME=]FILE:KEY", help_heading = "References")]
    pub expected: Vec<FileKey>,
    /// Outputs that are not to be judged.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "References")]
    pub skip: Vec<String>,
    /// Let the checked side take the reference's experts instead of choosing its own.
    #[arg(long, help_heading = "References")]
    pub force_experts: bool,
    /// Compare the digest of every generated weight of the part before the run.
    #[arg(long, help_heading = "References")]
    pub verify_weights: bool,
    #[command(flatten)]
    /// What has to hold.
    pub predicates: predicates::Asked,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Where inputs come from, if not from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Inputs {
    /// Drawn from a seed, each in its range.
    Random,
    /// Captured by the delivery's publisher.
    Real,
}

/// Runs the command.
pub fn run(
    workspace: Option<&Path>,
    cache: Option<&Path>,
    offline: bool,
    args: &Args,
) -> Result<u8, CliError> {
    let predicates = Predicates::new(&args.predicates)?;
    let places = Places::new(workspace, cache, offline);
    let subject = Subject::new(&args.selector, &args.subject, &places)?;
    let report = check(args, &subject, &predicates)?;
    out(&if args.json { report.json() } else { report.text() })?;
    Ok(if report.passed() { WELL } else { FAILED })
}

fn check(args: &Args, subject: &Subject<'_>, predicates: &Predicates) -> Result<Report, Refused> {
    let selection = &subject.selection;
    let from = match (args.inputs, args.input.is_empty()) {
        (Some(Inputs::Random), _) => From::Random(args.seed),
        (Some(Inputs::Real), _) => From::Real,
        (None, false) => From::Files(&args.input),
        (None, true) => {
            return Err(Refused(
                "there are no inputs: give --input [NAME=]FILE:KEY, --inputs random or --inputs real".into(),
            ));
        }
    };
    let dims = pinned(&selection.function, &args.dim).map_err(Refused::because)?;
    if matches!(from, From::Random(_)) {
        for d in &dims {
            closed(&selection.function, d).map_err(|e| Refused(format!("{e}; give it with --dim")))?;
        }
    }
    let (source, what) = subject.published()?;
    let part = PartWeights::new(&source, &subject.stack, selection.part)?;
    let expected = expected(args, subject)?;
    if args.verify_weights {
        verify(&part)?;
    }
    let steps = usize::from(args.steps);
    let run = |weights: &dyn Weights, twin: Option<&SimTwin>| -> Result<Vec<Run>, Refused> {
        let check = Check {
            selection,
            weights,
            twin,
            predicates,
            expected: &expected,
            skip: &args.skip,
            forced: args.force_experts,
        };
        dims.iter().map(|d| check.run(Given::new(subject, &from, d, steps)?, d.clone())).collect()
    };
    let name = selection.to_string();
    if !args.twin {
        let prepared = Prepared::new(&subject.stack, selection.part, &part).map_err(Refused::because)?;
        let weights = Scoped { weights: &prepared, scope: selection.scope.clone() };
        let runs = run(&weights, None)?;
        return Ok(Report::new(name, "the evaluator, float64".into(), what, runs, None));
    }
    let machine = subject.machine()?;
    let device = Arc::new(Device {
        constants: Constants::new(&part, &selection.scope, &subject.recipe()?)?,
        frac: machine.frac,
        capacity: capacity(subject.capacity(), &dims, steps),
        product: machine.product,
        forced: Mutex::new(None),
        counters: Mutex::default(),
    });
    let twin = SimTwin::new(&selection.module, device.clone());
    verified(&selection.module, &twin)?;
    let weights =
        Dequantized::new(&device.constants.plan, &device.constants.segment).map_err(Refused::because)?;
    let runs = run(&weights, Some(&twin))?;
    let counters = *device.counters.lock().unwrap_or_else(PoisonError::into_inner);
    let events = [counters.saturations, counters.f16_overflows, counters.non_finite];
    let checked = format!("the twin on {}, weights in its formats on both sides", device.product.name);
    Ok(Report::new(name, checked, what, runs, Some(events)))
}

/// Room for every row that a run appends, in whole blocks of attention.
fn capacity(usual: u64, dims: &[Dims], steps: usize) -> u64 {
    let longest = dims.iter().flat_map(|d| d.values()).max().copied().unwrap_or(0) + steps as u64;
    usual.max(longest.next_multiple_of(128))
}

/// The references from files; one without a name is for the first output that has none yet.
fn expected(args: &Args, subject: &Subject<'_>) -> Result<Vec<Expected>, Refused> {
    let results = &subject.selection.function.results;
    let named: Vec<&str> = args.expected.iter().filter_map(|k| k.name.as_deref()).collect();
    let mut free = results.iter().map(|(n, _)| n.as_str()).filter(|n| !named.contains(n));
    let mut all = Vec::new();
    for k in &args.expected {
        let source = format!("{}:{}", k.file.display(), k.key);
        let name = match &k.name {
            Some(name) => name.clone(),
            None => free
                .next()
                .map(str::to_string)
                .ok_or_else(|| Refused(format!("{source} is one expected output too many")))?,
        };
        if all.iter().any(|e: &Expected| e.name == name) {
            return Err(Refused(format!("--expected says twice what `{name}` should be")));
        }
        let (place, tensor) = ((k.file.clone(), k.key.clone()), published::tensor(&k.file, &k.key)?);
        all.push(Expected { name, source, place, tensor });
    }
    // real inputs are compared with what was captured on them, where it is of the very weights that run
    if args.inputs == Some(Inputs::Real) && !args.twin {
        for e in real_expected(subject)? {
            if !all.iter().any(|known| known.name == e.name) && !args.skip.contains(&e.name) {
                all.push(e);
            }
        }
    }
    Ok(all)
}

fn verify(part: &PartWeights<'_>) -> Result<(), Refused> {
    let Published::Generated(index) = part.source() else {
        return Err(Refused("--verify-weights is for generated weights: a build hashes a delivery's".into()));
    };
    let start = Instant::now();
    let bytes = index.verify(&part.resolved.read)?;
    say(&format!("{bytes} bytes of weights have their digests ({:.1} s)", start.elapsed().as_secs_f64()));
    Ok(())
}
