//! State in words: values in their formats, registers, tiles, memories.

use super::words::Region;
use crate::host::{self, Shape};
use mica_device::format::Format;
use mica_device::isa::{Instr, Opcode};
use mica_device::signature::{Operand, signature};
use mica_device::tile::{Tile, register};
use mica_simulate::{Program, View};

/// Elements of an operand shown beside its instruction.
const OPERAND: usize = 6;

/// Decoded elements and their shape.
pub struct Values {
    format: Format,
    frac: u8,
    shape: (u32, u32),
    values: Vec<f64>,
}

impl Values {
    /// Elements of a format.
    pub fn new(format: Format, frac: u8, shape: (u32, u32), bytes: &[u8]) -> Values {
        let elements = bytes.len() as u64 / format.bytes();
        let values = host::values(bytes, &Shape { format, frac, elements });
        Values { format, frac, shape, values }
    }

    /// What a tile holds; `None` where it does not lie in the memory.
    pub fn of_tile(t: &Tile, view: &View<'_>) -> Option<Values> {
        let bytes = view.lrm(t.offset.into(), t.len() * t.format.bytes())?;
        Some(Values::new(t.format, t.frac, (t.rows, t.cols), &bytes))
    }

    fn head(&self) -> String {
        let frac = if self.format == Format::Fx32 { format!(".{}", self.frac) } else { String::new() };
        format!("{}{frac} {}x{}", self.format.text(), self.shape.0, self.shape.1)
    }

    fn first(&self, most: usize) -> String {
        let shown: Vec<String> = self.values.iter().take(most).map(|v| self.number(*v)).collect();
        let more = if self.values.len() > most { ", …" } else { "" };
        format!("[{}{more}]", shown.join(", "))
    }

    fn number(&self, v: f64) -> String {
        match self.format {
            Format::I32 | Format::I8 => format!("{v}"),
            _ => number(v),
        }
    }

    /// One line: format, shape, the first elements.
    pub fn line(&self) -> String {
        format!("{} {}", self.head(), self.first(OPERAND))
    }

    /// The first `most` elements, and what all of them are like.
    pub fn text(&self, most: usize) -> String {
        let finite: Vec<f64> = self.values.iter().copied().filter(|v| v.is_finite()).collect();
        let (low, high) =
            finite.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        let mean = finite.iter().map(|v| v.abs()).sum::<f64>() / finite.len().max(1) as f64;
        let odd = self.values.len() - finite.len();
        let odd = if odd > 0 { format!(", {odd} not finite") } else { String::new() };
        let range = match finite.is_empty() {
            true => "no finite element".into(),
            false => {
                format!("{} to {}, mean magnitude {}", self.number(low), self.number(high), number(mean))
            }
        };
        format!("{}: {range}{odd}\n{}", self.head(), self.first(most))
    }
}

fn number(v: f64) -> String {
    match v {
        v if v == v.trunc() && v.abs() < 1e9 => format!("{v}"),
        v if v.is_finite() && (v.abs() < 1e-3 || v.abs() >= 1e7) => format!("{v:.6e}"),
        v => format!("{v:.6}"),
    }
}

fn tile(t: u8, view: &View<'_>) -> String {
    match view.tile(t) {
        None => format!("t{t} is not defined"),
        Some(tile) => match Values::of_tile(&tile, view) {
            None => format!("t{t} at {:#x} is past the end of LRM", tile.offset),
            Some(v) => format!("t{t} at {:#x}: {}", tile.offset, v.line()),
        },
    }
}

fn scalar(s: u8, view: &View<'_>) -> String {
    let value = view.scalars()[usize::from(s)];
    format!("s{s} = {value:#x} ({})", value as i64)
}

