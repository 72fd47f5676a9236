//! The error table of the functions: exhaustive over the finite f16 inputs, dense over f32.
//!
//! `cargo test -p mica-simulate --test functions -- --nocapture` prints it; the manual must hold it.

mod common;

use common::run;
use mica_simulate::convert::f16_to_f32;
use mica_simulate::functions::{exp, rsqrt, sigmoid, silu, sincos, softplus};

/// The spacing of f32 at `x`.
fn ulp(x: f64) -> f64 {
    let e = x.abs().log2().floor().max(-126.0);
    2f64.powi(e as i32 - 23)
}

struct Function {
    name: &'static str,
    domain: (f32, f32),
    f: fn(&[f32]) -> Vec<f32>,
    exact: fn(f64) -> f64,
}

fn each(f: fn(f32) -> f32, x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| f(x)).collect()
}

/// 1 / x as the device divides: there is no function of its own for it.
fn reciprocals(x: &[f32]) -> Vec<f32> {
    let divided = |x: &[f32]| {
        let n = x.len();
        let body = format!(
            "tdef.f32 t0, lrm=0, 1x{n}, -
             tdef.f32 t1, lrm=0x10000, 1x{n}, -
             ldt.f32 t0, l2=0
             vbini.mul t1, t0, 0.0
             vbini.add t1, t1, 1.0
             vbin.div.same t1, t1, t0
             stt.f32 t1, l2=0x10000"
        );
        run(&body, x, n).0
    };
    x.chunks(8192).flat_map(divided).collect()
}

const FUNCTIONS: &[Function] = &[
    Function { name: "exp", domain: (-104.0, 88.7), f: |x| each(exp, x), exact: f64::exp },
    Function {
        name: "sigmoid",
        domain: (-104.0, 104.0),
        f: |x| each(sigmoid, x),
        exact: |x| 1.0 / (1.0 + (-x).exp()),
    },
    Function {
        name: "silu",
        domain: (-104.0, 104.0),
        f: |x| each(silu, x),
        exact: |x| x / (1.0 + (-x).exp()),
    },
    Function {
        name: "softplus",
        domain: (-104.0, 20.0),
        f: |x| each(softplus, x),
        exact: |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
    },
    Function {
        name: "rsqrt",
        domain: (f32::from_bits(1), f32::MAX),
        f: |x| each(rsqrt, x),
        exact: |x| 1.0 / x.sqrt(),
    },
    Function {
        name: "sin",
        domain: (-1_048_576.0, 1_048_576.0),
        f: |x| each(|x| sincos(x).0, x),
        exact: f64::sin,
    },
    Function {
        name: "cos",
        domain: (-1_048_576.0, 1_048_576.0),
        f: |x| each(|x| sincos(x).1, x),
        exact: f64::cos,
    },
    // up to where the result is normal
    Function { name: "1/x", domain: (f32::MIN_POSITIVE, 8.507_059e37), f: reciprocals, exact: |x| 1.0 / x },
];

/// Every finite f16, and f32 values of every exponent at a prime distance of bits.
fn inputs(dense: bool) -> Box<dyn Iterator<Item = f32>> {
    if dense {
        Box::new((0..=u32::MAX).step_by(2011).map(f32::from_bits))
    } else {
        Box::new((0..=u16::MAX).map(f16_to_f32))
    }
}

/// The largest errors over the inputs of the domain: in ulp, and relative to a normal result.
fn worst(f: &Function, dense: bool) -> (u64, f64, f64) {
    let inputs: Vec<f32> = inputs(dense).filter(|x| f.domain.0 <= *x && *x <= f.domain.1).collect();
    let results = (f.f)(&inputs);
    let (mut ulps, mut relative) = (0f64, 0f64);
    for (&x, &got) in inputs.iter().zip(&results) {
        let (got, exact) = (f64::from(got), (f.exact)(f64::from(x)));
        ulps = ulps.max((got - exact).abs() / ulp(exact));
        if exact.abs() >= f64::from(f32::MIN_POSITIVE) {
            relative = relative.max((got / exact - 1.0).abs());
        }
    }
    (results.len() as u64, ulps, relative)
}

