//! The functions that validations run: parts of the authored modules, flattened, with what is scored by
//! component among their results.

use super::is_full;
use mica_models::Stack;
use mica_models::hir::{
    Dtype, Function, HirError, Module, Node, Op, Param, ParamKind, Type, ValueId, inline,
};
use std::ops::Range;

/// Which of a stack's layers are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// All of them.
    All,
    /// The first one whose mixer is full attention, else the linear one.
    First {
        /// Full attention.
        full: bool,
    },
    /// From the first one to the first of full attention.
    Group,
}

impl Span {
    /// The layers, given all mixers' words; the words are the config's.
    pub fn layers(self, mixers: &[String]) -> Range<usize> {
        let first = |full| mixers.iter().position(|m| m == Subject::Mixer { full }.word());
        match self {
            Span::All => 0..mixers.len(),
            Span::First { full } => first(full).map_or(0..0, |i| i..i + 1),
            Span::Group => first(true).map_or(0..0, |i| 0..i + 1),
        }
    }
}

/// Which function of a stack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The router of a layer's experts.
    Router,
    /// Router and routed experts.
    Routed,
    /// The whole experts' block.
    Moe,
    /// A layer's mixer.
    Mixer {
        /// Full attention, else the linear one.
        full: bool,
    },
    /// Whole layers.
    Layers(Span),
    /// The embedding.
    Embed,
    /// The vocabulary projection on its own, without the norm.
    Head,
}

impl Subject {
    /// As a kind of part is named.
    pub fn word(self) -> &'static str {
        match self {
            Subject::Router => "router",
            Subject::Routed => "routed",
            Subject::Moe => "moe",
            Subject::Mixer { full: true } => "full_attention",
            Subject::Mixer { full: false } => "linear_attention",
            Subject::Layers(_) => "layer",
            Subject::Embed => "embed",
            Subject::Head => "head",
        }
    }

    /// What stands before a weight's name in a layer.
    pub fn scope(self) -> &'static str {
        match self {
            Subject::Router => "mlp.gate",
            Subject::Routed | Subject::Moe => "mlp",
            Subject::Mixer { full: true } => "self_attn",
            Subject::Mixer { full: false } => "linear_attn",
            Subject::Layers(_) | Subject::Embed | Subject::Head => "",
        }
    }

    /// The first layer that has it; the words are the config's.
    pub fn layer(self, mixers: &[String]) -> usize {
        match self {
            Subject::Mixer { .. } => mixers.iter().position(|m| m == self.word()).unwrap_or(0),
            Subject::Layers(span) => span.layers(mixers).start,
            _ => 0,
        }
    }
}

/// The stack with the subject's function in place of the part's, at `layer`.
///
/// # Errors
/// A stack without such a module.
pub fn restrict(mut stack: Stack, subject: Subject, layer: usize) -> Result<Stack, HirError> {
    match subject {
        Subject::Embed => {}
        Subject::Head => stack.head = projection(&stack.head)?,
        Subject::Layers(_) => {
            for kind in &mut stack.kinds {
                tap_layer(&mut kind.function);
            }
        }
        Subject::Router | Subject::Routed | Subject::Moe | Subject::Mixer { .. } => {
            let full = is_full(&stack, layer);
            let Some(&kind) = stack.layers.get(layer) else { return Ok(stack) };
            let kind = &mut stack.kinds[kind];
            kind.function = match subject {
                Subject::Router => {
                    let mut f = inner(&kind.module, &["moe", "router"], "router")?;
                    if let Some(at) = f.results.iter().position(|(n, _)| n == "weights") {
                        let (name, scores) = f.results.remove(at);
                        tap(&mut f, name, scores);
                    }
                    f
                }
                Subject::Routed => inner(&kind.module, &["moe"], "routed")?,
                Subject::Moe => {
                    let mut f = inner(&kind.module, &["moe"], "moe")?;
                    let taps = f.result("hidden").map_or_else(Vec::new, |y| experts(&f, y));
                    taps.into_iter().for_each(|(name, v)| tap(&mut f, name, v));
                    f
                }
                _ => {
                    inner(&kind.module, &["mixer"], if full { "full_attention" } else { "linear_attention" })?
                }
            };
        }
    }
    Ok(stack)
}

