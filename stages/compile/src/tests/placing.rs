//! Liveness, addresses and waiting in L2, on small programs written by hand.
//!
//! Words of a program: `+a` fetches `a` and loads it, `-a` stores `a` and sends it off, `b=a` maps `a` to `b`
//! element by element, `b/1=a` maps it to the part of `b` from its 64-byte cell 1 on, `[` and `]` are a loop.

use crate::emit::place::{self, Live, NoRoom};
use crate::emit::spill;
use crate::ir::build::{self, Place};
use crate::ir::{Inst, Item, L2Buf, L2Id, LrmId, Program, Reg, Span, Tile};
use mica_device::format::Format;
use mica_device::isa::{Broadcast, Opcode, UnaryOp, VectorOp};
use mica_device::object::Symbol;

/// Bytes of a cell, in which sizes are told: every address is a multiple of it.
pub(super) const CELL: u64 = 64;

fn number(name: &str) -> usize {
    usize::from(name.as_bytes()[0] - b'a')
}

/// A program of buffers `a`, `b`, … of so many cells. An instruction's source op is its word's number.
pub(super) fn program(cells: &[u64], words: &str) -> Program {
    let mut p = Program { lrm: cells.iter().map(|n| n * CELL).collect(), ..Program::default() };
    let tile = |b: usize, from: u64, n: u64| {
        let buf = LrmId(b as u32);
        Tile { buf, offset: from * CELL, rows: n as u32, cols: 16, count: None, format: Format::F32, frac: 0 }
    };
    let outside = Place::new(Symbol::Constants, 0);
    for (src, word) in words.split_whitespace().enumerate() {
        let mut emit = |i: Inst| p.items.push(Item::Inst(Inst { src: src as u16, ..i }));
        let mut span = |b: usize| {
            p.l2.push(L2Buf { bytes: p.lrm[b], fixed: None });
            Span { buf: L2Id(p.l2.len() as u32 - 1), offset: 0, bytes: p.lrm[b] }
        };
        match (word.split_at(1), word.split_once('=')) {
            (("[", _), _) => emit(build::repeat(16, 17)),
            (("]", _), _) => p.items.push(Item::End),
            (("+", name), _) => {
                let (b, s) = (number(name), span(number(name)));
                emit(build::dld(s, &outside, None));
                emit(build::ldt(tile(b, 0, cells[b]), s, Format::F32, 0));
            }
            (("-", name), _) => {
                let (b, s) = (number(name), span(number(name)));
                emit(build::stt(s, tile(b, 0, cells[b]), Format::F32, 0));
                emit(build::dst(&outside, s));
            }
            (_, Some((to, from))) => {
                let from = tile(number(from), 0, cells[number(from)]);
                let first = to.split_once('/').map_or(0, |(_, n)| n.parse().unwrap());
                let to = tile(number(to), first, u64::from(from.rows));
                emit(build::vun(UnaryOp::Silu, to, from));
            }
            _ => panic!("{word}"),
        }
    }
    p
}

