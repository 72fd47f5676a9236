//! `mica analyze`: what a function costs, and how fast the device could be at best.
//!
//! Arithmetic and bytes are the HIR's, each operation taken alone. The bound is a roofline: the array at its
//! peak, or external memory moving weights, inputs and results once; what passes between operations stays on
//! the chip. Weights count in the published dtypes, or as a recipe stores them. A whole model is compiled and its
//! cycles are counted instead (`whole`).

use super::{WELL, out, whole};
use crate::check::Refused;
use crate::check::constants;
use crate::check::generated::Index;
use crate::check::published::{PartWeights, Published};
use crate::check::subject::{self, Places, Subject};
use crate::error::CliError;
use crate::workspace::Machine;
use mica_device::segment::SegmentPlan;
use mica_models::dims::{Pin, pinned};
use mica_models::hir::{Cost, Dim, Dims, Function, Module, Op, Param, ParamKind, Type, ValueId};
use mica_score::table::{Align, Table};
use mica_simulate::timing::cost::MACS;
use serde::Serialize;
use std::path::Path;

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to analyze: a whole model's kernel (`MODEL`), or a function or module (`MODEL:PATH`) [default: every model of
    /// the workspace].
    pub selector: Option<String>,
    #[command(flatten)]
    /// Dimensions and machine.
    pub subject: subject::Asked,
    /// An open dimension's value; each of several is an analysis of its own. One without counts as its smallest.
    #[arg(long, value_name = "NAME=N,…")]
    pub dim: Vec<Pin>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    /// Of a whole model.
    pub how: whole::How,
}

/// What something costs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Figures {
    /// Arithmetic operations.
    flops: u64,
    /// Bytes read.
    read: u64,
    /// Bytes written.
    written: u64,
    /// Of those read, bytes of weights.
    weights: u64,
    /// Least microseconds on the device.
    bound_us: f64,
}

/// A function with those that it calls.
#[derive(Clone, Debug, Serialize)]
struct Called {
    /// Child names and the function's.
    path: String,
    /// With its calls.
    total: Figures,
}

/// An operation, and those that share its label and name.
#[derive(Clone, Debug, Serialize)]
struct Operation {
    label: String,
    op: &'static str,
    count: usize,
    figures: Figures,
}

/// Raised when a field of the JSON of an analysis changes its meaning or goes away.
const SCHEMA: u32 = 1;

/// An analysis at some dimensions.
#[derive(Clone, Debug, Serialize)]
struct Analysis {
    /// [`SCHEMA`].
    schema: u32,
    selector: String,
    device: String,
    dims: Dims,
    /// The whole function.
    total: Figures,
    /// In what the weights are counted.
    weights_in: String,
    /// Bytes that have to cross external memory: weights, inputs, results.
    external: u64,
    /// `arithmetic` or `external memory`.
    bound_by: &'static str,
    functions: Vec<Called>,
    operations: Vec<Operation>,
}

