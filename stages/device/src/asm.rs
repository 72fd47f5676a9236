//! A hand-written form of programs, for tests and for reading a listing back: the text of `disasm`.
//!
//! A line is one instruction; what follows `;` is a comment, an index in front of the mnemonic is
//! skipped, and empty lines are ignored. Numbers are decimal or `0x` hexadecimal.

use crate::access::Strides;
use crate::check::{Malformed, fields};
use crate::disasm::{ENGINE_NAMES, weight_text};
use crate::format::Format;
use crate::isa::{Broadcast, Instr, MatvFlags, NONE, Opcode, ReduceOp, ScalarOp, UnaryOp, VectorOp};
use crate::layout::WeightFormat;
use crate::signature::{Flags, Operand, signature};
use thiserror::Error;

/// Why a line is no instruction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AsmError {
    /// A word that means nothing where it stands.
    #[error("line {line}: `{word}` is no {expected}")]
    Word {
        /// Line, from 1.
        line: usize,
        /// The word.
        word: String,
        /// What could have stood there.
        expected: &'static str,
    },
    /// Operands are missing or left over.
    #[error("line {line}: {op} has {expected} operands, found {found}")]
    Count {
        /// Line, from 1.
        line: usize,
        /// Mnemonic.
        op: &'static str,
        /// Operands of the opcode.
        expected: usize,
        /// Operands written.
        found: usize,
    },
    /// The fields do not make an instruction.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The program that a text stands for.
pub fn parse(text: &str) -> Result<Vec<Instr>, AsmError> {
    let mut program = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split(';').next().unwrap_or_default().trim();
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
        if !line.is_empty() {
            let i = Line { number: n + 1 }.instruction(line)?;
            fields(program.len(), &i)?;
            program.push(i);
        }
    }
    Ok(program)
}

#[derive(Clone, Copy)]
struct Line {
    number: usize,
}

impl Line {
    fn word(self, word: &str, expected: &'static str) -> AsmError {
        AsmError::Word { line: self.number, word: word.into(), expected }
    }

    fn instruction(self, text: &str) -> Result<Instr, AsmError> {
        let (body, tail) = match text.find(['?', '@']) {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let (mnemonic, operands) = body.split_once(' ').unwrap_or((body, ""));
        let (name, suffix) = mnemonic.split_once('.').unwrap_or((mnemonic, ""));
        let op = Opcode::ALL
            .iter()
            .copied()
            .find(|op| op.text() == name)
            .ok_or_else(|| self.word(name, "mnemonic"))?;
        let sig = signature(op);
        let mut i = Instr::new(op);
        i.flags = flags(sig.flags, suffix).ok_or_else(|| self.word(suffix, "suffix"))?;
        let words: Vec<&str> = operands.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
        let fixed = Format::from_code(i.flags) == Some(Format::Fx32);
        let expected: Vec<Operand> =
            sig.operands.iter().copied().filter(|o| fixed || !matches!(o, Operand::Frac(_))).collect();
        if words.len() != expected.len() {
            return Err(AsmError::Count {
                line: self.number,
                op: op.text(),
                expected: expected.len(),
                found: words.len(),
            });
        }
        for (operand, word) in expected.into_iter().zip(words) {
            self.operand(&mut i, operand, word)?;
        }
        for word in tail.split_whitespace() {
            self.mark(&mut i, word)?;
        }
        Ok(i)
    }

    fn mark(self, i: &mut Instr, word: &str) -> Result<(), AsmError> {
        let bad = || self.word(word, "wait or source");
        if let Some(src) = word.strip_prefix('@') {
            let (layer, op) = src.split_once('.').ok_or_else(bad)?;
            let layer: u16 = layer.parse().map_err(|_| bad())?;
            let op: u16 = op.parse().map_err(|_| bad())?;
            i.src = u32::from(layer) << 16 | u32::from(op);
        } else {
            let wait = word.strip_prefix('?').ok_or_else(bad)?;
            let (name, distance) = wait.split_once('-').ok_or_else(bad)?;
            let (_, engine) = ENGINE_NAMES.iter().find(|(n, _)| *n == name).ok_or_else(bad)?;
            i.wait[*engine as usize] = distance.parse().map_err(|_| bad())?;
        }
        Ok(())
    }

    fn operand(self, i: &mut Instr, operand: Operand, word: &str) -> Result<(), AsmError> {
        let register = |letter: char| {
            word.strip_prefix(letter).and_then(|n| n.parse().ok()).ok_or_else(|| self.word(word, "register"))
        };
        let optional = |letter| {
            if word == "-" { Ok(NONE) } else { register(letter) }
        };
        let named = |name: &str| {
            word.strip_prefix(name)
                .and_then(|w| w.strip_prefix('='))
                .ok_or_else(|| self.word(word, "operand of that name"))
        };
        let unsigned = |w: &str| number(w).ok_or_else(|| self.word(w, "number"));
        let narrow = |w: &str| u32::try_from(unsigned(w)?).map_err(|_| self.word(w, "32-bit number"));
        let signed = |w: &str| {
            let n = match w.strip_prefix('-') {
                Some(digits) => number(digits).map(u64::wrapping_neg),
                None => number(w),
            };
            n.ok_or_else(|| self.word(w, "number"))
        };
        match operand {
            Operand::Scalar(n) => i.r[n] = register('s')?,
            Operand::Tile(n) => i.r[n] = register('t')?,
            Operand::ScalarOrNone(n) => i.r[n] = optional('s')?,
            Operand::TileOrNone(n) => i.r[n] = optional('t')?,
            Operand::Frac(n) => {
                let w = named("frac")?;
                i.r[n] = u8::try_from(unsigned(w)?).map_err(|_| self.word(w, "8-bit number"))?;
            }
            Operand::ScalarOrZ(n) if word.starts_with('s') => i.r[n] = register('s')?,
            Operand::ScalarOrZ(_) => {
                i.flags |= 0x80;
                i.z = signed(word)?;
            }
            Operand::X(name) => i.x = narrow(named(name)?)?,
            Operand::Y(name) => i.y = narrow(named(name)?)?,
            Operand::Z(name) => i.z = unsigned(named(name)?)?,
            Operand::SignedZ(name) => i.z = signed(named(name)?)?,
            Operand::Imm if word.starts_with("0x") => i.x = narrow(word)?,
            Operand::Imm => {
                let value: f32 = word.parse().map_err(|_| self.word(word, "number"))?;
                i.x = value.to_bits();
            }
            Operand::Shape => {
                let (rows, cols) = word.split_once('x').ok_or_else(|| self.word(word, "shape"))?;
                i.z = u64::from(narrow(rows)?) | u64::from(narrow(cols)?) << 32;
            }
            Operand::Strides => {
                i.z = strides(word).ok_or_else(|| self.word(word, "rows x length and strides"))?;
            }
        }
        Ok(())
    }
}

fn number(w: &str) -> Option<u64> {
    match w.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => w.parse().ok(),
    }
}

