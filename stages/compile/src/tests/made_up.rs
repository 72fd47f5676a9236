//! Programs made up at random, run where every buffer has a place of its own and where memory is short.

use super::placing::{CELL, program};
use crate::emit::place::{self, Placed};
use crate::emit::spill;
use crate::ir::{Inst, Item, Program, Reg};
use mica_device::isa::Opcode;
use std::collections::BTreeMap;

/// What a run sends off, cell by cell, each loop run twice: every fetch brings new values, and every map makes them.
fn sent(p: &Program, lrm: &[u64], l2: &[u64]) -> Vec<u64> {
    let mut run = Run { lrm, l2, cells: BTreeMap::new(), fresh: 0, sent: Vec::new() };
    run.items(&p.items);
    run.sent
}

struct Run<'a> {
    lrm: &'a [u64],
    l2: &'a [u64],
    /// What lies in a cell of LRM or of L2.
    cells: BTreeMap<(bool, u64), u64>,
    fresh: u64,
    sent: Vec<u64>,
}

impl Run<'_> {
    fn items(&mut self, items: &[Item]) {
        let mut at = 0;
        while let Some(item) = items.get(at) {
            match item {
                Item::Inst(i) if i.op == Opcode::Loop => {
                    let mut open = 0;
                    let body = items[at..].iter().position(|item| {
                        match item {
                            Item::Inst(i) => open += u32::from(i.op == Opcode::Loop),
                            Item::End => open -= 1,
                        }
                        open == 0
                    });
                    let end = at + body.unwrap();
                    (0..2).for_each(|_| self.items(&items[at + 1..end]));
                    at = end;
                }
                Item::Inst(i) => self.inst(i),
                Item::End => unreachable!(),
            }
            at += 1;
        }
    }

    fn inst(&mut self, i: &Inst) {
        let in_l2 = i.span.map(|s| (self.l2[s.buf.0 as usize] + s.offset, s.bytes));
        let tile = |n: usize| match i.r[n] {
            Reg::Tile(t) => (self.lrm[t.buf.0 as usize] + t.offset, t.bytes()),
            other => panic!("{other:?}"),
        };
        let cells = |memory: bool, (at, bytes): (u64, u64)| {
            (at..at + bytes).step_by(CELL as usize).map(move |c| (memory, c))
        };
        let (from, to): (Vec<_>, Vec<_>) = match i.op {
            Opcode::Dld => (vec![], cells(true, in_l2.unwrap()).collect()),
            Opcode::Ldt => (cells(true, in_l2.unwrap()).collect(), cells(false, tile(0)).collect()),
            Opcode::Stt => (cells(false, tile(0)).collect(), cells(true, in_l2.unwrap()).collect()),
            Opcode::Dst => (cells(true, in_l2.unwrap()).collect(), vec![]),
            _ => (cells(false, tile(1)).collect(), cells(false, tile(0)).collect()),
        };
        let mut values: Vec<u64> = from.iter().map(|c| self.cells.get(c).copied().unwrap_or(0)).collect();
        match i.op {
            Opcode::Dst => self.sent.extend(&values),
            Opcode::Dld => values = to.iter().zip(self.fresh + 1..).map(|(_, n)| n).collect(),
            Opcode::Vun => values.iter_mut().for_each(|v| *v = v.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1),
            _ => {}
        }
        self.fresh += if i.op == Opcode::Dld { to.len() as u64 } else { 0 };
        self.cells.extend(to.into_iter().zip(values));
    }
}

/// Addresses at which no two buffers meet.
fn apart(sizes: impl Iterator<Item = u64>) -> Vec<u64> {
    sizes.scan(0, |at, bytes| Some(std::mem::replace(at, *at + bytes))).collect()
}

/// A program made up: values are read where they are whole, in a loop also those from before it.
fn made_up(seed: u64) -> Program {
    let mut state = seed;
    let mut pick = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let cells: Vec<u64> = (0..12).map(|_| 1 + pick(4) as u64).collect();
    let name = |b: usize| char::from(b'a' + b as u8);
    let mut words = String::new();
    let (mut whole, mut open): (Vec<usize>, usize) = (vec![], 0);
    for _ in 0..40 {
        let (b, read) = (pick(12), whole.get(pick(12)).copied());
        match (pick(10), read) {
            (0, _) if open < 2 => {
                words += "[ ";
                open += 1;
            }
            (1, _) if open > 0 => {
                words += "] ";
                open -= 1;
            }
            (2..=4, Some(from)) => words += &format!("-{} ", name(from)),
            (5..=7, Some(from)) if cells[from] <= cells[b] => {
                let first = pick((cells[b] - cells[from]) as usize + 1);
                if cells[from] == cells[b] || whole.contains(&b) {
                    words += &format!("{}/{first}={} ", name(b), name(from));
                    whole.push(b);
                }
            }
            _ => {
                words += &format!("+{} ", name(b));
                whole.push(b);
            }
        }
        whole.sort_unstable();
        whole.dedup();
    }
    words += &"] ".repeat(open);
    whole.iter().for_each(|&b| words += &format!("-{} ", name(b)));
    program(&cells, &words)
}

/// However short LRM and L2 are, what a program sends off is what it sends off where every buffer has a place of its own; and
/// the loops are as they were.
#[test]
fn no_place_and_no_wait_changes_a_value() {
    let bodies = |p: &Program| p.loops().iter().map(|(start, end)| end - start).collect::<Vec<_>>();
    let (mut waited, mut rounds) = (0, 0);
    for seed in 0..100 {
        let p = made_up(seed);
        let expected = sent(&p, &apart(p.lrm.iter().copied()), &apart(p.l2.iter().map(|b| b.bytes)));
        assert!(expected.iter().all(|v| *v != 0), "seed {seed}: it reads only what it wrote");
        let mut limit = place::lrm(&p, u64::MAX).unwrap().peak;
        loop {
            let mut short = p.clone();
            let Ok(Placed { at, peak }) = spill::lrm(&mut short, limit) else { break };
            assert!(peak <= limit);
            assert_eq!(bodies(&short), bodies(&p), "seed {seed}: nothing is stored or loaded in a loop");
            let room = (1..).map(|n| n * CELL).find_map(|limit| place::l2(&short, limit).ok()).unwrap();
            for l2 in [place::l2(&short, u64::MAX).unwrap(), room] {
                assert!(sent(&short, &at, &l2.at) == expected, "seed {seed}, {limit} bytes of LRM:\n{short}");
            }
            waited += usize::from(short.items.len() > p.items.len());
            rounds += 1;
            limit = peak - CELL;
        }
    }
    assert!(waited > 100 && rounds > 200, "{waited} of {rounds}");
}
