//! Selectors and the printed forest of a described model.

mod common;

use mica_models::forest::{Forest, counts, forest};
use mica_models::select::{model_of, select};
use mica_models::{Part, Stack, describe, described};

fn published() -> Stack {
    described()[0].published().expect("the shipped config")
}

fn tree() -> Forest {
    forest(&published()).expect("describes")
}

#[test]
fn the_forest_as_text() {
    insta::assert_snapshot!("forest", tree());
}

#[test]
fn equal_siblings_are_one_run() {
    let forest = tree();
    let runs: Vec<(String, usize, Option<String>)> =
        forest.root.children.iter().map(|t| (t.run.name(), t.run.count, t.same_as.clone())).collect();
    let first = [
        ("layer0..layer2", 3, None),
        ("layer3", 1, None),
        ("layer4..layer6", 3, Some("layer0")),
        ("layer7", 1, Some("layer3")),
    ];
    for (run, (name, count, same)) in runs.iter().zip(first) {
        assert_eq!(*run, (name.to_string(), count, same.map(ToString::to_string)));
    }
    assert_eq!(runs.iter().map(|r| r.1).sum::<usize>(), 40);
    // Each layer: itself, mixer, moe, router; mixer and router are leaves. One function each, moe four.
    let c = forest.counts;
    assert_eq!((c.modules, c.leaf_modules, c.functions), (1 + 40 * 4, 40 * 2, 2 + 40 * 7));
    assert_eq!(counts(&published()), Ok(c));
}

#[test]
fn the_shipped_config_is_the_published_one() {
    let stack = describe("qwen3_5_35b_a3b", &common::published_config()).expect("described");
    assert_eq!(published(), stack);
    let model = &described()[0];
    let summaries: Vec<String> = model.files.iter().map(|f| format!("{}: {}", f.path, f.summary())).collect();
    assert_eq!(
        summaries[..3],
        [
            "mod.rs: Qwen3.5-MoE, text: `qwen3_5_35b_a3b` and every model of its config's fields.",
            "config.json: the published configuration",
            "config.rs: The published config's fields that shape the model. Every field is read; none is derived from others.",
        ]
    );
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout");
    for file in model.files {
        let text = std::fs::read_to_string(here.join(model.directory).join(file.path)).expect(file.path);
        assert_eq!(text, file.text, "{}", file.path);
    }
}

#[test]
fn selectors() {
    let stack = published();
    // Selector, part, scope, the function's name, the role of its first weight.
    let table = [
        ("embed", Part::Embed, "", "embed", "embed_tokens.weight"),
        ("head", Part::Head, "", "head", "norm.weight"),
        ("layer3", Part::Layer(3), "", "full_attention", "input_layernorm.weight"),
        ("layer3.full_attention", Part::Layer(3), "", "full_attention", "input_layernorm.weight"),
        ("layer3.mixer", Part::Layer(3), "self_attn", "full_attention", "self_attn.q_proj.weight"),
        (
            "layer39.mixer.full_attention",
            Part::Layer(39),
            "self_attn",
            "full_attention",
            "self_attn.q_proj.weight",
        ),
        ("layer0.mixer", Part::Layer(0), "linear_attn", "linear_attention", "linear_attn.in_proj_qkv.weight"),
        ("layer0.moe.routed_experts", Part::Layer(0), "mlp", "routed_experts", "mlp.experts.gate_up_proj"),
        ("layer0.moe.routed", Part::Layer(0), "mlp", "routed", "mlp.gate.weight"),
        ("layer12.moe.router", Part::Layer(12), "mlp.gate", "router", "mlp.gate.weight"),
    ];
    for (path, part, scope, function, role) in table {
        let found = select(&format!("qwen3_5_35b_a3b:{path}"), &stack).expect(path);
        assert_eq!((found.part, found.scope.as_str(), found.function.name.as_str()), (part, scope, function));
        let weight = found.function.weights().next().expect("a weight");
        assert_eq!(found.role(&weight.name), role);
        let of_part = stack.function(part).expect("a part");
        assert!(of_part.weights().any(|w| w.name == role && w.ty == weight.ty), "{role} in {part}");
        let again = select(&found.to_string(), &stack).expect("the printed form is a selector");
        assert_eq!(again, found);
    }
}

#[test]
fn selectors_that_are_refused() {
    let stack = published();
    let table = [
        (
            "qwen3_5_35b_a3b",
            "`qwen3_5_35b_a3b` has no entry, expected the name of a function or child after it: embed, head, layer0..layer39",
        ),
        ("qwen3_5:layer3", "selector `qwen3_5:layer3` names model `qwen3_5`, expected `qwen3_5_35b_a3b`"),
        (
            "qwen3_5_35b_a3b:layer40",
            "`qwen3_5_35b_a3b` has no function or child `layer40`, did you mean `layer0`?, expected one of: embed, head, layer0..layer39",
        ),
        (
            "qwen3_5_35b_a3b:layer3.mixr",
            "`qwen3_5_35b_a3b:layer3` has no function or child `mixr`, did you mean `mixer`?, expected one of: full_attention, mixer, moe",
        ),
        (
            "qwen3_5_35b_a3b:layer3.moe.experts",
            "`qwen3_5_35b_a3b:layer3.moe` has no function or child `experts`, expected one of: shared_expert, routed_experts, routed, moe, router",
        ),
        (
            "qwen3_5_35b_a3b:embed.layer0",
            "`qwen3_5_35b_a3b:embed` is a function, expected the selector to end there, not at `layer0`",
        ),
        (
            "qwen3_5_35b_a3b:layer3..mixer",
            "`qwen3_5_35b_a3b:layer3..mixer` is no selector, expected MODEL:PATH as in qwen3_5_35b_a3b:layer0.mixer",
        ),
    ];
    for (selector, expected) in table {
        assert_eq!(select(selector, &stack).expect_err(selector).to_string(), expected);
    }
    assert_eq!(model_of("qwen3_5_35b_a3b:layer3"), "qwen3_5_35b_a3b");
    assert_eq!(model_of("qwen3_5_35b_a3b"), "qwen3_5_35b_a3b");
}
