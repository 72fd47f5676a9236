//! Segments: one part of the model on the device, over one token block, teacher-forced.
//!
//! Layer-major order gives the same bits as the whole kernel, streams weights once a block, and lets a
//! changed layer run again only from itself on.

use super::{
    Db, ModelInput, Result, blob, compile, compiled, load, need, output, quantized, reference, retriable,
    source, target,
};
use crate::action::{BodyError, Outcome, Produced, Request, action};
use crate::env::Env;
use crate::graph::{Call, Routing, segment as segment_job};
use crate::host::{self, Called, Feed, Shape, Stopped};
use mica_cache::{Blob, Digest, Recipe, encode};
use mica_compile::Seams;
use mica_device::NUMERICS;
use mica_device::object::{Kernel, Object};
use mica_device::product::Product;
use mica_simulate::{Counters, Machine, Options, Program, explained};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The kind of a simulation's note.
pub const NOTE: &str = "simulation";

/// What a simulation tells beside its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Counted events.
    pub counters: Counters,
    /// How to read each output.
    pub shapes: BTreeMap<String, Shape>,
}

impl Note {
    /// The note of a simulation's outcome.
    pub fn of(outcome: &Outcome) -> std::result::Result<Note, BodyError> {
        mica_cache::decode(NOTE, outcome.note()).map_err(BodyError::environment)
    }
}

/// A part on the device over a block: its per-call outputs by name, `state.NAME` after the last call, and
/// `rows.NAME` appended to each cache.
#[salsa::tracked(returns(clone))]
pub fn simulated(
    db: &dyn Db,
    model: ModelInput,
    part: usize,
    routing: Routing,
    block: usize,
) -> Result<Outcome> {
    retriable(db);
    if part == 0 && routing == Routing::Forced {
        return simulated(db, model, part, Routing::Free, block);
    }
    let (facts, target) = target(db, model, segment_job(part, routing, block))?;
    let object = need(&target, compiled(db, model, part, Call::One))?.digest("object");
    let constants_digest = need(&target, quantized(db, model, part))?.digest("segment");
    let run = model.run(db);
    let (first, tokens) = run.span(block);
    let product = model.product(db);
    let mut recipe = Recipe::new("simulate", mica_simulate::VERSION)
        .numerics(NUMERICS)
        .param("first", first)
        .param("tokens", tokens)
        .param("l2", product.l2)
        .param("lrm", product.lrm())
        .param("constants", model.constants(db).text())
        .input("object", object)
        .input("constants", constants_digest);
    let below = match part {
        0 => None,
        _ => {
            let below = need(&target, simulated(db, model, part - 1, routing, block))?;
            recipe = recipe.input("hidden", below.digest("hidden"));
            Some(below)
        }
    };
    let ids = need(&target, source::token_ids(db, model))?;
    if part == 0 {
        recipe = recipe.input("ids", ids.part(first, tokens));
    }
    let is_layer = part > 0 && part + 1 < facts.parts.len();
    let mut earlier = Vec::new();
    for b in 0..block {
        let e = need(&target, simulated(db, model, part, routing, b))?;
        for o in e.outputs() {
            let state = o.name.starts_with("state.") && b + 1 == block;
            if state || o.name.starts_with("rows.") {
                recipe = recipe.input(&format!("{} of block {b}", o.name), o.digest);
            }
        }
        earlier.push(e);
    }
    let mut forced = None;
    if is_layer && routing == Routing::Forced {
        let f = need(&target, forced_ids(db, model, part, block, facts.captured_routing))?;
        recipe = recipe.input("forced ids", f.digest());
        forced = Some(f);
    }
    let env = db.env();
    let request = Request { target: &target, recipe, memory: 64 << 20, bytes_in: 0 };
    action(env, request, || {
        let object: Object = load(env, compile::KIND, object)?;
        let kernel = mica_compile::link_with(&[&object], product, Seams::Segment, model.constants(db))
            .map_err(BodyError::stage)?;
        let digests = [constants_digest];
        let constants = constants(env, &digests)?;
        let hidden = below.map(|b| output(env, &b, "hidden")).transpose()?;
        let forced = forced.map(|f| f.read(env, first, tokens)).transpose()?;
        let mut states = BTreeMap::new();
        let mut rows: BTreeMap<String, Vec<Blob>> = BTreeMap::new();
        for (b, e) in earlier.iter().enumerate() {
            for o in e.outputs() {
                if let Some(name) = o.name.strip_prefix("state.").filter(|_| b + 1 == block) {
                    states.insert(name.to_string(), blob(env, o.digest)?);
                } else if let Some(name) = o.name.strip_prefix("rows.") {
                    rows.entry(name.to_string()).or_default().push(blob(env, o.digest)?);
                }
            }
        }
        let feed = Feed {
            ids: &ids.ids[first as usize..(first + tokens) as usize],
            first,
            hidden: hidden.as_deref(),
            forced: forced.as_ref().map(|f| vec![f.as_slice()]),
            states: states.iter().map(|(n, b)| (n.clone(), &**b)).collect(),
            rows: rows.iter().map(|(n, bs)| (n.clone(), bs.iter().map(|b| &**b).collect())).collect(),
        };
        let kernels = Kernels::one(&kernel);
        let parts = std::slice::from_ref(&facts.parts[part]);
        Simulation { env, product, kernels, parts, constants: (&digests, &constants) }.run(&feed)
    })
}

