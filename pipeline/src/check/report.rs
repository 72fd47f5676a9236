//! What a check says, as text and as JSON, from one value.

use super::run::{Output, Run};
use mica_score::Gate;
use mica_score::gate::figure;
use mica_score::table::{Align, Table};
use serde::Serialize;

/// Raised when a field of the JSON changes its meaning or goes away.
const SCHEMA: u32 = 1;

/// Everything that a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The form of this document.
    pub schema: u32,
    /// The function, as a selector.
    pub selector: String,
    /// What was checked.
    pub checked: String,
    /// Where the weights come from.
    pub weights: String,
    /// `pass` or `fail`.
    pub verdict: &'static str,
    /// The runs, one a combination of dimensions.
    pub runs: Vec<Run>,
    /// Saturations, f16 overflows and non-finite results of a twin, over all of its calls.
    pub events: Option<[u64; 3]>,
}

impl Report {
    /// The report of some runs.
    pub fn new(
        selector: String,
        checked: String,
        weights: String,
        runs: Vec<Run>,
        events: Option<[u64; 3]>,
    ) -> Report {
        let verdict = if runs.iter().all(Run::passed) { "pass" } else { "fail" };
        Report { schema: SCHEMA, selector, checked, weights, verdict, runs, events }
    }

    /// Whether everything agrees.
    pub fn passed(&self) -> bool {
        self.verdict == "pass"
    }

    /// As a person reads it.
    pub fn text(&self) -> String {
        let mut text = format!("{}\nchecked: {}\nweights: {}\n", self.selector, self.checked, self.weights);
        for run in &self.runs {
            text += &format!("\n{}\n", heading(run));
            text += &format!("{}\n", table(run));
            if !run.skipped.is_empty() {
                text += &format!("not judged, as asked: {}\n", run.skipped.join(", "));
            }
            if let Some(d) = &run.diverged {
                text += &format!("first difference: {}\n", diverged(d));
            }
        }
        if let Some([saturated, overflowed, not_finite]) = self.events {
            text += &format!(
                "\ndevice: {saturated} saturations, {overflowed} f16 overflows, {not_finite} non-finite results\n"
            );
        }
        text + &format!("\n{}\n", self.verdict.to_uppercase())
    }

    /// As a program reads it.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn heading(run: &Run) -> String {
    let dims: Vec<String> = run.dims.iter().map(|(n, v)| format!("{n} = {v}, ")).collect();
    let plural = if run.steps == 1 { "" } else { "s" };
    format!("{}{} step{plural}, inputs {}", dims.concat(), run.steps, run.inputs)
}

fn table(run: &Run) -> Table {
    let mut table = Table::new(&[
        ("output", Align::Left),
        ("type", Align::Left),
        ("reference", Align::Left),
        ("its norm", Align::Right),
        ("predicate", Align::Left),
        ("value", Align::Right),
        ("bound", Align::Left),
        ("verdict", Align::Left),
        ("where", Align::Left),
    ]);
    for o in &run.outputs {
        for (i, gate) in o.gates.iter().enumerate() {
            let once = |text: String| if i == 0 { text } else { String::new() };
            table.row([
                once(o.name.clone()),
                once(ty(o)),
                once(o.reference.clone()),
                once(norms(&o.norms)),
                gate.name.clone(),
                value(gate),
                gate.bound.to_string(),
                gate.verdict.to_string(),
                gate.at.clone().unwrap_or_default(),
            ]);
        }
    }
    table
}

fn ty(o: &Output) -> String {
    let shape: Vec<String> = o.shape.iter().map(u64::to_string).collect();
    format!("{}[{}]", o.dtype, shape.join(", "))
}

/// The smallest and the largest norm of the steps.
fn norms(norms: &[f64]) -> String {
    let ends = norms.iter().fold(None, |ends: Option<(f64, f64)>, &n| match ends {
        None => Some((n, n)),
        Some((lo, hi)) => Some((lo.min(n), hi.max(n))),
    });
    match ends {
        None => "-".into(),
        Some((lo, hi)) if lo == hi => format!("{lo:.4}"),
        Some((lo, hi)) => format!("{lo:.4}..{hi:.4}"),
    }
}

fn value(gate: &Gate) -> String {
    figure(gate.value)
}

fn diverged(d: &super::diverge::Diverged) -> String {
    let mut text = format!("step {}", d.step);
    if let Some(f) = &d.function {
        text += &format!(", in {f}");
    }
    if let Some(r) = &d.result {
        text += &format!(", result {r}");
    }
    if let (Some(label), Some(op)) = (&d.label, &d.op) {
        text += &format!(", first at {op} of `{label}`");
    }
    if let Some(note) = &d.note {
        text += &format!(" ({note})");
    }
    text
}
