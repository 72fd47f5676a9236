//! `mica calibrate`: the headroom of a model's values, and the fraction bits that it suggests. Weights are
//! quantized if they are not yet; nothing else is made and no file is changed.

use super::{FAILED, WELL, build, here, out};
use crate::calibrate::{Ground, Measured, Seen, fraction_bits, measure};
use crate::error::{CliError, NodeError, with_causes};
use crate::graph::Job;
use crate::progress::say;
use crate::queries;
use crate::session::{Session, environment};
use crate::workspace::Workspace;
use mica_quantize::Dequantized;
use mica_score::table::{Align, Table};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

/// Raised when a field of the JSON report changes its meaning or goes away.
const SCHEMA: u32 = 1;

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models of the workspace [default: all].
    pub models: Vec<String>,
    /// Bits of headroom that the residual is to keep.
    #[arg(long, default_value_t = 2, value_name = "BITS", value_parser = clap::value_parser!(u8).range(..=31))]
    pub margin: u8,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// A model's measurement and the advice.
#[derive(Debug, Serialize)]
struct Advice {
    model: String,
    device: String,
    /// Fraction bits at present.
    frac: u8,
    /// Bits of headroom asked for.
    margin: u8,
    /// The most fraction bits that keep them.
    proposed: Option<u8>,
    #[serde(flatten)]
    measured: Measured,
}

/// Runs the command.
pub fn run(workspace: &Workspace, cache: Option<&Path>, args: &Args) -> Result<u8, CliError> {
    let config = &workspace.config;
    if let Some(unknown) = args.models.iter().find(|m| !config.model.contains_key(*m)) {
        let known = config.model.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(CliError::Usage(format!("the workspace has no model {unknown:?}; it has {known}")));
    }
    let env = environment(workspace, cache)?;
    let here = here(workspace, cache)?;
    if let Some(absent) = args.models.iter().find(|m| !here.config.model.contains_key(*m)) {
        return Err(CliError::Usage(format!("the delivery of {absent} is not here; `mica fetch` brings it")));
    }
    let session = Session::open(&here, env)?;
    let mut all = Vec::new();
    let mut failed = false;
    // the workspace's models come first among the session's, in its own order
    for (i, (name, m)) in here.config.model.iter().enumerate() {
        if !args.models.is_empty() && !args.models.contains(name) {
            continue;
        }
        match one(&session, i) {
            Ok(measured) => {
                let frac = session.models[i].frac(&session.db);
                let proposed = fraction_bits(measured.residual(), args.margin);
                let (model, device) = (name.clone(), m.device.clone());
                all.push(Advice { model, device, frac, margin: args.margin, proposed, measured });
            }
            Err(why) => {
                say(&format!("error: {why}"));
                failed = true;
            }
        }
    }
    let env = session.env();
    env.cache.flush()?;
    if let Err(e) = env.stamps.save() {
        say(&format!("warning: {}", with_causes(&e)));
    }
    out(&match args.json {
        true => format!("{:#}\n", json!({ "schema": SCHEMA, "models": all })),
        false => all.iter().map(text).collect::<Vec<_>>().join("\n") + &lines(&all),
    })?;
    Ok(if failed { FAILED } else { WELL })
}

/// Measures a model; its weights are quantized first where they are not.
fn one(session: &Session, model: usize) -> Result<Measured, String> {
    let graph = &session.graph;
    let is_segment = |i: &usize| {
        let node = &graph.nodes[*i];
        node.model == model && matches!(node.job, Job::Quantize(_))
    };
    let goals: Vec<usize> = (0..graph.nodes.len()).filter(is_segment).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let errors = build::settle(session, &graph.closure(&goals), processors, false);
    if let Some(e) = NodeError::first_of(&errors) {
        return Err(e.to_string());
    }
    let (db, input) = (&session.db, session.models[model]);
    let ids = queries::token_ids(db, input).map_err(|e| e.to_string())?;
    let parts = &session.facts[model].parts;
    let grounds = (0..parts.len()).map(|p| queries::ground(db, input, p));
    let grounds = grounds.collect::<queries::Result<Vec<_>>>().map_err(|e| e.to_string())?;
    let weights = grounds.iter().map(|g| Dequantized::new(&g.plan.plan, &g.segment));
    let weights = weights.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let all = parts.iter().zip(&grounds).zip(&weights);
    let parts: Vec<Ground<'_>> =
        all.map(|((name, g), weights)| Ground { name, function: &g.function, weights }).collect();
    measure(&parts, &ids.ids, input.frac(db)).map_err(|e| e.to_string())
}