/// Where forced expert ids come from.
enum Forced<'a> {
    /// Captures of the published implementation on the same weights.
    Captured(source::Captured<'a>),
    /// Our own float64 chain on the same weights.
    Reference(Outcome),
}

impl Forced<'_> {
    fn digest(&self) -> Digest {
        match self {
            Forced::Captured(c) => c.digest,
            Forced::Reference(o) => o.digest("expert_ids"),
        }
    }

    /// The ids of a block, `[tokens, k]`.
    fn read(&self, env: &Env, first: u64, tokens: u64) -> std::result::Result<Vec<i64>, BodyError> {
        match self {
            Forced::Captured(c) => {
                let all = c.integers()?;
                let k = all.row_len();
                let from = first as usize * k;
                Ok(all.values[from..from + tokens as usize * k].to_vec())
            }
            Forced::Reference(o) => Ok(reference::integers(&output(env, o, "expert_ids")?)),
        }
    }
}

fn forced_ids<'a>(
    db: &'a dyn Db,
    model: ModelInput,
    part: usize,
    block: usize,
    captured: bool,
) -> Result<Forced<'a>> {
    if captured {
        source::captured_routing(db, model, part - 1).map(Forced::Captured)
    } else {
        reference::referenced(db, model, part, block).map(Forced::Reference)
    }
}

/// The constant segments of the parts, mapped.
pub fn constants(env: &Env, digests: &[Digest]) -> std::result::Result<Vec<Blob>, BodyError> {
    digests.iter().map(|&d| blob(env, d)).collect()
}

/// What a run calls.
#[derive(Clone, Copy)]
pub struct Kernels<'a> {
    /// The program.
    pub kernel: &'a Kernel,
    /// Tokens that it takes a call.
    pub tokens: u64,
    /// The program of one token a call for what is left, where anything can be.
    pub rest: Option<&'a Kernel>,
}

impl<'a> Kernels<'a> {
    /// A program of one token a call.
    pub fn one(kernel: &'a Kernel) -> Kernels<'a> {
        Kernels { kernel, tokens: 1, rest: None }
    }
}

/// A kernel with its constants, ready to run.
pub struct Simulation<'a> {
    /// Surroundings.
    pub env: &'a Env,
    /// The machine.
    pub product: &'a Product,
    /// The programs.
    pub kernels: Kernels<'a>,
    /// What their parts are called.
    pub parts: &'a [String],
    /// Constant segments, one a part: by digest, and mapped.
    pub constants: (&'a [Digest], &'a [Blob]),
}

