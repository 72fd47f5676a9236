//! Calls of several tokens, as text, and what has no rule in them.

use super::patterns::{convolution, recurrence};
use super::{f32s, function, ints, ir, ir_of};
use mica_models::hir::{Builder, HirError, Op, ValueId};

#[test]
fn a_matrix_is_fetched_once_and_what_lies_between_runs_token_by_token() {
    let f = function(|b| {
        let x = b.param("x", f32s(&[32]));
        let gain = b.weight("gain", f32s(&[32]));
        let gain = b.unary(Op::Sigmoid, gain)?;
        let w = b.weight("w", f32s(&[80, 32]));
        let x = b.mul(x, gain)?;
        let y = b.matmul(w, x)?;
        b.unary(Op::Silu, y)
    });
    insta::assert_snapshot!(ir_of(&f, 2), @"
    dld s0,@1[128] constants+0
    ldt.f32 %0:f32[1x32],@1[128]
    vun.sigmoid %1:f32[1x32],%0:f32[1x32]
    opb %1:f32[1x32]
    dld s0,@2[128] x.in+0
    ldt.f32 %2:f32[1x32],@2[128]
    vbin.mul.same %3:f32[1x32],%2:f32[1x32],%1:f32[1x32]
    opb %3:f32[1x32]
    dld s0,@3[128] x.in+128
    ldt.f32 %4:f32[1x32],@3[128]
    vbin.mul.same %5:f32[1x32],%4:f32[1x32],%1:f32[1x32]
    opb %5:f32[1x32]
    bct %6:f16[1x32],%3:f32[1x32]
    bct %7:f16[1x32],%5:f32[1x32]
    dld s0,@4[2880] constants+128
    matv.i8.s32 %8:f32[1x80],%6:f16[1x32],@4[2880] 80 rows, group 32
    matv.i8.s32 %9:f32[1x80],%7:f16[1x32],@4[2880] 80 rows, group 32
    opb %8:f32[1x80]
    opb %9:f32[1x80]
    vun.silu %10:f32[1x80],%8:f32[1x80]
    opb %10:f32[1x80]
    stt.f32 %10:f32[1x80],@5[320]
    dst s0,@5[320] y.out+0
    vun.silu %11:f32[1x80],%9:f32[1x80]
    opb %11:f32[1x80]
    stt.f32 %11:f32[1x80],@6[320]
    dst s0,@6[320] y.out+320
    ");
}

/// Rows that the first token brings are the second one's window, rounded as the edge rounds them.
#[test]
fn a_window_stays_on_the_chip() {
    insta::assert_snapshot!(ir_of(&convolution(), 2), @"
    dld s0,@1[128] x.in+0
    ldt.f16 %0:f32[1x64],@1[128]
    opb %0:f32[1x64]
    dld s0,@2[256] state.in+0
    ldt.f16 %1:f32[1x64],@2[128]
    dld s0,@3[768] constants+0
    ldt.f32 %2:f32[1x64],@3[256]
    vbin.mul.same %3:f32[1x64],%1:f32[1x64],%2:f32[1x64]
    ldt.f16 %4:f32[1x64],@2+128[128]
    ldt.f32 %5:f32[1x64],@3+256[256]
    vbin.mul.same %6:f32[1x64],%4:f32[1x64],%5:f32[1x64]
    vbin.add.same %7:f32[1x64],%3:f32[1x64],%6:f32[1x64]
    ldt.f32 %8:f32[1x64],@3+512[256]
    vbin.mul.same %9:f32[1x64],%0:f32[1x64],%8:f32[1x64]
    vbin.add.same %10:f32[1x64],%7:f32[1x64],%9:f32[1x64]
    opb %10:f32[1x64]
    stt.f16 %10:f32[1x64],@4[128]
    dst s0,@4[128] y.out+0
    dld s0,@5[128] x.in+128
    ldt.f16 %11:f32[1x64],@5[128]
    opb %11:f32[1x64]
    vun.cvt %12:f16[1x64],%0:f32[1x64]
    stt.f16 %12:f16[1x64],@6[128]
    dst s0,@6[128] state.out+0
    stt.f16 %11:f32[1x64],@7[128]
    dst s0,@7[128] state.out+128
    ldt.f16 %13:f32[1x64],@2+128[128]
    ldt.f32 %14:f32[1x64],@3[256]
    vbin.mul.same %15:f32[1x64],%13:f32[1x64],%14:f32[1x64]
    ldt.f32 %16:f32[1x64],@3+256[256]
    vbin.mul.same %17:f32[1x64],%12:f16[1x64],%16:f32[1x64]
    vbin.add.same %18:f32[1x64],%15:f32[1x64],%17:f32[1x64]
    ldt.f32 %19:f32[1x64],@3+512[256]
    vbin.mul.same %20:f32[1x64],%11:f32[1x64],%19:f32[1x64]
    vbin.add.same %21:f32[1x64],%18:f32[1x64],%20:f32[1x64]
    opb %21:f32[1x64]
    stt.f16 %21:f32[1x64],@8[128]
    dst s0,@8[128] y.out+128
    ");
}

#[test]
fn a_head_runs_all_tokens_before_the_next_one() {
    insta::assert_snapshot!(ir_of(&recurrence(), 2), @"
    dld s0,@1[64] k.in+0
    ldt.f32 %0:f32[2x8],@1[64]
    opb %0:f32[2x8]
    dld s0,@2[128] v.in+0
    ldt.f32 %1:f32[2x16],@2[128]
    opb %1:f32[2x16]
    dld s0,@3[64] k.in+64
    ldt.f32 %2:f32[2x8],@3[64]
    opb %2:f32[2x8]
    dld s0,@4[128] v.in+128
    ldt.f32 %3:f32[2x16],@4[128]
    opb %3:f32[2x16]
    dld s0,@5[512] s.in+0
    dld s0,@6[512] s.in+512
    ldt.f32 %6:f32[8x16],@5[512]
    ldt.f32 %7:f32[8x16],@6[512]
    tmvt %8:f32[1x16],%6:f32[8x16],%0:f32[1x8]
    vbin.sub.same %9:f32[1x16],%1:f32[1x16],%8:f32[1x16]
    vun.silu %10:f32[1x16],%9:f32[1x16]
    tout %11:f32[8x16],%6:f32[8x16],%0:f32[1x8],%10:f32[1x16]
    tmvt %4:f32[1x16],%11:f32[8x16],%0:f32[1x8]
    tmvt %12:f32[1x16],%11:f32[8x16],%2:f32[1x8]
    vbin.sub.same %13:f32[1x16],%3:f32[1x16],%12:f32[1x16]
    vun.silu %14:f32[1x16],%13:f32[1x16]
    tout %15:f32[8x16],%11:f32[8x16],%2:f32[1x8],%14:f32[1x16]
    stt.f32 %15:f32[8x16],@7[512]
    dst s0,@7[512] s.out+0
    tmvt %5:f32[1x16],%15:f32[8x16],%2:f32[1x8]
    tmvt %16:f32[1x16],%7:f32[8x16],%0+32:f32[1x8]
    vbin.sub.same %17:f32[1x16],%1+64:f32[1x16],%16:f32[1x16]
    vun.silu %18:f32[1x16],%17:f32[1x16]
    tout %19:f32[8x16],%7:f32[8x16],%0+32:f32[1x8],%18:f32[1x16]
    tmvt %4+64:f32[1x16],%19:f32[8x16],%0+32:f32[1x8]
    tmvt %20:f32[1x16],%19:f32[8x16],%2+32:f32[1x8]
    vbin.sub.same %21:f32[1x16],%3+64:f32[1x16],%20:f32[1x16]
    vun.silu %22:f32[1x16],%21:f32[1x16]
    tout %23:f32[8x16],%19:f32[8x16],%2+32:f32[1x8],%22:f32[1x16]
    stt.f32 %23:f32[8x16],@8[512]
    dst s0,@8[512] s.out+512
    tmvt %5+64:f32[1x16],%23:f32[8x16],%2+32:f32[1x8]
    opb %4:f32[2x16]
    opb %5:f32[2x16]
    stt.f32 %4:f32[2x16],@9[128]
    dst s0,@9[128] y.out+0
    stt.f32 %5:f32[2x16],@10[128]
    dst s0,@10[128] y.out+128
    ");
}

/// What rests on weights alone is made once and leaves for each token; a choice among it may be forced, token by token.
#[test]
fn what_tokens_share_is_made_once() {
    let mut b = Builder::new("f");
    let gain = b.weight("gain", f32s(&[32]));
    let w = b.weight("w", f32s(&[16, 32]));
    let y = b.matmul(w, gain).unwrap();
    let top = b.op(Op::TopK { k: 2 }, &[y]).unwrap();
    let ids = b.op(Op::TupleGet { index: 1 }, &[top]).unwrap();
    b.result("y", y);
    b.result("ids", ids);
    insta::assert_snapshot!(ir_of(&b.finish().unwrap(), 2), @"
    dld s0,@1[128] constants+0
    ldt.f32 %0:f32[1x32],@1[128]
    bct %1:f16[1x32],%0:f32[1x32]
    dld s0,@2[576] constants+128
    matv.i8.s32 %2:f32[1x16],%1:f16[1x32],@2[576] 16 rows, group 32
    opb %2:f32[1x16]
    stt.f32 %2:f32[1x16],@3[64]
    dst s0,@3[64] y.out+0
    stt.f32 %2:f32[1x16],@4[64]
    dst s0,@4[64] y.out+64
    dld s0,@5[8] forced_ids.in+0
    ldt.i32 %3:i32[1x2],@5[8]
    topk %4:i32[1x2],%5:f32[1x2],%2:f32[1x16],%3:i32[1x2] 2
    opb %5:f32[1x2]
    stt.i32 %4:i32[1x2],@6[8]
    dst s0,@6[8] ids.out+0
    dld s0,@7[8] forced_ids.in+8
    ldt.i32 %6:i32[1x2],@7[8]
    topk %7:i32[1x2],%8:f32[1x2],%2:f32[1x16],%6:i32[1x2] 2
    opb %8:f32[1x2]
    stt.i32 %7:i32[1x2],@8[8]
    dst s0,@8[8] ids.out+8
    ");
}

/// Between tokens of a call a state would not be rounded as between calls.
#[test]
fn a_state_leaves_in_the_format_in_which_it_comes() {
    use mica_models::hir::{Dtype, Type};
    let state = |dtype| {
        let mut b = Builder::new("f");
        let s = b.param("s", Type::new(dtype, &[32]));
        let next = b.cast(s, Dtype::F32).unwrap();
        let next = b.unary(Op::Silu, next).unwrap();
        b.result("s", next);
        ir_of(&b.finish().unwrap(), 2)
    };
    assert!(state(Dtype::F32).contains("s.out"));
    assert!(state(Dtype::BF16).contains("leaves in the format in which it comes"), "{}", state(Dtype::BF16));
}

/// What a head is for the next token rests on what all of them leave in another state: no head can run all tokens first.
#[test]
fn a_recurrence_that_reaches_out_of_a_head_is_refused() {
    let mut b = Builder::new("f");
    let s = b.param("s", f32s(&[2, 8, 16]));
    let h = b.param("h", f32s(&[2, 16]));
    let k = b.param("k", f32s(&[2, 8]));
    let row = b.reshape(k, &[2, 1, 8]).unwrap();
    let column = b.reshape(k, &[2, 8, 1]).unwrap();
    let v = b.reshape(h, &[2, 1, 16]).unwrap();
    let seen = b.matmul(row, s).unwrap();
    let d = b.sub(v, seen).unwrap();
    let update = b.matmul(column, d).unwrap();
    let s = b.add(s, update).unwrap();
    let y = b.matmul(row, s).unwrap();
    let y = b.reshape(y, &[2, 16]).unwrap();
    let h = b.add(h, y).unwrap();
    b.result("s", s);
    b.result("h", h);
    let f = b.finish().unwrap();
    assert!(ir_of(&f, 1).contains("s.out"), "{}", ir_of(&f, 1));
    let refused = ir_of(&f, 2);
    assert!(refused.contains("rests on more than a head: compile one token a call"), "{refused}");
}

/// What runs head by head has no axis of heads to sum along, to choose from, or to be multiplied along.
#[test]
fn heads_do_not_meet_in_a_region() {
    type Change = fn(&mut Builder, ValueId) -> Result<ValueId, HirError>;
    let region = |change: Change| {
        let mut b = Builder::new("f");
        let s = b.param("s", f32s(&[2, 8, 16]));
        let k = b.param("k", f32s(&[2, 8]));
        let row = b.reshape(k, &[2, 1, 8]).unwrap();
        let column = b.reshape(k, &[2, 8, 1]).unwrap();
        let seen = b.matmul(row, s).unwrap();
        let seen = change(&mut b, seen).unwrap();
        let update = b.matmul(column, seen).unwrap();
        let s = b.add(s, update).unwrap();
        b.result("s", s);
        ir(&b.finish().unwrap())
    };
    assert!(region(|b, seen| b.unary(Op::Silu, seen)).contains("s.out"));
    let changes: [(&str, Change); 6] = [
        ("transpose", |b, seen| {
            let two = b.reshape(seen, &[2, 2, 8])?;
            let turned = b.transpose(two, &[1, 0, 2])?;
            b.reshape(turned, &[2, 1, 16])
        }),
        ("sum", |b, seen| {
            let all = b.sum(seen, 0, true)?;
            b.sub(seen, all)
        }),
        ("softmax", |b, seen| {
            let one = b.sum(seen, 2, false)?;
            let one = b.reshape(one, &[2])?;
            let share = b.op(Op::Softmax { axis: 0 }, &[one])?;
            let share = b.reshape(share, &[2, 1, 1])?;
            b.mul(seen, share)
        }),
        ("norm", |b, seen| {
            let one = b.sum(seen, 2, false)?;
            let one = b.reshape(one, &[2])?;
            let gain = b.weight("gain", f32s(&[2]));
            let share = b.op(Op::RmsNorm { eps: 1e-6 }, &[one, gain])?;
            let share = b.reshape(share, &[2, 1, 1])?;
            b.mul(seen, share)
        }),
        ("product", |b, seen| {
            let one = b.sum(seen, 2, false)?;
            let one = b.reshape(one, &[2])?;
            let by = b.param("by", f32s(&[2, 16]));
            let all = b.matmul(one, by)?;
            b.sub(seen, all)
        }),
        ("experts", |b, seen| {
            let x = b.reshape(seen, &[2, 16, 1])?;
            let ids = b.param("ids", ints(&[2]));
            let up = b.weight("up", f32s(&[8, 16, 16]));
            let up = b.op(Op::IndexSelect, &[up, ids])?;
            let y = b.matmul(up, x)?;
            b.reshape(y, &[2, 1, 16])
        }),
    ];
    for (what, change) in changes {
        assert!(region(change).contains("heads do not meet"), "{what}: {}", region(change));
    }
}

/// Whoever calls one token at a time appends another row than attention takes: several at once could not be the same.
#[test]
fn a_cache_grows_by_the_row_that_attention_takes() {
    use mica_models::hir::{Dim, DimVar, Dtype, Type};
    let attention = |other: bool| {
        let mut b = Builder::new("f");
        let ctx = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
        let cache = Type { dtype: Dtype::BF16, shape: vec![1.into(), Dim::open(ctx), 16.into()] };
        b.param("pos", ints(&[]));
        let q = b.param("q", Type::new(Dtype::BF16, &[1, 2, 16]));
        let k_cache = b.param("k_cache", cache.clone());
        let v_cache = b.param("v_cache", cache);
        let k = b.param("k", Type::new(Dtype::BF16, &[1, 16]));
        let own = b.reshape(k, &[1, 1, 16]).unwrap();
        let keys = b.concat(k_cache, own, 1).unwrap();
        let values = b.concat(v_cache, own, 1).unwrap();
        let keys = b.transpose(keys, &[0, 2, 1]).unwrap();
        let scores = b.matmul(q, keys).unwrap();
        let p = b.op(Op::Softmax { axis: 2 }, &[scores]).unwrap();
        let o = b.matmul(p, values).unwrap();
        let row = if other { b.unary(Op::Neg, k).unwrap() } else { k };
        b.result("k_row", row);
        b.result("o", o);
        ir_of(&b.finish().unwrap(), 2)
    };
    assert!(attention(false).contains("k_cache.inout"), "{}", attention(false));
    assert!(attention(true).contains("is the one that attention takes"), "{}", attention(true));
}
