//! The score of a decode run: everything that was computed, against the captures and the float64 chain.

use super::not_finite::Tallies;
use super::reference::{floats, integers};
use super::segment::{NOTE, Note};
use super::{Db, ModelInput, Result, need, output, referenced, retriable, simulated, source, target, whole};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::env::Env;
use crate::graph::{Facts, Job, Routing};
use crate::host::values;
use mica_cache::{Recipe, encode};
use mica_device::layout::ALIGN;
use mica_score::decode::{
    CaptureChain, CaptureLabel, Chain, Counters, DecodeInputs, DecodeReport, Source, Stack,
};
use mica_score::metrics::Equality;
use mica_score::{Texts, score_decode};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of a score's blob.
pub const KIND: &str = "decode-report";

/// A report and what its ids mean to a reader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The report.
    pub decode: DecodeReport,
    /// The prompt as text, where there is a tokenizer.
    pub prompt: Option<String>,
    /// The text of each id that the report names.
    pub tokens: BTreeMap<i64, String>,
}

impl Report {
    /// The report as a person reads it.
    pub fn render(&self) -> String {
        let token = |id: i64| self.tokens.get(&id).cloned();
        mica_score::render(&self.decode, &Texts { prompt: self.prompt.as_deref(), token: &token })
    }
}

type Body<T> = std::result::Result<T, BodyError>;

/// The score of a model's decode run: output `report`.
#[salsa::tracked(returns(clone))]
pub fn scored(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Score)?;
    let thresholds = model.thresholds(db);
    let stack = need(&target, super::stack(db, model))?;
    let mut recipe = Recipe::new("score", mica_score::VERSION)
        .param("thresholds", format!("{thresholds:?}"))
        .param("vocabulary", stack.facts.vocab)
        .param("width", stack.facts.hidden);
    if let Some(layers) = model.layers(db) {
        recipe = recipe.param("first layers only", layers);
    }
    let mut runs: Vec<Vec<Vec<Outcome>>> = Vec::new();
    for (name, routing) in
        [("reference", None), ("free", Some(Routing::Free)), ("forced", Some(Routing::Forced))]
    {
        let mut parts = Vec::new();
        for (p, part) in facts.parts.iter().enumerate() {
            let mut blocks = Vec::new();
            for b in 0..facts.blocks {
                let one = match routing {
                    None => referenced(db, model, p, b),
                    Some(r) => simulated(db, model, p, r, b),
                };
                let one = need(&target, one)?;
                for o in one
                    .outputs()
                    .iter()
                    .filter(|o| !o.name.starts_with("state.") && !o.name.starts_with("rows."))
                {
                    recipe = recipe.input(&format!("{} of {name} {part} block {b}", o.name), o.digest);
                }
                if routing.is_some() {
                    // the counters are in the note
                    recipe =
                        recipe.input(&format!("note of {name} {part} block {b}"), blake3::hash(one.note()));
                }
                blocks.push(one);
            }
            parts.push(blocks);
        }
        runs.push(parts);
    }
    let kernel = need(&target, whole(db, model))?;
    for o in kernel.outputs() {
        recipe = recipe.input(&format!("{} of the kernel", o.name), o.digest);
    }
    recipe = recipe.input("note of the kernel", blake3::hash(kernel.note()));
    let tallies = Tallies::of(db, model, facts.parts.iter().map(String::as_str).enumerate(), &target)?;
    recipe = tallies.named(recipe);
    let ids = need(&target, source::token_ids(db, model))?;
    recipe = recipe.input("ids", ids.digest).input("next ids", ids.next_digest);
    let label = need(&target, source::capture_label(db, model))?;
    recipe = recipe.param("captures", format!("{label:?}"));
    let oracle = model.oracle(db);
    if oracle == Source::SelfMade {
        recipe = recipe.param("judged by", "our own captures");
    }
    let captured = need(&target, source::captured_chain(db, model))?;
    for (name, digest) in captured.named() {
        recipe = recipe.input(&format!("captured {name}"), digest);
    }
    let delivery = model.delivery(db);
    if let Some(t) = delivery.tokenizer(db) {
        recipe = recipe.input("tokenizer", t);
    }
    let env = db.env();
    let open = db.delivery(delivery.name(db));
    let tokens = model.run(db).tokens as usize;
    let request = Request { target: &target, recipe, memory: 256 << 20, bytes_in: 0 };
    action(env, request, || {
        let chains: Vec<Table> = runs.iter().map(|r| Table::read(env, &facts, r)).collect::<Body<_>>()?;
        let router: Vec<Vec<f64>> = runs[0][1..facts.parts.len() - 1]
            .iter()
            .map(|blocks| joined(env, blocks, "router_logits").map(|b| floats(&b)))
            .collect::<Body<_>>()?;
        let captured = captured.read(tokens)?;
        let mut counters = Counters::default();
        let mut count = |o: &Outcome| -> Body<()> {
            let c = Note::of(o)?.counters;
            counters.saturations += c.saturations;
            counters.f16_overflows += c.f16_overflows;
            counters.non_finite += c.non_finite;
            Ok(())
        };
        // both runs share the embedding, which is counted once
        runs[1].iter().chain(&runs[2][1..]).flatten().try_for_each(&mut count)?;
        count(&kernel)?;
        let inputs = DecodeInputs {
            tokens,
            hidden: stack.facts.hidden as usize,
            vocab: stack.facts.vocab as usize,
            input_ids: &ids.ids,
            next_ids: &ids.next,
            stack: if model.layers(db).is_some() { Stack::Shorter } else { Stack::Whole },
            reference: chains[0].chain(),
            free: chains[1].chain(),
            forced: chains[2].chain(),
            reference_router: router.iter().map(Vec::as_slice).collect(),
            branches: Vec::new(),
            oracle,
            capture: captured.as_ref().map(source::CapturedTables::chain).filter(has_any),
            capture_label: label,
            counters,
            non_finite_weights: tallies.read(env)?,
            whole_kernel: Some(compare(env, &runs[1], &kernel)?),
        };
        let decode = score_decode(&inputs, thresholds).map_err(BodyError::stage)?;
        let report = described(decode, &ids.ids, open.tokenizer.as_deref())?;
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &report))?;
        Ok(made)
    })
}

