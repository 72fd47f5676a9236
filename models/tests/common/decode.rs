//! Drives layers of a stack token by token with their states.

use super::{Delivered, Tensors, row};
use mica_models::decode::Carried;
use mica_models::eval::{Options, Tensor, Weights, evaluate};
use mica_models::hir::{Function, Module, Node, inline};
use mica_models::{Part, Stack};
use std::collections::BTreeMap;

/// A captured cache `[heads, tokens, D]` as the rows `[tokens, heads, D]` that were appended to it.
pub fn rows(published: &Tensor) -> Vec<f64> {
    let (heads, tokens, d) = (published.shape[0], published.shape[1], published.shape[2]);
    let data = published.as_f64().expect("real");
    let row = |t: usize| (0..heads).flat_map(move |h| &data[(h * tokens + t) * d..][..d]);
    (0..tokens).flat_map(row).copied().collect()
}

/// Everything that one step computed: results, the last value of each label, and of each operation there.
pub struct Step {
    pub results: BTreeMap<String, Tensor>,
    pub labels: BTreeMap<String, Tensor>,
    pub ops: BTreeMap<(String, &'static str), Tensor>,
}

/// One step of a mixer or layer function; what it carries is updated.
pub fn step(f: &Function, weights: &dyn Weights, hidden: Tensor, pos: i64, carried: &mut Carried) -> Step {
    step_with(f, weights, hidden, pos, carried, Options::default())
}

/// As `step`, with options.
pub fn step_with(
    f: &Function,
    weights: &dyn Weights,
    hidden: Tensor,
    pos: i64,
    carried: &mut Carried,
    options: Options<'_>,
) -> Step {
    let mut own = BTreeMap::from([("hidden".to_string(), hidden)]);
    if f.activations().any(|p| p.name == "pos") {
        own.insert("pos".to_string(), Tensor::scalar(pos));
    }
    let (mut labels, mut ops) = (BTreeMap::new(), BTreeMap::new());
    let mut trace = |node: &Node, t: &Tensor| {
        labels.insert(node.label.clone(), t.clone());
        ops.insert((node.label.clone(), node.op.name()), t.clone());
    };
    let options = Options { trace: Some(&mut trace), ..options };
    let results = carried.step(f, own, weights, options).unwrap_or_else(|e| panic!("{e}"));
    Step { results, labels, ops }
}

/// The flattened function of a child path of a layer kind (`["moe", "router"]`).
pub fn inner(stack: &Stack, kind: &str, path: &[&str], function: &str) -> Function {
    let kind = stack.kinds.iter().find(|k| k.name == kind).expect("a kind of the stack");
    let module = path.iter().fold(&*kind.module, |m: &Module, name| m.child(name).expect("a child"));
    inline(module, function).expect("flattens")
}

/// Every value of a whole decode that a test compares.
#[derive(Default)]
pub struct Decoded {
    pub embedded: Vec<Tensor>,
    /// By token, then layer.
    pub layers: Vec<Vec<Step>>,
    pub normed: Vec<Tensor>,
    pub logits: Vec<Tensor>,
    pub carried: Vec<Carried>,
}

/// Decodes tokens; `tensors` are named under `prefix`, the head without it.
pub fn decode(stack: &Stack, tensors: &Tensors, prefix: &str, tokens: &[i64]) -> Decoded {
    let model = Delivered { tensors, prefix: prefix.to_string() };
    let layers: Vec<Delivered> = (0..stack.layers.len())
        .map(|i| Delivered { tensors, prefix: format!("{prefix}layers.{i}.") })
        .collect();
    let functions: Vec<&Function> =
        (0..stack.layers.len()).map(|i| stack.function(Part::Layer(i)).expect("a layer")).collect();
    let mut out =
        Decoded { carried: functions.iter().map(|f| Carried::new(f)).collect(), ..Decoded::default() };
    let one = |name: &str, t: Tensor| BTreeMap::from([(name.to_string(), t)]);
    for (pos, &token) in tokens.iter().enumerate() {
        let embed = evaluate(&stack.embed, &one("token", Tensor::scalar(token)), &model, Options::default());
        let mut h = embed.expect("embeds").remove("hidden").expect("hidden");
        out.embedded.push(h.clone());
        let mut steps = Vec::new();
        for (i, f) in functions.iter().enumerate() {
            let s = step(f, &layers[i], h, pos as i64, &mut out.carried[i]);
            h = s.results["hidden"].clone();
            steps.push(s);
        }
        out.layers.push(steps);
        // The head's own names: the norm under the prefix, lm_head without one.
        let mut weights = BTreeMap::new();
        for (role, name) in [
            ("norm.weight", format!("{prefix}norm.weight")),
            ("lm_head.weight", "lm_head.weight".to_string()),
        ] {
            weights.insert(role.to_string(), tensors[&name].as_f64().expect("real").to_vec());
        }
        let mut head = evaluate(&stack.head, &one("hidden", h), &weights, Options::default()).expect("head");
        out.normed.push(head.remove("normed").expect("normed"));
        out.logits.push(head.remove("logits").expect("logits"));
    }
    out
}

/// Token `i` of a capture.
pub fn at(capture: &Tensors, name: &str, i: usize) -> Tensor {
    row(capture.get(name).unwrap_or_else(|| panic!("no capture {name}")), i)
}