/// A model's tables.
fn text(a: &Advice) -> String {
    let right = |c| (c, Align::Right);
    let left = |c| (c, Align::Left);
    let columns =
        [left("values"), left("held in"), right("largest"), right("limit"), right("headroom"), left("where")];
    let mut table = Table::new(&columns);
    for h in &a.measured.headroom {
        let held = match h.held {
            crate::calibrate::Held::Fx32 => format!("fx32, {} fraction bits", a.frac),
            crate::calibrate::Held::F16 => "f16".into(),
            crate::calibrate::Held::F32 => "f32".into(),
        };
        let bits = h.bits.map_or("-".into(), |b| format!("{b:.1} bits"));
        let cells = [h.class.word().into(), held, number(h.largest.value), number(h.limit), bits];
        let [class, held, largest, limit, bits] = cells;
        table.row([class, held, largest, limit, bits, at(&h.largest)]);
    }
    let columns = [left("given to"), right("least"), left("where"), right("most"), left("where")];
    let mut given = Table::new(&columns);
    for f in &a.measured.arguments {
        let [least, most] = [&f.least, &f.most].map(|s| (number(s.value), at(s)));
        given.row([function(f.function), least.0, least.1, most.0, most.1]);
    }
    format!(
        "── {}: {} tokens, float64 chain on the device's weights\n{table}\n\n{given}\n",
        a.model, a.measured.tokens
    )
}

fn function(name: &str) -> String {
    match name {
        "softmax" => "softmax, spread".into(),
        "rms-norm" => "rms-norm, root mean square".into(),
        other => other.into(),
    }
}

fn at(s: &Seen) -> String {
    format!("{}, {}, token {}", s.part, s.op, s.token)
}

fn number(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if (1e-2..1e6).contains(&a) => format!("{v:.4}"),
        _ => format!("{v:.3e}"),
    }
}

/// The advice: a line a device, the fewest bits of those that its models ask for.
fn lines(all: &[Advice]) -> String {
    let mut text = String::new();
    let devices: BTreeSet<&str> = all.iter().map(|a| a.device.as_str()).collect();
    for device in devices {
        let of: Vec<&Advice> = all.iter().filter(|a| a.device == device).collect();
        let proposed: Option<Vec<u8>> = of.iter().map(|a| a.proposed).collect();
        let now = of[0].frac;
        let margin = of[0].margin;
        text += "\n";
        text += &match proposed.and_then(|p| p.into_iter().min()) {
            None => format!("no number of fraction bits holds the residual with {margin} bits to spare\n"),
            Some(frac) if frac == now => {
                format!("[device.{device}] has frac = {now}, the most that keeps {margin} bits of headroom\n")
            }
            Some(frac) => format!(
                "the most fraction bits that keep {margin} bits of headroom; in workspace.toml, instead of {now}:\n\n[device.{device}]\nfrac = {frac}\n"
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device once, however its models lie among others, with what all of them allow.
    #[test]
    fn a_device_is_advised_once() {
        // device, fraction bits at present and proposed, a model each; what is said
        type Case = (&'static [(&'static str, u8, Option<u8>)], &'static [&'static str]);
        let cases: [Case; 4] = [
            (
                &[("sim", 20, Some(20))],
                &["[device.sim] has frac = 20, the most that keeps 3 bits of headroom"],
            ),
            (
                &[("sim", 20, Some(22)), ("sim", 20, Some(18))],
                &["instead of 20:", "[device.sim]", "frac = 18"],
            ),
            (
                &[("sim", 20, Some(22)), ("sim", 20, None)],
                &["no number of fraction bits holds the residual with 3 bits to spare"],
            ),
            (
                &[("b", 20, Some(20)), ("a", 9, Some(9)), ("b", 20, Some(21))],
                &["[device.a] has frac = 9", "[device.b] has frac = 20"],
            ),
        ];
        for (models, said) in cases {
            let advice = |&(device, frac, proposed): &(&str, u8, Option<u8>)| Advice {
                model: "m".into(),
                device: device.into(),
                frac,
                margin: 3,
                proposed,
                measured: Measured { tokens: 1, headroom: Vec::new(), arguments: Vec::new() },
            };
            let text = lines(&models.iter().map(advice).collect::<Vec<_>>());
            let mut rest = text.as_str();
            for words in said {
                let at = rest.find(words).unwrap_or_else(|| panic!("no {words:?} in\n{text}"));
                rest = &rest[at + words.len()..];
            }
            assert!(!rest.contains("device"), "{text}");
        }
    }
}
