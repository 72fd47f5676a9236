//! A call of several tokens gives the bits of as many calls of one: outputs, states and caches.

mod support;

use mica_compile::{CompileError, Options, Seams, compile, link, link_with};
use mica_device::hazards::{self, Hazard};
use mica_device::isa::{self, Instr, Opcode};
use mica_device::object::{Constants, Direction, Entry, Kernel, Object};
use mica_device::product::Product;
use mica_models::hir::{Builder, Dtype, Function, HirError, Op, Type, ValueId};
use mica_simulate::{Edges, Machine, Program};
use std::collections::BTreeMap;
use support::weights::{self, Weights};
use support::{Lcg, inputs, odd, options, product, prove, tiny};

const PRODUCTS: [&str; 2] = ["qb1", "qb16"];

/// What calls left, by name: of each output the tokens' bytes one after the other; states; caches.
#[derive(Debug, Default, PartialEq)]
struct Left {
    outputs: BTreeMap<String, Vec<u8>>,
    states: BTreeMap<String, Vec<u8>>,
    caches: BTreeMap<String, Vec<u8>>,
}

fn base(e: &Entry) -> &str {
    e.name.rsplit_once('.').unwrap().0
}

fn kernel(f: &Function, w: &Weights, product: &Product, tokens: u64, mode: Constants) -> Kernel {
    let object = object(f, w, product, tokens);
    let kernel = link_with(&[&object], product, Seams::Segment, mode).unwrap();
    prove(&kernel);
    kernel
}

fn object(f: &Function, w: &Weights, product: &Product, tokens: u64) -> Object {
    compile(&f.name, f, &w.plan, product, &Options { tokens, ..options(f) }).unwrap()
}

/// The bytes of one token's input.
fn given(e: &Entry, pos: u64, n: u64) -> Vec<u8> {
    let share = &e.shares[0].2;
    let rank = usize::from(n > 1 && e.name != "pos.in");
    let one: u64 = share.shape[rank.min(share.shape.len())..].iter().product();
    let tokens = if e.name == "pos.in" { pos..pos + 1 } else { pos..pos + n };
    let scalar = share.is_scalar();
    let each = tokens.flat_map(|t| match e.name.as_str() {
        "pos.in" => (t as i64).to_le_bytes().to_vec(),
        _ if scalar => ((inputs(&e.name, 1, t)[0].abs() * 150.0) as i64).to_le_bytes().to_vec(),
        // every other token's choice is forced
        "forced_ids.in" if t % 2 == 0 => vec![0xff; 4 * one as usize],
        "forced_ids.in" => (0..one).flat_map(|i| (((t + i) % one) as i32).to_le_bytes()).collect(),
        _ => support::encode(share, &inputs(base(e), one as usize, t)),
    });
    each.collect()
}

/// Runs `calls` calls of `n` tokens each from position `first` on; beyond what is cached a cache may hold
/// anything, even what is no number.
fn run(kernel: &Kernel, w: &Weights, product: &Product, calls: (u64, u64), first: u64) -> Left {
    run_with(kernel, w, product, calls, (first, f64::NAN))
}

