//! Drives layers of a stack token by token with their states.

use super::{Delivered, Tensors, cache, row};
use mica_models::eval::{Options, Tensor, Weights, evaluate};
use mica_models::hir::{Function, Module, inline};
use mica_models::{Part, Stack};
use std::collections::BTreeMap;

/// The state of one layer between tokens, as its function's activations.
#[derive(Clone, Default)]
pub struct State {
    pub tensors: BTreeMap<String, Tensor>,
    pub k_rows: Vec<Tensor>,
    pub v_rows: Vec<Tensor>,
}

impl State {
    /// Zeros for a recurrent function, an empty cache for attention.
    pub fn start(f: &Function) -> State {
        let mut state = State::default();
        for p in f.activations() {
            if p.name.ends_with("_state") {
                let shape: Vec<usize> =
                    p.ty.known_shape().expect("closed").iter().map(|&n| n as usize).collect();
                state.tensors.insert(p.name.clone(), Tensor::zeros(&shape));
            }
        }
        state
    }
    /// The rows of a captured cache `[heads, tokens, D]` as rows `[heads, D]`.
    pub fn rows(published: &Tensor) -> Vec<Tensor> {
        let (heads, tokens, d) = (published.shape[0], published.shape[1], published.shape[2]);
        let data = published.as_f64().expect("real");
        let one =
            |t: usize| (0..heads).flat_map(|h| data[(h * tokens + t) * d..][..d].iter().copied()).collect();
        (0..tokens).map(|t| Tensor::f64(&[heads, d], one(t))).collect()
    }
}

/// Everything that one step computed: results, and the last value of each label.
pub struct Step {
    pub results: BTreeMap<String, Tensor>,
    pub labels: BTreeMap<String, Tensor>,
}

/// One step of a mixer or layer function; the state is updated.
pub fn step(f: &Function, weights: &dyn Weights, hidden: Tensor, pos: i64, state: &mut State) -> Step {
    let mut inputs = state.tensors.clone();
    inputs.insert("hidden".to_string(), hidden);
    for (name, rows) in [("k_cache", &state.k_rows), ("v_cache", &state.v_rows)] {
        if let Some(p) = f.activations().find(|p| p.name == name) {
            let [heads, d] = [0, 2].map(|i| p.ty.shape[i].known().expect("closed") as usize);
            inputs.insert(name.to_string(), cache(rows, heads, d));
            inputs.insert("pos".to_string(), Tensor::scalar(pos));
        }
    }
    let mut labels = BTreeMap::new();
    let mut trace = |label: &str, t: &Tensor| {
        labels.insert(label.to_string(), t.clone());
    };
    let options = Options { trace: Some(&mut trace), ..Options::default() };
    let results = evaluate(f, &inputs, weights, options).unwrap_or_else(|e| panic!("{e}"));
    for name in ["conv_state", "recurrent_state"] {
        if let Some(t) = results.get(name) {
            state.tensors.insert(name.to_string(), t.clone());
        }
    }
    if let (Some(k), Some(v)) = (results.get("k_row"), results.get("v_row")) {
        state.k_rows.push(k.clone());
        state.v_rows.push(v.clone());
    }
    Step { results, labels }
}

/// The flattened function of a child path of a layer kind (`["moe", "router"]`).
pub fn inner(stack: &Stack, kind: &str, path: &[&str], function: &str) -> Function {
    let kind = stack.kinds.iter().find(|k| k.name == kind).expect("a kind of the stack");
    let module = path.iter().fold(&kind.module, |m: &Module, name| m.child(name).expect("a child"));
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
    pub states: Vec<State>,
    /// By token, then layer: the states after it.
    pub state_steps: Vec<Vec<State>>,
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
        Decoded { states: functions.iter().map(|f| State::start(f)).collect(), ..Decoded::default() };
    let one = |name: &str, t: Tensor| BTreeMap::from([(name.to_string(), t)]);
    for (pos, &token) in tokens.iter().enumerate() {
        let embed = evaluate(&stack.embed, &one("token", Tensor::scalar(token)), &model, Options::default());
        let mut h = embed.expect("embeds").remove("hidden").expect("hidden");
        out.embedded.push(h.clone());
        let mut steps = Vec::new();
        for (i, f) in functions.iter().enumerate() {
            let s = step(f, &layers[i], h, pos as i64, &mut out.states[i]);
            h = s.results["hidden"].clone();
            steps.push(s);
        }
        out.layers.push(steps);
        out.state_steps.push(out.states.clone());
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
