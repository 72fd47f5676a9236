//! Kernels from assembly, with one `in` edge (s1) and one `out` edge (s2).
#![allow(dead_code, reason = "each test file uses its own part of it")]

use mica_device::asm;
use mica_device::format::Format;
use mica_device::isa::encode;
use mica_device::object::{Direction, EdgeUse, Entry, Kernel, OpInfo, Segment};
use mica_device::product::Product;
use mica_simulate::{Counters, Edges, Machine, Options, Program, SimError};

fn entry(name: &str, register: u8, direction: Direction, bytes: u64) -> Entry {
    let share =
        EdgeUse { name: name.into(), direction, format: Format::F32, frac: 0, shape: vec![bytes / 4], bytes };
    Entry { name: name.into(), register, direction, bytes, shares: vec![(0, 0, share)] }
}

/// A kernel of one part whose constant segment has `constants` bytes; `halt` is added.
pub fn kernel(text: &str, input: u64, output: u64, constants: u64) -> Kernel {
    let program = asm::parse(&format!("{text}\nhalt")).unwrap();
    Kernel {
        code: encode(&program),
        segments: vec![Segment { offset: 0, bytes: constants, part: 0, literals: false }],
        literals: vec![Vec::new()],
        entries: vec![entry("in", 1, Direction::In, input), entry("out", 2, Direction::Out, output)],
        ops: vec![vec![
            OpInfo { op: "embed".into(), label: "embed_tokens".into() },
            OpInfo { op: "matmul".into(), label: "mlp.gate".into() },
        ]],
        parts: vec!["embed".into()],
        lrm_peak: 0,
        l2_peak: 0,
    }
}

/// What a run gives: the `out` edge and the counters.
pub type Outcome = Result<(Vec<u8>, Counters), SimError>;

/// Runs a kernel on qb4.
pub fn run_kernel(kernel: &Kernel, input: &[u8], constants: &[u8], strict: bool) -> Outcome {
    let program = Program::load(kernel)?;
    let parts = [constants];
    let options = Options { threads: 1, strict };
    let product = Product::named("qb4").unwrap();
    let mut machine = Machine::new(&program, &product, &parts, options)?;
    let mut edges = Edges::new(&program);
    edges.set_in("in", input)?;
    let counters = machine.call(&mut edges)?;
    Ok((edges.out("out")?.to_vec(), counters))
}

/// Bytes of f32 values.
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// f32 values of bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Runs `body` between a load of `input` to L2 0 and a store of `outputs` f32 values from L2
/// 0x10000; strictly unless it may count events.
pub fn run(body: &str, input: &[f32], outputs: usize) -> (Vec<f32>, Counters) {
    let input = f32s(input);
    let text = format!(
        "dld l2=0, bytes={}, -, s1, -, off=0
         {body}
         dst l2=0x10000, bytes={}, -, s2, -, off=0",
        input.len(),
        outputs * 4
    );
    let k = kernel(&text, input.len() as u64, outputs as u64 * 4, 0);
    let (out, counters) = run_kernel(&k, &input, &[], false).unwrap();
    (floats(&out), counters)
}

/// Runs `body` and returns the fault it meets, as text.
pub fn fault(body: &str, strict: bool) -> String {
    let k = kernel(body, 64, 64, 0);
    run_kernel(&k, &[0; 64], &[], strict).unwrap_err().to_string()
}
