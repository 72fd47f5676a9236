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

/// Where an instruction comes from: `part 3 (linear_attention) op 12 matmul mlp.gate`.
pub fn source(program: &Program, src: u32) -> String {
    let (part, op) = (src >> 16, src & 0xffff);
    let kind = program.parts().get(part as usize).map_or("?", String::as_str);
    let name = program.op(src).map_or_else(String::new, |o| format!(" {} {}", o.op, o.label));
    format!("part {part} ({kind}) op {op}{}", name.trim_end())
}

/// An error in words; a trap with the instructions around it.
pub fn explained(e: &SimError, program: &Program) -> String {
    match e {
        SimError::Trap(t) => {
            let lines = around(program, t.instruction, AROUND, &|src| source(program, src));
            format!("{e}\n{}", lines.trim_end())
        }
        _ => e.to_string(),
    }
}
