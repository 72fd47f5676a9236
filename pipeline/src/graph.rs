//! The nodes of a build and what each needs, from the facts of the models alone.
//!
//! It knows names and order, no digest and no result. Every node is one query of `queries`; parts of a
//! model are the embedding, its layers and the head, in order.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

/// Facts of one model that decide its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Name in the workspace.
    pub model: String,
    /// `embed`, `layer0` …, `head`.
    pub parts: Vec<String>,
    /// Kind of each part: an index into `kinds`.
    pub kind_of: Vec<usize>,
    /// `embed`, the layer kinds, `head`.
    pub kinds: Vec<String>,
    /// Token blocks of a decode run; 0 where there are no tokens to decode.
    pub blocks: usize,
    /// Tokens that a call of the whole kernel takes, at least 1; of a validation's run.
    pub per_call: u64,
    /// Whether forced routing comes from captures of the same weights (else from our own reference).
    pub captured_routing: bool,
    /// Of a model on a held-out text: the model whose weights and programs it runs. The whole kernel is run
    /// on all tokens, and scored beside the reference by what it says of the text.
    pub text_of: Option<String>,
    /// Of a validation: what it runs, in place of all the nodes of a model.
    pub trial: Option<TrialFacts>,
}

/// What a validation runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrialFacts {
    /// Parts, in order; each takes what the one before left.
    pub parts: Vec<usize>,
    /// Runs on the device: none, one, or one of all steps and then one a step.
    pub runs: usize,
}

/// Which experts a device run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Routing {
    /// Those that its own router chooses.
    Free,
    /// Those of the reference.
    Forced,
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Routing::Free => "free",
            Routing::Forced => "forced",
        })
    }
}

impl Facts {
    /// How many tokens a call of the whole kernel takes.
    pub fn whole(&self) -> Call {
        if self.per_call > 1 { Call::Several } else { Call::One }
    }
}

/// How many tokens a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// One: segments, and what is left of a prompt.
    One,
    /// As many as the model says, where that is more.
    Several,
}

/// One piece of work on one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Job {
    /// Digests of a part's tensors.
    Fetch(usize),
    /// A part's packed layer.
    Pack(usize),
    /// A part's constant segment.
    Quantize(usize),
    /// A kind's object.
    Compile(usize, Call),
    /// The whole kernel.
    Link(Call),
    /// A part's float64 reference on a token block: part, block.
    Reference(usize, usize),
    /// A part on the device on a token block: part, routing, block.
    Segment(usize, Routing, usize),
    /// The whole kernel on the first tokens.
    Kernel,
    /// Cycles of the whole kernel.
    Timing,
    /// The gates of decode.
    Score,
    /// The ids of a held-out text.
    Tokenize,
    /// The gates of a held-out text.
    Perplexity,
    /// A validation's float64 reference of a part.
    Expected(usize),
    /// A validation's run of a part on the device: part, run.
    Trial(usize, usize),
    /// The gates of a validation.
    Judge,
}

/// A job of a model (an index into the facts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    /// Which model.
    pub model: usize,
    /// What is done.
    pub job: Job,
}

/// All nodes, each after what it needs.
#[derive(Debug, Default)]
pub struct Graph {
    /// Nodes.
    pub nodes: Vec<NodeId>,
    /// Their target names.
    pub names: Vec<String>,
    /// Indices of what each needs directly.
    pub needs: Vec<Vec<usize>>,
}

/// The target name of a job.
pub fn name(facts: &Facts, job: Job) -> String {
    let m = &facts.model;
    let part = |p: usize| &facts.parts[p];
    match job {
        Job::Fetch(p) => format!("fetch:{m}.{}", part(p)),
        Job::Pack(p) => format!("pack:{m}.{}", part(p)),
        Job::Quantize(p) => format!("quantize:{m}.{}", part(p)),
        Job::Compile(k, Call::One) => format!("compile:{m}.{}", facts.kinds[k]),
        Job::Compile(k, Call::Several) => format!("compile:{m}.{}.call{}", facts.kinds[k], facts.per_call),
        Job::Link(call) if call == facts.whole() => format!("link:{m}.kernel"),
        // what is left of a prompt
        Job::Link(_) => format!("link:{m}.rest"),
        Job::Reference(p, b) => format!("reference:{m}.{}.block{b}", part(p)),
        // the embedding has no router, so both runs share it
        Job::Segment(0, _, b) => format!("simulate:{m}.{}.block{b}", part(0)),
        Job::Segment(p, r, b) => format!("simulate:{m}.{}.{r}.block{b}", part(p)),
        Job::Kernel => format!("simulate:{m}.kernel"),
        Job::Timing => format!("timing:{m}.kernel"),
        Job::Score => format!("score:{m}.decode"),
        Job::Tokenize => format!("fetch:{m}.ids"),
        // as a validation's, the name is the model's
        Job::Perplexity => format!("score:{m}"),
        Job::Expected(p) => format!("reference:{m}.{}", part(p)),
        Job::Trial(p, run) => match &facts.trial {
            Some(t) if t.runs > 1 => format!("simulate:{m}.{}.run{run}", part(p)),
            _ => format!("simulate:{m}.{}", part(p)),
        },
        // the validation's name is the model's
        Job::Judge => format!("score:{m}"),
    }
}