/// A line for each register and tile that an instruction names.
pub fn operands(i: &Instr, view: &View<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for o in signature(i.op).operands {
        let line = match *o {
            Operand::Scalar(n) => Some(scalar(i.r[n], view)),
            Operand::ScalarOrNone(n) => register(i.r[n]).map(|s| scalar(s, view)),
            Operand::ScalarOrZ(n) if i.flags & 0x80 == 0 => Some(scalar(i.r[n], view)),
            // what it defines is not there yet
            Operand::Tile(_) if i.op == Opcode::Tdef => None,
            Operand::Tile(n) => Some(tile(i.r[n], view)),
            Operand::TileOrNone(n) => register(i.r[n]).map(|t| tile(t, view)),
            _ => None,
        };
        lines.extend(line.map(|l| format!("        {l}")).filter(|l| !lines.contains(l)));
    }
    lines
}

/// What an instruction left in its first register.
pub fn result(i: &Instr, view: &View<'_>) -> Option<String> {
    let left = match (i.op, signature(i.op).operands.first()) {
        (Opcode::Stt | Opcode::Opb, _) => None,
        (_, Some(Operand::Tile(n))) => Some(tile(i.r[*n], view)),
        (Opcode::Loop, _) => register(i.r[1]).map(|s| scalar(s, view)),
        (_, Some(Operand::Scalar(n))) => Some(scalar(i.r[*n], view)),
        _ => None,
    };
    left.map(|l| format!("     -> {l}"))
}

/// Scalars that are not 0, entries by name.
pub fn scalars(view: &View<'_>, program: &Program) -> String {
    let mut lines = Vec::new();
    for (s, value) in view.scalars().iter().enumerate().filter(|(_, v)| **v != 0) {
        let entry = program.entries().iter().find(|e| usize::from(e.register) == s);
        let entry = entry.map_or_else(String::new, |e| format!("  {}", e.name));
        lines.push(format!("s{s} = {value:#x} ({}){entry}", *value as i64));
    }
    if lines.is_empty() { "all scalars are 0".into() } else { lines.join("\n") }
}

/// Defined tiles.
pub fn tiles(view: &View<'_>) -> String {
    let all: Vec<String> =
        (0..mica_device::isa::TILES).filter(|&t| view.tile(t).is_some()).map(|t| tile(t, view)).collect();
    if all.is_empty() { "no tile is defined".into() } else { all.join("\n") }
}

/// A region, or why there is none.
pub fn region(r: &Region, view: &View<'_>, program: &Program, most: usize) -> Result<String, String> {
    let (memory, at, bytes, format) = match r {
        Region::Scalar(s) => return Ok(scalar(*s, view)),
        Region::Tile(t) => {
            let found = view.tile(*t).ok_or_else(|| format!("t{t} is not defined"))?;
            let values = Values::of_tile(&found, view);
            return values.map(|v| v.text(most)).ok_or_else(|| "past the end of LRM".into());
        }
        Region::Bytes { memory, at, bytes, format } => (memory.as_str(), *at, *bytes, *format),
    };
    let found = match memory {
        "lrm" => view.lrm(at, bytes),
        "l2" => view.l2(at, bytes),
        "constants" => view.external(at, bytes),
        name => {
            let entry = program.entries().iter().find(|e| e.name == name).ok_or_else(|| {
                let known: Vec<&str> = program.entries().iter().map(|e| e.name.as_str()).collect();
                format!("{name:?} is no memory; there are lrm, l2, constants, {}", known.join(", "))
            })?;
            // a place past what an address has for it would be another entry's
            let within = at >> mica_simulate::BUFFER_SHIFT == 0;
            let address = u64::from(entry.register) << mica_simulate::BUFFER_SHIFT | at;
            within.then(|| view.external(address, bytes)).flatten()
        }
    };
    let found = found.ok_or_else(|| format!("{memory} {at:#x}, {bytes} bytes: past its end"))?;
    Ok(match format {
        Some((format, frac)) => {
            let whole = found.len() as u64 / format.bytes();
            let used = &found[..(whole * format.bytes()) as usize];
            Values::new(format, frac, (1, whole as u32), used).text(most)
        }
        None => {
            let line = |(n, row): (usize, &[u8])| {
                let hex: Vec<String> = row.iter().map(|b| format!("{b:02x}")).collect();
                format!("{:#8x}  {}", at + 16 * n as u64, hex.join(" "))
            };
            found.chunks(16).enumerate().map(line).collect::<Vec<_>>().join("\n")
        }
    })
}
