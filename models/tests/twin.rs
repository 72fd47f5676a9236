//! Twins: exactly the module's functions and children, and where one parts from the reference.

mod common;

use common::store::{Store, layer, step};
use mica_models::eval::{EvalError, Labelled, Options, Tensor, check_inputs, evaluate, values};
use mica_models::hir::{Module, inline};
use mica_models::twin::{Tensors, Twin, TwinError, first_divergence, verify};
use std::collections::BTreeMap;

/// Another implementation of a module: here its flattened functions on weights of its own, one of which may be
/// wrong.
struct Mock {
    functions: Vec<String>,
    children: BTreeMap<String, Mock>,
    module: Module,
    weights: Store,
    shows: bool,
}

impl Mock {
    /// A twin of `module`, whose weights are `store`'s under `scope`; those whose name ends in `wrong` are off.
    fn of(module: &Module, store: &Store, scope: &str, wrong: &str) -> Mock {
        let mut weights = Store::default();
        for (whole, (ty, data)) in &store.weights {
            if let Some(name) = whole.strip_prefix(scope) {
                let off = if !wrong.is_empty() && whole.ends_with(wrong) { 1.01 } else { 1.0 };
                weights
                    .weights
                    .insert(name.to_string(), (ty.clone(), data.iter().map(|v| v * off).collect()));
            }
        }
        let child = |c: &mica_models::hir::Child| {
            let scope = format!("{scope}{}.", c.scope);
            (c.name.clone(), Mock::of(&c.module, store, &scope, wrong))
        };
        Mock {
            functions: module.functions.iter().map(|f| f.name.clone()).collect(),
            children: module.children.iter().map(child).collect(),
            module: module.clone(),
            weights,
            shows: true,
        }
    }
}

impl Twin for Mock {
    fn functions(&self) -> Vec<String> {
        self.functions.clone()
    }
    fn children(&self) -> Vec<String> {
        self.children.keys().cloned().collect()
    }
    fn child(&self, name: &str) -> Option<&dyn Twin> {
        self.children.get(name).map(|c| c as &dyn Twin)
    }
    fn call(&self, function: &str, inputs: &Tensors) -> Result<Tensors, TwinError> {
        if !self.functions.iter().any(|f| f == function) {
            let known = self.functions.join(", ");
            return Err(TwinError::NoFunction { function: function.to_string(), known });
        }
        let flat = inline(&self.module, function).map_err(EvalError::from)?;
        check_inputs(&flat, inputs)?;
        Ok(evaluate(&flat, inputs, &self.weights, Options::default())?)
    }
    fn labelled(&self, function: &str, inputs: &Tensors) -> Option<Tensors> {
        let flat = inline(&self.module, function).ok()?;
        let (_, seen) = values(&flat, inputs, &self.weights, Options::default()).ok()?;
        self.shows.then(|| seen.into_iter().map(|Labelled { label, value, .. }| (label, value)).collect())
    }
}

fn store(layer: &Module) -> Store {
    Store::of(&inline(layer, "full_attention").expect("flattens"), "")
}

