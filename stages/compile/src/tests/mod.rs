//! Rules on hand-built functions, as text.

mod made_up;
mod memory;
mod patterns;
mod placing;
mod refused;
mod rules;
mod tokens;

use crate::graph::Graph;
use crate::graph::pattern::Rules;
use crate::{Options, tile_ir};
use mica_device::format::Format;
use mica_device::layout::{MatrixFormat, Scaling, WeightFormat};
use mica_device::product::Product;
use mica_device::segment::{SegmentPlan, Storage};
use mica_models::hir::{Builder, Dtype, Function, HirError, Node, ParamKind, Type, ValueId};

/// A function built by `body`, whose last value is the result `y`.
fn function(body: impl FnOnce(&mut Builder) -> Result<ValueId, HirError>) -> Function {
    let mut b = Builder::new("f");
    let y = body(&mut b).unwrap();
    b.result("y", y);
    b.finish().unwrap()
}

fn f32s(shape: &[u64]) -> Type {
    Type::new(Dtype::F32, shape)
}

fn ints(shape: &[u64]) -> Type {
    Type::new(Dtype::I64, shape)
}

/// Matrices i8 by row, experts i4, everything else f32.
fn plan(f: &Function) -> SegmentPlan {
    let mut plan = SegmentPlan::default();
    for p in f.params.iter().filter(|p| p.kind == ParamKind::Const) {
        let shape = p.ty.known_shape().unwrap();
        let matrix = |weight, group: u64, scale| MatrixFormat {
            weight,
            scaling: Some(Scaling { group: group as u32, scale, zero: false }),
        };
        let storage = match *shape {
            [_, _, _] => Storage::Experts(matrix(WeightFormat::I4, 32, Format::F16)),
            [_, cols] if p.name.starts_with('w') => {
                Storage::Matrix(matrix(WeightFormat::I8, cols, Format::F32))
            }
            _ => Storage::Vector(Format::F32),
        };
        assert!(plan.push(&p.name, &shape, storage));
    }
    plan
}

fn options(f: &Function) -> Options {
    let exports = f.results.iter().map(|(n, _)| n.clone()).filter(|n| n != "hidden").collect();
    Options { frac: 20, capacity: 256, exports, tokens: 1 }
}

/// The tile IR, or the error.
fn ir(f: &Function) -> String {
    ir_of(f, 1)
}

/// The same of several tokens a call.
fn ir_of(f: &Function, tokens: u64) -> String {
    let o = Options { tokens, ..options(f) };
    match tile_ir(f, &plan(f), &Product::named("qb1").unwrap(), &o) {
        Ok(text) => text,
        Err(e) => e.to_string(),
    }
}

/// The rules that the function's nodes are lowered by, one line a live node.
fn rules(f: &Function) -> String {
    let g = Graph::new(f, &options(f).exports).unwrap();
    let rules = Rules::find(&g);
    let line = |(v, n): (ValueId, &Node)| format!("%{} {}: {}\n", v.0, n.op.name(), rules.rule(v));
    g.live_nodes().map(line).collect()
}
