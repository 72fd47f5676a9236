//! What everything else starts from: the described model, which tensor plays which role, tensor
//! digests, the plan of a part's constants, and what was captured.

use super::reference::integers;
use super::score::no_capture;
use super::view::{Delivered, resolved, stack};
use super::{Db, ModelInput, Result, blob, retriable, target, tokenized};
use crate::action::{BodyError, Produced, Request, action};
use crate::delivery::OpenDelivery;
use crate::error::NodeError;
use crate::graph::{Facts, Job};
use mica_cache::{Digest, Recipe, encode};
use mica_device::segment::{SegmentPlan, Storage};
use mica_fetch::{Array, CaptureSet, DeliveryFiles, Extent, FetchError, TensorEntry, TensorIndex};
use mica_models::{Part, Stack};
use mica_pack::{Resolved, Virtual};
use mica_quantize::Overruled;
use mica_score::decode::{CaptureChain, CaptureLabel};
use std::borrow::Cow;
use std::sync::Arc;

/// A stage's refusal that belongs to a delivery as a whole.
pub(super) fn refused(db: &dyn Db, model: ModelInput, part: &str, e: impl std::fmt::Display) -> NodeError {
    NodeError::Stage { target: format!("fetch:{}.{part}", model.name(db)), message: e.to_string() }
}

fn fetch_error(target: &str, e: &FetchError) -> NodeError {
    told(target, e, e.to_string())
}

fn told(target: &str, e: &FetchError, message: String) -> NodeError {
    let target = target.to_string();
    if e.is_environment() {
        NodeError::Environment { target, message }
    } else {
        NodeError::Stage { target, message }
    }
}

/// What decides a model's nodes.
#[salsa::tracked(returns(clone))]
pub fn facts(db: &dyn Db, model: ModelInput) -> Result<Arc<Facts>> {
    if let Some(trial) = model.trial(db) {
        return Ok(trial.facts.clone());
    }
    if let Some((_, base)) = model.text(db) {
        let of = facts(db, *base)?;
        return Ok(Arc::new(Facts {
            model: model.name(db).clone(),
            blocks: model.run(db).blocks(),
            text_of: Some(of.model.clone()),
            ..Facts::clone(&of)
        }));
    }
    let stack = stack(db, model)?;
    let parts = stack.parts();
    let mut kinds = vec!["embed".to_string()];
    kinds.extend(stack.kinds.iter().map(|k| k.name.clone()));
    kinds.push("head".into());
    let kind_of = parts.iter().map(|p| match p {
        Part::Embed => 0,
        Part::Layer(i) => 1 + stack.layers[*i],
        Part::Head => kinds.len() - 1,
    });
    let label = capture_label(db, model);
    let layers = stack.layers.len();
    Ok(Arc::new(Facts {
        model: model.name(db).clone(),
        kind_of: kind_of.collect(),
        parts: parts.iter().map(ToString::to_string).collect(),
        kinds,
        blocks: model.run(db).blocks(),
        per_call: model.run(db).per_call,
        captured_routing: label
            .is_ok_and(|l| l.is_tight() && l.source == mica_score::decode::Source::Published)
            && (0..layers).all(|i| routing_entry(db, model, i).is_some()),
        text_of: None,
        trial: None,
    }))
}

/// The part of a number.
pub(super) fn part_of(stack: &Stack, part: usize) -> Part {
    stack.parts()[part]
}

/// Tensors of the delivery that no part reads and that the model does not knowingly ignore.
#[salsa::tracked(returns(clone))]
pub fn unread(db: &dyn Db, model: ModelInput) -> Result<Arc<Vec<String>>> {
    let stack = stack(db, model)?;
    let parts = (0..stack.parts().len()).map(|p| resolved(db, model, p));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let parts: Vec<&Resolved> = parts.iter().map(|r| &**r).collect();
    Ok(Arc::new(mica_pack::unread(&Delivered::of(db, model.delivery(db)), &stack.naming, parts)))
}