#[test]
fn a_twin_has_exactly_the_functions_and_children() {
    let layer = layer();
    let store = store(&layer);
    let of = |edit: &dyn Fn(&mut Mock)| {
        let mut twin = Mock::of(&layer, &store, "", "");
        edit(&mut twin);
        verify(&layer, &twin)
    };
    of(&|_| ()).expect("a twin");
    let table = [
        (
            of(&|t| t.functions.clear()),
            "the twin of `full_attention_layer` lacks function `full_attention`, expected exactly: full_attention",
        ),
        (
            of(&|t| t.functions.push("prefill".to_string())),
            "the twin of `full_attention_layer` has an extra function `prefill`, expected exactly: full_attention",
        ),
        (
            of(&|t| drop(t.children.remove("mixer"))),
            "the twin of `full_attention_layer` lacks child `mixer`, expected exactly: mixer, moe",
        ),
        (
            of(&|t| {
                let router = t.children.get_mut("moe").and_then(|m| m.children.remove("router"));
                t.children.extend([("router".to_string(), router.expect("a router"))]);
            }),
            "the twin of `full_attention_layer` has an extra child `router`, expected exactly: mixer, moe",
        ),
        (
            of(&|t| {
                let moe = t.children.get_mut("moe").expect("moe");
                moe.functions.retain(|f| f != "routed");
            }),
            "the twin of `full_attention_layer.moe` lacks function `routed`, expected exactly: shared_expert, routed_experts, routed, moe",
        ),
        (
            of(&|t| {
                let router = t.children.get_mut("moe").and_then(|m| m.children.get_mut("router"));
                router.expect("a router").functions.push("topk".to_string());
            }),
            "the twin of `full_attention_layer.moe.router` has an extra function `topk`, expected exactly: router",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found.expect_err(expected).to_string(), expected);
    }
}

/// Agreement to twelve digits of the largest value.
fn agree(want: &Tensor, got: &Tensor) -> bool {
    want.shape == got.shape && common::error(got, want) < 1e-12
}

#[test]
fn the_first_divergence_is_the_innermost_function_and_operation() {
    let layer = layer();
    let store = store(&layer);
    // What is wrong in the twin: path, function, first operation by label.
    let table = [
        // All of the router stands under one label, whose last value is its weights.
        ("mlp.gate.weight", vec!["moe", "router"], "router", Some(("", "cast"))),
        ("q_proj.weight", vec!["mixer"], "full_attention", Some(("q_proj", "matmul"))),
        (
            "shared_expert.up_proj.weight",
            vec!["moe"],
            "shared_expert",
            Some(("shared_expert.up_proj", "matmul")),
        ),
        ("experts.down_proj", vec!["moe"], "routed_experts", Some(("experts", "reduce"))),
        (
            "post_attention_layernorm.weight",
            vec![],
            "full_attention",
            Some(("post_attention_layernorm", "cast")),
        ),
    ];
    for (wrong, path, function, op) in table {
        let twin = Mock::of(&layer, &store, "", wrong);
        let found = first_divergence(&layer, "full_attention", &step(2), &store, &twin, &agree);
        let found = found.expect("both run").expect(wrong);
        assert_eq!(
            (found.path.iter().map(String::as_str).collect::<Vec<_>>(), found.function.as_str()),
            (path, function),
            "{wrong}"
        );
        let found = found.op.as_ref().map(|(label, op)| (label.as_str(), *op));
        assert_eq!(found, op, "{wrong}");
    }
    let good = Mock::of(&layer, &store, "", "");
    let none = first_divergence(&layer, "full_attention", &step(2), &store, &good, &agree);
    assert_eq!(none, Ok(None));
    // A twin that shows no values still names the function.
    let mut silent = Mock::of(&layer, &store, "", "q_proj.weight");
    silent.children.get_mut("mixer").expect("a child").shows = false;
    let found = first_divergence(&layer, "full_attention", &step(2), &store, &silent, &agree);
    let found = found.expect("both run").expect("parts");
    assert_eq!(
        (found.function.as_str(), found.result.as_str(), found.op),
        ("full_attention", "hidden", None)
    );
}

#[test]
fn a_twin_refuses_as_the_reference_does() {
    let layer = layer();
    let store = store(&layer);
    let twin = Mock::of(&layer, &store, "", "");
    let missing = twin.call("attention", &step(0)).expect_err("no function").to_string();
    assert_eq!(missing, "the twin has no function `attention`, expected one of: full_attention");
    let mut inputs = step(0);
    inputs.insert("hidden".to_string(), Tensor::zeros(&[127]));
    let reference = layer.load(&store).expect("loads").call("full_attention", &inputs, Options::default());
    let error = twin.call("full_attention", &inputs).expect_err("refused");
    assert_eq!(error.to_string(), reference.expect_err("refused").to_string());
}
