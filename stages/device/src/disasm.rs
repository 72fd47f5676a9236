//! Instructions as text. `asm` reads this very text back.
//!
//! One instruction a line: `mnemonic.suffixes operands ?engine-distance @layer.op`, for example
//! `matv.i8.s32 t3, t4, l2=0x1000, rows=64, group=128 ?in-1 @3.17`.

use crate::access::Strides;
use crate::format::Format;
use crate::isa::{Broadcast, Engine, Instr, MatvFlags, NONE, Opcode, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use crate::layout::WeightFormat;
use crate::signature::{Flags, Operand, signature};
use std::fmt::Write;

/// How an engine is written after `?`, in the order of `Instr::wait`.
pub const ENGINE_NAMES: [(&str, Engine); 5] = [
    ("scalar", Engine::Scalar),
    ("in", Engine::DmaIn),
    ("out", Engine::DmaOut),
    ("flow", Engine::Flow),
    ("array", Engine::Array),
];

/// How a weight format is written.
pub const fn weight_text(w: WeightFormat) -> &'static str {
    match w {
        WeightFormat::I4 => "i4",
        WeightFormat::I8 => "i8",
        WeightFormat::F16 => "f16",
    }
}

/// An opcode with what its flags say: `matv.i8.s32`.
pub fn mnemonic(op: Opcode, flags: u8) -> String {
    let mut text = String::from(op.text());
    for suffix in suffixes(signature(op).flags, flags) {
        text.push('.');
        text.push_str(suffix);
    }
    text
}

/// One instruction that the static check has passed.
pub fn line(i: &Instr) -> String {
    let sig = signature(i.op);
    let mut text = mnemonic(i.op, i.flags);
    let mut separator = " ";
    for operand in sig.operands {
        if let Some(operand) = operand_text(i, *operand) {
            text.push_str(separator);
            text.push_str(&operand);
            separator = ", ";
        }
    }
    // writing to a string cannot fail
    for (name, engine) in ENGINE_NAMES {
        let distance = i.wait[engine as usize];
        if distance > 0 {
            let _ = write!(text, " ?{name}-{distance}");
        }
    }
    if i.src != 0 {
        let _ = write!(text, " @{}.{}", i.src >> 16, i.src & 0xffff);
    }
    text
}

/// A program, a line an instruction, each after its index.
pub fn listing(program: &[Instr]) -> String {
    let mut text = String::new();
    for (index, i) in program.iter().enumerate() {
        let _ = writeln!(text, "{index:6}  {}", line(i));
    }
    text
}

fn suffixes(kind: Flags, b: u8) -> Vec<&'static str> {
    match kind {
        Flags::None => Vec::new(),
        Flags::Format => Format::from_code(b).map(Format::text).into_iter().collect(),
        Flags::Scalar => ScalarOp::from_code(b & 0x7f).map(ScalarOp::text).into_iter().collect(),
        Flags::Matv => MatvFlags::from_code(b).map_or(Vec::new(), |f| {
            let mut all = vec![weight_text(f.weight)];
            all.extend(f.scale_f32.then_some("s32"));
            all.extend(f.zero.then_some("zero"));
            all
        }),
        Flags::Binary => VectorOp::from_code(b & 15)
            .map(VectorOp::text)
            .into_iter()
            .chain(Broadcast::from_code(b >> 4).map(Broadcast::text))
            .collect(),
        Flags::Immediate => VectorOp::from_code(b).map(VectorOp::text).into_iter().collect(),
        Flags::Unary => UnaryOp::from_code(b).map(UnaryOp::text).into_iter().collect(),
        Flags::Reduce => ReduceOp::from_code(b & 15)
            .map(ReduceOp::text)
            .into_iter()
            .chain([if b >> 4 == 0 { "rows" } else { "cols" }])
            .collect(),
        Flags::Accumulate => (b == 1).then_some("acc").into_iter().collect(),
    }
}

fn operand_text(i: &Instr, operand: Operand) -> Option<String> {
    let optional = |letter: char, number: u8| {
        if number == NONE { "-".to_string() } else { format!("{letter}{number}") }
    };
    Some(match operand {
        Operand::Scalar(n) => format!("s{}", i.r[n]),
        Operand::Tile(n) => format!("t{}", i.r[n]),
        Operand::ScalarOrNone(n) => optional('s', i.r[n]),
        Operand::TileOrNone(n) => optional('t', i.r[n]),
        Operand::Frac(n) => {
            if Format::from_code(i.flags) != Some(Format::Fx32) {
                return None;
            }
            format!("frac={}", i.r[n])
        }
        Operand::ScalarOrZ(n) if i.flags & 0x80 == 0 => format!("s{}", i.r[n]),
        Operand::ScalarOrZ(_) => (i.z as i64).to_string(),
        // addresses read better in hexadecimal, counts in decimal
        Operand::X(name @ ("l2" | "lrm")) => format!("{name}={:#x}", i.x),
        Operand::X(name) => format!("{name}={}", i.x),
        Operand::Y(name) => format!("{name}={}", i.y),
        Operand::Z(name) => format!("{name}={}", i.z),
        Operand::SignedZ(name) => format!("{name}={}", i.z as i64),
        Operand::Imm => {
            let value = f32::from_bits(i.x);
            if value.is_finite() { format!("{value:?}") } else { format!("{:#x}", i.x) }
        }
        Operand::Shape => format!("{}x{}", i.z as u32, i.z >> 32),
        Operand::Strides => {
            let s = Strides::of(i);
            format!("{}x{}/{}/{}", s.rows, s.len, s.from, s.to)
        }
    })
}
