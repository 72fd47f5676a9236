//! The HIR's rules: inference and its refusals, modules, flattening.

mod common;

use mica_models::hir::{
    Builder, Child, Dim, DimVar, Dtype, Function, HirError, Module, Op, ReduceKind, Type, inline,
};

fn ty(dtype: Dtype, shape: &[u64]) -> Type {
    Type::new(dtype, shape)
}
fn f32s(shape: &[u64]) -> Type {
    ty(Dtype::F32, shape)
}
fn ints(shape: &[u64]) -> Type {
    ty(Dtype::I64, shape)
}
fn open(plus: u64) -> Dim {
    let var = Some(DimVar { name: "ctx_len".to_string(), lo: 0, hi: 16 });
    Dim { var, plus }
}
fn open_type(dtype: Dtype, before: &[u64], plus: u64, after: &[u64]) -> Type {
    let closed = |s: &[u64]| s.iter().map(|&n| n.into()).collect::<Vec<Dim>>();
    Type { dtype, shape: [closed(before), vec![open(plus)], closed(after)].concat() }
}

/// The result type of one operation, or its refusal.
fn infer(op: Op, operands: &[Type]) -> Result<Type, HirError> {
    let mut b = Builder::new("f");
    let values: Vec<_> =
        operands.iter().enumerate().map(|(i, t)| b.param(format!("x{i}"), t.clone())).collect();
    let v = b.label("here", |b| b.op(op, &values))?;
    Ok(b.ty(v).clone())
}