/// A function of the module at a path, its weights named as in the layer.
fn inner(module: &Module, path: &[&str], function: &str) -> Result<Function, HirError> {
    let (module, scope) = module.descend(path)?;
    let mut f = inline(module, function)?;
    for p in f.params.iter_mut().filter(|p| p.kind == ParamKind::Const) {
        p.name = format!("{scope}.{}", p.name);
    }
    Ok(f)
}

/// Of a layer `(x + mixer) + experts`: the mixer's output, and the experts' components.
fn tap_layer(f: &mut Function) {
    let Some([h, moe]) = f.result("hidden").and_then(|y| operands(f, y, &Op::Add)) else { return };
    let Some([_, mixer]) = operands(f, h, &Op::Add) else { return };
    let mut taps = vec![("mixer".to_string(), mixer)];
    taps.extend(experts(f, moe));
    taps.into_iter().for_each(|(name, v)| tap(f, name, v));
}

/// Makes a value a result, in float32: the device computes it so, and float16 edges would add an error
/// that the model does not have.
fn tap(f: &mut Function, name: String, v: ValueId) {
    let dtype = Dtype::F32;
    let ty = Type { dtype, shape: f.ty(v).shape.clone() };
    let label = f.node(v).map_or_else(String::new, |n| n.label.clone());
    let id = ValueId((f.params.len() + f.nodes.len()) as u32);
    f.nodes.push(Node { op: Op::Cast { dtype }, inputs: vec![v], types: vec![ty], label });
    f.results.push((name, id));
}

/// Of `routed + gate · shared`: the three. Nothing of a block that is not of this form.
fn experts(f: &Function, y: ValueId) -> Vec<(String, ValueId)> {
    let found = operands(f, y, &Op::Add).and_then(|[routed, gated]| {
        operands(f, gated, &Op::Mul).map(|[gate, shared]| (routed, gate, shared))
    });
    let Some((routed, gate, shared)) = found else { return Vec::new() };
    [("routed", routed), ("shared", shared), ("gate", gate)].map(|(n, v)| (n.to_string(), v)).into()
}

fn operands(f: &Function, v: ValueId, op: &Op) -> Option<[ValueId; 2]> {
    let node = f.node(v).filter(|n| n.op == *op)?;
    node.inputs[..].try_into().ok()
}

/// The head after its norm: `hidden` stands for the normed one.
fn projection(head: &Function) -> Result<Function, HirError> {
    let no_such = || HirError::NoSuch {
        module: head.name.clone(),
        what: "result",
        name: "normed and logits".into(),
        known: head.results.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "),
    };
    let (normed, logits) = head.result("normed").zip(head.result("logits")).ok_or_else(no_such)?;
    let mut keep = vec![false; head.params.len() + head.nodes.len()];
    keep[logits.0 as usize] = true;
    for (i, node) in head.nodes.iter().enumerate().rev() {
        let v = head.params.len() + i;
        if keep[v] && v != normed.0 as usize {
            node.inputs.iter().for_each(|x| keep[x.0 as usize] = true);
        }
    }
    keep[normed.0 as usize] = false;
    let hidden = Param { name: "hidden".into(), ty: head.ty(normed).clone(), kind: ParamKind::Tensor };
    let mut f =
        Function { name: head.name.clone(), params: vec![hidden], nodes: Vec::new(), results: Vec::new() };
    let mut map = vec![ValueId(0); keep.len()];
    for (i, p) in head.params.iter().enumerate().filter(|(i, _)| keep[*i]) {
        map[i] = ValueId(f.params.len() as u32);
        f.params.push(p.clone());
    }
    for (i, node) in head.nodes.iter().enumerate().filter(|(i, _)| keep[head.params.len() + i]) {
        map[head.params.len() + i] = ValueId((f.params.len() + f.nodes.len()) as u32);
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|x| *x = map[x.0 as usize]);
        f.nodes.push(node);
    }
    f.results.push(("logits".into(), map[logits.0 as usize]));
    Ok(f)
}