impl Graph {
    /// The graph of all models.
    pub fn new<F: Borrow<Facts>>(models: &[F]) -> Graph {
        let jobs: Vec<_> = models.iter().map(|f| jobs(f.borrow())).collect();
        let count = jobs.iter().map(Vec::len).sum();
        let mut g = Graph {
            nodes: Vec::with_capacity(count),
            names: Vec::with_capacity(count),
            needs: Vec::with_capacity(count),
        };
        // by model
        let mut at: Vec<BTreeMap<Job, usize>> = Vec::with_capacity(models.len());
        for (model, (facts, jobs)) in models.iter().map(Borrow::borrow).zip(jobs).enumerate() {
            at.push(BTreeMap::new());
            let of = |name: &String| models.iter().position(|f| f.borrow().model == *name);
            let base = facts.text_of.as_ref().and_then(of).unwrap_or(model);
            for (job, needs) in jobs {
                let needs = needs.iter().map(|n| *at[model].get(n).unwrap_or_else(|| &at[base][n]));
                let needs = needs.collect();
                at[model].insert(job, g.nodes.len());
                g.nodes.push(NodeId { model, job });
                g.names.push(name(facts, job));
                g.needs.push(needs);
            }
        }
        g
    }

    /// The nodes that the goals need, themselves included, in order.
    pub fn closure(&self, goals: &[usize]) -> Vec<usize> {
        let mut wanted = vec![false; self.nodes.len()];
        for &g in goals {
            wanted[g] = true;
        }
        // needs come before, so one pass from the end reaches everything
        for i in (0..self.nodes.len()).rev() {
            if wanted[i] {
                for &n in &self.needs[i] {
                    wanted[n] = true;
                }
            }
        }
        (0..self.nodes.len()).filter(|&i| wanted[i]).collect()
    }
}

/// The jobs of a model in order, each with what it needs.
fn jobs(f: &Facts) -> Vec<(Job, Vec<Job>)> {
    if let Some(trial) = &f.trial {
        return trial_jobs(f, trial);
    }
    if f.text_of.is_some() {
        return text_jobs(f);
    }
    let parts = 0..f.parts.len();
    let head = f.parts.len() - 1;
    let mut out = Vec::new();
    let calls: &[Call] = if f.per_call > 1 { &[Call::One, Call::Several] } else { &[Call::One] };
    for k in 0..f.kinds.len() {
        out.extend(calls.iter().map(|&c| (Job::Compile(k, c), vec![])));
    }
    for p in parts.clone() {
        out.push((Job::Fetch(p), vec![]));
        out.push((Job::Pack(p), vec![Job::Fetch(p)]));
        out.push((Job::Quantize(p), vec![Job::Pack(p)]));
    }
    let quantized = || parts.clone().map(Job::Quantize);
    for &c in calls {
        let compiled = (0..f.kinds.len()).map(|k| Job::Compile(k, c));
        out.push((Job::Link(c), compiled.chain(quantized()).collect()));
    }
    let kernels = || calls.iter().map(|&c| Job::Link(c));
    if f.blocks > 0 {
        let mut scored = Vec::new();
        for p in parts.clone() {
            for b in 0..f.blocks {
                let earlier = |job: &dyn Fn(usize, usize) -> Job| {
                    let below = (p > 0).then(|| job(p - 1, b));
                    let before = (b > 0).then(|| job(p, b - 1));
                    below.into_iter().chain(before)
                };
                let reference = Job::Reference(p, b);
                let mut needs = vec![Job::Quantize(p)];
                needs.extend(earlier(&|p, b| Job::Reference(p, b)));
                out.push((reference, needs));
                scored.push(reference);
                for r in [Routing::Free, Routing::Forced] {
                    if p == 0 && r == Routing::Forced {
                        continue;
                    }
                    let mut needs = vec![Job::Compile(f.kind_of[p], Call::One), Job::Quantize(p)];
                    needs.extend(earlier(&|p, b| segment(p, r, b)));
                    if r == Routing::Forced && p != head && !f.captured_routing {
                        needs.push(reference);
                    }
                    out.push((Job::Segment(p, r, b), needs));
                    scored.push(Job::Segment(p, r, b));
                }
            }
        }
        out.push((Job::Kernel, kernels().chain(quantized()).collect()));
        scored.push(Job::Kernel);
        out.push((Job::Timing, vec![Job::Link(f.whole())]));
        out.push((Job::Score, scored));
    } else {
        out.push((Job::Timing, vec![Job::Link(f.whole())]));
    }
    out
}

