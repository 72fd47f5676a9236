//! The printed form of a function: one line a parameter, a node, a result. It states everything that the
//! function holds, so equal text means an equal function.

use super::function::{Function, ParamKind};
use super::op::Op;
use super::types::DimVar;
use std::collections::BTreeMap;
use std::fmt;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Reduce { kind, axis, keep } => {
                let keep = if *keep { " keep" } else { "" };
                write!(f, "<{} axis={axis}{keep}>", format!("{kind:?}").to_lowercase())
            }
            Op::RmsNorm { eps } => write!(f, "<eps={eps:?}>"),
            Op::Softmax { axis } | Op::Concat { axis } => write!(f, "<axis={axis}>"),
            Op::Rope { rotary, theta } => write!(f, "<rotary={rotary} theta={theta:?}>"),
            Op::TopK { k } => write!(f, "<k={k}>"),
            Op::Slice { axis, start, len } => write!(f, "<axis={axis} start={start} len={len}>"),
            Op::Reshape { shape } => {
                let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
                write!(f, "<[{}]>", shape.join(", "))
            }
            Op::Transpose { perm } => write!(f, "<{perm:?}>"),
            Op::RepeatInterleave { axis, repeats } => write!(f, "<axis={axis} repeats={repeats}>"),
            Op::Cast { dtype } | Op::Round { dtype } => write!(f, "<{dtype}>"),
            Op::FullLike { value } => write!(f, "<{value:?}>"),
            Op::TupleGet { index } => write!(f, "<{index}>"),
            Op::Call { path, function } => {
                let path: Vec<&str> = path.iter().map(String::as_str).chain([function.as_str()]).collect();
                write!(f, "<{}>", path.join("."))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "function {}", self.name)?;
        let vars: BTreeMap<&str, &DimVar> = self
            .params
            .iter()
            .flat_map(|p| p.ty.shape.iter().filter_map(|d| d.var.as_ref()))
            .map(|v| (v.name.as_str(), v))
            .collect();
        for (name, v) in vars {
            writeln!(f, "  dim {name} in {}..{}", v.lo, v.hi)?;
        }
        for (i, p) in self.params.iter().enumerate() {
            let kind = match p.kind {
                ParamKind::Tensor => "param",
                ParamKind::Const => "weight",
            };
            writeln!(f, "  {kind} %{i} {}: {}", p.name, p.ty)?;
        }
        for (v, node) in self.values() {
            let inputs: Vec<String> = node.inputs.iter().map(|v| format!("%{}", v.0)).collect();
            let types: Vec<String> = node.types.iter().map(ToString::to_string).collect();
            write!(f, "  %{} = {}({}): {}", v.0, node.op, inputs.join(", "), types.join(", "))?;
            match node.label.as_str() {
                "" => writeln!(f)?,
                label => writeln!(f, "  ; {label}")?,
            }
        }
        for (name, v) in &self.results {
            writeln!(f, "  result {name} = %{}", v.0)?;
        }
        Ok(())
    }
}