/// Digests of a part's tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Role and kind of tensor, the tensor, its digest.
    tensors: Vec<(String, TensorEntry, Virtual, Digest)>,
}

impl Fetched {
    /// Digests by role.
    pub fn named(&self) -> impl Iterator<Item = (&str, Digest)> {
        self.tensors.iter().map(|(n, _, _, d)| (n.as_str(), *d))
    }
    /// The digest of a tensor that was resolved.
    pub fn of(&self, v: &Virtual) -> Option<Digest> {
        self.tensors.iter().find(|t| t.2 == *v).map(|t| t.3)
    }
    /// Where a tensor that was resolved lies.
    pub fn place(&self, v: &Virtual) -> Option<&TensorEntry> {
        self.tensors.iter().find(|t| t.2 == *v).map(|t| &t.1)
    }
    /// Fails where a file of one of them is no longer what it was when its digests were taken.
    pub fn unchanged(&self, open: &OpenDelivery) -> std::result::Result<(), BodyError> {
        self.tensors.iter().try_for_each(|t| open.unchanged(&t.1)).map_err(BodyError::environment)
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.1.bytes()).sum()
    }
}

/// A resolved tensor's place: its pieces' extents, one after the other.
pub fn entry(index: &TensorIndex, v: &Virtual) -> std::result::Result<TensorEntry, FetchError> {
    let mut extents: Vec<Extent> = Vec::new();
    for piece in &v.pieces {
        extents.extend(index.get(piece)?.extents.iter().cloned());
    }
    Ok(TensorEntry { name: v.pieces.join(" "), dtype: v.dtype, shape: v.shape.clone(), extents })
}

/// The digests of a part's tensors, each read only where no stamp vouches for it.
#[salsa::tracked(returns(clone))]
pub fn fetched(db: &dyn Db, model: ModelInput, part: usize) -> Result<Arc<Fetched>> {
    retriable(db);
    let (facts, target) = target(db, model, Job::Fetch(part))?;
    if part == 0 && model.trial(db).is_none() {
        // what nobody reads is reported once, before anything is built from the rest
        let unread = unread(db, model)?;
        if let Some(first) = unread.first() {
            let more = unread.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let message = format!(
                "the delivery has {first}{more}, which the model does not read; remove what is not the model's, or describe it"
            );
            return Err(NodeError::Stage { target, message });
        }
    }
    let resolved = resolved(db, model, part)?;
    let input = model.delivery(db);
    // the stamps are what the digests rest on
    let (index, _) = (input.index(db), input.stamps(db));
    let open = db.delivery(input.name(db));
    let env = db.env();
    let mut tensors = Vec::new();
    let mut read = 0;
    let mut recipe = Recipe::new("fetch", 1).param("part", &facts.parts[part]);
    for role in &resolved.roles {
        for (kind, v) in role.tensors() {
            let e = entry(index, v).map_err(|e| fetch_error(&target, &e))?;
            let hashed = open.digest(&env.stamps, &e).map_err(|e| fetch_error(&target, &e))?;
            read += hashed.read;
            let name = match kind {
                "data" => role.role.clone(),
                kind => format!("{} {kind}", role.role),
            };
            recipe = recipe.input(&name, hashed.digest);
            tensors.push((name, e, v.clone(), hashed.digest));
        }
    }
    // the record says that this content has been seen; reading it again to be sure is not an action. In a dry
    // run the reading is what it takes to know.
    let request = Request { target: &target, recipe, memory: 0, bytes_in: read };
    match action(env, request, || Ok(Produced::default())) {
        Ok(_) | Err(NodeError::WouldRun { .. }) => Ok(Arc::new(Fetched { tensors })),
        Err(e) => Err(e),
    }
}

/// The bytes of a resolved tensor: lent where they lie in one piece. They count only if the file is still what it
/// was when they have been used ([`OpenDelivery::unchanged`]).
pub fn bytes<'a>(open: &'a OpenDelivery, v: &Virtual) -> std::result::Result<Cow<'a, [u8]>, BodyError> {
    let of = |e: FetchError| if e.is_environment() { BodyError::environment(e) } else { BodyError::stage(e) };
    let e = entry(&open.index, v).map_err(of)?;
    Ok(match e.chunks(&open.files).map_err(of)?[..] {
        [whole] => Cow::Borrowed(whole),
        ref several => Cow::Owned(several.concat()),
    })
}