impl Simulation<'_> {
    /// Runs the feed and stores everything it leaves.
    pub fn run(&self, feed: &Feed<'_>) -> std::result::Result<Produced, BodyError> {
        let Kernels { kernel, tokens, rest } = self.kernels;
        let program = Program::load(kernel).map_err(BodyError::stage)?;
        let slices: Vec<&[u8]> = self.constants.1.iter().map(|b| &**b).collect();
        let options = Options { threads: self.env.threads, ..Options::default() };
        let called = Called { program: &program, kernel, tokens };
        let said = |s: Stopped<'_>| BodyError::Stage(explained(&s.error, s.program, self.parts));
        let run = match rest {
            None => {
                let mut machine =
                    Machine::new(&program, self.product, &slices, options).map_err(BodyError::stage)?;
                host::run_with(&mut machine, called, feed, &slices, |_, machine, edges| machine.call(edges))
                    .map_err(|error| said(Stopped { error, program: &program }))?
            }
            Some(rest) => {
                let left = Program::load(rest).map_err(BodyError::stage)?;
                let machine = |p| Machine::new(p, self.product, &slices, options).map_err(BodyError::stage);
                let one = Called { program: &left, kernel: rest, tokens: 1 };
                host::prompt((&mut machine(&program)?, called), (&mut machine(&left)?, one), feed, &slices)
                    .map_err(said)?
            }
        };
        // they are mapped: what was computed counts only if nobody has touched them meanwhile
        constants(self.env, self.constants.0)?;
        let mut made = Produced::default();
        for (name, bytes) in &run.outputs {
            made.put(self.env, name, bytes)?;
        }
        for (name, bytes) in &run.states {
            made.put(self.env, &format!("state.{name}"), bytes)?;
        }
        for (name, bytes) in &run.rows {
            made.put(self.env, &format!("rows.{name}"), bytes)?;
        }
        made.note(encode(NOTE, &Note { counters: run.counters, shapes: run.shapes }));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_cache::{Cache, StampMemo};
    use mica_device::object::{Direction, EdgeUse, Entry, Segment};
    use mica_device::{asm, format::Format, isa};

    /// A kernel that copies the last bytes of its constants to an edge.
    fn kernel(constants: u64) -> Kernel {
        let (name, direction) = ("copy.out".to_string(), Direction::Out);
        let (format, shape, bytes) = (Format::I8, vec![8], 8);
        let share = EdgeUse { name: name.clone(), direction, format, frac: 0, shape, bytes };
        let off = constants - 8;
        let text =
            format!("dld l2=0, bytes=8, -, s0, -, off={off}\ndst l2=0, bytes=8, -, s1, -, off=0 ?in-1\nhalt");
        Kernel {
            code: isa::encode(&asm::parse(&text).unwrap()),
            segments: vec![Segment { offset: 0, bytes: constants, part: 0, literals: false }],
            literals: vec![Vec::new()],
            entries: vec![Entry { name, register: 1, direction, bytes, shares: vec![(0, 0, share)] }],
            ops: vec![Vec::new()],
            parts: vec!["copy".into()],
            lrm_peak: 0,
            l2_peak: 8,
        }
    }

    /// Constants that change under a run, or go away, make no result; those that stay do.
    #[test]
    fn constants_touched_under_a_run_are_lost() {
        const BYTES: u64 = 64 << 10;
        type Touch = fn(&std::path::Path);
        let flip: Touch = |path| {
            let mut bytes = std::fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(path, bytes).unwrap();
        };
        let cases: [(&str, Option<Touch>); 3] = [
            ("untouched", None),
            ("altered", Some(flip)),
            ("missing", Some(|path| std::fs::remove_file(path).unwrap())),
        ];
        for (what, touch) in cases {
            let dir = tempfile::tempdir().unwrap();
            let cache = Cache::open_for(dir.path(), "test").unwrap();
            let env = Env::new(cache, StampMemo::load(&dir.path().join("stamps")), 1 << 30);
            let digest = env.cache.put(&vec![7; BYTES as usize]).unwrap();
            let digests = [digest];
            let mapped = constants(&env, &digests).unwrap();
            if let Some(touch) = touch {
                let hex = digest.to_hex();
                let mut files = vec![dir.path().to_path_buf()];
                let mut touched = 0;
                while let Some(path) = files.pop() {
                    if path.is_dir() {
                        files.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
                    } else if path.file_name().is_some_and(|n| hex.as_str().ends_with(&*n.to_string_lossy()))
                    {
                        touch(&path);
                        touched += 1;
                    }
                }
                assert_eq!(touched, 1, "the blob's file");
            }
            let (kernel, product) = (kernel(BYTES), Product::named("qb1").unwrap());
            let kernels = Kernels::one(&kernel);
            let constants = (&digests[..], &mapped[..]);
            let run = Simulation { env: &env, product: &product, kernels, parts: &[], constants };
            let made = run.run(&Feed { ids: &[0], ..Feed::default() });
            match (touch, made) {
                (None, Ok(_)) => {}
                (Some(_), Err(BodyError::Lost(lost))) => assert_eq!(lost, digest),
                (_, Ok(_)) => panic!("{what}: a result was made"),
                (_, Err(e)) => panic!("{what}: {e:?}"),
            }
        }
    }
}
