//! One test a rule for single ops.

use super::{f32s, function, ints, ir, options};
use crate::tile_ir;
use mica_device::format::Format;
use mica_device::layout::Scaling;
use mica_device::product::Product;
use mica_device::segment::{SegmentPlan, Storage};
use mica_models::hir::{Builder, Dim, DimVar, Dtype, Function, HirError, Op, Type, ValueId};

#[test]
fn matrices_share_one_broadcast() {
    let f = function(|b| {
        let x = b.param("x", f32s(&[32]));
        let w1 = b.weight("w1", f32s(&[80, 32]));
        let w2 = b.weight("w2", f32s(&[80, 32]));
        let (p, q) = (b.matmul(w1, x)?, b.matmul(w2, x)?);
        let p = b.unary(Op::Silu, p)?;
        b.mul(p, q)
    });
    insta::assert_snapshot!(ir(&f), @"
    dld s0,@1[128] x.in+0
    ldt.f32 %0:f32[1x32],@1[128]
    bct %1:f16[1x32],%0:f32[1x32]
    dld s0,@2[2880] constants+0
    matv.i8.s32 %2:f32[1x80],%1:f16[1x32],@2[2880] 80 rows, group 32
    opb %2:f32[1x80]
    dld s0,@3[2880] constants+2880
    matv.i8.s32 %3:f32[1x80],%1:f16[1x32],@3[2880] 80 rows, group 32
    opb %3:f32[1x80]
    vun.silu %4:f32[1x80],%2:f32[1x80]
    opb %4:f32[1x80]
    vbin.mul.same %5:f32[1x80],%4:f32[1x80],%3:f32[1x80]
    opb %5:f32[1x80]
    stt.f32 %5:f32[1x80],@4[320]
    dst s0,@4[320] y.out+0
    ");
}

#[test]
fn a_product_that_only_leaves_is_never_whole() {
    let f = function(|b| {
        let x = b.param("x", f32s(&[4096]));
        let w = b.weight("w", f32s(&[128, 4096]));
        b.matmul(w, x)
    });
    insta::assert_snapshot!(ir(&f), @"
    dld s0,@1[16384] x.in+0
    ldt.f32 %0:f32[1x4096],@1[16384]
    bct %1:f16[1x4096],%0:f32[1x4096]
    dld s0,@2[262400] constants+0
    dld s0,@3[262400] constants+262400
    matv.i8.s32 %2:f32[1x64],%1:f16[1x4096],@2[262400] 64 rows, group 4096
    stt.f32 %2:f32[1x64],@4[256]
    dst s0,@4[256] y.out+0
    matv.i8.s32 %3:f32[1x64],%1:f16[1x4096],@3[262400] 64 rows, group 4096
    stt.f32 %3:f32[1x64],@5[256]
    dst s0,@5[256] y.out+256
    ");
}

#[test]
fn experts_are_fetched_by_index() {
    let f = function(|b| {
        let x = b.param("x", f32s(&[32]));
        let ids = b.param("ids", ints(&[2]));
        let up = b.weight("up", f32s(&[8, 64, 32]));
        let down = b.weight("down", f32s(&[8, 32, 64]));
        let up = b.op(Op::IndexSelect, &[up, ids])?;
        let h = b.matmul(up, x)?;
        let h = b.reshape(h, &[2, 64, 1])?;
        let down = b.op(Op::IndexSelect, &[down, ids])?;
        let y = b.matmul(down, h)?;
        let y = b.reshape(y, &[2, 32])?;
        b.sum(y, 0, false)
    });
    insta::assert_snapshot!(ir(&f), @"
    dld s0,@1[8] ids.in+0
    ldt.i32 %0:i32[1x2],@1[8]
    dld s0,@2[128] x.in+0
    ldt.f32 %1:f32[1x32],@2[128]
    bct %2:f16[1x32],%1:f32[1x32]
    sget s16,%0:i32[1x2] 0
    salu.mul s16,s16,1152
    dld s0,s16,@3[1152] constants+0
    matv.i4 %3:f32[1x64],%2:f16[1x32],@3[1152] 64 rows, group 32
    sget s16,%0:i32[1x2] 1
    salu.mul s16,s16,1152
    dld s0,s16,@4[1152] constants+0
    matv.i4 %3+256:f32[1x64],%2:f16[1x32],@4[1152] 64 rows, group 32
    opb %3:f32[2x64]
    bct %4:f16[1x128],%3:f32[1x128]
    sget s16,%0:i32[1x2] 0
    salu.mul s16,s16,1152
    dld s0,s16,@5[1152] constants+9216
    matv.i4 %5:f32[1x32],%4:f16[1x64],@5[1152] 32 rows, group 32
    sget s16,%0:i32[1x2] 1
    salu.mul s16,s16,1152
    dld s0,s16,@6[1152] constants+9216
    matv.i4 %5+128:f32[1x32],%4+128:f16[1x64],@6[1152] 32 rows, group 32
    opb %5:f32[64x1]
    red.sum.cols %6:f32[1x32],%5:f32[2x32]
    opb %6:f32[1x32]
    stt.f32 %6:f32[1x32],@7[128]
    dst s0,@7[128] y.out+0
    ");
}

#[test]
fn the_residual_is_fixed_point_and_its_squares_are_exact() {
    let mut b = Builder::new("f");
    let h = b.param("hidden", f32s(&[64]));
    let w = b.weight("norm", f32s(&[64]));
    let one = b.full_like(w, 1.0).unwrap();
    let w = b.add(w, one).unwrap();
    let y = b.op(Op::RmsNorm { eps: 1e-6 }, &[h, w]).unwrap();
    let square = b.unary(Op::Square, h).unwrap();
    let sum = b.sum(square, 0, true).unwrap();
    let y = b.mul(y, sum).unwrap();
    let h = b.add(h, y).unwrap();
    b.result("hidden", h);
    insta::assert_snapshot!(ir(&b.finish().unwrap()), @"
    dld s0,@1[256] constants+0
    ldt.f32 %0:f32[1x64],@1[256]
    vbini.add %1:f32[1x64],%0:f32[1x64],1.0
    opb %1:f32[1x64]
    ldt.fx32 %2:fx32[1x64],.20,@0[256]
    red.sumsq.rows %3:f32[1x1],%2:fx32[1x64]
    vbini.div %4:f32[1x1],%3:f32[1x1],64.0
    vbini.add %5:f32[1x1],%4:f32[1x1],1e-6
    vun.rsqrt %6:f32[1x1],%5:f32[1x1]
    vbin.mul.stretch %7:f32[1x64],%2:fx32[1x64],%6:f32[1x1]
    vbin.mul.cyclic %8:f32[1x64],%7:f32[1x64],%1:f32[1x64]
    opb %8:f32[1x64]
    red.sumsq.rows %9:f32[1x1],%2:fx32[1x64]
    opb %9:f32[1x1]
    vbin.mul.cyclic %10:f32[1x64],%8:f32[1x64],%9:f32[1x1]
    opb %10:f32[1x64]
    vbin.add.same %11:fx32[1x64],%2:fx32[1x64],%10:f32[1x64]
    opb %11:fx32[1x64]
    stt.fx32 %11:fx32[1x64],.20,@0[256]
    ");
}

#[test]
fn a_row_of_a_table_is_scaled_by_equal_groups() {
    let f = function(|b| {
        let token = b.param("token", ints(&[]));
        let table = b.weight("table", f32s(&[5, 42]));
        b.op(Op::IndexSelect, &[table, token])
    });
    let row = |group| {
        let scaling = Some(Scaling { group, scale: Format::F16, zero: false });
        let mut plan = SegmentPlan::default();
        assert!(plan.push("table", &[5, 42], Storage::Table { element: Format::I8, scaling }));
        match tile_ir(&f, &plan, &Product::named("qb1").unwrap(), &options(&f)) {
            Ok(text) => text,
            Err(e) => e.to_string(),
        }
    };
    insta::assert_snapshot!(row(21), @"
    sld s16,s0 token.in+0
    salu.mul s17,s16,64
    dld s0,s17,@1[64] constants+0
    ldt.i8 %0:f32[1x42],@1[42]
    ldt.f16 %1:f32[1x2],@1+44[4]
    vbin.mul.stretch %2:f32[1x42],%0:f32[1x42],%1:f32[1x2]
    opb %2:f32[1x42]
    stt.f32 %2:f32[1x42],@2[168]
    dst s0,@2[168] y.out+0
    ");
    insta::assert_snapshot!(row(32), @": no rule compiles this `index_select`: groups of 32 do not make 42 columns");
}

#[test]
fn the_choice_can_be_forced() {
    let mut b = Builder::new("f");
    let x = b.param("x", f32s(&[16]));
    let p = b.op(Op::Softmax { axis: 0 }, &[x]).unwrap();
    let top = b.op(Op::TopK { k: 4 }, &[p]).unwrap();
    let values = b.op(Op::TupleGet { index: 0 }, &[top]).unwrap();
    let ids = b.op(Op::TupleGet { index: 1 }, &[top]).unwrap();
    b.result("values", values);
    b.result("ids", ids);
    insta::assert_snapshot!(ir(&b.finish().unwrap()), @"
    dld s0,@1[64] x.in+0
    ldt.f32 %0:f32[1x16],@1[64]
    red.max.rows %1:f32[1x1],%0:f32[1x16]
    vbin.sub.stretch %2:f32[1x16],%0:f32[1x16],%1:f32[1x1]
    vun.exp %3:f32[1x16],%2:f32[1x16]
    red.sum.rows %4:f32[1x1],%3:f32[1x16]
    vbin.div.stretch %5:f32[1x16],%3:f32[1x16],%4:f32[1x1]
    opb %5:f32[1x16]
    dld s0,@2[16] forced_ids.in+0
    ldt.i32 %6:i32[1x4],@2[16]
    topk %7:i32[1x4],%8:f32[1x4],%5:f32[1x16],%6:i32[1x4] 4
    opb %8:f32[1x4]
    stt.f32 %8:f32[1x4],@3[16]
    dst s0,@3[16] values.out+0
    stt.i32 %7:i32[1x4],@4[16]
    dst s0,@4[16] ids.out+0
    ");
}

#[test]
fn heads_are_sliced_and_repeated() {
    let f = function(|b| {
        let x = b.param("x", f32s(&[64]));
        let x = b.reshape(x, &[2, 32])?;
        let x = b.slice(x, 1, 16, 16)?;
        b.op(Op::RepeatInterleave { axis: 0, repeats: 2 }, &[x])
    });
    insta::assert_snapshot!(ir(&f), @"
    dld s0,@1[256] x.in+0
    ldt.f32 %0:f32[1x64],@1[256]
    opb %0:f32[2x32]
    vmov %1:f32[2x16],%0:f32[2x32] to 0 from 16: 2 rows of 16, strides 16 from 32
    opb %1:f32[2x16]
    vmov %2:f32[4x16],%1:f32[2x16] to 0 from 0: 2 rows of 16, strides 32 from 16
    vmov %2:f32[4x16],%1:f32[2x16] to 16 from 0: 2 rows of 16, strides 32 from 16
    opb %2:f32[4x16]
    stt.f32 %2:f32[4x16],@2[256]
    dst s0,@2[256] y.out+0
    ");
}

#[test]
fn what_has_no_rule_says_what_would_have() {
    let transposed = function(|b| {
        let x = b.param("x", f32s(&[4, 8]));
        b.transpose(x, &[1, 0])
    });
    insta::assert_snapshot!(ir(&transposed), @": no rule compiles this `transpose`: [4, 8] is permuted by [1, 0]: only axes of length 1 move");
    let crossed = function(|b| {
        let (x, y) = (b.param("x", f32s(&[4, 1])), b.param("y", f32s(&[1, 8])));
        b.mul(x, y)
    });
    insta::assert_snapshot!(ir(&crossed), @": no rule compiles this `mul`: [4, 1] and [1, 8] meet neither element by element nor with one repeated along the leading or along the trailing axes");
    let middle = function(|b| {
        let x = b.param("x", f32s(&[1, 4]));
        let x = b.reshape(x, &[2, 2])?;
        b.matmul(x, x)
    });
    insta::assert_snapshot!(ir(&middle), @": no rule compiles this `matmul`: [2, 2] · [2, 2] in LRM has no side that is a vector");
    let empty = function(|b| {
        let x = b.param("x", f32s(&[4, 8]));
        let x = b.slice(x, 0, 4, 0)?;
        b.unary(Op::Silu, x)
    });
    insta::assert_snapshot!(ir(&empty), @": no rule compiles this `slice`: a tile has elements, and this value has none");
    let one = |shape: &[u64]| {
        function(|b| {
            let x = b.param("x", f32s(shape));
            let w = b.weight("w", f32s(&[80, 32]));
            b.matmul(w, x)
        })
    };
    insta::assert_snapshot!(ir(&one(&[32, 2])), @": no rule compiles this `matmul`: a matrix [80, 32] takes one vector");
    insta::assert_snapshot!(ir(&one(&[3, 32, 1])), @": no rule compiles this `matmul`: a matrix [80, 32] takes one vector");
    let experts = |ids: fn(&mut Builder, ValueId) -> Result<ValueId, HirError>, shape: &[u64]| {
        function(|b| {
            let x = b.param("x", f32s(shape));
            let chosen = b.param("ids", ints(&[2]));
            let chosen = ids(b, chosen)?;
            let up = b.weight("up", f32s(&[8, 64, 32]));
            let up = b.op(Op::IndexSelect, &[up, chosen])?;
            b.matmul(up, x)
        })
    };
    assert!(ir(&experts(|_, ids| Ok(ids), &[2, 32, 1])).contains("y.out"));
    insta::assert_snapshot!(ir(&experts(|_, ids| Ok(ids), &[32, 2])), @": no rule compiles this `matmul`: 2 matrices [64, 32] take one vector, or one each");
    insta::assert_snapshot!(ir(&experts(|_, ids| Ok(ids), &[32, 3])), @": no rule compiles this `matmul`: 2 matrices [64, 32] take one vector, or one each");
    insta::assert_snapshot!(ir(&experts(|b, ids| b.add(ids, ids), &[32])), @": no rule compiles this `matmul`: 2 matrices [64, 32] take one vector, or one each");
}

/// A broadcast and a rotary table are made once, and only for those who read the very same.
#[test]
fn what_is_shared_is_the_same() {
    let broadcasts = function(|b| {
        let x = b.param("x", f32s(&[64]));
        let (low, high) = (b.slice(x, 0, 0, 32)?, b.slice(x, 0, 32, 32)?);
        let parts = [("w1", low, 32), ("w2", high, 32), ("w3", x, 64), ("w4", low, 32)];
        let mut sum = None;
        for (w, x, n) in parts {
            let w = b.weight(w, f32s(&[16, n]));
            let y = b.matmul(w, x)?;
            sum = Some(match sum {
                Some(s) => b.add(s, y)?,
                None => y,
            });
        }
        Ok(sum.unwrap())
    });
    let made = |f: &Function, what: &str| {
        ir(f).lines().filter(|l| l.starts_with(what)).map(str::to_owned).collect::<Vec<_>>()
    };
    insta::assert_snapshot!(made(&broadcasts, "bct").join("\n"), @"
    bct %1:f16[1x32],%0:f32[1x32]
    bct %3:f16[1x32],%0+128:f32[1x32]
    bct %6:f16[1x64],%0:f32[1x64]
    ");
    let rotations = function(|b| {
        let mut x = b.param("x", f32s(&[2, 16]));
        let pos = b.param("pos", ints(&[]));
        let other = b.param("other", ints(&[]));
        for (pos, rotary, theta) in
            [(pos, 4, 1e4), (pos, 4, 1e6), (pos, 8, 1e4), (other, 4, 1e4), (pos, 4, 1e4)]
        {
            x = b.op(Op::Rope { rotary, theta }, &[x, pos])?;
        }
        Ok(x)
    });
    insta::assert_snapshot!(made(&rotations, "vsincos").join("\n"), @"
    vsincos %2:f32[1x2],%3:f32[1x2],%1:f32[1x2],s16
    vsincos %6:f32[1x2],%7:f32[1x2],%5:f32[1x2],s16
    vsincos %10:f32[1x4],%11:f32[1x4],%9:f32[1x4],s16
    vsincos %13:f32[1x2],%14:f32[1x2],%1:f32[1x2],s17
    ");
    let literals =
        ir(&rotations).lines().filter(|l| l.contains("literals")).map(str::to_owned).collect::<Vec<_>>();
    insta::assert_snapshot!(literals.join("\n"), @"
    dld s0,@2[8] literals+0
    dld s0,@3[8] literals+64
    dld s0,@4[16] literals+128
    ");
}

/// A product that nothing reads but the seam is whole all the same.
#[test]
fn a_product_may_be_the_residual() {
    let mut b = Builder::new("f");
    let x = b.param("x", f32s(&[32]));
    let w = b.weight("w", f32s(&[80, 32]));
    let y = b.matmul(w, x).unwrap();
    b.result("hidden", y);
    insta::assert_snapshot!(ir(&b.finish().unwrap()), @"
    dld s0,@1[128] x.in+0
    ldt.f32 %0:f32[1x32],@1[128]
    bct %1:f16[1x32],%0:f32[1x32]
    dld s0,@2[2880] constants+0
    matv.i8.s32 %2:f32[1x80],%1:f16[1x32],@2[2880] 80 rows, group 32
    opb %2:f32[1x80]
    stt.fx32 %2:f32[1x80],.20,@0[320]
    ");
}

/// A cache that nothing reads has no edge, and then nor has the position.
#[test]
fn what_nothing_reads_has_no_edge() {
    let mut b = Builder::new("f");
    let ctx = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
    b.param("pos", ints(&[]));
    b.param("cache", Type { dtype: Dtype::F32, shape: vec![Dim::open(ctx), 4.into()] });
    let x = b.param("x", f32s(&[4]));
    let y = b.unary(Op::Neg, x).unwrap();
    b.result("y", y);
    let text = ir(&b.finish().unwrap());
    assert!(text.contains("x.in") && !text.contains("pos.in") && !text.contains("cache"), "{text}");
}