/// A part's constants before any value is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: SegmentPlan,
    /// Its digest.
    pub digest: Digest,
    /// Whether a float tensor becomes integers here.
    pub quantizes: bool,
    /// What of the recipe is not done, since the delivery is quantized otherwise.
    pub overruled: Vec<Overruled>,
}

/// The plan of a part's constant segment, from shapes, dtypes and the recipe.
#[salsa::tracked(returns(clone))]
pub fn planned(db: &dyn Db, model: ModelInput, part: usize) -> Result<Arc<Planned>> {
    let (stack, resolved) = (stack(db, model)?, resolved(db, model, part)?);
    let shapes = resolved.outline();
    let plan = mica_quantize::plan(&shapes, model.recipe(db)).map_err(|e| {
        // the facts of the model rest on this plan, so the name is made without them
        let target = format!("quantize:{}.{}", model.name(db), part_of(&stack, part));
        NodeError::Stage { target, message: e.to_string() }
    })?;
    let integer = |s: &Storage| match s {
        Storage::Matrix(f) | Storage::Experts(f) => f.scaling.is_some(),
        Storage::Table { scaling, .. } => scaling.is_some(),
        Storage::Vector(_) => false,
    };
    let quantizes = shapes
        .tensors
        .iter()
        .any(|t| t.scale.is_none() && plan.entry(&t.role).is_some_and(|e| integer(&e.storage)));
    let digest = blake3::hash(&encode("segment-plan", &plan));
    let overruled = mica_quantize::overruled(&shapes, model.recipe(db));
    Ok(Arc::new(Planned { plan, digest, quantizes, overruled }))
}

/// The prompt's ids and those that follow each position.
#[derive(Clone, Debug, PartialEq)]
pub struct Ids {
    /// `[tokens]`.
    pub ids: Vec<i64>,
    /// At most `[tokens]`.
    pub next: Vec<i64>,
    /// Digest of the ids.
    pub digest: Digest,
    /// Digest of the next ids.
    pub next_digest: Digest,
}

impl Ids {
    /// Digest of some of the ids, so that a block depends on its own alone.
    pub fn part(&self, first: u64, tokens: u64) -> Digest {
        ids_digest(&self.ids[first as usize..(first + tokens) as usize])
    }
}

fn ids_digest(ids: &[i64]) -> Digest {
    blake3::hash(&ids.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>())
}

/// The teacher-forced ids of a decode run.
#[salsa::tracked(returns(clone))]
pub fn token_ids(db: &dyn Db, model: ModelInput) -> Result<Arc<Ids>> {
    if model.text(db).is_some() {
        // the blob is read here, and made again under the same digest where it was lost
        retriable(db);
        let made = tokenized(db, model)?;
        let lost = |e: BodyError| match e {
            BodyError::Lost(blob) => {
                NodeError::Lost { target: format!("fetch:{}.ids", model.name(db)), blob: blob.to_string() }
            }
            e => refused(db, model, "ids", format!("{e:?}")),
        };
        let mut ids = integers(&blob(db.env(), made.digest("ids")).map_err(lost)?);
        let next = ids.split_off(1.min(ids.len()));
        ids.extend(&next[..next.len().saturating_sub(1)]);
        return Ok(Arc::new(Ids { digest: ids_digest(&ids), next_digest: ids_digest(&next), ids, next }));
    }
    let names = match model.captures(db) {
        Some(c) => &c.names,
        None => {
            return Err(refused(
                db,
                model,
                "captures",
                "the delivery names no captures, so there are no tokens to decode",
            ));
        }
    };
    let open = db.delivery(model.delivery(db).name(db));
    let tokens = model.run(db).tokens as usize;
    let target = format!("fetch:{}.captures", model.name(db));
    let read = |name: &str| match open.capture_set() {
        Some(set) if set.find(name).is_some() => {
            set.get_i64(name).map(|a| a.values).map_err(|e| told(&target, &e, open.of_captures(&e)))
        }
        _ => Ok(Vec::new()),
    };
    let vocab = stack(db, model)?.facts.vocab;
    let prompt = |name: &str| {
        let mut ids = read(name)?;
        ids.truncate(tokens);
        match ids.iter().position(|&id| !u64::try_from(id).is_ok_and(|id| id < vocab)) {
            None => Ok(ids),
            Some(at) => {
                let file = open.listing.captures.first().map(|&f| open.files.path(f).display().to_string());
                let (file, id) = (file.unwrap_or_default(), ids[at]);
                let why = format!(
                    "{file}: {name}: id {id} at position {at} is outside 0..{vocab}, the model's vocabulary"
                );
                Err(refused(db, model, "captures", why))
            }
        }
    };
    let ids = prompt(names.input_ids.as_str())?;
    let next = prompt(names.next_ids.as_str())?;
    Ok(Arc::new(Ids { digest: ids_digest(&ids), next_digest: ids_digest(&next), ids, next }))
}

