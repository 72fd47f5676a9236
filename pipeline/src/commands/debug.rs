//! `mica debug`: a model's linked kernel, one call of it under the debugger.

use super::{FAILED, WELL, build, here, written};
use crate::cli::{ANY, whole};
use crate::debug::{Debugger, Wanted};
use crate::error::CliError;
use crate::graph::{Call, Job};
use crate::host::{self, Called, Feed};
use crate::progress::say;
use crate::queries;
use crate::session::{Session, environment};
use crate::targets;
use crate::workspace::Workspace;
use mica_cache::Blob;
use mica_device::object::Kernel;
use mica_simulate::{Edges, Machine, Options, Program, SimError};
use std::io::{IsTerminal, Write};
use std::path::Path;

/// What is debugged, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model of the workspace, or `link:MODEL.kernel`; it is built if need be.
    pub target: String,
    /// Stop at an instruction's number, PART (`layer3`), PART:OP or OP, an op by number, name or label; repeatable.
    #[arg(long, value_name = "WHERE")]
    pub break_at: Vec<String>,
    /// Show what an op leaves in LRM or L2 when it ends, with its counted events; repeatable.
    #[arg(long, value_name = "OP")]
    pub dump: Vec<String>,
    /// Stop before the first instruction.
    #[arg(long)]
    pub step: bool,
    /// Which call: the number of a token that it takes. Those before it run undisturbed.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>(ANY))]
    pub token: usize,
    /// Token ids to feed [default: the captured ones].
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub ids: Vec<i64>,
    /// Trap at the first saturation, overflow, value that is not finite, or read of what nothing wrote.
    #[arg(long)]
    pub strict: bool,
    /// Elements of a tile or region shown at most.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<usize>(ANY))]
    pub elements: usize,
}

/// The target that is meant: a model's name means its linked kernel.
pub fn kernel_of(target: &str) -> String {
    match target.contains(':') {
        true => target.into(),
        false => format!("link:{target}.kernel"),
    }
}

/// Runs the command.
pub fn run(workspace: &Workspace, cache: Option<&Path>, args: &Args) -> Result<u8, CliError> {
    let mut env = environment(workspace, cache)?;
    env.threads = std::thread::available_parallelism().map_or(1, usize::from);
    let workspace = &here(workspace, cache)?;
    let session = Session::open(workspace, env)?;
    for w in &session.warnings {
        say(&format!("warning: {w}"));
    }
    let Some(kernel) = Built::new(workspace, &session, args)? else { return Ok(FAILED) };
    kernel.debug(&session, args)
}

/// A linked kernel with all that its calls take.
struct Built {
    target: String,
    kernel: Kernel,
    /// Tokens that a call takes.
    tokens: usize,
    constants: Vec<Blob>,
    parts: Vec<String>,
    ids: Vec<i64>,
    product: mica_device::product::Product,
}