fn run_with(
    kernel: &Kernel,
    w: &Weights,
    product: &Product,
    (n, calls): (u64, u64),
    (first, beyond): (u64, f64),
) -> Left {
    let program = Program::load(kernel).unwrap();
    let constants: [&[u8]; 1] = [&w.bytes];
    let strict = mica_simulate::Options { strict: true, ..Default::default() };
    let mut machine = Machine::new(&program, product, &constants, strict).unwrap();
    let mut edges = Edges::new(&program);
    let leaves = |name: String| kernel.entries.iter().any(|e| e.name == name);
    let is_state = |e: &Entry| {
        base(e) != "hidden" && leaves(format!("{}.in", base(e))) && leaves(format!("{}.out", base(e)))
    };
    let is_cache = |e: &Entry| base(e).ends_with("_cache");
    let given_edges: Vec<&Entry> = kernel.entries.iter().filter(|e| e.direction.is_given()).collect();
    for e in &given_edges {
        let share = &e.shares[0].2;
        let count = share.shape.iter().product::<u64>() as usize;
        if is_cache(e) {
            let (heads, rows, dim) = (share.shape[0], share.shape[1], share.shape[2]);
            let mut values = inputs(base(e), count, 7);
            for h in 0..heads {
                let end = (h * rows + rows) * dim;
                values[((h * rows + first) * dim) as usize..end as usize].fill(beyond);
            }
            edges.set_in(&e.name, support::encode(share, &values)).unwrap();
        } else if is_state(e) {
            edges.set_in(&e.name, support::encode(share, &inputs(base(e), count, 3))).unwrap();
        } else if e.weights_of().is_some() {
            edges.set_in(&e.name, w.bytes.as_slice()).unwrap();
        }
    }
    let mut left = Left::default();
    for c in 0..calls {
        let pos = first + c * n;
        for e in given_edges.iter().filter(|e| !is_state(e) && !is_cache(e) && e.weights_of().is_none()) {
            edges.set_in(&e.name, given(e, pos, n)).unwrap();
        }
        machine.call(&mut edges).unwrap();
        for e in kernel.entries.iter().filter(|e| e.direction == Direction::Out) {
            if is_state(e) {
                edges.turn(&e.name, &format!("{}.in", base(e))).unwrap();
            } else {
                left.outputs.entry(base(e).into()).or_default().extend(edges.out(&e.name).unwrap());
            }
        }
        for e in given_edges.iter().filter(|e| is_cache(e) && e.direction == Direction::In) {
            let row =
                edges.out(&format!("{}_row.out", base(e).strip_suffix("_cache").unwrap())).unwrap().to_vec();
            let shape = &e.shares[0].2.shape;
            let dim = row.len() / shape[0] as usize;
            for (h, row) in row.chunks(dim).enumerate() {
                let at = (h as u64 * shape[1] + pos) as usize * dim;
                edges.in_mut(&e.name).unwrap()[at..at + dim].copy_from_slice(row);
            }
        }
    }
    for e in &given_edges {
        match e.direction {
            Direction::InOut => {
                left.caches.insert(base(e).into(), edges.kept(&e.name).unwrap().to_vec());
            }
            _ if is_cache(e) => {
                left.caches.insert(base(e).into(), edges.take_in(&e.name).unwrap());
            }
            _ if is_state(e) => {
                left.states.insert(base(e).into(), edges.take_in(&e.name).unwrap());
            }
            _ => {}
        }
    }
    left
}

