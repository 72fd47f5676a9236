//! One test a pattern of several ops.

use super::{f32s, ints, ir, rules};
use mica_models::hir::{Builder, Dim, DimVar, Dtype, Function, Op, ReduceKind, Type};

/// A causal convolution over a window of three rows.
pub(super) fn convolution() -> Function {
    let mut b = Builder::new("f");
    let state = b.param("state", Type::new(Dtype::BF16, &[2, 64]));
    let x = b.param("x", Type::new(Dtype::BF16, &[64]));
    let taps = b.weight("taps", Type::new(Dtype::BF16, &[3, 64]));
    let row = b.reshape(x, &[1, 64]).unwrap();
    let window = b.concat(state, row, 0).unwrap();
    let next = b.slice(window, 0, 1, 2).unwrap();
    let products = b.mul(window, taps).unwrap();
    let y = b.sum(products, 0, false).unwrap();
    b.result("state", next);
    b.result("y", y);
    b.finish().unwrap()
}

#[test]
fn a_window_of_rows_is_never_whole() {
    insta::assert_snapshot!(rules(&convolution()), @"
    %3 reshape: by its op
    %4 concat: by its op
    %5 slice: rows of %4 from 1 leave
    %6 mul: inside a pattern
    %7 reduce: column dot of rows %4 by %2
    ");
    insta::assert_snapshot!(ir(&convolution()), @"
    dld s0,@1[128] x.in+0
    ldt.f16 %0:f32[1x64],@1[128]
    opb %0:f32[1x64]
    dld s0,@2[256] state.in+0
    dst s0,@2+128[128] state.out+0
    stt.f16 %0:f32[1x64],@3[128]
    dst s0,@3[128] state.out+128
    ldt.f16 %1:f32[1x64],@2[128]
    dld s0,@4[768] constants+0
    ldt.f32 %2:f32[1x64],@4[256]
    vbin.mul.same %3:f32[1x64],%1:f32[1x64],%2:f32[1x64]
    ldt.f16 %4:f32[1x64],@2+128[128]
    ldt.f32 %5:f32[1x64],@4+256[256]
    vbin.mul.same %6:f32[1x64],%4:f32[1x64],%5:f32[1x64]
    vbin.add.same %7:f32[1x64],%3:f32[1x64],%6:f32[1x64]
    ldt.f32 %8:f32[1x64],@4+512[256]
    vbin.mul.same %9:f32[1x64],%0:f32[1x64],%8:f32[1x64]
    vbin.add.same %10:f32[1x64],%7:f32[1x64],%9:f32[1x64]
    opb %10:f32[1x64]
    stt.f16 %10:f32[1x64],@5[128]
    dst s0,@5[128] y.out+0
    ");
}

/// One step of a recurrence on two matrices.
pub(super) fn recurrence() -> Function {
    let mut b = Builder::new("f");
    let s = b.param("s", f32s(&[2, 8, 16]));
    let k = b.param("k", f32s(&[2, 8]));
    let v = b.param("v", f32s(&[2, 16]));
    let row = b.reshape(k, &[2, 1, 8]).unwrap();
    let column = b.reshape(k, &[2, 8, 1]).unwrap();
    let seen = b.matmul(row, s).unwrap();
    let v = b.reshape(v, &[2, 1, 16]).unwrap();
    let d = b.sub(v, seen).unwrap();
    let d = b.unary(Op::Silu, d).unwrap();
    let update = b.matmul(column, d).unwrap();
    let s = b.add(s, update).unwrap();
    let y = b.matmul(row, s).unwrap();
    let y = b.reshape(y, &[2, 16]).unwrap();
    b.result("s", s);
    b.result("y", y);
    b.finish().unwrap()
}

#[test]
fn a_state_runs_head_by_head() {
    insta::assert_snapshot!(rules(&recurrence()), @"
    %3 reshape: by its op
    %4 reshape: by its op
    %5 matmul: once a head, region 0
    %6 reshape: by its op
    %7 sub: once a head, region 0
    %8 silu: once a head, region 0
    %9 matmul: once a head, region 0
    %10 add: once a head, region 0
    %11 matmul: once a head, region 0
    %12 reshape: by its op
    ");
    insta::assert_snapshot!(ir(&recurrence()), @"
    dld s0,@1[64] k.in+0
    ldt.f32 %0:f32[2x8],@1[64]
    opb %0:f32[2x8]
    dld s0,@2[128] v.in+0
    ldt.f32 %1:f32[2x16],@2[128]
    opb %1:f32[2x16]
    dld s0,@3[512] s.in+0
    dld s0,@4[512] s.in+512
    ldt.f32 %3:f32[8x16],@3[512]
    ldt.f32 %4:f32[8x16],@4[512]
    tmvt %5:f32[1x16],%3:f32[8x16],%0:f32[1x8]
    vbin.sub.same %6:f32[1x16],%1:f32[1x16],%5:f32[1x16]
    vun.silu %7:f32[1x16],%6:f32[1x16]
    tout %8:f32[8x16],%3:f32[8x16],%0:f32[1x8],%7:f32[1x16]
    stt.f32 %8:f32[8x16],@5[512]
    dst s0,@5[512] s.out+0
    tmvt %2:f32[1x16],%8:f32[8x16],%0:f32[1x8]
    tmvt %9:f32[1x16],%4:f32[8x16],%0+32:f32[1x8]
    vbin.sub.same %10:f32[1x16],%1+64:f32[1x16],%9:f32[1x16]
    vun.silu %11:f32[1x16],%10:f32[1x16]
    tout %12:f32[8x16],%4:f32[8x16],%0+32:f32[1x8],%11:f32[1x16]
    stt.f32 %12:f32[8x16],@6[512]
    dst s0,@6[512] s.out+512
    tmvt %2+64:f32[1x16],%12:f32[8x16],%0+32:f32[1x8]
    opb %2:f32[2x16]
    stt.f32 %2:f32[2x16],@7[128]
    dst s0,@7[128] y.out+0
    ");
}

fn attention() -> Function {
    let mut b = Builder::new("f");
    let ctx = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
    let cache = Type { dtype: Dtype::BF16, shape: vec![1.into(), Dim::open(ctx), 16.into()] };
    let pos = b.param("pos", ints(&[]));
    let q = b.param("q", f32s(&[2, 16]));
    let k_cache = b.param("k_cache", cache.clone());
    let v_cache = b.param("v_cache", cache);
    let own_k = b.param("k", Type::new(Dtype::BF16, &[1, 1, 16]));
    let own_v = b.param("v", Type::new(Dtype::BF16, &[1, 1, 16]));
    let q = b.op(Op::Rope { rotary: 4, theta: 10000.0 }, &[q, pos]).unwrap();
    let q = b.reshape(q, &[1, 2, 16]).unwrap();
    let q = b.cast(q, Dtype::BF16).unwrap();
    let keys = b.concat(k_cache, own_k, 1).unwrap();
    let values = b.concat(v_cache, own_v, 1).unwrap();
    let keys = b.transpose(keys, &[0, 2, 1]).unwrap();
    let scores = b.matmul(q, keys).unwrap();
    let scores = b.scale(scores, 0.25).unwrap();
    let scores = b.cast(scores, Dtype::F32).unwrap();
    let p = b.op(Op::Softmax { axis: 2 }, &[scores]).unwrap();
    let p = b.cast(p, Dtype::BF16).unwrap();
    let o = b.matmul(p, values).unwrap();
    b.result("o", o);
    b.finish().unwrap()
}

#[test]
fn attention_walks_the_cache_in_blocks() {
    insta::assert_snapshot!(rules(&attention()), @"
    %6 rope: by its op
    %7 reshape: by its op
    %9 concat: inside a pattern
    %10 concat: inside a pattern
    %11 transpose: inside a pattern
    %12 matmul: inside a pattern
    %13 full_like: inside a pattern
    %14 mul: inside a pattern
    %16 softmax: inside a pattern
    %18 matmul: attention of %7 over cache %2 %3 and own %4 %5, scale Some(0.25)
    ");
    insta::assert_snapshot!(ir(&attention()), @"
    sld s16,s0 pos.in+0
    dld s0,@1[128] q.in+0
    ldt.f32 %0:f32[2x16],@1[128]
    dld s0,@2[8] literals+0
    ldt.f32 %1:f32[1x2],@2[8]
    vsincos %2:f32[1x2],%3:f32[1x2],%1:f32[1x2],s16
    vrot %4:f32[2x16],%0:f32[2x16],%2:f32[1x2],%3:f32[1x2] 4
    opb %4:f32[2x16]
    dld s0,@3[32] k.in+0
    ldt.f16 %5:f32[1x16],@3[32]
    dld s0,@4[32] v.in+0
    ldt.f16 %6:f32[1x16],@4[32]
    vun.cvt %7:f16[1x16],%5:f32[1x16]
    vun.cvt %8:f16[1x16],%6:f32[1x16]
    tmv %9:f32[1x1],%7:f16[1x16],%4:f32[1x16]
    vun.cvt %10:f32[1x16],%8:f16[1x16]
    tmv %9+4:f32[1x1],%7:f16[1x16],%4+64:f32[1x16]
    vun.cvt %10+64:f32[1x16],%8:f16[1x16]
    vbini.mul %9:f32[1x2],%9:f32[1x2],0.25
    vbin.sub.same %11:f32[1x2],%9:f32[1x2],%9:f32[1x2]
    vun.exp %11:f32[1x2],%11:f32[1x2]
    salu.add s17,s16,127
    salu.shr s17,s17,7
    salu.add s19,s17,1
    salu.shr s19,s19,1
    sli s20,0
    salu.min s22,s20,s16
    salu.sub s21,s16,s22
    salu.min s21,s21,128
    salu.mul s22,s22,32
    salu.mul s23,s21,32
    dld s0,s22,s23,@5[4096] k_cache.in+0
    dld s0,s22,s23,@6[4096] v_cache.in+0
    ldt.f16 %12:f16[s21<=128x16],@5[4096]
    fence
    loop s19,s20
      salu.shl s20,s20,8
      salu.add s20,s20,128
      salu.min s25,s20,s16
      salu.sub s24,s16,s25
      salu.min s24,s24,128
      salu.mul s25,s25,32
      salu.mul s26,s24,32
      dld s0,s25,s26,@7[4096] k_cache.in+0
      dld s0,s25,s26,@8[4096] v_cache.in+0
      ldt.f16 %13:f16[s21<=128x16],@6[4096]
      tmv %14:f32[s21<=128x1],%12:f16[s21<=128x16],%4:f32[1x16]
      tmv %14+512:f32[s21<=128x1],%12:f16[s21<=128x16],%4+64:f32[1x16]
      ldt.f16 %12:f16[s24<=128x16],@7[4096]
      vbini.mul %14:f32[s21<=128x1],%14:f32[s21<=128x1],0.25
      red.max.cols %15:f32[1x1],%14:f32[s21<=128x1]
      vbini.mul %14+512:f32[s21<=128x1],%14+512:f32[s21<=128x1],0.25
      red.max.cols %15+4:f32[1x1],%14+512:f32[s21<=128x1]
      vbin.max.same %15:f32[1x2],%15:f32[1x2],%9:f32[1x2]
      vbin.sub.same %16:f32[1x2],%9:f32[1x2],%15:f32[1x2]
      vun.exp %16:f32[1x2],%16:f32[1x2]
      vbin.sub.cyclic %14:f32[s21<=128x1],%14:f32[s21<=128x1],%15:f32[1x1]
      vun.exp %14:f32[s21<=128x1],%14:f32[s21<=128x1]
      red.sum.cols %17:f32[1x1],%14:f32[s21<=128x1]
      vbin.sub.cyclic %14+512:f32[s21<=128x1],%14+512:f32[s21<=128x1],%15+4:f32[1x1]
      vun.exp %14+512:f32[s21<=128x1],%14+512:f32[s21<=128x1]
      red.sum.cols %17+4:f32[1x1],%14+512:f32[s21<=128x1]
      vbin.mul.same %11:f32[1x2],%11:f32[1x2],%16:f32[1x2]
      vbin.add.same %11:f32[1x2],%11:f32[1x2],%17:f32[1x2]
      vbin.mul.stretch %10:f32[2x16],%10:f32[2x16],%16:f32[1x2]
      vun.cvt %9:f32[1x2],%15:f32[1x2]
      tmvt.acc %10:f32[1x16],%13:f16[s21<=128x16],%14:f32[s21<=128x1]
      tmvt.acc %10+64:f32[1x16],%13:f16[s21<=128x16],%14+512:f32[s21<=128x1]
      fence
      salu.min s25,s24,1
      loop s25,s25
        salu.add s20,s20,128
        salu.min s22,s20,s16
        salu.sub s21,s16,s22
        salu.min s21,s21,128
        salu.mul s22,s22,32
        salu.mul s23,s21,32
        dld s0,s22,s23,@5[4096] k_cache.in+0
        dld s0,s22,s23,@6[4096] v_cache.in+0
        ldt.f16 %13:f16[s24<=128x16],@8[4096]
        tmv %18:f32[s24<=128x1],%12:f16[s24<=128x16],%4:f32[1x16]
        tmv %18+512:f32[s24<=128x1],%12:f16[s24<=128x16],%4+64:f32[1x16]
        ldt.f16 %12:f16[s21<=128x16],@5[4096]
        vbini.mul %18:f32[s24<=128x1],%18:f32[s24<=128x1],0.25
        red.max.cols %19:f32[1x1],%18:f32[s24<=128x1]
        vbini.mul %18+512:f32[s24<=128x1],%18+512:f32[s24<=128x1],0.25
        red.max.cols %19+4:f32[1x1],%18+512:f32[s24<=128x1]
        vbin.max.same %19:f32[1x2],%19:f32[1x2],%9:f32[1x2]
        vbin.sub.same %20:f32[1x2],%9:f32[1x2],%19:f32[1x2]
        vun.exp %20:f32[1x2],%20:f32[1x2]
        vbin.sub.cyclic %18:f32[s24<=128x1],%18:f32[s24<=128x1],%19:f32[1x1]
        vun.exp %18:f32[s24<=128x1],%18:f32[s24<=128x1]
        red.sum.cols %21:f32[1x1],%18:f32[s24<=128x1]
        vbin.sub.cyclic %18+512:f32[s24<=128x1],%18+512:f32[s24<=128x1],%19+4:f32[1x1]
        vun.exp %18+512:f32[s24<=128x1],%18+512:f32[s24<=128x1]
        red.sum.cols %21+4:f32[1x1],%18+512:f32[s24<=128x1]
        vbin.mul.same %11:f32[1x2],%11:f32[1x2],%20:f32[1x2]
        vbin.add.same %11:f32[1x2],%11:f32[1x2],%21:f32[1x2]
        vbin.mul.stretch %10:f32[2x16],%10:f32[2x16],%20:f32[1x2]
        vun.cvt %9:f32[1x2],%19:f32[1x2]
        tmvt.acc %10:f32[1x16],%13:f16[s24<=128x16],%18:f32[s24<=128x1]
        tmvt.acc %10+64:f32[1x16],%13:f16[s24<=128x16],%18+512:f32[s24<=128x1]
        fence
      end
    end
    vbin.div.stretch %22:f32[2x16],%10:f32[2x16],%11:f32[1x2]
    opb %22:f32[2x16]
    stt.f16 %22:f32[2x16],@9[64]
    dst s0,@9[64] o.out+0
    ");
}

#[test]
fn attention_takes_a_row_a_head_and_a_cache_of_16_bits() {
    let attention = |dtype: Dtype, rows: u64, dim: u64| {
        let mut b = Builder::new("f");
        let ctx = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
        let cache = |dim: u64| Type { dtype, shape: vec![1.into(), Dim::open(ctx.clone()), dim.into()] };
        b.param("pos", ints(&[]));
        let q = b.param("q", Type::new(dtype, &[1, 2, 16]));
        let (k_cache, v_cache) = (b.param("k_cache", cache(16)), b.param("v_cache", cache(dim)));
        let own_k = b.param("k", Type::new(dtype, &[1, rows, 16]));
        let own_v = b.param("v", Type::new(dtype, &[1, rows, dim]));
        let keys = b.concat(k_cache, own_k, 1).unwrap();
        let values = b.concat(v_cache, own_v, 1).unwrap();
        let keys = b.transpose(keys, &[0, 2, 1]).unwrap();
        let scores = b.matmul(q, keys).unwrap();
        let p = b.op(Op::Softmax { axis: 2 }, &[scores]).unwrap();
        let o = b.matmul(p, values).unwrap();
        b.result("o", o);
        ir(&b.finish().unwrap())
    };
    let row = "keys and values of a step are [1, 1, 16]";
    for (dtype, rows, dim, says) in [
        (Dtype::BF16, 1, 16, "k_cache.in+0"),
        (Dtype::F32, 1, 16, "a cache holds 16-bit floats"),
        (Dtype::BF16, 2, 16, row),
        (Dtype::BF16, 1, 8, row),
    ] {
        let found = attention(dtype, rows, dim);
        assert!(found.contains(says), "{found}");
    }
}

/// Almost a pattern, but something of it is read elsewhere, or it is another sum.
#[test]
fn what_is_almost_a_pattern_is_lowered_by_its_ops() {
    let squares = |kind: ReduceKind, leaves: bool| {
        let mut b = Builder::new("f");
        let x = b.param("x", f32s(&[64]));
        let square = b.unary(Op::Square, x).unwrap();
        let y = b.op(Op::Reduce { kind, axis: 0, keep: false }, &[square]).unwrap();
        b.result("y", y);
        if leaves {
            b.result("square", square);
        }
        b.finish().unwrap()
    };
    let window = |by: &[u64], filled: bool, axis: usize, read: bool| {
        let mut b = Builder::new("f");
        let state = b.param("state", f32s(&[2, 64]));
        let x = b.param("x", f32s(&[1, 64]));
        let taps = b.weight("taps", f32s(by));
        let rows = b.concat(state, x, 0).unwrap();
        let taps = if filled { b.full_like(rows, 0.5).unwrap() } else { taps };
        let products = b.mul(rows, taps).unwrap();
        let y = b.sum(products, axis, false).unwrap();
        let next = b.slice(rows, 0, 1, 2).unwrap();
        b.result("state", next);
        b.result("y", y);
        if read {
            let z = b.unary(Op::Neg, next).unwrap();
            b.result("z", z);
        }
        b.finish().unwrap()
    };
    for (f, says, by_ops) in [
        (squares(ReduceKind::Sum, false), "sum of squares", false),
        (squares(ReduceKind::Mean, false), "sum of squares", false),
        (squares(ReduceKind::Max, false), "sum of squares", true),
        (squares(ReduceKind::Sum, true), "sum of squares", true),
        (window(&[3, 64], false, 0, false), "column dot", false),
        (window(&[1, 64], false, 0, false), "column dot", true),
        (window(&[3, 64], true, 0, false), "column dot", true),
        (window(&[3, 64], false, 1, false), "column dot", true),
        (window(&[3, 64], false, 0, false), "leave", false),
        (window(&[3, 64], false, 0, true), "leave", true),
    ] {
        let found = rules(&f);
        assert_eq!(!found.contains(says), by_ops, "{says}: {found}");
    }
}

#[test]
fn what_is_almost_attention_is_none() {
    let attention = |change: &str| {
        let mut b = Builder::new("f");
        let ctx = DimVar { name: "ctx".into(), lo: 0, hi: 256 };
        let rows = if change == "closed" { Dim::from(4) } else { Dim::open(ctx) };
        let cache = Type { dtype: Dtype::BF16, shape: vec![1.into(), rows, 16.into()] };
        b.param("pos", ints(&[]));
        let q = b.param("q", Type::new(Dtype::BF16, &[1, 2, 16]));
        let (k_cache, v_cache) = (b.param("k_cache", cache.clone()), b.param("v_cache", cache));
        let k = b.param("k", Type::new(Dtype::BF16, &[1, 1, 16]));
        let keys = b.concat(k_cache, k, 1).unwrap();
        let values = b.concat(v_cache, k, 1).unwrap();
        let keys = b.transpose(keys, &[0, 2, 1]).unwrap();
        let scores = b.matmul(q, keys).unwrap();
        let axis = if change == "axis" { 1 } else { 2 };
        let p = b.op(Op::Softmax { axis }, &[scores]).unwrap();
        let o = b.matmul(p, values).unwrap();
        b.result("o", o);
        if change == "leaves" {
            b.result("scores", scores);
        }
        rules(&b.finish().unwrap()).contains("attention of")
    };
    let found = ["", "closed", "axis", "leaves"].map(attention);
    assert_eq!(found, [true, false, false, false]);
}
