//! What each opcode reads and writes: the one table behind liveness, waits and printing.

use super::{Inst, L2Id, LrmId, Reg, Span, Tile};
use mica_device::isa::Opcode;

/// What an instruction does to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing: the operand is named, not touched (`opb`).
    Name,
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Reads and writes it, or writes only some of it.
    Update,
}

impl Role {
    /// Whether what was there before matters.
    pub fn reads(self) -> bool {
        matches!(self, Role::Read | Role::Update)
    }
    /// Whether it changes.
    pub fn writes(self) -> bool {
        matches!(self, Role::Write | Role::Update)
    }
}

/// The role of each tile register of an opcode.
pub fn tile_roles(op: Opcode, flags: u8) -> [Role; 5] {
    use Role::{Name, Read, Update, Write};
    match op {
        Opcode::Sget => [Name, Read, Name, Name, Name],
        Opcode::Sput => [Update, Name, Name, Name, Name],
        Opcode::Stt => [Read, Name, Name, Name, Name],
        Opcode::Topk => [Write, Write, Read, Read, Name],
        Opcode::Vsincos => [Write, Write, Read, Name, Name],
        // a strided copy leaves the gaps of its destination as they are
        Opcode::Vmov => [Update, Read, Name, Name, Name],
        Opcode::Tmvt if flags & 1 != 0 => [Update, Read, Read, Name, Name],
        Opcode::Ldt
        | Opcode::Bct
        | Opcode::Matv
        | Opcode::Vbin
        | Opcode::Vbini
        | Opcode::Vun
        | Opcode::Red
        | Opcode::Vrot
        | Opcode::Tmv
        | Opcode::Tmvt
        | Opcode::Tout => [Write, Read, Read, Read, Name],
        _ => [Name; 5],
    }
}

/// The role of the L2 range of an opcode.
pub fn span_role(op: Opcode) -> Role {
    match op {
        Opcode::Dld | Opcode::Stt => Role::Write,
        Opcode::Dst | Opcode::Ldt | Opcode::Matv => Role::Read,
        _ => Role::Name,
    }
}

impl Inst {
    /// The tiles with their roles.
    pub fn tiles(&self) -> impl Iterator<Item = (Role, &Tile)> {
        let roles = tile_roles(self.op, self.flags);
        self.r.iter().zip(roles).filter_map(|(reg, role)| match reg {
            Reg::Tile(t) => Some((role, t)),
            _ => None,
        })
    }
    /// The LRM buffers named, touched or not.
    pub fn lrm(&self) -> impl Iterator<Item = LrmId> {
        self.tiles().map(|(_, t)| t.buf)
    }
    /// The L2 range with its role.
    pub fn span_access(&self) -> Option<(Role, &Span)> {
        self.span.as_ref().map(|s| (span_role(self.op), s))
    }
    /// The L2 buffer named.
    pub fn l2(&self) -> Option<L2Id> {
        self.span.map(|s| s.buf)
    }
    /// Whether `r0` may take the very place of `r1` when that dies here: element by element the read
    /// comes before the write.
    pub fn in_place(&self) -> Option<(Tile, Tile)> {
        let ok = matches!(self.op, Opcode::Vbin | Opcode::Vbini | Opcode::Vun | Opcode::Tout);
        match (ok, self.r[0], self.r[1]) {
            (true, Reg::Tile(to), Reg::Tile(from)) if to.bytes() == from.bytes() => {
                let again = self.r[2..].iter().any(|r| matches!(r, Reg::Tile(t) if t.buf == from.buf));
                (!again).then_some((to, from))
            }
            _ => None,
        }
    }
}
