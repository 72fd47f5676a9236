//! A gate: one figure, one bound, one verdict.
//!
//! It knows no metric and no model. A figure that is not finite passes nothing, and neither does a gate that
//! had nothing to judge.

use crate::metrics::finite_or_nan;
use crate::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bound {
    /// No smaller than this.
    AtLeast(f64),
    /// No larger than this.
    AtMost(f64),
    /// No farther than `tolerance` from `center`.
    Within {
        /// The value that is meant.
        center: f64,
        /// The largest distance from it.
        tolerance: f64,
    },
    /// Exactly this.
    Equals(f64),
}

impl Bound {
    /// Whether a figure meets the bound. NaN and infinity never do, whatever the bound.
    #[must_use]
    pub fn admits(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::AtLeast(least) => value >= least,
                Self::AtMost(most) => value <= most,
                Self::Within { center, tolerance } => (value - center).abs() <= tolerance,
                Self::Equals(wanted) => value == wanted,
            }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AtLeast(least) => write!(f, ">= {}", shortest(least)),
            Self::AtMost(most) => write!(f, "<= {}", shortest(most)),
            Self::Within { center, tolerance } => {
                write!(f, "within {} of {}", shortest(tolerance), shortest(center))
            }
            Self::Equals(wanted) => write!(f, "= {}", shortest(wanted)),
        }
    }
}

/// What came of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figure meets its bound.
    Pass,
    /// It does not, or is not finite.
    Fail,
    /// There was nothing to judge, for this reason. Not a pass.
    NotRun(String),
}

impl Verdict {
    /// What came of several gates: a failure if one failed, else not run if one was not run or if there are
    /// none, else a pass.
    #[must_use]
    pub fn of_all(gates: &[Gate]) -> Self {
        let not_run = || gates.iter().find(|gate| matches!(gate.verdict, Self::NotRun(_)));
        if gates.iter().any(|gate| gate.verdict == Self::Fail) {
            Self::Fail
        } else if let Some(gate) = not_run() {
            gate.verdict.clone()
        } else if gates.is_empty() {
            Self::NotRun("there are no gates".into())
        } else {
            Self::Pass
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotRun(_) => "NOT RUN",
        })
    }
}

/// A figure as read, before it is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The figure.
    pub value: f64,
    /// How many elements it was made from.
    pub elements: u64,
    /// Where it was read, if it is the worst of several: "layer 5, token 3".
    pub at: Option<String>,
}

impl Reading {
    /// A count that an instrument gives as one number.
    #[must_use]
    pub fn counter(count: u64) -> Self {
        Self { value: count as f64, elements: 1, at: None }
    }
}

/// What a gate asks, before it is known what was read.
#[derive(Clone, Debug, PartialEq)]
pub struct GateSpec {
    /// Name, stable between versions: scripts look for it.
    pub name: String,
    /// What the figure has to be.
    pub bound: Bound,
    /// Whether the published walkthrough states this very bound; the others are tighter or our own.
    pub published: bool,
}

impl GateSpec {
    /// A gate of our own.
    pub fn own(name: impl Into<String>, bound: Bound) -> Self {
        Self { name: name.into(), bound, published: false }
    }

    /// A gate that the published walkthrough has too.
    pub fn published(name: impl Into<String>, bound: Bound) -> Self {
        Self { published: true, ..Self::own(name, bound) }
    }

    /// Judges what was read. A reading of no elements fails.
    #[must_use]
    pub fn judge(self, reading: Reading) -> Gate {
        let pass = reading.elements > 0 && self.bound.admits(reading.value);
        Gate {
            name: self.name,
            value: finite_or_nan(reading.value),
            bound: self.bound,
            verdict: if pass { Verdict::Pass } else { Verdict::Fail },
            elements: reading.elements,
            published: self.published,
            at: reading.at,
        }
    }

    /// The gate without anything to judge: it counts as not passed.
    pub fn not_run(self, reason: impl Into<String>) -> Gate {
        Gate {
            name: self.name,
            value: f64::NAN,
            bound: self.bound,
            verdict: Verdict::NotRun(reason.into()),
            elements: 0,
            published: self.published,
            at: None,
        }
    }
}

/// One figure, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Name, stable between versions: scripts look for it.
    pub name: String,
    /// The figure; NaN where it is not finite or was not read.
    pub value: f64,
    /// What it has to be.
    pub bound: Bound,
    /// What came of it.
    pub verdict: Verdict,
    /// How many elements the figure was made from; 0 where the gate was not run.
    pub elements: u64,
    /// Whether the published walkthrough states this very bound.
    pub published: bool,
    /// Where the figure was read, if it is the worst of several.
    pub at: Option<String>,
}

impl Gate {
    /// Whether it was run and its bound met.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Pass
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, bound, verdict, elements, at, .. } = self;
        if let Verdict::NotRun(reason) = verdict {
            return write!(f, "{name}: {verdict} ({reason})");
        }
        write!(f, "{name}: {verdict} ({} {bound}, {elements} compared", figure(*value))?;
        if let Some(at) = at {
            write!(f, ", {at}")?;
        }
        f.write_str(")")
    }
}