fn strides(word: &str) -> Option<u64> {
    let mut parts = word.split('/');
    let (rows, len) = parts.next()?.split_once('x')?;
    let strides = Strides {
        rows: rows.parse().ok()?,
        len: len.parse().ok()?,
        from: parts.next()?.parse().ok()?,
        to: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(strides.code())
}

fn flags(kind: Flags, suffix: &str) -> Option<u8> {
    let vector = |t: &str| VectorOp::ALL.iter().find(|o| o.text() == t).map(|&o| o as u8);
    match kind {
        Flags::None => suffix.is_empty().then_some(0),
        Flags::Format => Format::ALL.iter().find(|f| f.text() == suffix).map(|f| f.code()),
        Flags::Scalar => ScalarOp::ALL.iter().find(|o| o.text() == suffix).map(|&o| o as u8),
        Flags::Matv => {
            let mut words = suffix.split('.').peekable();
            let first = words.next()?;
            let weight = [WeightFormat::I4, WeightFormat::I8, WeightFormat::F16]
                .into_iter()
                .find(|&w| weight_text(w) == first)?;
            let scale_f32 = words.next_if_eq(&"s32").is_some();
            let zero = words.next_if_eq(&"zero").is_some();
            let f = MatvFlags { weight, scale_f32, zero };
            words.next().is_none().then_some(f.code())
        }
        Flags::Binary => {
            let (op, broadcast) = suffix.split_once('.')?;
            let broadcast = Broadcast::ALL.iter().find(|b| b.text() == broadcast)?;
            Some(vector(op)? | (*broadcast as u8) << 4)
        }
        Flags::Immediate => vector(suffix),
        Flags::Unary => UnaryOp::ALL.iter().find(|o| o.text() == suffix).map(|&o| o as u8),
        Flags::Reduce => {
            let (op, axis) = suffix.split_once('.')?;
            let op = ReduceOp::ALL.iter().find(|o| o.text() == op)?;
            let axis = match axis {
                "rows" => 0,
                "cols" => 1,
                _ => return None,
            };
            Some(*op as u8 | axis << 4)
        }
        Flags::Accumulate => match suffix {
            "" => Some(0),
            "acc" => Some(1),
            _ => None,
        },
    }
}