/// What the captures are: who made them, in what precision, of which weights.
#[salsa::tracked(returns(clone))]
pub fn capture_label(db: &dyn Db, model: ModelInput) -> Result<CaptureLabel> {
    let parts = stack(db, model)?.parts().len();
    let mut same_weights = true;
    for p in 0..parts {
        same_weights &= !planned(db, model, p)?.quantizes;
    }
    Ok(match model.captures(db) {
        Some(c) => CaptureLabel { source: c.source, precision: c.precision, same_weights },
        None => no_capture(same_weights),
    })
}

/// One captured tensor.
pub struct Captured<'a> {
    open: &'a OpenDelivery,
    name: String,
    /// Its digest.
    pub digest: Digest,
}

impl Captured<'_> {
    fn set(&self) -> std::result::Result<CaptureSet<'_>, BodyError> {
        self.open.capture_set().ok_or_else(|| BodyError::Stage("the captures are gone".into()))
    }
    fn failed(&self, e: &FetchError) -> BodyError {
        let message = self.open.of_captures(e);
        if e.is_environment() { BodyError::Environment(message) } else { BodyError::Stage(message) }
    }
    /// Its integers.
    pub fn integers(&self) -> std::result::Result<Array<i64>, BodyError> {
        self.set()?.get_i64(&self.name).map_err(|e| self.failed(&e))
    }
    /// Its floats, widened.
    pub fn floats(&self) -> std::result::Result<Array<f64>, BodyError> {
        self.set()?.get_f64(&self.name).map_err(|e| self.failed(&e))
    }
}

/// A captured tensor by its name, if there is one.
pub fn captured<'a>(db: &'a dyn Db, model: ModelInput, name: String) -> Result<Option<Captured<'a>>> {
    let input = model.delivery(db);
    // the stamps are what the digest rests on
    let (index, _) = (input.captures(db), input.stamps(db));
    let Some(entry) = index.as_ref().and_then(|i| i.find(&name)) else { return Ok(None) };
    let open = db.delivery(input.name(db));
    let target = format!("fetch:{}.captures", model.name(db));
    let hashed = open.digest(&db.env().stamps, entry).map_err(|e| fetch_error(&target, &e))?;
    Ok(Some(Captured { open, name, digest: hashed.digest }))
}

fn routing_entry(db: &dyn Db, model: ModelInput, layer: usize) -> Option<String> {
    let name = model.captures(db).as_ref()?.names.topk_indices.of(layer);
    let index = model.delivery(db).captures(db).as_ref()?;
    index.find(&name).map(|_| name)
}