/// Where buffers are named, by the words.
fn live(cells: &[u64], words: &str) -> String {
    let p = program(cells, words);
    let word = |at: usize| match &p.items[at] {
        Item::Inst(i) => usize::from(i.src),
        // the instruction before it is in the word before
        Item::End => (0..at)
            .rev()
            .find_map(|i| match &p.items[i] {
                Item::Inst(inst) => Some(usize::from(inst.src) + (at - i)),
                Item::End => None,
            })
            .unwrap(),
    };
    let ranges = place::live(&p, p.lrm.len(), |i, f| i.lrm().for_each(|b| f(b.0 as usize)));
    let one = |(b, r): (usize, &Option<Live>)| match r {
        Some(r) => format!("{} {}–{}", char::from(b'a' + b as u8), word(r.first), word(r.last)),
        None => "unnamed".into(),
    };
    ranges.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_buffer_older_than_a_loop_that_reads_it_lives_to_its_end() {
    for (cells, words, expected) in [
        (&[1, 1][..], "+a -a +b -b", "a 0–1, b 2–3"),
        (&[1, 1], "+a [ -a +b -b ]", "a 0–5, b 3–4"),
        (&[1, 1], "+a [ +b -b ] -a", "a 0–5, b 2–3"),
        (&[1, 1], "+a [ +b [ b=a -b ] ]", "a 0–7, b 2–6"),
        (&[1], "+a [ [ -a ] ] [ ]", "a 0–5"),
    ] {
        assert_eq!(live(cells, words), expected, "{words}");
    }
}

/// Addresses of LRM buffers in cells.
fn lrm(cells: &[u64], words: &str, limit: u64) -> Result<Vec<u64>, NoRoom> {
    place::lrm(&program(cells, words), limit * CELL).map(|p| p.at.iter().map(|a| a / CELL).collect())
}

#[test]
fn first_fit_takes_the_lowest_gap_and_the_place_of_what_dies() {
    for (cells, words, expected) in [
        // a gap of just the size
        (&[1, 2, 1, 2][..], "+a +b +c -b +d -a -c -d", &[0, 1, 3, 1][..]),
        (&[1, 2, 1, 3], "+a +b +c -b +d -a -c -d", &[0, 1, 3, 4]),
        // in place, and held from there on
        (&[2, 2, 1], "+a b=a +c -c -b", &[0, 0, 2]),
        // not in place: it is read again, or it is a part of another size
        (&[2, 2], "+a b=a -a -b", &[0, 2]),
        (&[1, 2, 1], "+a +c b=a -c b/1=a -b", &[0, 2, 1]),
        (&[1, 2, 1], "+a +c b/1=a -c -b", &[0, 2, 1]),
    ] {
        assert_eq!(lrm(cells, words, 99).as_deref(), Ok(expected), "{words}");
    }
}

#[test]
fn nothing_is_in_place_of_what_is_read_twice() {
    let tile = |buf, offset, cols| Tile {
        buf: LrmId(buf),
        offset,
        rows: 1,
        cols,
        count: None,
        format: Format::F32,
        frac: 0,
    };
    let (to, whole, part) = (tile(1, 0, 16), tile(0, 0, 16), tile(0, 32, 8));
    let product = |by| build::vbin(VectorOp::Mul, Broadcast::Cyclic, to, whole, by);
    assert_eq!(product(tile(2, 0, 8)).in_place(), Some((to, whole)));
    assert_eq!(product(part).in_place(), None);
}

#[test]
fn what_fits_exactly_fits() {
    let (cells, words) = (&[1, 2, 1, 2], "+a +b +c -b +d -a -c -d");
    assert!(lrm(cells, words, 4).is_ok());
    assert_eq!(lrm(cells, words, 3), Err(NoRoom { at: 5, need: 4 * CELL }));
}

/// Where the L2 buffers of fetches and of what is sent off lie, in cells, `seam` cells taken.
fn l2(cells: &[u64], words: &str, seam: u64, limit: u64) -> Result<(Vec<u64>, u64), NoRoom> {
    let mut p = program(cells, words);
    p.l2.push(L2Buf { bytes: seam * CELL, fixed: Some(0) });
    let placed = place::l2(&p, limit * CELL)?;
    Ok((placed.at[..p.l2.len() - 1].iter().map(|a| a / CELL).collect(), placed.peak / CELL))
}

#[test]
fn next_fit_goes_round_l2_behind_the_seam() {
    let words = "+a +b +c -b";
    for (seam, limit, expected) in [
        (1, 99, Ok((vec![1, 3, 6, 8], 11))),
        (0, 99, Ok((vec![0, 2, 5, 7], 10))),
        // round again, into a gap of just the size
        (1, 8, Ok((vec![1, 3, 6, 1], 8))),
        (0, 3, Ok((vec![0, 0, 0, 0], 3))),
        (1, 3, Err(NoRoom { at: 2, need: 4 * CELL })),
    ] {
        assert_eq!(l2(&[2, 3, 2], words, seam, limit), expected, "{seam} {limit}");
    }
}

/// The words of a program that has to wait; `>a:3` stores `a` as op 3 does, `<c:5` loads it again as `c`.
fn waits(cells: &[u64], words: &str, limit: u64) -> String {
    let mut p = program(cells, words);
    let own = p.l2.len();
    if let Err(room) = spill::lrm(&mut p, limit * CELL) {
        return format!("{room:?}");
    }
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut text: Vec<String> = Vec::new();
    let mut last = None;
    for item in &p.items {
        let Item::Inst(i) = item else {
            text.push("]".into());
            continue;
        };
        match (i.span, i.r[0]) {
            (Some(s), Reg::Tile(t)) if s.buf.0 as usize >= own => {
                let way = if i.op == Opcode::Stt { '>' } else { '<' };
                text.push(format!("{way}{}:{}", char::from(b'a' + t.buf.0 as u8), i.src));
            }
            _ if last.replace(i.src) != Some(i.src) => text.push(words[usize::from(i.src)].into()),
            _ => {}
        }
    }
    text.join(" ")
}

#[test]
fn what_waits_is_the_most_and_it_waits_outside_of_loops() {
    for (cells, words, limit, expected) in [
        (&[2, 2][..], "+a +b -b -a", 2, "+a >a:0 +b -b <c:3 -a"),
        (&[2, 2], "+a +b -b -a", 4, "+a +b -b -a"),
        // the largest, and of these the one that is not named for longest
        (&[1, 2, 1], "+a +b +c -c -b -a", 3, "+a +b >b:1 +c -c <d:4 -b -a"),
        (&[1, 1, 1], "+a +b +c -c -b -a", 2, "+a >a:0 +b +c -c -b <d:5 -a"),
        // from a loop's end to the next one's beginning, of outer ones
        (&[1, 1], "+a [ -a ] +b -b [ -a ]", 1, "+a [ -a ] >a:2 +b -b <c:7 [ -a ]"),
        (&[1, 1], "+a [ [ -a ] ] +b -b [ -a [ -a ] ]", 1, "+a [ [ -a ] ] >a:3 +b -b <c:9 [ -a [ -a ] ]"),
        // neither in a loop nor before it is whole
        (&[1, 1], "[ +a +b -b -a ]", 1, "NoRoom { at: 4, need: 128 }"),
        (&[1, 2, 2], "+a b/0=a +c -c b/1=a -b", 3, "NoRoom { at: 5, need: 320 }"),
    ] {
        assert_eq!(waits(cells, words, limit), expected, "{words}");
    }
}

#[test]
fn what_waits_keeps_its_format_and_is_whole() {
    let mut p = program(&[2, 2], "+a +b -b -a");
    for item in &mut p.items {
        if let Item::Inst(Inst { r: [Reg::Tile(t), ..], .. }) = item {
            (t.format, t.frac) = (Format::Fx32, 20);
        }
    }
    let mut fixed = p.clone();
    spill::lrm(&mut fixed, 2 * CELL).unwrap();
    let transfers =
        fixed.to_string().lines().filter(|l| l.contains(".fx32")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(transfers, ["stt.fx32 %0:fx32[1x32],.20,@4[128]", "ldt.fx32 %2:fx32[1x32],.20,@4[128]"]);
    // written with gaps, added to, or as many rows as are known only at run time
    let none = Err(NoRoom { at: 3, need: 4 * CELL });
    for (op, flags, count) in [(Opcode::Vmov, 0, None), (Opcode::Tmvt, 1, None), (Opcode::Ldt, 0, Some(20))] {
        let mut p = p.clone();
        let Item::Inst(first) = &mut p.items[1] else { unreachable!() };
        (first.op, first.flags) = (op, flags);
        let Reg::Tile(t) = &mut first.r[0] else { unreachable!() };
        t.count = count;
        assert_eq!(spill::lrm(&mut p, 2 * CELL), none, "{op:?}");
    }
}
