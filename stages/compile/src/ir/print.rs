//! The text form of the tile IR, for snapshots: one line an instruction, loops indented.

use super::{Inst, Item, Program, Reg, Tile};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, Opcode, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use mica_device::object::Symbol;
use std::fmt::{self, Write};

fn format_text(f: Format) -> &'static str {
    match f {
        Format::F32 => "f32",
        Format::F16 => "f16",
        Format::Bf16 => "bf16",
        Format::Fx32 => "fx32",
        Format::I32 => "i32",
        Format::I8 => "i8",
    }
}

/// The mnemonic with its sub-operation.
pub fn mnemonic(op: Opcode, flags: u8) -> String {
    let sub = match op {
        Opcode::Vbin => VectorOp::from_code(flags & 15)
            .zip(Broadcast::from_code(flags >> 4))
            .map(|(o, b)| format!("{}.{}", o.text(), b.text())),
        Opcode::Vbini => VectorOp::from_code(flags).map(|o| o.text().into()),
        Opcode::Vun => UnaryOp::from_code(flags).map(|o| o.text().into()),
        Opcode::Salu => ScalarOp::from_code(flags & 0x7f).map(|o| o.text().into()),
        Opcode::Red => ReduceOp::from_code(flags & 15)
            .map(|o| format!("{}.{}", o.text(), if flags >> 4 == 0 { "rows" } else { "cols" })),
        Opcode::Ldt | Opcode::Stt => Format::from_code(flags).map(|f| format_text(f).into()),
        Opcode::Matv => Some(format!("{flags:#x}")),
        Opcode::Tmvt if flags & 1 != 0 => Some("more".into()),
        _ => None,
    };
    match sub {
        Some(sub) => format!("{}.{sub}", op.text()),
        None => op.text().into(),
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.buf.0)?;
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        write!(f, ":{}[", format_text(self.format))?;
        match self.count {
            Some(s) => write!(f, "s{s}<={}", self.rows)?,
            None => write!(f, "{}", self.rows)?,
        }
        write!(f, "x{}]", self.cols)
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mnemonic(self.op, self.flags))?;
        let mut sep = ' ';
        for reg in &self.r {
            match reg {
                Reg::Unused | Reg::Absent => continue,
                Reg::Scalar(s) => write!(f, "{sep}s{s}")?,
                Reg::Tile(t) => write!(f, "{sep}{t}")?,
                Reg::Frac(b) => write!(f, "{sep}.{b}")?,
            }
            sep = ',';
        }
        if let Some(s) = self.span {
            write!(f, "{sep}@{}", s.buf.0)?;
            if s.offset != 0 {
                write!(f, "+{}", s.offset)?;
            }
            write!(f, "[{}]", s.bytes)?;
        }
        match &self.symbol {
            Some(Symbol::Constants) => write!(f, " constants")?,
            Some(Symbol::Literals) => write!(f, " literals")?,
            Some(Symbol::Edge(name)) => write!(f, " {name}")?,
            None => {}
        }
        match self.op {
            Opcode::Vbini => write!(f, ",{:?}", f32::from_bits(self.x)),
            Opcode::Vmov => write!(
                f,
                " to {} from {}: {} rows of {}, strides {} from {}",
                self.x,
                self.y,
                self.z & 0xffff,
                self.z >> 16 & 0xffff,
                self.z >> 48,
                self.z >> 32 & 0xffff
            ),
            Opcode::Matv => write!(f, " {} rows, group {}", self.y, self.z),
            Opcode::Topk | Opcode::Vrot | Opcode::Sget => write!(f, " {}", self.x),
            Opcode::Dld | Opcode::Dst | Opcode::Sld => write!(f, "+{}", self.z),
            Opcode::Sli => write!(f, ",{}", self.z as i64),
            Opcode::Salu if self.flags & 0x80 != 0 => write!(f, ",{}", self.z as i64),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut depth = 0;
        for item in &self.items {
            if *item == Item::End {
                depth -= 1;
            }
            for _ in 0..depth {
                f.write_str("  ")?;
            }
            match item {
                Item::Inst(i) => {
                    writeln!(f, "{i}")?;
                    depth += usize::from(i.op == Opcode::Loop);
                }
                Item::End => f.write_str("end\n")?,
            }
        }
        f.write_char('\n')
    }
}