impl Built {
    /// Builds the kernel; `None` where something that it needs failed, which has been told.
    fn new(workspace: &Workspace, session: &Session, args: &Args) -> Result<Option<Built>, CliError> {
        let goals =
            targets::select(&[kernel_of(&args.target)], &workspace.config.targets, &session.graph.names)?;
        let kernels =
            goals.iter().copied().find(|&i| matches!(session.graph.nodes[i].job, Job::Link(_) | Job::Kernel));
        let Some(found) = kernels else {
            return Err(CliError::Usage(format!(
                "{} is no kernel; a model's name or link:MODEL.kernel is",
                args.target
            )));
        };
        let node = session.graph.nodes[found];
        let model = session.models[node.model];
        let facts = &session.facts[node.model];
        let which = if let Job::Link(call) = node.job { call } else { facts.whole() };
        let tokens = if which == Call::One { 1 } else { facts.per_call as usize };
        let link = (0..session.graph.nodes.len()).find(|&i| {
            let n = session.graph.nodes[i];
            n.model == node.model && n.job == Job::Link(which)
        });
        let wanted = session.graph.closure(&link.into_iter().collect::<Vec<_>>());
        let errors = build::settle(session, &wanted, session.env().threads, false);
        build::tell_errors(session, &wanted, &errors);
        let env = session.env();
        env.cache.flush()?;
        let Ok(linked) = queries::linked(&session.db, model, which) else { return Ok(None) };
        let lost = |what: &str| CliError::Usage(format!("{what} is gone from the cache; build again"));
        let blob = |d| env.cache.get(d).map_err(CliError::from);
        let image = blob(linked.digest("kernel"))?.ok_or_else(|| lost("the kernel"))?;
        let kernel = mica_cache::decode(queries::KERNEL_KIND, &image)
            .map_err(|e| CliError::Usage(format!("the kernel: {e}")))?;
        let parts = facts.parts.clone();
        let mut constants = Vec::new();
        for (p, name) in parts.iter().enumerate() {
            let Ok(made) = queries::quantized(&session.db, model, p) else { return Ok(None) };
            let target = format!("the constant segment of {name}");
            constants.push(blob(made.digest("segment"))?.ok_or_else(|| lost(&target))?);
        }
        let ids = match args.ids.is_empty() {
            false => args.ids.clone(),
            true => queries::token_ids(&session.db, model)
                .map(|i| i.ids.clone())
                .map_err(|e| CliError::Usage(format!("{e}; give --ids")))?,
        };
        let vocab =
            queries::stack(&session.db, model).map_err(|e| CliError::Usage(e.to_string()))?.facts.vocab;
        if let Some(id) = ids.iter().find(|&&id| !u64::try_from(id).is_ok_and(|id| id < vocab)) {
            return Err(CliError::Usage(format!(
                "--ids: id {id} is outside 0..{vocab}, the vocabulary of {}",
                model.name(&session.db)
            )));
        }
        if args.token >= ids.len() {
            return Err(CliError::Usage(format!(
                "--token {}: there are {} tokens, numbered from 0",
                args.token,
                ids.len()
            )));
        }
        if tokens > 1 && (args.token / tokens + 1) * tokens > ids.len() {
            return Err(CliError::Usage(format!(
                "--token {}: its call takes {tokens} tokens from {} on, and there are {}; give more --ids, or debug the \
                 kernel of the rest",
                args.token,
                args.token / tokens * tokens,
                ids.len()
            )));
        }
        let target = session.graph.names[link.unwrap_or(found)].clone();
        let product = (**model.product(&session.db)).clone();
        Ok(Some(Built { target, kernel, tokens, constants, parts, ids, product }))
    }

    fn debug(&self, session: &Session, args: &Args) -> Result<u8, CliError> {
        let failed = |e: SimError| CliError::Usage(format!("{}: {e}", self.target));
        let program = Program::load(&self.kernel).map_err(failed)?;
        let constants: Vec<&[u8]> = self.constants.iter().map(|b| &**b).collect();
        let options = Options { threads: session.env().threads, strict: args.strict };
        let mut machine = Machine::new(&program, &self.product, &constants, options).map_err(failed)?;
        let asks = args.step || (args.break_at.is_empty() && args.dump.is_empty());
        let wanted = Wanted {
            breaks: args.break_at.clone(),
            dumps: args.dump.clone(),
            step: asks,
            elements: args.elements,
        };
        let person = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let speech = (std::io::stdin().lock(), std::io::stdout().lock());
        let mut debugger = Debugger::new(&program, &self.parts, &wanted, speech, person.then_some("(mica) "))
            .map_err(|e| CliError::Usage(e.to_string()))?;
        let wanted = args.token / self.tokens;
        let feed = Feed { ids: &self.ids[..(wanted + 1) * self.tokens], ..Feed::default() };
        let call = |n: usize, machine: &mut Machine<'_>, edges: &mut Edges<'_>| {
            if n < wanted {
                return machine.call(edges);
            }
            let ran = machine.call_observed(edges, &mut debugger);
            match &ran {
                Ok(counters) => debugger.ended(*counters),
                Err(SimError::Trap(t)) => debugger.trapped(t, machine.left(t.instruction, edges).as_ref()),
                Err(_) => {}
            }
            ran
        };
        let called = Called { program: &program, kernel: &self.kernel, tokens: self.tokens as u64 };
        let ran = host::run_with(&mut machine, called, &feed, &constants, call);
        written(debugger.finish().and_then(|mut out| out.flush()))?;
        match ran {
            Ok(_) => Ok(WELL),
            // the debugger has told it
            Err(SimError::Trap(_)) => Ok(FAILED),
            Err(e) => Err(failed(e)),
        }
    }
}