fn has_any(c: &CaptureChain<'_>) -> bool {
    c.normed.is_some() || c.logits.is_some() || c.layers.iter().any(Option::is_some)
}

/// The label where there are no captures: it still decides which gates are asked for.
pub fn no_capture(same_weights: bool) -> CaptureLabel {
    CaptureLabel { source: Source::Published, precision: mica_score::decode::Precision::F64, same_weights }
}

/// The blocks of one output, joined.
fn joined(env: &Env, blocks: &[Outcome], name: &str) -> Body<Vec<u8>> {
    let mut all = Vec::new();
    for b in blocks {
        all.extend_from_slice(&output(env, b, name)?);
    }
    Ok(all)
}

/// One run as numbers.
struct Table {
    embed: Vec<f64>,
    layers: Vec<Vec<f64>>,
    normed: Vec<f64>,
    logits: Vec<f64>,
    routing: Vec<Vec<i64>>,
}

impl Table {
    fn read(env: &Env, facts: &Facts, run: &[Vec<Outcome>]) -> Body<Table> {
        let numbers = |blocks: &[Outcome], name: &str| -> Body<Vec<f64>> {
            let bytes = joined(env, blocks, name)?;
            // references have no note: theirs are float64 as they stand
            match blocks.iter().find(|b| !b.note().is_empty()) {
                None => Ok(floats(&bytes)),
                Some(b) => {
                    let note: Note = mica_cache::decode(NOTE, b.note()).map_err(BodyError::environment)?;
                    let shape = note
                        .shapes
                        .get(name)
                        .ok_or_else(|| BodyError::Stage(format!("a simulation has no output {name}")))?;
                    Ok(values(&bytes, shape))
                }
            }
        };
        let head = facts.parts.len() - 1;
        let mut table = Table {
            embed: numbers(&run[0], "hidden")?,
            layers: Vec::new(),
            normed: numbers(&run[head], "normed")?,
            logits: numbers(&run[head], "logits")?,
            routing: Vec::new(),
        };
        for blocks in &run[1..head] {
            table.layers.push(numbers(blocks, "hidden")?);
            table.routing.push(if blocks.iter().any(|b| !b.note().is_empty()) {
                numbers(blocks, "expert_ids")?.into_iter().map(|id| id as i64).collect()
            } else {
                integers(&joined(env, blocks, "expert_ids")?)
            });
        }
        Ok(table)
    }

    fn chain(&self) -> Chain<'_> {
        Chain {
            embed: &self.embed,
            layers: self.layers.iter().map(Vec::as_slice).collect(),
            normed: &self.normed,
            logits: &self.logits,
            routing: self.routing.iter().map(Vec::as_slice).collect(),
        }
    }
}

/// The bits of the whole kernel against the segments', over the tokens that both ran: last residual,
/// post-norm hidden and logits, and the states that both leave where both ran all tokens.
fn compare(env: &Env, free: &[Vec<Outcome>], kernel: &Outcome) -> Body<Equality> {
    let head = free.len() - 1;
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    let mut all_tokens = true;
    for (name, part) in [("hidden", head - 1), ("normed", head), ("logits", head)] {
        let of_kernel = output(env, kernel, name)?;
        let of_segments = joined(env, &free[part], name)?;
        let Some(same_tokens) = of_segments.get(..of_kernel.len()) else {
            return Err(BodyError::Stage(format!("the kernel's {name} is longer than the segments'")));
        };
        all_tokens &= same_tokens.len() == of_segments.len();
        whole.extend_from_slice(&of_kernel);
        parts.extend_from_slice(same_tokens);
    }
    for o in kernel.outputs().iter().filter(|o| all_tokens && o.name.starts_with("state.")) {
        let of_kernel = output(env, kernel, &o.name)?;
        let mut of_segments = Vec::new();
        for last in free.iter().filter_map(|blocks| blocks.last()).filter(|b| b.find(&o.name).is_some()) {
            // link places the parts' shares of an edge at multiples of the device's alignment
            of_segments.resize(of_segments.len().next_multiple_of(ALIGN as usize), 0);
            of_segments.extend_from_slice(&output(env, last, &o.name)?);
        }
        of_segments.resize(of_kernel.len(), 0);
        whole.extend_from_slice(&of_kernel);
        parts.append(&mut of_segments);
    }
    Equality::of(&whole, &parts).map_err(BodyError::stage)
}

/// The report with the texts of every id in it.
fn described(decode: DecodeReport, prompt: &[i64], tokenizer: Option<&std::path::Path>) -> Body<Report> {
    let mut report = Report { decode, prompt: None, tokens: BTreeMap::new() };
    let Some(path) = tokenizer else { return Ok(report) };
    let tokenizer = crate::delivery::tokenizer(path)?;
    let text = |ids: &[i64]| {
        let ids: Vec<u32> = ids.iter().filter_map(|&i| u32::try_from(i).ok()).collect();
        tokenizer.decode(&ids).ok()
    };
    report.prompt = text(prompt);
    let named = report.decode.tokens.iter().flat_map(|t| std::iter::once(t.id).chain(t.predicted));
    let named: BTreeSet<i64> = named.collect();
    report.tokens = named.into_iter().filter_map(|id| text(&[id]).map(|t| (id, t))).collect();
    Ok(report)
}