/// The jobs of a model on a held-out text; what they need of the weights are the model's own jobs.
fn text_jobs(f: &Facts) -> Vec<(Job, Vec<Job>)> {
    let parts = 0..f.parts.len();
    let head = f.parts.len() - 1;
    let mut out = vec![(Job::Tokenize, vec![])];
    for p in parts.clone() {
        for b in 0..f.blocks {
            let mut needs = vec![Job::Tokenize, Job::Quantize(p)];
            needs.extend((p > 0).then(|| Job::Reference(p - 1, b)));
            needs.extend((b > 0).then(|| Job::Reference(p, b - 1)));
            out.push((Job::Reference(p, b), needs));
        }
    }
    let rest = (f.per_call > 1).then_some(Job::Link(Call::One));
    let needs = [Job::Tokenize, Job::Link(f.whole())].into_iter().chain(rest).chain(parts.map(Job::Quantize));
    out.push((Job::Kernel, needs.collect()));
    let scored = (0..f.blocks).map(|b| Job::Reference(head, b)).chain([Job::Kernel]);
    out.push((Job::Perplexity, scored.collect()));
    out
}

/// The jobs of a validation in order, each with what it needs.
fn trial_jobs(f: &Facts, trial: &TrialFacts) -> Vec<(Job, Vec<Job>)> {
    let mut out: Vec<(Job, Vec<Job>)> = Vec::new();
    let mut judged = Vec::new();
    for (i, &p) in trial.parts.iter().enumerate() {
        let below = i.checked_sub(1).map(|b| trial.parts[b]);
        let calls = [Call::One, Call::Several].into_iter().filter(|c| *c == Call::One || f.per_call > 1);
        let compiled: Vec<Job> = calls.map(|c| Job::Compile(f.kind_of[p], c)).collect();
        for job in compiled.iter().filter(|_| trial.runs > 0) {
            if !out.iter().any(|(other, _)| other == job) {
                out.push((*job, vec![]));
            }
        }
        out.push((Job::Fetch(p), vec![]));
        out.push((Job::Pack(p), vec![Job::Fetch(p)]));
        out.push((Job::Quantize(p), vec![Job::Pack(p)]));
        let needs = std::iter::once(Job::Quantize(p)).chain(below.map(Job::Expected));
        out.push((Job::Expected(p), needs.collect()));
        judged.push(Job::Expected(p));
        for run in 0..trial.runs {
            let mut needs = compiled.clone();
            needs.push(Job::Quantize(p));
            needs.extend(below.map(|b| Job::Trial(b, run)));
            // a step on its own starts from the state that the step before left
            needs.extend((run > 1).then(|| Job::Trial(p, run - 1)));
            out.push((Job::Trial(p, run), needs));
            judged.push(Job::Trial(p, run));
        }
    }
    out.push((Job::Judge, judged));
    out
}

