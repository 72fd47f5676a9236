//! From a delivery to what the device is loaded with: packed, quantized, compiled.

use mica::delivery::OpenDelivery;
use mica::workspace::{Machine, Workspace};
use mica_compile::Options;
use mica_device::object::Object;
use mica_device::segment::SegmentPlan;
use mica_digest::Pieces;
use mica_fetch::TensorEntry;
use mica_models::hir::{Function, Op};
use mica_models::stack::{Part as Place, Stack};
use mica_pack::{Contents, Digest, Dtype, Names, PackedLayer, TensorInfo, Virtual};
use mica_quantize::{Recipe, TensorBytes};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// A model of a workspace, its delivery open.
pub struct Source {
    /// The delivery.
    pub delivery: OpenDelivery,
    /// The published model, described.
    pub stack: Stack,
    /// Where everything runs.
    pub machine: Machine,
    /// What was captured, and how it is called.
    pub captures: mica::workspace::Captures,
    recipe: Recipe,
    capacity: u64,
}

impl Source {
    /// Opens a model of the workspace in a folder.
    ///
    /// # Panics
    /// If anything of it cannot be read or described.
    pub fn open(dir: &Path, model: &str) -> Source {
        let workspace = Workspace::load(dir, None).unwrap_or_else(|e| panic!("{e}"));
        let model = &workspace.config.model[model];
        let declared = &workspace.config.delivery[&model.delivery];
        let delivery =
            OpenDelivery::open(&workspace, &model.delivery, declared).unwrap_or_else(|e| panic!("{e}"));
        let machine =
            workspace.config.device[&model.device].machine(&model.device).unwrap_or_else(|e| panic!("{e}"));
        Source {
            stack: mica_models::describe(&model.description, &delivery.config.text)
                .unwrap_or_else(|e| panic!("{e}")),
            capacity: model.capacity,
            captures: declared.captures.clone().expect("a model with captures"),
            recipe: workspace.config.recipe[&model.recipe].clone(),
            delivery,
            machine,
        }
    }
}

/// A part of the model, ready to run.
#[derive(Clone)]
pub struct Part {
    /// Which.
    pub place: Place,
    /// What it computes.
    pub function: Function,
    /// Where each weight lies in `constants`.
    pub plan: SegmentPlan,
    /// Its constant segment.
    pub constants: Vec<u8>,
    /// Its code.
    pub object: Object,
}

/// All parts in order.
#[derive(Clone)]
pub struct Ported {
    /// Parts.
    pub parts: Vec<Part>,
}

impl Ported {
    /// Packs, quantizes and compiles the delivery's weights for the functions of `stack`.
    ///
    /// # Panics
    /// If a stage refuses.
    pub fn of(source: &Source, stack: &Stack) -> Ported {
        let part = |place: Place| {
            let function = unrounded(stack.function(place).unwrap_or_else(|e| panic!("{e}")));
            let resolved = mica_pack::resolve(&Named(source), stack, place).unwrap_or_else(|e| panic!("{e}"));
            let mut held = Held { source, places: HashMap::new(), bytes: HashMap::new() };
            let packed = mica_pack::pack(&resolved, &mut held).unwrap_or_else(|e| panic!("{e}"));
            held.places.extend(mica_pack::places(&resolved, &packed));
            let (plan, constants) = quantized(&packed, &source.recipe, &held);
            let object = compiled(source, &packed.kind, &function, &plan, 1);
            Part { place, function, plan, constants, object }
        };
        Ported { parts: stack.parts().into_iter().map(part).collect() }
    }

    /// The same, compiled for calls of so many tokens.
    ///
    /// # Panics
    /// If the compiler refuses.
    pub fn for_calls_of(&self, source: &Source, tokens: u64) -> Ported {
        let of = |p: &Part| Part {
            object: compiled(source, &p.object.kind, &p.function, &p.plan, tokens),
            ..p.clone()
        };
        Ported { parts: self.parts.iter().map(of).collect() }
    }
}

/// The function as a float64 run of the published model computes it: nothing is rounded where it is stored.
fn unrounded(function: &Function) -> Function {
    let mut function = function.clone();
    for node in &mut function.nodes {
        if let Op::Round { dtype } = node.op {
            node.op = Op::Cast { dtype };
        }
    }
    function
}

/// Everything that a part computes leaves the device, but what only the reference has an edge for.
fn compiled(source: &Source, kind: &str, function: &Function, plan: &SegmentPlan, tokens: u64) -> Object {
    let exports =
        function.results.iter().map(|(name, _)| name.clone()).filter(|name| name != "router_logits");
    let (frac, capacity, exports) = (source.machine.frac, source.capacity, exports.collect());
    let options = Options { frac, capacity, exports, tokens };
    mica_compile::compile(kind, function, plan, &source.machine.product, &options)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn quantized(packed: &PackedLayer, recipe: &Recipe, held: &Held<'_>) -> (SegmentPlan, Vec<u8>) {
    let plan = mica_quantize::plan(packed, recipe).unwrap_or_else(|e| panic!("{e}"));
    let made = mica_quantize::quantize_in_memory(packed, &plan, held, false);
    let (constants, _) = made.unwrap_or_else(|e| panic!("{e}"));
    (plan, constants)
}

/// The delivery's names.
struct Named<'a>(&'a Source);

impl Names for Named<'_> {
    fn find(&self, name: &str) -> Option<TensorInfo> {
        let entry = self.0.delivery.index.find(name)?;
        Some(TensorInfo { dtype: entry.dtype, shape: entry.shape.clone() })
    }

    fn all(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.0.delivery.index.tensors.keys().map(String::as_str))
    }
}

/// A part's tensors by digest, all in memory.
struct Held<'a> {
    source: &'a Source,
    places: HashMap<Digest, mica_pack::Place>,
    /// What packing stored.
    bytes: HashMap<Digest, Vec<u8>>,
}

impl Contents for Held<'_> {
    type Error = mica_fetch::FetchError;

    fn digest(&mut self, tensor: &Virtual) -> Result<Digest, Self::Error> {
        let bytes = Contents::bytes(self, tensor)?.into_owned();
        self.store(tensor.dtype, &tensor.shape, bytes)
    }

    fn bytes(&self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Self::Error> {
        let delivery = &self.source.delivery;
        let mut all = Vec::new();
        for piece in &tensor.pieces {
            let entry: &TensorEntry = delivery.index.get(piece)?;
            all.extend(entry.chunks(&delivery.files)?.concat());
        }
        Ok(Cow::Owned(all))
    }

    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> Result<Pieces, Self::Error> {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        Ok(mica_fetch::tensor_pieces(dtype, shape, bytes))
    }

    fn store(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Result<Digest, Self::Error> {
        let digest = mica_fetch::tensor_digest(dtype, shape, std::iter::once(bytes.as_slice()));
        self.bytes.insert(digest, bytes);
        Ok(digest)
    }
}

impl TensorBytes for Held<'_> {
    fn bytes(&self, source: &mica_pack::Source, range: Range<u64>) -> std::io::Result<Cow<'_, [u8]>> {
        let within = |range: Range<u64>| range.start as usize..range.end as usize;
        if let Some(all) = self.bytes.get(&source.digest) {
            return Ok(Cow::Borrowed(&all[within(range)]));
        }
        let place = self.places.get(&source.digest).ok_or_else(|| std::io::Error::other("no such tensor"))?;
        let all = Contents::bytes(self, place.tensor()).map_err(std::io::Error::other)?;
        place.read(range, |range| Ok(Cow::Owned(all[within(range)].to_vec())))
    }
}
