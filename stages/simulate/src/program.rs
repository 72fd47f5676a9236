//! A kernel, decoded and checked once, ready to run any number of times.

use crate::error::{Fault, SimError, Trap};
use mica_device::check::check;
use mica_device::isa::{Instr, decode};
use mica_device::object::{Entry, Kernel, OpInfo, Segment};

pub use mica_device::access::BUFFER_SHIFT;

/// A loaded kernel.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) code: Vec<Instr>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) literals: Vec<Vec<u8>>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) parts: Vec<String>,
    ops: Vec<Vec<OpInfo>>,
    pub(crate) lrm_peak: u64,
    pub(crate) l2_peak: u64,
}

impl Program {
    /// Decodes and checks a kernel.
    ///
    /// Errors: code that is no program, segments that overlap or whose literals are missing, and
    /// entries that share a register.
    pub fn load(kernel: &Kernel) -> Result<Program, SimError> {
        let code = decode(&kernel.code)?;
        check(&code)?;
        let mut end = 0;
        for (index, s) in kernel.segments.iter().enumerate() {
            let next = s.offset.checked_add(s.bytes);
            let Some(next) = next.filter(|&n| s.offset >= end && n <= 1 << BUFFER_SHIFT) else {
                return Err(SimError::Segments { segment: index, offset: s.offset });
            };
            end = next;
            let found = kernel.literals.get(s.part as usize).map_or(0, |l| l.len() as u64);
            if s.literals && found != s.bytes {
                return Err(SimError::Literals { part: s.part, expected: s.bytes, found });
            }
        }
        let mut taken = [false; 16];
        for e in &kernel.entries {
            match taken.get_mut(usize::from(e.register)) {
                Some(slot) if e.register > 0 && !*slot => *slot = true,
                _ => {
                    return Err(SimError::Register { name: e.name.clone(), register: e.register });
                }
            }
        }
        Ok(Program {
            code,
            segments: kernel.segments.clone(),
            literals: kernel.literals.clone(),
            entries: kernel.entries.clone(),
            parts: kernel.parts.clone(),
            ops: kernel.ops.clone(),
            lrm_peak: kernel.lrm_peak,
            l2_peak: kernel.l2_peak,
        })
    }

    /// The instructions.
    pub fn code(&self) -> &[Instr] {
        &self.code
    }

    /// The entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Kind of each part, by the layer number in `src`.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// What a part is called: by the names given, else `part 3 (linear_attention)`, its number and kind.
    pub fn place(&self, names: &[String], part: u32) -> String {
        names.get(part as usize).cloned().unwrap_or_else(|| {
            let kind = self.parts.get(part as usize).map_or("?", String::as_str);
            format!("part {part} ({kind})")
        })
    }

    /// The source op of an instruction's `src`, where the kernel names it.
    pub fn op(&self, src: u32) -> Option<&OpInfo> {
        let layer = self.ops.get((src >> 16) as usize)?;
        layer.get((src & 0xffff) as usize)
    }

    pub(crate) fn trap(&self, instruction: usize, fault: Fault) -> SimError {
        // the program counter cannot leave the code: the check saw to loops and to the final halt
        let i = &self.code[instruction];
        let (part, op) = (i.src >> 16, i.src & 0xffff);
        let info = self.op(i.src);
        SimError::Trap(Box::new(Trap {
            instruction,
            mnemonic: i.op.text(),
            part,
            op,
            kind: self.parts.get(part as usize).cloned().unwrap_or_default(),
            name: info.map(|i| i.op.clone()).unwrap_or_default(),
            label: info.map(|i| i.label.clone()).unwrap_or_default(),
            fault,
        }))
    }
}