#[test]
fn error_table() {
    let manual = include_str!("../../../docs/spec/device.md");
    let mut missing = Vec::new();
    for f in FUNCTIONS {
        for (dense, inputs) in [(false, "f16"), (true, "f32")] {
            let (count, ulps, relative) = worst(f, dense);
            let row = format!(
                "| {} | {:?} to {:?} | {inputs}, {count} | {ulps:.2} | {relative:.1e} |",
                f.name, f.domain.0, f.domain.1
            );
            println!("{row}");
            assert!(ulps < 1.0, "{row}");
            assert!(relative < 1.2e-7, "{row}");
            if !manual.contains(&row) {
                missing.push(row);
            }
        }
    }
    assert!(missing.is_empty(), "not in the manual: {missing:#?}");
}

/// FNV-1a, 64 bits, over the bytes of results.
fn digest(results: impl Iterator<Item = f32>) -> u64 {
    let bytes = results.flat_map(|v| v.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |state, b| (state ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Every bit of every function on every 64,013th f32 and all of f16, NaN and infinities among them: the digests are what
/// `tests/oracle/device_functions.py` prints, which is written from the manual in another language.
#[test]
fn the_bits_are_those_of_the_manual() {
    let every: Vec<f32> =
        (0..=u32::MAX).step_by(64_013).map(f32::from_bits).chain((0..=u16::MAX).map(f16_to_f32)).collect();
    let manual = include_str!("../../../docs/spec/device.md");
    for (name, f) in [
        ("exp", exp as fn(f32) -> f32),
        ("sigmoid", sigmoid),
        ("silu", silu),
        ("softplus", softplus),
        ("rsqrt", rsqrt),
        ("sin", |x| sincos(x).0),
        ("cos", |x| sincos(x).1),
    ] {
        let row = format!("| {name} | `{:016x}` |", digest(every.iter().map(|x| f(*x))));
        assert!(manual.contains(&row), "not in the manual: {row}");
        // one bit of one result is another digest
        let last = every.len() - 1;
        let flipped = every.iter().enumerate().map(|(n, x)| match f(*x) {
            v if n == last => f32::from_bits(v.to_bits() ^ 1),
            v => v,
        });
        assert!(!row.contains(&format!("{:016x}", digest(flipped))), "{name}");
    }
}

#[test]
fn clamps_and_special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (f, x, expected) in [
        (exp as fn(f32) -> f32, inf, inf),
        (exp, 89.5, inf),
        (exp, -104.5, 0.0),
        (exp, -inf, 0.0),
        (exp, 0.0, 1.0),
        (exp, -0.0, 1.0),
        (sigmoid, inf, 1.0),
        (sigmoid, -inf, 0.0),
        (sigmoid, 0.0, 0.5),
        (silu, inf, inf),
        (silu, -inf, -0.0),
        (silu, 0.0, 0.0),
        (silu, 200.0, 200.0),
        (softplus, inf, inf),
        (softplus, 20.5, 20.5),
        (softplus, -inf, 0.0),
        (rsqrt, 0.0, inf),
        (rsqrt, -0.0, inf),
        (rsqrt, inf, 0.0),
        (rsqrt, 4.0, 0.5),
        (rsqrt, 1.0, 1.0),
    ] {
        assert_eq!(f(x).to_bits(), expected.to_bits(), "{x}");
    }
    for f in [exp, sigmoid, silu, softplus, rsqrt] {
        assert_eq!(f(nan).to_bits(), 0x7fc0_0000);
    }
    assert_eq!(rsqrt(-1.0).to_bits(), 0x7fc0_0000);
    for x in [nan, inf, -inf, 2_147_483_648.0] {
        assert!(sincos(x).0.is_nan() && sincos(x).1.is_nan());
    }
    assert_eq!(sincos(0.0), (0.0, 1.0));
}
