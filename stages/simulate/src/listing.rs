//! Lines of a program around an instruction: what a debugger shows, and what a trap is told with.

use crate::error::SimError;
use crate::program::Program;
use mica_device::disasm;

/// Instructions shown on either side of one that trapped.
const AROUND: usize = 3;

/// The instructions around `at`, so many on either side, that one marked; a line of its own where the source op
/// changes, which says what `source` says of it.
pub fn around(program: &Program, at: usize, sides: usize, source: &dyn Fn(u32) -> String) -> String {
    let code = program.code();
    let range = at.saturating_sub(sides)..code.len().min(at.saturating_add(sides).saturating_add(1));
    let mut text = String::new();
    let mut src = None;
    for n in range {
        let i = &code[n];
        if src != Some(i.src) {
            src = Some(i.src);
            text += &format!("; {}\n", source(i.src));
        }
        let mark = if n == at { '>' } else { ' ' };
        text += &format!("{mark}{n:6}  {}\n", disasm::line(i));
    }
    text
}

/// Where an instruction comes from: `layer2 op 12 matmul mlp.gate`, by the names of the parts that whoever linked
/// them has; of a part without a name its number in the kernel and its kind.
pub fn source(program: &Program, parts: &[String], src: u32) -> String {
    let (part, op) = (src >> 16, src & 0xffff);
    let name = program.op(src).map_or_else(String::new, |o| format!(" {} {}", o.op, o.label));
    format!("{} op {op}{}", program.place(parts, part), name.trim_end())
}

/// An error in words; a trap with the instructions around it, parts by their names.
pub fn explained(e: &SimError, program: &Program, parts: &[String]) -> String {
    match e {
        SimError::Trap(t) => {
            let lines = around(program, t.instruction, AROUND, &|src| source(program, parts, src));
            let at = source(program, parts, t.part << 16 | t.op);
            let (instruction, mnemonic, fault) = (t.instruction, t.mnemonic, &t.fault);
            format!("instruction {instruction} ({mnemonic}), {at}: {fault}\n{}", lines.trim_end())
        }
        _ => e.to_string(),
    }
}
