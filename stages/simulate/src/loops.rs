//! The loops that are open at one point of a run.

use crate::error::Fault;
use mica_device::isa::Instr;
use mica_device::tile::register;

#[derive(Debug)]
struct Open {
    /// First instruction of the body, and one past its last.
    start: usize,
    end: usize,
    /// Iterations still to come after this one.
    left: u64,
    /// The scalar that counts iterations, and its value.
    counter: Option<u8>,
    count: u64,
}

/// The loop stack of the front end; the static check has seen to its depth and nesting.
#[derive(Debug, Default)]
pub struct Loops(Vec<Open>);

impl Loops {
    /// Enters the loop at instruction `at`, or skips it; returns the instruction reached, which may
    /// be the end of the loop around it: `turn` comes after.
    pub fn enter(&mut self, at: usize, i: &Instr, scalars: &mut [u64]) -> Result<usize, Fault> {
        let start = at + 1;
        let end = start + i.x as usize;
        let count = scalars[usize::from(i.r[0])];
        if (count as i64) < 0 {
            return Err(Fault::Operand { what: "iterations", value: count as i64 });
        }
        let Some(left) = count.checked_sub(1) else {
            return Ok(end);
        };
        let counter = register(i.r[1]);
        if let Some(r) = counter {
            scalars[usize::from(r)] = 0;
        }
        self.0.push(Open { start, end, left, counter, count: 0 });
        Ok(start)
    }

    /// Where the program goes on after reaching `next`: at the end of a body, its start again.
    pub fn turn(&mut self, next: usize, scalars: &mut [u64]) -> usize {
        while let Some(l) = self.0.last_mut().filter(|l| l.end == next) {
            if l.left > 0 {
                l.left -= 1;
                l.count += 1;
                if let Some(r) = l.counter {
                    scalars[usize::from(r)] = l.count;
                }
                return l.start;
            }
            self.0.pop();
        }
        next
    }
}