/// The captured experts of a layer. Asked only where the facts say that they are there.
pub fn captured_routing<'a>(db: &'a dyn Db, model: ModelInput, layer: usize) -> Result<Captured<'a>> {
    let lacking = || refused(db, model, "captures", format!("no captured routing for layer {layer}"));
    let name = routing_entry(db, model, layer).ok_or_else(lacking)?;
    captured(db, model, name)?.ok_or_else(lacking)
}

/// Everything captured that a score compares with.
pub struct CapturedRun<'a> {
    embed: Option<Captured<'a>>,
    layers: Vec<Option<Captured<'a>>>,
    normed: Option<Captured<'a>>,
    logits: Option<Captured<'a>>,
    routing: Vec<Option<Captured<'a>>>,
}

/// The same as numbers.
pub struct CapturedTables {
    embed: Option<Vec<f64>>,
    layers: Vec<Option<Vec<f64>>>,
    normed: Option<Vec<f64>>,
    logits: Option<Vec<f64>>,
    routing: Vec<Option<Vec<i64>>>,
}

/// What was captured of a decode run.
pub fn captured_chain<'a>(db: &'a dyn Db, model: ModelInput) -> Result<CapturedRun<'a>> {
    let Some(facts) = model.captures(db) else {
        return Ok(CapturedRun { embed: None, layers: vec![], normed: None, logits: None, routing: vec![] });
    };
    let n = &facts.names;
    let layers = stack(db, model)?.layers.len();
    let one = |name: &str| captured(db, model, name.to_string());
    Ok(CapturedRun {
        embed: one(n.embedding.as_str())?,
        layers: (0..layers).map(|i| one(&n.layer_output.of(i))).collect::<Result<_>>()?,
        normed: one(n.head_input.as_str())?,
        logits: one(n.logits.as_str())?,
        routing: (0..layers).map(|i| one(&n.topk_indices.of(i))).collect::<Result<_>>()?,
    })
}

impl CapturedRun<'_> {
    /// Names and digests of all of it.
    pub fn named(&self) -> Vec<(String, Digest)> {
        let single =
            [("embedding", &self.embed), ("post-norm hidden", &self.normed), ("logits", &self.logits)];
        let mut all: Vec<_> =
            single.iter().filter_map(|(n, c)| c.as_ref().map(|c| (n.to_string(), c.digest))).collect();
        for (what, list) in [("layer", &self.layers), ("routing", &self.routing)] {
            let some = list
                .iter()
                .enumerate()
                .filter_map(|(i, c)| c.as_ref().map(|c| (format!("{what} {i}"), c.digest)));
            all.extend(some);
        }
        all
    }

    /// Reads the first tokens of all of it; `None` where nothing was captured.
    pub fn read(&self, tokens: usize) -> std::result::Result<Option<CapturedTables>, BodyError> {
        fn cut<T: Clone>(a: Array<T>, tokens: usize) -> Vec<T> {
            let n = a.row_len() * tokens.min(a.shape.first().copied().unwrap_or(0));
            a.values[..n].to_vec()
        }
        let floats =
            |c: &Option<Captured<'_>>| c.as_ref().map(|c| c.floats().map(|a| cut(a, tokens))).transpose();
        let integers =
            |c: &Option<Captured<'_>>| c.as_ref().map(|c| c.integers().map(|a| cut(a, tokens))).transpose();
        if self.named().is_empty() {
            return Ok(None);
        }
        Ok(Some(CapturedTables {
            embed: floats(&self.embed)?,
            layers: self.layers.iter().map(floats).collect::<std::result::Result<_, _>>()?,
            normed: floats(&self.normed)?,
            logits: floats(&self.logits)?,
            routing: self.routing.iter().map(integers).collect::<std::result::Result<_, _>>()?,
        }))
    }
}

impl CapturedTables {
    /// As the score takes it.
    pub fn chain(&self) -> CaptureChain<'_> {
        CaptureChain {
            embed: self.embed.as_deref(),
            layers: self.layers.iter().map(Option::as_deref).collect(),
            normed: self.normed.as_deref(),
            logits: self.logits.as_deref(),
            routing: self.routing.iter().map(Option::as_deref).collect(),
        }
    }
}