/// Two calls of `n` tokens against the calls of one, on every product and both ways of giving constants.
fn agree(f: &Function, counts: &[u64], first: u64) {
    let w = weights::random(f, first + 1);
    let most = counts.iter().max().unwrap() * 2;
    let one = product("qb4");
    let single = kernel(f, &w, &one, 1, Constants::Baked);
    let all = (1..=most).map(|calls| run(&single, &w, &one, (1, calls), first)).collect::<Vec<_>>();
    for &n in counts {
        let expected = &all[2 * n as usize - 1];
        assert!(!expected.outputs.is_empty());
        for name in PRODUCTS {
            let product = product(name);
            for mode in [Constants::Baked, Constants::Edges] {
                let k = kernel(f, &w, &product, n, mode);
                let found = run(&k, &w, &product, (n, 2), first);
                for (what, expected, found) in [
                    ("output", &expected.outputs, &found.outputs),
                    ("state", &expected.states, &found.states),
                    ("cache", &expected.caches, &found.caches),
                ] {
                    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
                    for (key, bytes) in expected {
                        assert!(
                            bytes == &found[key],
                            "{}: {what} {key} of {n} tokens on {name}, {mode:?}, position {first}",
                            f.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn embedding_and_head() {
    let stack = tiny();
    agree(&stack.embed, &[2, 5], 0);
    agree(&stack.head, &[3], 0);
}

#[test]
fn linear_attention() {
    agree(&tiny().kinds[0].function, &[2, 3, 4], 0);
}

/// Calls that begin with empty caches, end at a block's end, go across it, and lie behind it.
#[test]
fn full_attention() {
    let f = &tiny().kinds[1].function;
    for first in [0, 120, 126, 127, 128, 200, 254, 383] {
        agree(f, &[2, 4], first);
    }
    agree(f, &[3], 123);
}

/// No dimension is a power of two or a multiple of a tile, and a window is shorter than a call.
#[test]
fn odd_dimensions() {
    let odd = odd();
    agree(&odd.embed, &[3], 0);
    agree(&odd.head, &[2], 0);
    for kind in &odd.kinds {
        agree(&kind.function, &[3, 5], 126);
    }
}

/// Appending to the caches costs no entry: a kernel of several tokens has the entries of one, and fits as it does.
#[test]
fn a_cache_in_both_directions_is_one_entry() {
    let stack = tiny();
    let entries = |tokens| {
        let exports = |f: &Function| {
            let all = f.results.iter().map(|(n, _)| n.clone());
            all.filter(|n| n != "hidden" && n != "router_logits").collect()
        };
        let part = |f: &Function| {
            let o = Options { tokens, exports: exports(f), ..options(f) };
            compile(&f.name, f, &weights::plan(f), &product("qb4"), &o).unwrap()
        };
        let parts = stack.parts().into_iter().map(|p| part(stack.function(p).unwrap())).collect::<Vec<_>>();
        let kernel = link(&parts.iter().collect::<Vec<_>>(), &product("qb4"), Seams::Whole).unwrap();
        prove(&kernel);
        kernel.entries.iter().map(|e| e.name.replace(".inout", ".in")).collect::<Vec<_>>()
    };
    let one = entries(1);
    assert_eq!((one.len(), entries(4)), (15, one));
}

/// `next = silu(W · state + x)`, of which every step waits for the one before; `y` reads the state before and after it.
fn recurrence(dtype: Dtype) -> Result<Function, HirError> {
    let mut b = Builder::new("recurrence");
    let state = b.param("state", Type::new(dtype, &[96]));
    let x = b.param("x", Type::new(Dtype::F32, &[96]));
    let w = b.weight("w.weight", Type::new(Dtype::F32, &[96, 96]));
    let gain = b.weight("gain", Type::new(Dtype::F32, &[96]));
    let after = b.weight("after.weight", Type::new(Dtype::F32, &[64, 96]));
    let s = b.cast(state, Dtype::F32)?;
    let y = b.mul(s, gain)?;
    let h = b.matmul(w, s)?;
    let h = b.add(h, x)?;
    let next = b.unary(Op::Silu, h)?;
    let y = b.sub(y, next)?;
    let y = b.matmul(after, y)?;
    // rests on weights alone, and leaves for every token
    let shared = b.unary(Op::Sigmoid, gain)?;
    let next = b.cast(next, dtype)?;
    b.result("state", next);
    b.result("y", y);
    b.result("shared", shared);
    b.finish()
}

/// The same of matrices, which run head by head: `next = state + k ⊗ silu(v − k · state)`; `y` is `k · next`.
fn heads(dtype: Dtype) -> Result<Function, HirError> {
    let mut b = Builder::new("heads");
    let state = b.param("state", Type::new(dtype, &[3, 8, 16]));
    let x = b.param("x", Type::new(Dtype::F32, &[3, 8]));
    let v = b.param("v", Type::new(Dtype::F32, &[3, 1, 16]));
    let s = b.cast(state, Dtype::F32)?;
    let row = b.reshape(x, &[3, 1, 8])?;
    let column = b.reshape(x, &[3, 8, 1])?;
    let seen = b.matmul(row, s)?;
    let d = b.sub(v, seen)?;
    let d = b.unary(Op::Silu, d)?;
    let update = b.matmul(column, d)?;
    let next = b.add(s, update)?;
    let y = b.matmul(row, next)?;
    let next = b.cast(next, dtype)?;
    b.result("state", next);
    b.result("y", y);
    b.finish()
}

/// Matrices that each token brings its own of.
#[test]
fn matrices_come_token_by_token() {
    let mut b = Builder::new("matrices");
    let m = b.param("m", Type::new(Dtype::F32, &[3, 8, 16]));
    let x = b.param("x", Type::new(Dtype::F32, &[3, 1, 8]));
    let y = b.matmul(x, m).unwrap();
    b.result("y", y);
    agree(&b.finish().unwrap(), &[2, 3], 0);
}

/// The format of a state's edge is what makes its bits, also where it stays on the chip.
#[test]
fn a_state_is_rounded_as_on_its_edge() {
    for function in [recurrence, heads] {
        let [narrow, wide] = [Dtype::BF16, Dtype::F32].map(|d| function(d).unwrap());
        agree(&narrow, &[2, 3], 0);
        agree(&wide, &[2], 0);
        let product = product("qb4");
        let w = weights::random(&narrow, 1);
        let y = |f: &Function| {
            let k = kernel(f, &w, &product, 3, Constants::Baked);
            run(&k, &w, &product, (3, 1), 0).outputs["y"].clone()
        };
        assert!(y(&narrow) != y(&wide), "the rounding shows in what is compared");
    }
}

/// The window of a convolution that is also read whole, its taps shorter than a call.
fn window() -> Result<Function, HirError> {
    let mut b = Builder::new("window");
    let state = b.param("state", Type::new(Dtype::BF16, &[2, 64]));
    let x = b.param("x", Type::new(Dtype::F32, &[64]));
    let taps = b.weight("taps.conv1d", Type::new(Dtype::F32, &[3, 64]));
    let row = b.reshape(x, &[1, 64])?;
    let held = b.cast(state, Dtype::F32)?;
    let window = b.concat(held, row, 0)?;
    let next = b.slice(window, 0, 1, 2)?;
    let next = b.cast(next, Dtype::BF16)?;
    let products = b.mul(window, taps)?;
    let y = b.sum(products, 0, false)?;
    let before = b.sum(held, 0, false)?;
    b.result("state", next);
    b.result("y", y);
    b.result("before", before);
    b.finish()
}

/// What the first of the windows is for the next token.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Moves,
    OfItself,
    OfAnother,
}

/// Windows of the same rows, which their edges round differently; the second goes on from the first, which moves too or is made
/// anew. All that is seen leaves.
fn windows([first, second]: [Dtype; 2], how: First) -> Result<Function, HirError> {
    let mut b = Builder::new("windows");
    let x = b.param("x", Type::new(Dtype::F32, &[1, 64]));
    let z = b.param("z", Type::new(Dtype::F32, &[3, 64]));
    let window = |b: &mut Builder, name: &str, dtype, of, n: u64| -> Result<ValueId, HirError> {
        let state = b.param(name, Type::new(dtype, &[3, 64]));
        let taps = b.weight(format!("{name}.conv1d"), Type::new(Dtype::F32, &[3 + n, 64]));
        let held = b.cast(state, Dtype::F32)?;
        let rows = b.concat(held, of, 0)?;
        let products = b.mul(rows, taps)?;
        let y = b.sum(products, 0, false)?;
        b.result(format!("y_{name}"), y);
        let seen = b.slice(rows, 0, 0, 3 + n)?;
        b.result(format!("seen_{name}"), seen);
        let next = match how {
            First::OfItself if name == "first" => b.unary(Op::Silu, held)?,
            First::OfAnother if name == "first" => b.unary(Op::Silu, z)?,
            _ => b.slice(rows, 0, 1, 3)?,
        };
        let next = b.cast(next, dtype)?;
        b.result(name, next);
        Ok(held)
    };
    let held = window(&mut b, "first", first, x, 1)?;
    window(&mut b, "second", second, held, 3)?;
    window(&mut b, "third", second, x, 1)?;
    b.finish()
}

/// States that nothing is made of: `late` is the token before, `fixed` stays as it came.
#[test]
fn states_that_are_parameters() {
    let mut b = Builder::new("late");
    let vector = |dtype| Type::new(dtype, &[64]);
    let x = b.param("x", vector(Dtype::F32));
    let late = b.param("late", vector(Dtype::F32));
    let fixed = b.param("fixed", vector(Dtype::BF16));
    let held = b.cast(fixed, Dtype::F32).unwrap();
    let y = b.mul(late, held).unwrap();
    b.result("late", x);
    b.result("fixed", fixed);
    b.result("y", y);
    agree(&b.finish().unwrap(), &[2, 3], 0);
}

/// Products that nothing reads in their token: one that is the next state, and one that all tokens share.
#[test]
fn products_that_only_leave() {
    let mut b = Builder::new("products");
    let state = b.param("state", Type::new(Dtype::F32, &[80]));
    let x = b.param("x", Type::new(Dtype::F32, &[64]));
    let w = b.weight("w.weight", Type::new(Dtype::F32, &[80, 64]));
    let gain = b.weight("gain", Type::new(Dtype::F32, &[64]));
    let y = b.unary(Op::Silu, state).unwrap();
    let (next, shared) = (b.matmul(w, x).unwrap(), b.matmul(w, gain).unwrap());
    b.result("state", next);
    b.result("y", y);
    b.result("shared", shared);
    agree(&b.finish().unwrap(), &[2, 3], 0);
}

#[test]
fn a_window_moves_within_a_call() {
    agree(&window().unwrap(), &[2, 3, 4], 0);
    for how in [First::Moves, First::OfItself, First::OfAnother] {
        for dtypes in [[Dtype::BF16, Dtype::F32], [Dtype::F32, Dtype::BF16]] {
            agree(&windows(dtypes, how).unwrap(), &[2, 3], 0);
        }
    }
}

/// The code of an attention's part for two tokens, linked.
fn attention_of_two() -> (Kernel, Weights, Vec<Instr>) {
    let f = &tiny().kinds[1].function;
    let w = weights::random(f, 1);
    let k = kernel(f, &w, &product("qb4"), 2, Constants::Baked);
    let code = isa::decode(&k.code).unwrap();
    (k, w, code)
}

/// The instructions that append rows to a cache.
fn appends(k: &Kernel, code: &[Instr]) -> Vec<usize> {
    let caches: Vec<u8> =
        k.entries.iter().filter(|e| e.direction == Direction::InOut).map(|e| e.register).collect();
    let found = (0..code.len()).filter(|&i| code[i].op == Opcode::Dst && caches.contains(&code[i].r[1]));
    found.collect()
}

#[test]
fn appended_rows_are_read_behind_a_fence() {
    let (k, _, mut code) = attention_of_two();
    hazards::check(&code).unwrap();
    let last = *appends(&k, &code).last().unwrap();
    let fence = (last..code.len()).find(|&i| code[i].op == Opcode::Fence).unwrap();
    code[fence].op = Opcode::Nop;
    let e = hazards::check(&code).unwrap_err();
    let external = mica_device::access::Memory::External;
    assert!(
        matches!(&e, Hazard::Unordered { memory, earlier_op: "dst", later_op: "dld", .. } if *memory == external),
        "{e}"
    );
}

#[test]
fn a_row_appended_elsewhere_shows() {
    let (mut k, w, mut code) = attention_of_two();
    let product = product("qb4");
    let right = run_with(&k, &w, &product, (2, 2), (126, 0.0));
    for at in appends(&k, &code) {
        code[at].z += u64::from(code[at].y) / 2;
    }
    k.code = isa::encode(&code);
    let wrong = run_with(&k, &w, &product, (2, 2), (126, 0.0));
    assert!(right.caches != wrong.caches);
    assert!(right.outputs["hidden"] != wrong.outputs["hidden"]);
}

#[test]
fn too_many_tokens_are_refused() {
    let f = &tiny().kinds[0].function;
    let w = weights::random(f, 1);
    let refused = |tokens, product: &Product| {
        compile("linear", f, &w.plan, product, &Options { tokens, ..options(f) }).map(|_| ()).unwrap_err()
    };
    let mut narrow = product("qb1");
    narrow.lrm_per_pe = 64;
    let e = refused(16, &narrow);
    assert!(matches!(e, CompileError::Overflow { memory: "LRM", tokens: 16, .. }), "{e:?}");
    assert!(e.to_string().ends_with("16 tokens a call: take fewer, or a larger product"), "{e}");
    let mut small = product("qb1");
    small.l2 = 4096;
    let e = refused(16, &small);
    assert!(matches!(e, CompileError::Overflow { memory: "L2", tokens: 16, .. }), "{e:?}");
    assert_eq!(refused(0, &small).to_string(), "`linear`: a call takes at least one token");
}

/// Where LRM is short values wait in L2 and blocks of the cache are worked on in strips: the bits are those of a product
/// with room, and with room nothing of it is in the program.
#[test]
fn short_memory_changes_no_bit() {
    let stack = tiny();
    for (kind, first) in [(&stack.kinds[0], 0), (&stack.kinds[1], 200)] {
        let f = &kind.function;
        let w = weights::random(f, 9);
        let wide = product("qb1");
        let fits = object(f, &w, &wide, 2);
        let mut narrow = wide.clone();
        // as little as this part compiles for
        let mut least = None;
        for eighths in (1..8).rev() {
            narrow.lrm_per_pe = (fits.lrm_peak * eighths / 8).div_ceil(narrow.pes()) as u32;
            match compile(&f.name, f, &w.plan, &narrow, &Options { tokens: 2, ..options(f) }) {
                Ok(o) => least = Some((o, narrow.clone())),
                Err(_) => break,
            }
        }
        let (short, narrow) = least.expect("less than the peak is enough");
        assert!(short.lrm_peak < fits.lrm_peak && short.code != fits.code);
        let runs = [(&fits, &wide), (&short, &narrow)].map(|(o, product)| {
            let k = link(&[o], product, Seams::Segment).unwrap();
            prove(&k);
            run(&k, &w, product, (2, 2), first)
        });
        assert!(runs[0] == runs[1], "{}", f.name);
        assert_eq!(object(f, &w, &product("qb16"), 2).code, fits.code, "with room the program is one");
    }
}

/// The least LRM of a part, bytes a PE, and how it fails with less: blocks go in strips of down to sixteen rows.
#[test]
fn attention_fits_in_little() {
    let f = &tiny().kinds[1].function;
    let plan = weights::plan(f);
    let mut narrow = product("qb1");
    let mut with = |bytes: u32| {
        narrow.lrm_per_pe = bytes;
        compile(&f.name, f, &plan, &narrow, &Options { tokens: 2, ..options(f) }).map(|_| ())
    };
    let least = (1..).find(|n| with(16 * n).is_ok()).unwrap() * 16;
    insta::assert_snapshot!(format!("{least}: {}", with(least - 16).unwrap_err()), @"224: `full_attention` needs 13824 bytes of LRM at instruction 198 (self_attn), and qb1 has 13312: 2 tokens a call: take fewer, or a larger product");
}

#[test]
fn parts_of_different_calls_do_not_meet() {
    let stack = tiny();
    let part = |f: &Function, tokens| {
        let w = weights::plan(f);
        compile(&f.name, f, &w, &product("qb4"), &Options { tokens, ..options(f) }).unwrap()
    };
    let (embed, head) = (part(&stack.embed, 2), part(&stack.head, 1));
    let e = link(&[&embed, &head], &product("qb4"), Seams::Whole).unwrap_err();
    assert!(matches!(e, CompileError::Seam { part: 1, .. }), "{e:?}");
}

/// A function made up of vectors, matrices, norms and up to three states that wait for each other as it happens.
fn random(seed: u64) -> Result<Function, HirError> {
    const WIDTH: u64 = 64;
    let mut rng = Lcg(seed);
    let mut pick = |n: usize| rng.bits() as usize % n;
    let mut b = Builder::new("random");
    let vector = |dtype| Type::new(dtype, &[WIDTH]);
    let mut pool = vec![b.param("x", vector(Dtype::F32)), b.param("z", vector(Dtype::F32))];
    let mut states = Vec::new();
    for s in 0..pick(4) {
        let dtype = [Dtype::F32, Dtype::BF16][pick(2)];
        let state = b.param(format!("state{s}"), vector(dtype));
        pool.push(b.cast(state, Dtype::F32)?);
        states.push(dtype);
    }
    for n in 0..4 + pick(12) {
        let (p, q) = (pool[pick(pool.len())], pool[pick(pool.len())]);
        pool.push(match pick(8) {
            0 => b.add(p, q)?,
            1 => b.sub(p, q)?,
            2 => b.mul(p, q)?,
            3 => b.unary(Op::Silu, p)?,
            4 => b.unary(Op::Sigmoid, p)?,
            5 => {
                let w = b.weight(format!("n{n}"), vector(Dtype::F32));
                b.op(Op::RmsNorm { eps: 1e-6 }, &[p, w])?
            }
            6 => b.weight(format!("v{n}"), vector(Dtype::F32)),
            _ => {
                let w = b.weight(format!("w{n}.weight"), Type::new(Dtype::F32, &[WIDTH, WIDTH]));
                b.matmul(w, p)?
            }
        });
    }
    for (s, dtype) in states.into_iter().enumerate() {
        // values stay small however many tokens follow
        let next = b.unary(Op::Sigmoid, pool[pick(pool.len())])?;
        let next = b.cast(next, dtype)?;
        b.result(format!("state{s}"), next);
    }
    for y in 0..1 + pick(2) {
        let v = b.unary(Op::Silu, pool[pool.len() - 1 - pick(3)])?;
        b.result(format!("y{y}"), v);
    }
    b.finish()
}

#[test]
fn functions_as_they_come() {
    let mut with_states = 0;
    for seed in 0..60 {
        let f = random(seed).unwrap();
        with_states += u32::from(f.results.len() > 2);
        let w = weights::random(&f, seed);
        let product = product("qb1");
        let one = run(&kernel(&f, &w, &product, 1, Constants::Baked), &w, &product, (1, 6), 0);
        let n = 2 + seed % 2;
        let k = kernel(&f, &w, &product, n, Constants::Baked);
        assert!(run(&k, &w, &product, (n, 6 / n), 0) == one, "seed {seed}: {f:#?}");
    }
    assert!(with_states > 20);
}
