//! The mixture of experts: a router, routed experts, and a shared expert behind a gate of its own.

use super::config::Config;
use super::norm::{ACTIVATION, linear};
use crate::hir::{Builder, Child, Dtype, Function, HirError, Module, Op, Type, ValueId};

/// Functions `shared_expert`, `routed_experts`, `routed`, `moe` (the entry), and the child `router`.
pub(super) fn module(c: &Config) -> Result<Module, HirError> {
    let router = router(c)?;
    let shared = shared_expert(c)?;
    let experts = routed_experts(c)?;
    let routed = routed(c, &router, &experts)?;
    let moe = moe(c, &router, &experts, &shared)?;
    let child = Child {
        name: "router".to_string(),
        scope: "gate".to_string(),
        module: Module::new("router", vec![router], Vec::new())?,
    };
    Module::new("moe", vec![shared, experts, routed, moe], vec![child])
}

fn hidden(c: &Config) -> Type {
    Type::new(ACTIVATION, &[c.hidden_size])
}

/// Softmax over all experts, the k largest, divided by their sum: `hidden` to `weights` `[k]` (descending),
/// `expert_ids` `[k]`, `router_logits` `[E]`.
fn router(c: &Config) -> Result<Function, HirError> {
    let mut b = Builder::new("router");
    let x = b.param("hidden", hidden(c));
    let logits = linear(&mut b, "", c.num_experts, x)?;
    let logits32 = b.cast(logits, Dtype::F32)?;
    let probabilities = b.op(Op::Softmax { axis: 0 }, &[logits32])?;
    let k = c.num_experts_per_tok;
    let top = b.op(Op::TopK { k }, &[probabilities])?;
    let values = b.op(Op::TupleGet { index: 0 }, &[top])?;
    let ids = b.op(Op::TupleGet { index: 1 }, &[top])?;
    let sum = b.sum(values, 0, true)?;
    let weights = b.div(values, sum)?;
    let weights = b.cast(weights, ACTIVATION)?;
    b.result("weights", weights);
    b.result("expert_ids", ids);
    b.result("router_logits", logits);
    b.finish()
}

/// `Σ_j weights[j] · down[e_j] (silu(gate) · up)` with `[gate | up] = gate_up[e_j] x`, in the router's order:
/// `hidden`, `weights` `[k]`, `expert_ids` `[k]` to `hidden`.
fn routed_experts(c: &Config) -> Result<Function, HirError> {
    let (h, i, k) = (c.hidden_size, c.moe_intermediate_size, c.num_experts_per_tok);
    let mut b = Builder::new("routed_experts");
    let x = b.param("hidden", hidden(c));
    let weights = b.param("weights", Type::new(ACTIVATION, &[k]));
    let ids = b.param("expert_ids", Type::new(Dtype::I64, &[k]));
    let gate_up = b.weight("experts.gate_up_proj", Type::new(ACTIVATION, &[c.num_experts, 2 * i, h]));
    let down = b.weight("experts.down_proj", Type::new(ACTIVATION, &[c.num_experts, h, i]));
    let y = b.label("experts", |b| {
        let gate_up = b.op(Op::IndexSelect, &[gate_up, ids])?;
        let gate_up = b.matmul(gate_up, x)?;
        let gate = b.slice(gate_up, 1, 0, i)?;
        let up = b.slice(gate_up, 1, i, i)?;
        let inner = gated(b, gate, up)?;
        let down = b.op(Op::IndexSelect, &[down, ids])?;
        let inner = b.reshape(inner, &[k, i, 1])?;
        let each = b.matmul(down, inner)?;
        let each = b.reshape(each, &[k, h])?;
        let weights = b.reshape(weights, &[k, 1])?;
        let each = b.mul(each, weights)?;
        b.sum(each, 0, false)
    })?;
    b.result("hidden", y);
    b.finish()
}

/// `down (silu(gate x) · up x)`: `hidden` to `hidden`.
fn shared_expert(c: &Config) -> Result<Function, HirError> {
    let inner = c.shared_expert_intermediate_size;
    let mut b = Builder::new("shared_expert");
    let x = b.param("hidden", hidden(c));
    let gate = linear(&mut b, "shared_expert.gate_proj", inner, x)?;
    let up = linear(&mut b, "shared_expert.up_proj", inner, x)?;
    let y = b.label("shared_expert", |b| gated(b, gate, up))?;
    let y = linear(&mut b, "shared_expert.down_proj", c.hidden_size, y)?;
    b.result("hidden", y);
    b.finish()
}

/// `silu(gate) · up`
fn gated(b: &mut Builder, gate: ValueId, up: ValueId) -> Result<ValueId, HirError> {
    let gate = b.unary(Op::Silu, gate)?;
    b.mul(gate, up)
}

/// Router and routed experts without the shared expert, which some validations run alone.
fn routed(c: &Config, router: &Function, experts: &Function) -> Result<Function, HirError> {
    let mut b = Builder::new("routed");
    let x = b.param("hidden", hidden(c));
    let routing = b.call(&["router"], router, &[x])?;
    let y = b.call(&[], experts, &[x, routing[0], routing[1]])?;
    b.result("hidden", y[0]);
    b.result("expert_ids", routing[1]);
    b.result("router_logits", routing[2]);
    b.finish()
}

/// `routed + sigmoid(W_sg x) · shared`. The products of x come in the order gate, up, W_sg, router, which is
/// the order in which they are fused.
fn moe(c: &Config, router: &Function, experts: &Function, shared: &Function) -> Result<Function, HirError> {
    let mut b = Builder::new("moe");
    let x = b.param("hidden", hidden(c));
    let shared = b.call(&[], shared, &[x])?[0];
    let gate = linear(&mut b, "shared_expert_gate", 1, x)?;
    let routing = b.call(&["router"], router, &[x])?;
    let routed = b.call(&[], experts, &[x, routing[0], routing[1]])?[0];
    let gate = b.unary(Op::Sigmoid, gate)?;
    let shared = b.mul(gate, shared)?;
    let y = b.add(routed, shared)?;
    b.result("hidden", y);
    b.result("expert_ids", routing[1]);
    b.result("router_logits", routing[2]);
    b.finish()
}
