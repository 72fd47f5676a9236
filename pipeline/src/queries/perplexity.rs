//! A held-out text through the whole kernel: its ids, and the score of what device and reference say of it.

use super::not_finite::Tallies;
use super::reference::floats;
use super::segment::Note;
use super::validation::KIND;
use super::{Db, ModelInput, Result, need, output, referenced, retriable, source, target, whole};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::delivery::tokenizer as tokenizer_of;
use crate::error::NodeError;
use crate::graph::Job;
use crate::host::values;
use mica_cache::{Recipe, encode};
use mica_score::decode::Counters;
use mica_score::validation::{Evidence, Item, Kind, Layer, Published, What, judge};

/// The ids of a model's held-out text, as many as are scored and the one that follows: output `ids`, int64.
#[salsa::tracked(returns(clone))]
pub fn tokenized(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (_, target) = target(db, model, Job::Tokenize)?;
    let refused = |message: String| NodeError::Stage { target: target.clone(), message };
    let (text, _) =
        model.text(db).as_ref().ok_or_else(|| refused("the model has no held-out text".into()))?;
    let delivery = model.delivery(db);
    let tokenizer = delivery.tokenizer(db).ok_or_else(|| {
        let name = delivery.name(db);
        refused(format!(
            "the delivery {name} has no tokenizer; name one with `tokenizer` in [delivery.{name}]"
        ))
    })?;
    let tokens = model.run(db).tokens as usize;
    let recipe = Recipe::new("tokenize", 1)
        .param("tokens", tokens)
        .input("text", blake3::hash(text.text.as_bytes()))
        .input("tokenizer", tokenizer);
    let env = db.env();
    let open = db.delivery(delivery.name(db));
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: text.text.len() as u64 };
    action(env, request, || {
        let path = open.tokenizer.as_deref().unwrap_or_else(|| std::path::Path::new("tokenizer.json"));
        let mut ids = tokenizer_of(path)?.encode(&text.text).map_err(BodyError::stage)?;
        if ids.len() <= tokens {
            return Err(BodyError::Stage(format!(
                "{} has {} tokens, and {tokens} positions need one more; say fewer with `perplexity.tokens`",
                text.name,
                ids.len()
            )));
        }
        ids.truncate(tokens + 1);
        let ids: Vec<u8> = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
        let mut made = Produced::default();
        made.put(env, "ids", &ids)?;
        Ok(made)
    })
}

/// The gates of a held-out text: output `report`.
#[salsa::tracked(returns(clone))]
pub fn surprised(db: &dyn Db, model: ModelInput) -> Result<Outcome> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Perplexity)?;
    let Some((text, base)) = model.text(db) else {
        return Err(NodeError::Stage { target, message: "the model has no held-out text".into() });
    };
    let stack = need(&target, super::stack(db, *base))?;
    let vocab = stack.facts.vocab as usize;
    let tokens = model.run(db).tokens as usize;
    let setting = format!("{}, {tokens} tokens", text.name);
    let mut recipe = Recipe::new("score", mica_score::VERSION)
        .param("validation", format!("{:?}", Kind::Perplexity))
        .param("setting", &setting)
        .param("bounds", text.bounds.of(Kind::Perplexity))
        .param("vocabulary", vocab);
    let head = facts.parts.len() - 1;
    let mut reference = Vec::new();
    for b in 0..facts.blocks {
        let one = need(&target, referenced(db, model, head, b))?;
        recipe = recipe.input(&format!("logits of the reference, block {b}"), one.digest("logits"));
        reference.push(one);
    }
    let tallies = Tallies::of(db, model, facts.parts.iter().map(String::as_str).enumerate(), &target)?;
    recipe = tallies.named(recipe);
    let kernel = need(&target, whole(db, model))?;
    let ids = need(&target, source::token_ids(db, model))?;
    recipe = recipe
        .input("logits of the kernel", kernel.digest("logits"))
        .input("note of the kernel", blake3::hash(kernel.note()))
        .input("next ids", ids.next_digest);
    let env = db.env();
    let request = Request { target: &target, recipe, memory: tokens as u64 * vocab as u64 * 32, bytes_in: 0 };
    action(env, request, || {
        let mut float64 = Vec::with_capacity(tokens * vocab);
        for block in &reference {
            float64.extend(floats(&output(env, block, "logits")?));
        }
        let note = Note::of(&kernel)?;
        let shape =
            note.shapes.get("logits").ok_or_else(|| BodyError::Stage("the kernel gives no logits".into()))?;
        let device = values(&output(env, &kernel, "logits")?, shape);
        let logits = Item { what: What::Output, width: vocab, device, evaluator: float64, published: None };
        let evidence = Evidence {
            setting,
            layers: vec![Layer { index: head, full: false, items: vec![logits], choices: None }],
            published: Published::Other,
            counters: Some(Counters {
                saturations: note.counters.saturations,
                f16_overflows: note.counters.f16_overflows,
                non_finite: note.counters.non_finite,
            }),
            non_finite_weights: tallies.read(env)?,
            twice: Vec::new(),
            next_ids: ids.next.clone(),
            residual_unit: 1.0,
        };
        let report = judge(Kind::Perplexity, &text.bounds, &evidence).map_err(BodyError::stage)?;
        let mut made = Produced::default();
        made.put(env, "report", &encode(KIND, &report))?;
        Ok(made)
    })
}
