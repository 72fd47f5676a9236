//! How fast the simulator runs: matrix kernels by format and implementation on one thread, and a synthetic decode
//! step of about the tiny model's size. `cargo bench -p mica-simulate`.

use mica_device::asm;
use mica_device::format::Format;
use mica_device::isa::encode;
use mica_device::layout::{LANES, MatrixFormat, MatrixLayout, Scaling, WeightFormat};
use mica_device::object::{Direction, Entry, Kernel, Segment};
use mica_device::product::Product;
use mica_simulate::matv::{Activation, Isa, matv};
use mica_simulate::{Edges, Machine, Options, Program};
use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Seconds of the fastest of the runs that fit into a time.
fn best(time: Duration, mut run: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < time {
        let one = Instant::now();
        run();
        best = best.min(one.elapsed().as_secs_f64());
    }
    best
}

fn pattern(bytes: u64) -> Vec<u8> {
    // scales of any bits would do, but small numbers keep subnormals out of the way
    (0..bytes).map(|n| (n * 37 % 59) as u8).collect()
}

fn kernels() {
    println!("{:<24}{:>12}{:>12}", "matrix, one thread", "GB/s", "G MAC/s");
    let cols = 2048;
    let x: Vec<u16> = (0..cols).map(|k| 0x3000 + (k * 7 % 2048) as u16).collect();
    for (name, weight) in [("i4", WeightFormat::I4), ("i8", WeightFormat::I8), ("f16", WeightFormat::F16)] {
        for (place, rows) in [("cache", 256), ("memory", 65_536)] {
            let scaling = (weight != WeightFormat::F16).then_some(Scaling {
                group: 128,
                scale: Format::F16,
                zero: false,
            });
            let format = MatrixFormat { weight, scaling };
            let m = MatrixLayout { rows, cols, format };
            let bytes = pattern(m.bytes());
            for isa in Isa::available() {
                let mut a = Activation::default();
                let mut out = vec![0.0; rows.next_multiple_of(LANES) as usize];
                let time = best(Duration::from_millis(300), || {
                    a.prepare(isa, &m, x.iter().copied());
                    matv(isa, &m, &bytes, &a, &mut out);
                    black_box(&mut out);
                });
                let name = format!("{name} {place} {isa:?}");
                let (bytes, macs) = (m.bytes() as f64, (rows * cols) as f64);
                println!("{name:<24}{:>12.2}{:>12.2}", bytes / time / 1e9, macs / time / 1e9);
            }
        }
    }
}

/// Eight layers of hidden size 128: norms, matrices, functions and the delta rule of 4 heads.
fn step() -> (Kernel, u64) {
    let mut text = String::from(
        "dld l2=0, bytes=512, -, s1, -, off=0
         tdef.fx32 t0, lrm=0x0, 1x128, -, frac=20
         ldt.f32 t0, l2=0
         tdef.f32 t1, lrm=0x200, 1x128, -
         tdef.f32 t2, lrm=0x400, 1x1, -
         tdef.f16 t3, lrm=0x500, 1x128, -
         tdef.f32 t4, lrm=0x1000, 1x512, -
         tdef.f32 t5, lrm=0x2000, 32x32, -
         tdef.f32 t6, lrm=0x3000, 1x32, -
         tdef.f32 t7, lrm=0x3100, 1x32, -
         tdef.f32 t8, lrm=0x3200, 1x128, -\n",
    );
    let matrix = MatrixLayout {
        rows: 512,
        cols: 128,
        format: MatrixFormat {
            weight: WeightFormat::I8,
            scaling: Some(Scaling { group: 128, scale: Format::F16, zero: false }),
        },
    };
    let mut macs = 0;
    for layer in 0..8 {
        for half in 0..2 {
            text += "red.sumsq.rows t2, t0\nvbini.mul t2, t2, 0.0078125\nvbini.add t2, t2, 1e-6
                     vun.rsqrt t2, t2\nvbin.mul.stretch t1, t0, t2\nvbin.mul.same t1, t1, t1\nbct t3, t1\n";
            // two matrices, as many bytes apart as they are long
            for n in 0..2 {
                let off = (layer * 4 + half * 2 + n) * matrix.bytes();
                let _ = write!(
                    text,
                    "dld l2=0x1000, bytes={}, -, s0, -, off={off}\nmatv.i8 t4, t3, l2=0x1000, rows=512, group=128\n",
                    matrix.bytes()
                );
                macs += 512 * 128;
            }
            for _ in 0..4 {
                text += "vmov t6, to=0, t4, from=0, 1x32/0/0\nvmov t7, to=0, t4, from=32, 1x32/0/0
                         vun.silu t6, t6\nred.sumsq.rows t2, t6\nvun.rsqrt t2, t2
                         vbin.mul.stretch t6, t6, t2\ndld l2=0x20000, bytes=4096, -, s1, -, off=0
                         ldt.f32 t5, l2=0x20000\nvbini.mul t5, t5, 0.9\ntmvt t7, t5, t6
                         tout t5, t5, t6, t7\ntmvt t7, t5, t6\nstt.f32 t5, l2=0x20000
                         dst l2=0x20000, bytes=4096, -, s2, -, off=0\n";
            }
            text += "vmov t8, to=0, t4, from=0, 1x128/0/0\nvun.sigmoid t8, t8\nvbin.add.same t0, t0, t8\n";
        }
    }
    text += "halt";
    let constants = 32 * matrix.bytes();
    let entry = |name: &str, register, direction| Entry {
        name: name.into(),
        register,
        direction,
        bytes: 4096,
        shares: Vec::new(),
    };
    let kernel = Kernel {
        code: encode(&asm::parse(&text).expect("the program is written above")),
        segments: vec![Segment { offset: 0, bytes: constants, part: 0, literals: false }],
        literals: Vec::new(),
        entries: vec![entry("in", 1, Direction::In), entry("out", 2, Direction::Out)],
        ops: Vec::new(),
        parts: Vec::new(),
        lrm_peak: 0,
        l2_peak: 0,
    };
    (kernel, macs)
}

fn decode() {
    let (kernel, macs) = step();
    let program = Program::load(&kernel).expect("a program");
    let constants = pattern(kernel.segments[0].bytes);
    let parts = [constants.as_slice()];
    let product = Product::named("qb4").expect("a product");
    for isa in Isa::available() {
        let options = Options { threads: 1, strict: false };
        let mut machine = Machine::new(&program, &product, &parts, options).expect("a machine").with_isa(isa);
        let mut edges = Edges::new(&program);
        edges.set_in("in", vec![0; 4096]).expect("an edge");
        let time = best(Duration::from_secs(1), || {
            machine.call(&mut edges).expect("a call");
        });
        println!(
            "synthetic step, {} instructions, {:.1} M MAC, {isa:?}: {:.0} a second",
            program.code().len(),
            macs as f64 / 1e6,
            1.0 / time
        );
    }
}

fn main() {
    // under `cargo test` a bench only has to build
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    decode();
    kernels();
}
