//! Tile numbers: instructions with addresses, and the descriptors that they need defined before them.
//!
//! A descriptor is read when an instruction issues, in program order, so a number may be defined
//! anew at once; the least recently used one is.

use super::place::Placed;
use crate::ir::access::Role;
use crate::ir::{Inst, Item, Program, Reg, Tile};
use mica_device::isa::{Instr, NONE, Opcode, TILES};
use mica_device::object::Symbol;

/// A memory in which engines meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The array's register memory.
    Lrm,
    /// L2.
    L2,
}

/// Bytes that an instruction touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub memory: Memory,
    /// First byte.
    pub from: u64,
    /// One past the last byte.
    pub to: u64,
    /// How.
    pub role: Role,
}

/// An instruction with what later passes ask of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The instruction; its waits are not set yet.
    pub instr: Instr,
    /// What it touches.
    pub access: Vec<Access>,
    /// What `z` is added to at link.
    pub symbol: Option<Symbol>,
}

/// What a tile number stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Descriptor {
    address: u64,
    tile: Tile,
}

#[derive(Default)]
struct Numbers {
    /// By number: what it stands for and when it was last used.
    slots: Vec<Option<(Descriptor, u64)>>,
    clock: u64,
}

impl Numbers {
    /// The number that stands for a descriptor, and whether it must be defined.
    fn number(&mut self, d: Descriptor) -> (u8, bool) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(n) = self.slots.iter().position(|s| s.is_some_and(|(o, _)| o == d)) {
            self.slots[n] = Some((d, clock));
            return (n as u8, false);
        }
        let oldest = (0..self.slots.len()).min_by_key(|&n| self.slots[n].map_or(0, |(_, t)| t));
        let n = oldest.unwrap_or(0);
        self.slots[n] = Some((d, clock));
        (n as u8, true)
    }
    /// Forgets the descriptors whose rows came from a scalar that changes.
    fn changed(&mut self, scalar: u8) {
        for s in &mut self.slots {
            if s.is_some_and(|(d, _)| d.tile.count == Some(scalar)) {
                *s = None;
            }
        }
    }
    fn forget(&mut self) {
        self.slots = vec![None; usize::from(TILES)];
    }
}

/// Emits the program's instructions with final addresses and tile numbers.
pub fn assign(p: &Program, lrm: &Placed, l2: &Placed) -> Vec<Code> {
    let mut code: Vec<Code> = Vec::new();
    let mut numbers = Numbers::default();
    numbers.forget();
    let mut loops = Vec::new();
    for item in &p.items {
        let Item::Inst(inst) = item else {
            if let Some(start) = loops.pop() {
                let start: usize = start;
                code[start].instr.x = (code.len() - start - 1) as u32;
            }
            numbers.forget();
            continue;
        };
        let mut instr = bare(inst, l2);
        for (slot, reg) in inst.r.iter().enumerate() {
            if let Reg::Tile(t) = reg {
                let address = lrm.at[t.buf.0 as usize] + t.offset;
                // the buffer is told by the address
                let tile = Tile { buf: crate::ir::LrmId(0), offset: 0, ..*t };
                let (n, new) = numbers.number(Descriptor { address, tile });
                if new {
                    code.push(define(n, address, &tile, inst.src));
                }
                instr.r[slot] = n;
            }
        }
        if let Some(s) = written_scalar(inst) {
            numbers.changed(s);
        }
        code.push(Code { instr, access: accesses(inst, lrm, l2), symbol: inst.symbol.clone() });
        if inst.op == Opcode::Loop {
            // the second time round, numbers stand for what the body's end left
            numbers.forget();
            loops.push(code.len() - 1);
        }
    }
    code
}

/// The instruction without its tiles.
fn bare(inst: &Inst, l2: &Placed) -> Instr {
    let mut instr = Instr {
        flags: inst.flags,
        src: u32::from(inst.src),
        x: inst.span.map_or(inst.x, |s| (l2.at[s.buf.0 as usize] + s.offset) as u32),
        y: inst.y,
        z: inst.z,
        ..Instr::new(inst.op)
    };
    for (to, reg) in instr.r.iter_mut().zip(&inst.r) {
        *to = match *reg {
            Reg::Unused | Reg::Tile(_) => 0,
            Reg::Absent => NONE,
            Reg::Scalar(s) => s,
            Reg::Frac(b) => b,
        };
    }
    instr
}

fn define(number: u8, address: u64, t: &Tile, src: u16) -> Code {
    let instr = Instr {
        flags: t.format.code(),
        r: [number, t.count.unwrap_or(NONE), t.frac, 0, 0],
        src: u32::from(src),
        x: address as u32,
        z: u64::from(t.rows) | u64::from(t.cols) << 32,
        ..Instr::new(Opcode::Tdef)
    };
    Code { instr, access: Vec::new(), symbol: None }
}

/// The scalar that an instruction writes, but for a loop's counter: where it changes, every number is forgotten.
fn written_scalar(inst: &Inst) -> Option<u8> {
    match (inst.op, inst.r[0]) {
        (Opcode::Sli | Opcode::Salu | Opcode::Sld | Opcode::Sget, Reg::Scalar(s)) => Some(s),
        _ => None,
    }
}

fn accesses(inst: &Inst, lrm: &Placed, l2: &Placed) -> Vec<Access> {
    let tiles = inst.tiles().map(|(role, t)| {
        let from = lrm.at[t.buf.0 as usize] + t.offset;
        Access { memory: Memory::Lrm, from, to: from + t.bytes(), role }
    });
    let span = inst.span_access().map(|(role, s)| {
        let from = l2.at[s.buf.0 as usize] + s.offset;
        Access { memory: Memory::L2, from, to: from + s.bytes, role }
    });
    tiles.chain(span).filter(|a| a.role != Role::Name).collect()
}
