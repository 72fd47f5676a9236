//! Static checks of a program: fields, register numbers, sub-operations and loop structure.
//!
//! What passes here can still fault when it runs (a shape that does not match, an address out of
//! range); what fails here is no program of the device at all.

use crate::format::Format;
use crate::isa::{
    Broadcast, Instr, MatvFlags, NONE, Opcode, ReduceOp, SCALARS, ScalarOp, TILES, UnaryOp, VectorOp,
};
use crate::signature::{Flags, Operand, signature};
use thiserror::Error;

/// Loops that may be open at once.
pub const LOOP_DEPTH: usize = 8;
/// The most fraction bits of an FX32 element.
pub const MAX_FRAC: u8 = 31;

/// Why a sequence of instructions is no program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// A register number past the last.
    #[error("instruction {index} ({op}): r{field} = {number} is no {kind} register")]
    Register {
        /// Position in the program.
        index: usize,
        /// Mnemonic.
        op: &'static str,
        /// Which of r0–r4.
        field: usize,
        /// The number found.
        number: u8,
        /// `scalar` or `tile`.
        kind: &'static str,
    },
    /// The flags byte names no format, sub-operation or mode.
    #[error("instruction {index} ({op}): the flags {flags:#04x} mean nothing")]
    Flags {
        /// Position in the program.
        index: usize,
        /// Mnemonic.
        op: &'static str,
        /// The byte found.
        flags: u8,
    },
    /// More fraction bits than an FX32 element has.
    #[error("instruction {index} ({op}): {frac} fraction bits, at most 31")]
    Frac {
        /// Position in the program.
        index: usize,
        /// Mnemonic.
        op: &'static str,
        /// The number found.
        frac: u8,
    },
    /// A field that the opcode does not read is not zero.
    #[error("instruction {index} ({op}): the unused field {field} is not zero")]
    Unused {
        /// Position in the program.
        index: usize,
        /// Mnemonic.
        op: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// A loop body is empty, leaves the program or its outer loop, or nests too deep.
    #[error("instruction {index}: a loop over the next {body} instructions {why}")]
    Loop {
        /// Position in the program.
        index: usize,
        /// Instructions of the body.
        body: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The last instruction is not `halt`.
    #[error("the program does not end with halt")]
    End,
}

/// Checks a whole program, `halt` included.
pub fn check(program: &[Instr]) -> Result<(), Malformed> {
    for (index, i) in program.iter().enumerate() {
        fields(index, i)?;
    }
    if program.last().is_none_or(|i| i.op != Opcode::Halt) {
        return Err(Malformed::End);
    }
    loops(program)
}

/// Checks the fields of one instruction; `index` is its place, for the error.
pub fn fields(index: usize, i: &Instr) -> Result<(), Malformed> {
    let op = i.op.text();
    let sig = signature(i.op);
    if !flags_mean_something(sig.flags, i.flags) {
        let flags = i.flags;
        return Err(Malformed::Flags { index, op, flags });
    }
    let mut read = [false; 5];
    let (mut x, mut y, mut z) = (false, false, false);
    for operand in sig.operands {
        let mut register = |field: usize, limit: u8, optional: bool, kind| {
            read[field] = true;
            let number = i.r[field];
            if number < limit || (optional && number == NONE) {
                Ok(())
            } else {
                Err(Malformed::Register { index, op, field, number, kind })
            }
        };
        match *operand {
            Operand::Scalar(n) => register(n, SCALARS, false, "scalar")?,
            Operand::ScalarOrNone(n) => register(n, SCALARS, true, "scalar")?,
            Operand::Tile(n) => register(n, TILES, false, "tile")?,
            Operand::TileOrNone(n) => register(n, TILES, true, "tile")?,
            Operand::ScalarOrZ(n) => {
                if i.flags & 0x80 == 0 {
                    register(n, SCALARS, false, "scalar")?;
                } else {
                    z = true;
                }
            }
            Operand::Frac(n) => {
                // the number has a meaning only beside the format it belongs to
                let fixed = Format::from_code(i.flags) == Some(Format::Fx32);
                read[n] = fixed;
                let frac = i.r[n];
                if fixed && frac > MAX_FRAC {
                    return Err(Malformed::Frac { index, op, frac });
                }
            }
            Operand::X(_) | Operand::Imm => x = true,
            Operand::Y(_) => y = true,
            Operand::Z(_) | Operand::SignedZ(_) | Operand::Shape | Operand::Strides => z = true,
        }
    }
    let unused = |field| Err(Malformed::Unused { index, op, field });
    for (n, field) in ["r0", "r1", "r2", "r3", "r4"].into_iter().enumerate() {
        if !read[n] && i.r[n] != 0 {
            return unused(field);
        }
    }
    match () {
        () if !x && i.x != 0 => unused("x"),
        () if !y && i.y != 0 => unused("y"),
        () if !z && i.z != 0 => unused("z"),
        () => Ok(()),
    }
}

fn flags_mean_something(kind: Flags, b: u8) -> bool {
    match kind {
        Flags::None => b == 0,
        Flags::Format => Format::from_code(b).is_some(),
        Flags::Scalar => ScalarOp::from_code(b & 0x7f).is_some(),
        Flags::Matv => MatvFlags::from_code(b).is_some(),
        Flags::Binary => VectorOp::from_code(b & 15).is_some() && Broadcast::from_code(b >> 4).is_some(),
        Flags::Immediate => VectorOp::from_code(b).is_some(),
        Flags::Unary => UnaryOp::from_code(b).is_some(),
        Flags::Reduce => ReduceOp::from_code(b & 15).is_some() && b >> 4 <= 1,
        Flags::Accumulate => b <= 1,
    }
}

fn loops(program: &[Instr]) -> Result<(), Malformed> {
    // the ends of the loops that are open at `index`, innermost last
    let mut open: Vec<usize> = Vec::new();
    for (index, i) in program.iter().enumerate() {
        while open.last().is_some_and(|&end| end <= index) {
            open.pop();
        }
        if i.op != Opcode::Loop {
            continue;
        }
        let body = i.x;
        let bad = |why| Err(Malformed::Loop { index, body, why });
        let end = index + 1 + body as usize;
        if body == 0 {
            return bad("has an empty body");
        }
        // the final halt is in no loop
        if end >= program.len() {
            return bad("leaves the program");
        }
        if open.last().is_some_and(|&outer| end > outer) {
            return bad("leaves the loop around it");
        }
        if open.len() == LOOP_DEPTH {
            return bad("is nested too deep");
        }
        open.push(end);
    }
    Ok(())
}
