//! Preparing a delivery's weights: converters, children first.

mod common;

use common::decode::step;
use common::{Delivered, Tensors, error, read, row, tiny_config};
use mica_models::decode::Carried;
use mica_models::eval::{EvalError, Resource, Weights};
use mica_models::hir::{Dtype, Type};
use mica_models::prepare::{Prepared, children_first, converters, prepared_sources};
use mica_models::{Part, Stack, describe};
use std::borrow::Cow;

fn stack() -> Stack {
    describe("qwen3_5_35b_a3b", &tiny_config()).expect("described")
}

#[test]
fn children_come_first() {
    let stack = stack();
    let order = children_first(&stack.kind(3).expect("a layer").module).expect("one type a name");
    let place = |name: &str| order.iter().position(|n| n == name).expect(name);
    let moe = order.iter().filter(|n| n.starts_with("mlp.")).count();
    assert_eq!((order.len(), moe), (15, 7));
    assert!(place("mlp.gate.weight") < place("mlp.shared_expert_gate.weight"), "the router before its block");
    let own = ["input_layernorm.weight", "post_attention_layernorm.weight"];
    assert_eq!(order[13..], own, "the layer's own last");
    // Every weight of the part has its source, in that order.
    let sources: Vec<String> =
        prepared_sources(&stack, Part::Layer(3)).expect("a part").into_iter().map(|s| s.role).collect();
    assert_eq!(sources, order);
}

#[test]
fn a_converter_is_registered_where_the_layout_differs() {
    let stack = stack();
    let of = |part| -> Vec<String> {
        converters(&stack, part)
            .expect("a part")
            .into_iter()
            .map(|(role, f)| format!("{role} by {}", f.name))
            .collect()
    };
    assert_eq!(of(Part::Layer(0)), ["linear_attn.conv1d.weight by conv1d_time_major"]);
    assert!(of(Part::Layer(3)).is_empty() && of(Part::Embed).is_empty() && of(Part::Head).is_empty());
    assert!(converters(&stack, Part::Layer(8)).is_err());
}

/// A part's published tensors without a converter of the tests' own, and with the types that they claim.
struct Published<'a> {
    delivered: Delivered<'a>,
    claims: Option<(&'static str, Option<Type>)>,
}

impl Weights for Published<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        let whole = format!("{}{name}", self.delivered.prefix);
        match self.delivered.tensors.get(&whole) {
            Some(t) => Ok(Cow::Borrowed(t.as_f64().expect("a float weight"))),
            None => Err(EvalError::MissingWeight { name: whole }),
        }
    }
}

impl Resource for Published<'_> {
    fn ty(&self, name: &str) -> Option<Type> {
        match &self.claims {
            Some((claimed, ty)) if *claimed == name => ty.clone(),
            _ => self.delivered.ty(name),
        }
    }
}

fn published<'a>(tensors: &'a Tensors, claims: Option<(&'static str, Option<Type>)>) -> Published<'a> {
    let prefix = "model.language_model.layers.0.".to_string();
    Published { delivered: Delivered { tensors, prefix }, claims }
}

#[test]
fn a_prepared_part_runs_as_the_published_one() {
    let (stack, tensors) = (stack(), read("tiny/model.safetensors"));
    let resource = published(&tensors, None);
    let prepared = Prepared::new(&stack, Part::Layer(0), &resource).expect("prepares");
    // It has the types that the module declares, so the module loads it.
    stack.kinds[0].module.load(&prepared).expect("loads");
    let conv = prepared.tensor("linear_attn.conv1d.weight").expect("converted");
    let rows = prepared.rows("linear_attn.conv1d.weight", &[1], 256).expect("a row");
    assert_eq!(conv[256..512], rows[..]);
    let captures = read("tiny/test_vectors_f64.safetensors");
    let f = &stack.kinds[0].function;
    let mut carried = Carried::new(f);
    for i in 0..4 {
        let hidden = row(&captures["model.embed_tokens:float_output"], i);
        let got = step(f, &prepared, hidden, i as i64, &mut carried);
        let want = row(&captures["model.layers.0:float_output"], i);
        assert!(error(&got.results["hidden"], &want) < 1e-12);
    }
}

#[test]
fn weights_that_are_not_as_published_are_refused() {
    let (stack, tensors) = (stack(), read("tiny/model.safetensors"));
    let refused = |name: &'static str, ty: Option<Type>| {
        let resource = published(&tensors, Some((name, ty)));
        Prepared::new(&stack, Part::Layer(0), &resource).err().expect("refused").to_string()
    };
    let bf16 = |shape: &[u64]| Some(Type::new(Dtype::BF16, shape));
    let table = [
        (
            refused("mlp.gate.weight", None),
            "weight `mlp.gate.weight` is missing, expected bf16[16, 128] as published",
        ),
        // The converted layout is not the published one.
        (
            refused("linear_attn.conv1d.weight", bf16(&[4, 256])),
            "weight `linear_attn.conv1d.weight` is bf16[4, 256], expected bf16[256, 1, 4] as published",
        ),
        (
            refused("linear_attn.A_log", Some(Type::new(Dtype::I64, &[4]))),
            "weight `linear_attn.A_log` is i64[4], expected f32[4] as published",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
    // float32 as published or bfloat16, as a later publisher stores it: both are taken.
    for dtype in [Dtype::F32, Dtype::BF16] {
        let resource = published(&tensors, Some(("linear_attn.A_log", Some(Type::new(dtype, &[4])))));
        Prepared::new(&stack, Part::Layer(0), &resource).expect("either dtype");
    }
    let short = tensors.iter().map(|(n, t)| {
        let short = n.ends_with("layers.0.linear_attn.conv1d.weight");
        (n.clone(), if short { row(t, 0) } else { t.clone() })
    });
    let short: Tensors = short.collect();
    let resource = published(&short, Some(("linear_attn.conv1d.weight", bf16(&[256, 1, 4]))));
    assert_eq!(
        Prepared::new(&stack, Part::Layer(0), &resource).err().expect("refused").to_string(),
        "weight `linear_attn.conv1d.weight` could not be converted: weight `linear_attn.conv1d.weight` has 4 elements, expected 1024"
    );
}
