//! How much code, memory and time the parts take: tables that change only when they are meant to.

mod support;

use mica_compile::{CompileError, Options, Seams, compile, link};
use mica_device::isa::{self, Opcode};
use mica_device::object::Kernel;
use mica_device::product::{Product, Rates};
use mica_models::Stack;
use mica_models::hir::Function;
use mica_simulate::timing::{self, Inputs};
use std::fmt::Write;
use support::{describe, options, product, prove, tiny, weights};

/// The published dimensions of the 35B model.
const PUBLISHED: &str = r#"{
    "model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
    "attn_output_gate": true, "full_attention_interval": 4, "max_position_embeddings": 262144,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": true}
}"#;

fn parts(stack: &Stack) -> Vec<(&str, &Function)> {
    let kinds = stack.kinds.iter().map(|k| (k.name.as_str(), &k.function));
    [("embed", &stack.embed)].into_iter().chain(kinds).chain([("head", &stack.head)]).collect()
}

/// Cycles of a call at a position, at the rates of `docs/timing.md`, whose figures are made of these.
fn cycles(kernel: &Kernel, product: &Product, position: u64) -> u64 {
    let rates = Rates { bus_bytes: 32, clock_mhz: 1000 };
    timing::cycles(kernel, product, &rates, Inputs { position, ..Inputs::default() }).unwrap().total
}

fn table(stack: &Stack) -> String {
    let mut text = String::from("product part instructions tdef waits lrm_peak l2_peak cycles\n");
    let mut proved: Vec<Vec<u8>> = Vec::new();
    for name in ["qb1", "qb4", "qb16"] {
        let product = product(name);
        for (kind, f) in parts(stack) {
            let o = match compile(kind, f, &weights::plan(f), &product, &options(f)) {
                Ok(o) => o,
                Err(e) => {
                    writeln!(text, "{name} {kind} {e}").unwrap();
                    continue;
                }
            };
            let kernel = link(&[&o], &product, Seams::Segment).unwrap();
            // the same code needs one proof
            if !proved.contains(&kernel.code) {
                prove(&kernel);
                proved.push(kernel.code.clone());
            }
            let code = isa::decode(&o.code).unwrap();
            let tdef = code.iter().filter(|i| i.op == Opcode::Tdef).count();
            let waits = code.iter().flat_map(|i| i.wait).filter(|w| *w > 0).count();
            let (n, lrm, l2) = (code.len(), o.lrm_peak, o.l2_peak);
            let cycles = cycles(&kernel, &product, 0);
            writeln!(text, "{name} {kind} {n} {tdef} {waits} {lrm} {l2} {cycles}").unwrap();
        }
    }
    text
}

#[test]
fn shipped_model() {
    insta::assert_snapshot!(table(&tiny()));
}

#[test]
fn published_dimensions() {
    insta::assert_snapshot!(table(&describe(PUBLISHED)));
}

/// Calls of several tokens and at long context, also where values wait in L2: on qb1 of two tokens, on qb4 of eight.
#[test]
fn calls_at_published_dimensions() {
    let stack = describe(PUBLISHED);
    let mut text = String::from("product part tokens lrm_peak l2_peak cycles at position 0, 127, 4000\n");
    for (name, tokens) in [("qb1", 1), ("qb1", 2), ("qb4", 1), ("qb4", 8), ("qb16", 1), ("qb16", 4)] {
        let product = product(name);
        for k in &stack.kinds {
            let o = Options { tokens, capacity: 8192, ..options(&k.function) };
            let o = compile(&k.name, &k.function, &weights::plan(&k.function), &product, &o).unwrap();
            let kernel = link(&[&o], &product, Seams::Segment).unwrap();
            let [zero, block, long] = [0, 127, 4000].map(|position| cycles(&kernel, &product, position));
            let (kind, lrm, l2) = (&k.name, o.lrm_peak, o.l2_peak);
            writeln!(text, "{name} {kind} {tokens} {lrm} {l2} {zero} {block} {long}").unwrap();
        }
    }
    insta::assert_snapshot!(text);
}

/// A wider layer than the array can hold says so, with figure, limit and way out.
#[test]
fn a_part_that_overflows_is_refused() {
    let stack = describe(&PUBLISHED.replace(r#""hidden_size": 2048"#, r#""hidden_size": 32768"#));
    let f = &stack.kinds[0].function;
    let e = compile("wide", f, &weights::plan(f), &product("qb1"), &options(f)).unwrap_err();
    assert!(matches!(e, CompileError::Overflow { memory: "LRM", .. }), "{e:?}");
    insta::assert_snapshot!(e, @"`wide` needs 262208 bytes of LRM at instruction 10 (input_layernorm), and qb1 has 262144: take a larger product, or a model of smaller dimensions");
    let mut small = product("qb16");
    small.l2 = 4096;
    let e = compile("wide", f, &weights::plan(f), &small, &options(f)).unwrap_err();
    insta::assert_snapshot!(e, @"`wide` needs 262144 bytes of L2 at instruction 0 (input_layernorm), and qb16 has 4096: take a larger product, or a model of smaller dimensions");
}

#[test]
fn mistakes_are_named() {
    let stack = tiny();
    let f = &stack.embed;
    let o = Options { exports: vec!["logits".into()], ..options(f) };
    let e = compile("embed", f, &weights::plan(f), &product("qb1"), &o).unwrap_err();
    insta::assert_snapshot!(e, @"`embed` has no result `logits` to export; it has hidden");
    let e = compile("embed", f, &Default::default(), &product("qb1"), &options(f)).unwrap_err();
    insta::assert_snapshot!(e, @"the plan has no weight `embed_tokens.weight`, which `embed` takes: plan the part's weights again");
    let mut plan = weights::plan(f);
    plan.entries[0].shape[0] += 1;
    let e = compile("embed", f, &plan, &product("qb1"), &options(f)).unwrap_err();
    insta::assert_snapshot!(e, @"weight `embed_tokens.weight` is planned as [2049, 128] but the function takes [2048, 128]");
    let mut plan = weights::plan(&stack.head);
    plan.entries[0].storage = plan.entries[1].storage;
    let e = compile("head", &stack.head, &plan, &product("qb1"), &options(&stack.head)).unwrap_err();
    insta::assert_snapshot!(e, @"weight `norm.weight` is stored as a tiled matrix, but its use needs plain elements (a vector): change its format in the recipe");
}
