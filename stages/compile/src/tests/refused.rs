//! What a compile refuses, each with what it says.

use super::{f32s, function, ints, ir_of};
use crate::{CompileError, compile};
use mica_device::product::Product;
use mica_models::hir::{Builder, Dim, DimVar, Dtype, Function, HirError, Op, Type, ValueId};

/// Of several results.
fn of(body: impl FnOnce(&mut Builder) -> Result<(), HirError>) -> Function {
    let mut b = Builder::new("f");
    body(&mut b).unwrap();
    b.finish().unwrap()
}

fn topk(b: &mut Builder, x: ValueId) -> Result<ValueId, HirError> {
    let top = b.op(Op::TopK { k: 2 }, &[x])?;
    b.op(Op::TupleGet { index: 0 }, &[top])
}

#[test]
fn each_says_what_would_compile() {
    let chosen_twice = of(|b| {
        for name in ["x", "z"] {
            let x = b.param(name, f32s(&[8]));
            let y = topk(b, x)?;
            b.result(format!("y_{name}"), y);
        }
        Ok(())
    });
    let many_rows = function(|b| {
        let x = b.param("x", f32s(&[3, 8]));
        topk(b, x)
    });
    let dim = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
    let open = |plus| {
        of(|b| {
            let ctx = Dim { plus, ..Dim::open(dim.clone()) };
            let cache = b.param("cache", Type { dtype: Dtype::F32, shape: vec![ctx, 4.into()] });
            let y = b.unary(Op::Silu, cache)?;
            b.result("y", y);
            Ok(())
        })
    };
    let made_outside = of(|b| {
        let s = b.param("s", f32s(&[2, 8, 16]));
        let k = b.param("k", f32s(&[2, 1, 8]));
        let u = b.param("u", f32s(&[2, 128]));
        let y = b.matmul(k, s)?;
        let next = b.reshape(u, &[2, 8, 16])?;
        b.result("s", next);
        b.result("y", y);
        Ok(())
    });
    for (f, tokens, says) in [
        (&chosen_twice, 1, "a part chooses once: there is one edge of forced ids"),
        (&many_rows, 1, "the choice is among one row"),
        (&open(0), 1, "an open dimension is read only as the cached part of attention"),
        (&open(1), 1, "an edge's open dimension is open alone"),
        (&made_outside, 2, "the next value of a state that runs head by head is made outside of it"),
    ] {
        let found = ir_of(f, tokens);
        assert!(found.contains(says), "{says}: {found}");
    }
    assert!(ir_of(&made_outside, 1).contains("s.out"));
}

#[test]
fn what_the_encoding_has_no_room_for() {
    let refused = |f: &Function| {
        let product = Product::named("qb1").unwrap();
        compile("f", f, &super::plan(f), &product, &super::options(f)).unwrap_err()
    };
    let scalars = |n: usize| {
        of(|b| {
            let token = b.param("token", ints(&[]));
            let mut at = token;
            for _ in 0..n {
                at = b.add(at, token)?;
            }
            let table = b.weight("table", f32s(&[5, 64]));
            let y = b.op(Op::IndexSelect, &[table, at])?;
            b.result("y", y);
            Ok(())
        })
    };
    let e = refused(&scalars(16));
    assert!(matches!(e, CompileError::Scalars { limit: 16, .. }), "{e:?}");
    // one register fewer, and it is the table's storage that does not suit
    assert!(matches!(refused(&scalars(14)), CompileError::Storage { .. }), "{:?}", refused(&scalars(14)));
    let long = function(|b| {
        let x = b.param("x", f32s(&[4]));
        (0..65536).try_fold(x, |x, _| b.unary(Op::Neg, x))
    });
    insta::assert_snapshot!(refused(&long), @"`f`: the number of ops: 65536 is more than 65535");
}