/// Runs the command.
pub fn run(
    workspace: Option<&Path>,
    cache: Option<&Path>,
    offline: bool,
    args: &Args,
) -> Result<u8, CliError> {
    let places = Places::new(workspace, cache, offline);
    let Some(selector) = args.selector.as_deref().filter(|selector| selector.contains(':')) else {
        return whole::run(&places, args);
    };
    if let Some(word) = args.how.said() {
        return Err(Refused(format!(
            "{word} is of a whole model: give its name alone, as in `mica analyze {}`",
            mica_models::select::model_of(selector)
        ))
        .into());
    }
    let subject = Subject::new(selector, &args.subject, &places)?;
    let machine = subject.machine()?;
    for w in &machine.warnings {
        crate::progress::say(&format!("warning: {w}"));
    }
    let selection = &subject.selection;
    let all = pinned(&selection.function, &args.dim).map_err(Refused::because)?;
    let stored = stored(&subject)?;
    let one = |dims| Roofline::new(&machine, &stored, dims).analyze(&subject, &machine);
    let analyses: Vec<Analysis> = all.into_iter().map(one).collect::<Result<_, _>>()?;
    out(&match args.json {
        true => serde_json::to_string_pretty(&analyses).unwrap_or_default() + "\n",
        false => analyses.iter().map(text).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(WELL)
}

/// The plan of the selected module's weights, where a recipe says how they are stored.
fn stored(subject: &Subject<'_>) -> Result<Option<SegmentPlan>, Refused> {
    if !subject.has_recipe() {
        return Ok(None);
    }
    let selection = &subject.selection;
    // shapes alone: no value of these weights is made
    let shapes = Published::Generated(Box::new(Index::random(&subject.stack, selection.part, 0)?));
    let weights = PartWeights::new(&shapes, &subject.stack, selection.part)?;
    constants::plan(&weights, &selection.scope, &subject.recipe()?).map(Some)
}

/// The device's rates and what is moved at them.
struct Roofline<'a> {
    flops_a_us: f64,
    bytes_a_us: f64,
    stored: &'a Option<SegmentPlan>,
    dims: Dims,
}

impl<'a> Roofline<'a> {
    fn new(m: &Machine, stored: &'a Option<SegmentPlan>, dims: Dims) -> Roofline<'a> {
        let mhz = f64::from(m.rates.clock_mhz);
        Roofline {
            // a multiplication and an addition each
            flops_a_us: (2 * MACS * m.product.pes()) as f64 * mhz,
            bytes_a_us: f64::from(m.rates.bus_bytes) * mhz,
            stored,
            dims,
        }
    }

    fn arithmetic(&self, flops: u64) -> f64 {
        flops as f64 / self.flops_a_us
    }

    fn memory(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_a_us
    }

    fn figures(&self, c: Cost, weights: u64) -> Figures {
        let bound_us = self.arithmetic(c.flops).max(self.memory(weights));
        Figures { flops: c.flops, read: c.read, written: c.written, weights, bound_us }
    }

    fn sum(&self, a: Figures, b: Figures) -> Figures {
        let c = Cost { flops: a.flops + b.flops, read: a.read + b.read, written: a.written + b.written };
        self.figures(c, a.weights + b.weights)
    }

    /// Bytes of weights that an operation reads: of a table only the rows. `scope` is that of the function's
    /// weights below the selected module's.
    fn weights(&self, f: &Function, v: ValueId, scope: &str) -> u64 {
        let Some(node) = f.node(v) else { return 0 };
        let params = node.inputs.iter().filter_map(|v| f.param(*v));
        let of = |p: &Param| {
            let (whole, rows) = (self.bytes(&p.ty), self.bytes(&node.types[0]));
            let read = if node.op == Op::IndexSelect { rows } else { whole };
            let name = if scope.is_empty() { p.name.clone() } else { format!("{scope}.{}", p.name) };
            match self.stored.as_ref().and_then(|plan| plan.entry(&name)) {
                // a row of a table is as large as any other
                Some(e) => (u128::from(e.bytes) * u128::from(read) / u128::from(whole.max(1))) as u64,
                None => read,
            }
        };
        params.filter(|p| p.kind == ParamKind::Const).map(of).sum()
    }

    fn bytes(&self, ty: &Type) -> u64 {
        let value = |d: &Dim| match d.var.as_ref().and_then(|v| self.dims.get(&v.name)) {
            Some(n) => n + d.plus,
            None => d.least(),
        };
        ty.shape.iter().map(value).product::<u64>() * ty.dtype.bytes()
    }

    fn operations(&self, f: &Function) -> Vec<Operation> {
        let mut all: Vec<Operation> = Vec::new();
        for ((v, node), cost) in f.values().zip(f.node_costs(&self.dims)) {
            let figures = self.figures(cost, self.weights(f, v, ""));
            match all.iter_mut().find(|o| o.label == node.label && o.op == node.op.name()) {
                Some(o) => {
                    o.count += 1;
                    o.figures = self.sum(o.figures, figures);
                }
                None => {
                    all.push(Operation { label: node.label.clone(), op: node.op.name(), count: 1, figures });
                }
            }
        }
        all
    }

    fn analyze(&self, subject: &Subject<'_>, machine: &Machine) -> Result<Analysis, Refused> {
        let s = &subject.selection;
        let operations = self.operations(&s.function);
        let total = operations.iter().fold(Figures::default(), |a, o| self.sum(a, o.figures));
        let inputs: u64 = s.function.activations().map(|p| self.bytes(&p.ty)).sum();
        let results: u64 = s.function.results.iter().map(|(_, v)| self.bytes(s.function.ty(*v))).sum();
        let external = total.weights + inputs + results;
        let (arithmetic, memory) = (self.arithmetic(total.flops), self.memory(external));
        let mut functions = Vec::new();
        self.calls(&s.module, &s.function.name, &[], "", &mut functions)?;
        let weights_in = if self.stored.is_some() { "the recipe's formats" } else { "the published dtypes" };
        Ok(Analysis {
            schema: SCHEMA,
            selector: s.to_string(),
            device: format!(
                "{}: {} PEs, {MACS} MACs a PE a cycle, {} MHz, {} bytes a cycle",
                machine.product.name,
                machine.product.pes(),
                machine.rates.clock_mhz,
                machine.rates.bus_bytes
            ),
            dims: self.dims.clone(),
            total: Figures { bound_us: arithmetic.max(memory), ..total },
            weights_in: weights_in.into(),
            external,
            bound_by: if arithmetic > memory { "arithmetic" } else { "external memory" },
            functions,
            operations,
        })
    }

    /// The functions that are called, each with its calls, a caller before those it calls.
    fn calls(
        &self,
        module: &Module,
        function: &str,
        path: &[String],
        scope: &str,
        out: &mut Vec<Called>,
    ) -> Result<(), Refused> {
        let flat = mica_models::hir::inline(module, function).map_err(Refused::because)?;
        let each = flat.values().zip(flat.node_costs(&self.dims));
        let each = each.map(|((v, _), cost)| self.figures(cost, self.weights(&flat, v, scope)));
        let total = each.fold(Figures::default(), |a, b| self.sum(a, b));
        out.push(Called { path: [path, &[function.to_string()]].concat().join("."), total });
        for node in &module.lookup(function).map_err(Refused::because)?.nodes {
            if let Op::Call { path: to, function } = &node.op {
                let (child, inner) = module.descend(to).map_err(Refused::because)?;
                let scope = match (scope, inner.as_str()) {
                    ("", inner) => inner.to_string(),
                    (scope, "") => scope.to_string(),
                    (scope, inner) => format!("{scope}.{inner}"),
                };
                self.calls(child, function, &[path, to].concat(), &scope, out)?;
            }
        }
        Ok(())
    }
}

fn text(a: &Analysis) -> String {
    let dims: Vec<String> = a.dims.iter().map(|(n, v)| format!(", {n} = {v}")).collect();
    let mut text = format!("{}{}\n{}\n", a.selector, dims.concat(), a.device);
    text += &format!(
        "{} flops; {} bytes cross external memory, {} of them weights in {}\n",
        a.total.flops, a.external, a.total.weights, a.weights_in
    );
    text += &format!("at least {:.2} µs, bound by {}\n\n", a.total.bound_us, a.bound_by);
    let columns = |first: &'static str| {
        let right = Align::Right;
        [
            (first, Align::Left),
            ("flops", right),
            ("read", right),
            ("written", right),
            ("weights", right),
            ("bound µs", right),
        ]
    };
    let row = |name: String, f: &Figures| {
        let [flops, read, written, weights] = [f.flops, f.read, f.written, f.weights].map(|n| n.to_string());
        [name, flops, read, written, weights, format!("{:.3}", f.bound_us)]
    };
    let mut functions = Table::new(&columns("function, its calls included"));
    a.functions.iter().for_each(|f| functions.row(row(f.path.clone(), &f.total)));
    let mut operations = Table::new(&columns("operation"));
    for o in &a.operations {
        let times = if o.count > 1 { format!(" ×{}", o.count) } else { String::new() };
        let label = if o.label.is_empty() { "" } else { " " };
        operations.row(row(format!("{}{label}{}{times}", o.op, o.label), &o.figures));
    }
    text + &format!("{functions}\n\n{operations}\n")
}
