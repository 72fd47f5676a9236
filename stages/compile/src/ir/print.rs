//! The text form of the tile IR, for snapshots: one line an instruction, loops indented.

use super::{Inst, Item, Program, Reg, Tile};
use mica_device::disasm::mnemonic;
use mica_device::isa::Opcode;
use mica_device::object::Symbol;
use std::fmt::{self, Write};

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.buf.0)?;
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        write!(f, ":{}[", self.format.text())?;
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