/// Gates as a table, a line a gate; the bounds that the published walkthrough states are marked.
#[must_use]
pub fn table(gates: &[Gate]) -> Table {
    let mut table = Table::new(&[
        ("gate", Align::Left),
        ("value", Align::Right),
        ("bound", Align::Left),
        ("verdict", Align::Left),
        ("compared", Align::Right),
        ("where", Align::Left),
    ]);
    for gate in gates {
        let (value, at) = match &gate.verdict {
            Verdict::NotRun(reason) => ("-".into(), reason.clone()),
            Verdict::Pass | Verdict::Fail => (figure(gate.value), gate.at.clone().unwrap_or_default()),
        };
        table.row([
            gate.name.clone(),
            value,
            if gate.published { format!("{} published", gate.bound) } else { gate.bound.to_string() },
            gate.verdict.to_string(),
            gate.elements.to_string(),
            at,
        ]);
    }
    table
}

/// A measured figure: a count as it is, a ratio with eight decimals, a small error with four digits.
#[must_use]
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        "NaN".into()
    } else if value == value.trunc() && value.abs() < 1e15 {
        format!("{value:.0}")
    } else if value.abs() >= 1e-3 {
        format!("{value:.8}")
    } else {
        format!("{value:.3e}")
    }
}

/// A bound as a person writes it.
fn shortest(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 { format!("{value:e}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;

    #[test]
    fn bounds_admit_finite_figures_only() {
        let near_one = Bound::Within { center: 1.0, tolerance: 0.25 };
        // bound, admitted, not admitted
        type Case = (Bound, &'static [f64], &'static [f64]);
        let cases: [Case; 7] = [
            (Bound::AtLeast(0.5), &[0.5, 1.0], &[0.49, NAN, INF, -INF]),
            (Bound::AtMost(0.5), &[0.5, -1.0], &[0.51, NAN, INF, -INF]),
            (near_one, &[0.75, 1.0, 1.25], &[0.74, 1.26, NAN, INF]),
            (Bound::Equals(20.0), &[20.0], &[19.0, NAN]),
            (Bound::AtMost(INF), &[0.0], &[INF, NAN]),
            (Bound::AtLeast(NAN), &[], &[0.0, 1.0, NAN]),
            (Bound::Within { center: 1.0, tolerance: NAN }, &[], &[1.0, NAN]),
        ];
        for (bound, admitted, others) in cases {
            assert!(admitted.iter().all(|&v| bound.admits(v)), "{bound}");
            assert!(others.iter().all(|&v| !bound.admits(v)), "{bound}");
        }
    }

    fn gate(value: f64, elements: u64) -> Gate {
        let at = Some("layer 5, token 3".into());
        GateSpec::own("layer-cosine", Bound::AtLeast(0.99999)).judge(Reading { value, elements, at })
    }

    #[test]
    fn a_gate_is_one_line() {
        let absent = GateSpec::published("chain-cosine", Bound::AtLeast(0.95)).not_run("no capture");
        let lines = [gate(0.9999998, 2560), gate(0.98, 2560), gate(NAN, 2560), absent].map(|g| g.to_string());
        insta::assert_snapshot!(lines.join("\n"), @r"
        layer-cosine: PASS (0.99999980 >= 0.99999, 2560 compared, layer 5, token 3)
        layer-cosine: FAIL (0.98000000 >= 0.99999, 2560 compared, layer 5, token 3)
        layer-cosine: FAIL (NaN >= 0.99999, 2560 compared, layer 5, token 3)
        chain-cosine: NOT RUN (no capture)
        ");
    }

    #[test]
    fn nothing_compared_is_not_a_pass() {
        assert!(gate(1.0, 1).passed());
        assert!(!gate(1.0, 0).passed());
        assert!(gate(INF, 1).value.is_nan(), "JSON has no infinity");
    }

    #[test]
    fn one_gate_that_failed_or_was_not_run_decides() {
        let pass = gate(1.0, 1);
        let fail = gate(0.0, 1);
        let absent = GateSpec::own("x", Bound::Equals(0.0)).not_run("no capture");
        let not_run = Verdict::NotRun("no capture".into());
        let cases = [
            (vec![&pass, &pass], Verdict::Pass),
            (vec![&pass, &absent], not_run),
            (vec![&pass, &absent, &fail], Verdict::Fail),
            (vec![], Verdict::NotRun("there are no gates".into())),
        ];
        for (gates, expected) in cases {
            let gates: Vec<Gate> = gates.into_iter().cloned().collect();
            assert_eq!(Verdict::of_all(&gates), expected);
        }
    }

    #[test]
    fn a_gate_survives_json() {
        let text = serde_json::to_string(&gate(0.5, 7)).unwrap();
        assert_eq!(serde_json::from_str::<Gate>(&text).unwrap(), gate(0.5, 7));
    }
}