#[test]
fn shapes_are_inferred() {
    let sum = |axis, keep| Op::Reduce { kind: ReduceKind::Sum, axis, keep };
    let reshape = |shape: Vec<Dim>| Op::Reshape { shape };
    let table: Vec<(Op, Vec<Type>, Type)> = vec![
        (Op::Add, vec![f32s(&[3, 1]), f32s(&[4])], f32s(&[3, 4])),
        (Op::Mul, vec![f32s(&[]), f32s(&[2])], f32s(&[2])),
        (Op::Add, vec![ints(&[]), ints(&[])], ints(&[])),
        (Op::Mul, vec![open_type(Dtype::F32, &[2], 1, &[]), f32s(&[1])], open_type(Dtype::F32, &[2], 1, &[])),
        (Op::MatMul, vec![f32s(&[5, 3]), f32s(&[3])], f32s(&[5])),
        (Op::MatMul, vec![f32s(&[3]), f32s(&[3, 5])], f32s(&[5])),
        (Op::MatMul, vec![f32s(&[3]), f32s(&[3])], f32s(&[])),
        (Op::MatMul, vec![f32s(&[7, 1, 5, 3]), f32s(&[2, 3, 4])], f32s(&[7, 2, 5, 4])),
        (
            Op::MatMul,
            vec![f32s(&[2, 4, 8]), open_type(Dtype::F32, &[2, 8], 1, &[])],
            open_type(Dtype::F32, &[2, 4], 1, &[]),
        ),
        (
            Op::MatMul,
            vec![open_type(Dtype::F32, &[2, 4], 1, &[]), open_type(Dtype::F32, &[2], 1, &[8])],
            f32s(&[2, 4, 8]),
        ),
        (sum(0, false), vec![f32s(&[2, 3])], f32s(&[3])),
        (sum(1, true), vec![f32s(&[2, 3])], f32s(&[2, 1])),
        (
            Op::Softmax { axis: 0 },
            vec![open_type(Dtype::F32, &[], 1, &[])],
            open_type(Dtype::F32, &[], 1, &[]),
        ),
        (Op::IndexSelect, vec![f32s(&[9, 4, 5]), ints(&[2])], f32s(&[2, 4, 5])),
        (Op::IndexSelect, vec![f32s(&[9, 4]), ints(&[])], f32s(&[4])),
        (
            Op::Concat { axis: 1 },
            vec![open_type(Dtype::F32, &[2], 0, &[8]), f32s(&[2, 1, 8])],
            open_type(Dtype::F32, &[2], 1, &[8]),
        ),
        (
            reshape(vec![open(1), 8.into()]),
            vec![open_type(Dtype::F32, &[2], 1, &[4])],
            open_type(Dtype::F32, &[], 1, &[8]),
        ),
        (Op::Transpose { perm: vec![2, 0, 1] }, vec![f32s(&[2, 3, 4])], f32s(&[4, 2, 3])),
        (Op::RepeatInterleave { axis: 0, repeats: 3 }, vec![f32s(&[2, 3])], f32s(&[6, 3])),
        (Op::Cast { dtype: Dtype::BF16 }, vec![f32s(&[2])], ty(Dtype::BF16, &[2])),
        (Op::CacheUpdate, vec![f32s(&[9, 4]), f32s(&[2, 4]), ints(&[]), ints(&[])], f32s(&[9, 4])),
    ];
    for (op, operands, expected) in table {
        assert_eq!(infer(op.clone(), &operands), Ok(expected), "{op} {operands:?}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let bf16 = |s: &[u64]| ty(Dtype::BF16, s);
    let slice = |start, len| Op::Slice { axis: 0, start, len };
    let max = |axis| Op::Reduce { kind: ReduceKind::Max, axis, keep: false };
    let rope = |rotary, theta| Op::Rope { rotary, theta };
    let table: Vec<(Op, Vec<Type>)> = vec![
        (Op::Add, vec![f32s(&[2]), bf16(&[2])]),
        (Op::Add, vec![f32s(&[2]), f32s(&[3])]),
        (Op::Add, vec![f32s(&[2])]),
        (Op::Mul, vec![open_type(Dtype::F32, &[], 1, &[]), open_type(Dtype::F32, &[], 0, &[])]),
        (Op::Div, vec![ints(&[2]), ints(&[2])]),
        (Op::Exp, vec![ints(&[2])]),
        (Op::FullLike { value: 0.5 }, vec![ints(&[2])]),
        (Op::Round { dtype: Dtype::I64 }, vec![f32s(&[2])]),
        (Op::MatMul, vec![f32s(&[2, 3]), f32s(&[2])]),
        (Op::MatMul, vec![f32s(&[2, 3]), bf16(&[3])]),
        (Op::MatMul, vec![f32s(&[]), f32s(&[3])]),
        (Op::MatMul, vec![f32s(&[2, 5, 3]), f32s(&[4, 3, 5])]),
        (Op::RmsNorm { eps: 1e-6 }, vec![f32s(&[2, 3]), f32s(&[2])]),
        (Op::RmsNorm { eps: 1e-6 }, vec![f32s(&[2, 3]), bf16(&[3])]),
        (Op::RmsNorm { eps: f64::NAN }, vec![f32s(&[3]), f32s(&[3])]),
        (Op::Softmax { axis: 1 }, vec![f32s(&[3])]),
        (Op::Softmax { axis: 0 }, vec![open_type(Dtype::F32, &[], 0, &[])]),
        (max(0), vec![f32s(&[0])]),
        (rope(4, 1e4), vec![f32s(&[2, 8]), f32s(&[])]),
        (rope(3, 1e4), vec![f32s(&[2, 8]), ints(&[])]),
        (rope(16, 1e4), vec![f32s(&[2, 8]), ints(&[])]),
        (rope(4, f64::INFINITY), vec![f32s(&[2, 8]), ints(&[])]),
        (Op::TopK { k: 4 }, vec![f32s(&[3])]),
        (Op::TupleGet { index: 0 }, vec![f32s(&[3])]),
        (Op::IndexSelect, vec![f32s(&[9, 4]), f32s(&[2])]),
        (Op::Concat { axis: 0 }, vec![f32s(&[2, 3]), f32s(&[2, 4])]),
        (
            Op::Concat { axis: 0 },
            vec![open_type(Dtype::F32, &[], 0, &[]), open_type(Dtype::F32, &[], 0, &[])],
        ),
        (slice(2, 3), vec![f32s(&[4])]),
        (slice(0, 1), vec![open_type(Dtype::F32, &[], 0, &[])]),
        (slice(u64::MAX, 2), vec![f32s(&[4])]),
        (Op::Reshape { shape: vec![7.into()] }, vec![f32s(&[2, 3])]),
        (Op::Transpose { perm: vec![0, 0] }, vec![f32s(&[2, 3])]),
        (Op::CacheUpdate, vec![f32s(&[9, 4]), f32s(&[2, 5]), ints(&[]), ints(&[])]),
        (Op::CacheUpdate, vec![f32s(&[9, 4]), f32s(&[2, 4]), ints(&[1]), ints(&[])]),
    ];
    let refusals: Vec<String> = table
        .into_iter()
        .map(|(op, operands)| match infer(op.clone(), &operands) {
            Ok(t) => format!("{op} gives {t}"),
            Err(e) => e.to_string(),
        })
        .collect();
    insta::assert_snapshot!("refusals", refusals.join("\n"));
}

#[test]
fn declarations_that_conflict_are_refused_at_the_end() {
    let with_hi =
        |hi| Type { dtype: Dtype::F32, shape: vec![Dim::open(DimVar { name: "n".to_string(), lo: 0, hi })] };
    let finish = |declare: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new("f");
        declare(&mut b);
        b.finish().expect_err("a conflict").to_string()
    };
    let table = [
        (
            finish(&|b| {
                b.param("x", with_hi(4));
                b.param("y", with_hi(5));
            }),
            "f: dimension `n` is 0..5 here, expected 0..4 as in its first use",
        ),
        (
            finish(&|b| {
                b.param("x", with_hi(0));
            }),
            "f: dimension `n` is 0..0 here, expected a range that is not empty",
        ),
        (
            finish(&|b| {
                b.param("x", f32s(&[2]));
                b.param("x", f32s(&[2]));
            }),
            "f: the name `x` is used twice, expected parameter names to be disjoint",
        ),
        (
            finish(&|b| {
                b.weight("w", f32s(&[2]));
                b.weight("w", f32s(&[3]));
            }),
            "f: weight `w` has types f32[2] and f32[3], expected one type a name",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
}

/// `y = w x`, the weight declared after the first node.
fn linear(name: &str, weight: &str) -> Function {
    let mut b = Builder::new(name);
    let x = b.param("x", f32s(&[3]));
    let x = b.unary(Op::Neg, x).expect("negates");
    let w = b.weight(weight, f32s(&[3, 3]));
    let y = b.label("proj", |b| b.matmul(w, x)).expect("multiplies");
    b.result("y", y);
    b.finish().expect("a function")
}

#[test]
fn a_weight_is_listed_and_a_tensor_is_not() {
    let module = Module::new("m", vec![linear("f", "a"), linear("g", "b"), linear("h", "a")], Vec::new());
    let module = module.expect("a module");
    let names: Vec<&str> = module.weights().expect("of one type").iter().map(|w| w.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(module.entry.as_deref(), Some("h"));
    let clash = Module::new("m", vec![linear("f", "a"), linear("f", "b")], Vec::new());
    let message = "m: the name `f` is used twice, expected function, child and weight names to be disjoint";
    assert_eq!(clash.expect_err("a clash").to_string(), message);
}

#[test]
fn flattening_scopes_weights_and_labels_by_child() {
    let leaf = Module::new("leaf", vec![linear("f", "w")], Vec::new()).expect("a module");
    let mut b = Builder::new("outer");
    let x = b.param("x", f32s(&[3]));
    let y = b.call(&["one"], leaf.lookup("f").expect("f"), &[x]).expect("calls")[0];
    let y = b.call(&["two"], leaf.lookup("f").expect("f"), &[y]).expect("calls")[0];
    b.result("y", y);
    let child = |name: &str, scope: &str| Child {
        name: name.to_string(),
        scope: scope.to_string(),
        module: leaf.clone(),
    };
    let children = vec![child("one", "first"), child("two", "second.inner")];
    let module = Module::new("m", vec![b.finish().expect("a function")], children).expect("a module");
    insta::assert_snapshot!("flattened", inline(&module, "outer").expect("flattens"));
    let missing = inline(&module, "inner").expect_err("no such function").to_string();
    assert_eq!(missing, "module `m` has no function `inner`, expected one of: outer");
    let missing = module.child("three").expect_err("no such child").to_string();
    assert_eq!(missing, "module `m` has no child `three`, expected one of: one, two");
}

#[test]
fn a_call_is_checked() {
    let f = linear("f", "w");
    let mut b = Builder::new("outer");
    let x = b.param("x", f32s(&[3]));
    let y = b.param("y", f32s(&[4]));
    let arity = b.call(&[], &f, &[x, x]).expect_err("two operands").to_string();
    assert_eq!(arity, "outer: call of `f` gets 2 operands, expected 1: x");
    let shape = b.call(&[], &f, &[y]).expect_err("a wrong shape").to_string();
    assert_eq!(shape, "outer: call at `` on (f32[4]): expected `x` of `f` to be f32[3]");
}

#[test]
fn a_module_is_checked_as_a_whole() {
    let moe = common::store::layer().child("moe").expect("a child").clone();
    let refused = |edit: &dyn Fn(&mut Module)| {
        let mut moe = moe.clone();
        edit(&mut moe);
        moe.check().expect_err("refused").to_string()
    };
    let table = [
        (
            refused(&|m| m.children[0].name = "moe".to_string()),
            "moe: the name `moe` is used twice, expected function, child and weight names to be disjoint",
        ),
        (
            refused(&|m| m.entry = Some("forward".to_string())),
            "module `moe` has no function `forward`, expected one of: shared_expert, routed_experts, routed, moe",
        ),
        // A call goes to a function before its caller, so none can call itself.
        (
            refused(&|m| m.functions.swap(0, 3)),
            "module `moe` has no function before its caller `shared_expert`, expected one of: none",
        ),
        (
            refused(&|m| m.children[0].name = "gate".to_string()),
            "module `moe` has no child `router`, expected one of: gate",
        ),
        (
            refused(&|m| drop(m.children[0].module.functions[0].results.pop())),
            "routed: call at `` on (bf16[128]): expected `router` on (bf16[128]) giving (bf16[4], i64[4])",
        ),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
    let with = |name: &str, n: u64| {
        let mut b = Builder::new(name);
        let w = b.weight("w", f32s(&[n]));
        b.result("y", w);
        b.finish().expect("a function")
    };
    let two_types = Module::new("m", vec![with("f", 2), with("g", 3)], Vec::new());
    assert_eq!(
        two_types.expect_err("two types").to_string(),
        "m: weight `w` has types f32[2] and f32[3], expected one type a name"
    );
}