/// The segment node, the embedding's being shared by both routings.
pub fn segment(part: usize, routing: Routing, block: usize) -> Job {
    Job::Segment(part, if part == 0 { Routing::Free } else { routing }, block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(layers: usize, blocks: usize) -> Facts {
        let mut parts = vec!["embed".to_string()];
        parts.extend((0..layers).map(|i| format!("layer{i}")));
        parts.push("head".into());
        Facts {
            model: "m".into(),
            kind_of: (0..layers + 2)
                .map(|p| {
                    if p == 0 {
                        0
                    } else if p == layers + 1 {
                        2
                    } else {
                        1
                    }
                })
                .collect(),
            parts,
            kinds: ["embed", "layer", "head"].map(String::from).to_vec(),
            blocks,
            per_call: 1,
            captured_routing: false,
            text_of: None,
            trial: None,
        }
    }

    #[test]
    fn calls_of_several_tokens_have_objects_and_kernels_of_their_own() {
        let several = Facts { per_call: 4, ..facts(2, 1) };
        let text = Facts { model: "m.perplexity".into(), text_of: Some("m".into()), ..several.clone() };
        let trial = Facts { trial: Some(TrialFacts { parts: vec![1], runs: 1 }), ..several.clone() };
        let g = Graph::new(&[several, text, Facts { model: "t".into(), ..trial }]);
        let needs = |name: &str| {
            let i = g.names.iter().position(|n| n == name).unwrap();
            let mut of: Vec<&str> = g.needs[i].iter().map(|&n| g.names[n].as_str()).collect();
            of.retain(|n| !n.starts_with("quantize:"));
            of
        };
        let [one, four] =
            ["", ".call4"].map(|c| ["embed", "layer", "head"].map(|k| format!("compile:m.{k}{c}")));
        assert_eq!(needs("link:m.rest"), one);
        assert_eq!(needs("link:m.kernel"), four);
        assert_eq!(needs("timing:m.kernel"), ["link:m.kernel"]);
        assert_eq!(needs("simulate:m.kernel"), ["link:m.rest", "link:m.kernel"]);
        assert_eq!(needs("simulate:m.layer0.free.block0"), ["compile:m.layer", "simulate:m.embed.block0"]);
        assert_eq!(
            needs("simulate:m.perplexity.kernel"),
            ["fetch:m.perplexity.ids", "link:m.kernel", "link:m.rest"]
        );
        assert_eq!(needs("simulate:t.layer0"), ["compile:t.layer", "compile:t.layer.call4"]);
    }

    #[test]
    fn every_node_comes_after_what_it_needs_and_has_its_own_name() {
        let g = Graph::new(&[facts(3, 2), facts(1, 0)]);
        for (i, needs) in g.needs.iter().enumerate() {
            assert!(needs.iter().all(|&n| n < i), "{}", g.names[i]);
        }
        let mut of_first: Vec<_> =
            g.nodes.iter().zip(&g.names).filter(|(n, _)| n.model == 0).map(|(_, n)| n).collect();
        let count = of_first.len();
        of_first.sort();
        of_first.dedup();
        assert_eq!(of_first.len(), count);
    }

    #[test]
    fn a_validation_needs_its_own_parts_only() {
        let trial = |parts: &[usize], runs| Facts {
            trial: Some(TrialFacts { parts: parts.into(), runs }),
            ..facts(3, 0)
        };
        let g = Graph::new(&[trial(&[1, 2], 1), trial(&[2], 3), trial(&[3], 0)]);
        let needs = |i: usize| g.needs[i].iter().map(|&n| g.names[n].as_str()).collect::<Vec<_>>();
        let of = |model, job| g.nodes.iter().position(|n| *n == NodeId { model, job }).unwrap();
        assert_eq!(
            needs(of(0, Job::Trial(2, 0))),
            ["compile:m.layer", "quantize:m.layer1", "simulate:m.layer0"]
        );
        assert_eq!(
            needs(of(1, Job::Trial(2, 2))),
            ["compile:m.layer", "quantize:m.layer1", "simulate:m.layer1.run1"]
        );
        assert_eq!(needs(of(2, Job::Judge)), ["reference:m.layer2"]);
        assert!(g.names.iter().all(|n| !n.contains("embed") && !n.contains("head")));
    }

    #[test]
    fn a_text_is_run_by_its_models_kernel_and_reference() {
        let text = Facts { model: "m.perplexity".into(), text_of: Some("m".into()), ..facts(2, 2) };
        let g = Graph::new(&[facts(2, 2), text]);
        let goal = g.names.iter().position(|n| n == "score:m.perplexity").unwrap();
        let wanted = g.closure(&[goal]);
        let names: Vec<&str> = wanted.iter().map(|&i| g.names[i].as_str()).collect();
        assert!(names.contains(&"link:m.kernel") && names.contains(&"quantize:m.head"));
        assert!(names.contains(&"reference:m.perplexity.head.block1"));
        assert!(!names.iter().any(|n| n.starts_with("reference:m.l") || n.contains("decode")));
    }

    #[test]
    fn a_layer_reaches_only_what_depends_on_it() {
        let g = Graph::new(&[facts(4, 1)]);
        let find = |n: &str| g.names.iter().position(|x| x == n).unwrap();
        let needs = |a: &str, b: &str| g.closure(&[find(a)]).contains(&find(b));
        assert!(needs("simulate:m.layer3.free.block0", "quantize:m.layer1"));
        assert!(!needs("simulate:m.layer1.free.block0", "quantize:m.layer3"));
        assert!(needs("simulate:m.layer2.forced.block0", "reference:m.layer2.block0"));
        assert!(!needs("simulate:m.layer2.free.block0", "reference:m.layer2.block0"));
        assert!(!needs("compile:m.layer", "pack:m.layer0"));
        assert_eq!(g.closure(&[find("score:m.decode")]).len(), g.nodes.len() - 1, "all but timing");
    }
}
