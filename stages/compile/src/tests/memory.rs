//! Addresses and waits.

use super::{f32s, function, options, plan};
use crate::compile;
use crate::emit::{place, tiles};
use crate::ir::build::{self, Place};
use crate::ir::{Item, LrmId, Program, Tile};
use mica_device::format::Format;
use mica_device::hazards;
use mica_device::isa::{self, ENGINES, Instr, Opcode, ScalarOp};
use mica_device::object::Symbol;
use mica_device::product::Product;
use mica_models::hir::{Function, Op};

/// A chain of products and functions, wide enough for several transfers.
fn chain() -> Function {
    function(|b| {
        let mut x = b.param("x", f32s(&[1024]));
        for layer in 0..3 {
            let w = b.weight(format!("w{layer}"), f32s(&[1024, 1024]));
            let y = b.matmul(w, x)?;
            let y = b.unary(Op::Silu, y)?;
            x = b.add(x, y)?;
        }
        Ok(x)
    })
}

fn lowered(f: &Function, product: &Product) -> Program {
    let o = options(f);
    let g = crate::graph::Graph::new(f, &o.exports).unwrap();
    let rules = crate::graph::pattern::Rules::find(&g);
    crate::lower::lower(&g, &rules, &plan(f), product, &o, crate::BLOCK).unwrap().program
}

#[test]
fn live_buffers_never_overlap() {
    let f = chain();
    let product = Product::named("qb1").unwrap();
    let p = lowered(&f, &product);
    let lrm = place::lrm(&p, product.lrm()).unwrap();
    let live = place::live(&p, p.lrm.len(), |i, f| i.lrm().for_each(|b| f(b.0 as usize)));
    for a in 0..p.lrm.len() {
        for b in 0..a {
            let (Some(la), Some(lb)) = (live[a], live[b]) else { continue };
            let apart = lrm.at[a] + p.lrm[a] <= lrm.at[b] || lrm.at[b] + p.lrm[b] <= lrm.at[a];
            let (first, last) = (la.first.max(lb.first), la.last.min(lb.last));
            let in_place = first == last
                && matches!(&p.items[first], Item::Inst(i) if i.in_place().is_some())
                && lrm.at[a] == lrm.at[b];
            assert!(apart || first > last || in_place, "buffers {a} and {b}");
        }
    }
}

#[test]
fn transfers_run_ahead_as_far_as_l2_allows() {
    let product = Product::named("qb1").unwrap();
    let p = lowered(&chain(), &product);
    let wide = place::l2(&p, product.l2).unwrap();
    let mut distinct = wide.at.clone();
    distinct.sort_unstable();
    distinct.dedup();
    // the seam of no bytes shares the first address
    assert_eq!(distinct.len(), p.l2.len() - 1, "nothing has to wait for room");
    let narrow = place::l2(&p, 1 << 20).unwrap();
    assert!(narrow.peak <= 1 << 20);
    let refused = place::l2(&p, 1 << 19).unwrap_err();
    assert!(refused.need > 1 << 19);
}

fn program(f: &Function) -> Vec<Instr> {
    let product = Product::named("qb1").unwrap();
    isa::decode(&compile("f", f, &plan(f), &product, &options(f)).unwrap().code).unwrap()
}

#[test]
fn waits_order_every_overlap_and_are_needed() {
    let code = program(&chain());
    hazards::check(&code).unwrap();
    let waited: Vec<usize> = (0..ENGINES).filter(|&e| code.iter().any(|i| i.wait[e] > 0)).collect();
    assert!(waited.len() > 2);
    for e in waited {
        let mut broken = code.clone();
        broken.iter_mut().for_each(|i| i.wait[e] = 0);
        assert!(hazards::check(&broken).is_err(), "nothing needed the waits on engine {e}");
    }
}

/// The rows of a descriptor are read when it is defined, so one that a scalar tells is defined anew when that changes, and
/// all of them where a loop comes round.
#[test]
fn a_descriptor_is_defined_anew_when_its_rows_change() {
    let tile =
        |count| Tile { buf: LrmId(0), offset: 0, rows: 8, cols: 4, count, format: Format::F32, frac: 0 };
    let ids = Tile { format: Format::I32, ..tile(None) };
    let read = || build::opb(tile(Some(20)));
    let count = Place::new(Symbol::Edge("n.in".into()), 0);
    for (between, definitions) in [
        (vec![], 1),
        (vec![build::fence()], 1),
        (vec![build::sli(21, 3)], 1),
        (vec![build::sli(20, 3)], 2),
        (vec![build::salui(ScalarOp::Add, 20, 21, 3)], 2),
        (vec![build::salui(ScalarOp::Add, 21, 20, 3)], 1),
        (vec![build::sld(20, &count)], 2),
        // the tile of indices is another
        (vec![build::sget(20, ids, 0)], 3),
        (vec![build::repeat(21, 20)], 2),
        (vec![build::repeat(21, 22)], 2),
    ] {
        let open = between.iter().filter(|i| i.op == Opcode::Loop).count();
        let all = [vec![read()], between, vec![read()]].concat();
        let ends = std::iter::repeat_n(Item::End, open);
        let p = Program {
            items: all.into_iter().map(Item::Inst).chain(ends).collect(),
            lrm: vec![128],
            ..Program::default()
        };
        let lrm = place::lrm(&p, 128).unwrap();
        let code = tiles::assign(&p, &lrm, &place::l2(&p, 0).unwrap());
        let defined = code.iter().filter(|c| c.instr.op == Opcode::Tdef).count();
        assert_eq!(defined, definitions, "{p}");
    }
}
