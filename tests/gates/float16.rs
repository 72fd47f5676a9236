//! What the device loses against float64, operation by operation: it is the rounding of vectors to float16.
//!
//! With matrices in float16 nothing else is rounded coarsely. So every operation of a mixer is far from what the
//! float64 evaluator computes, and as near as float32 to what it computes if it rounds vectors where they meet a
//! weight. The first token and the mixer alone: later, two values on either side of a rounding boundary part.

use super::{Computed, Sound, Source, Workspace, forced, reference, sound};
use mica::host::{Shape, encoded, values};
use mica_device::object::Direction;
use mica_models::eval::{self, Tensor};
use mica_models::hir::{Function, Op};
use mica_quantize::Dequantized;
use mica_score::metrics::Similarity;
use mica_simulate::{Boundary, Edges, Observer, SimError};
use mica_tests::port::{Part, Ported, forced_reference, in_float16, loaded};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The value of each operation of the part's own function, by its number.
type Values = BTreeMap<usize, Vec<f64>>;

struct Seen(Values);

impl Observer for Seen {
    fn boundary(&mut self, b: &Boundary<'_>) -> ControlFlow<()> {
        if let Some(tile) = &b.tile {
            self.0.insert((b.src & 0xffff) as usize, tile.values.to_vec());
        }
        ControlFlow::Continue(())
    }
}

/// One call on the device from empty states; also the residual as the device was given it.
fn on_device(source: &Source, part: &Part, hidden: &[f64]) -> (Values, Vec<f64>) {
    let mut seen = Seen(Values::new());
    let mut given = Vec::new();
    let act = |machine: &mut mica_simulate::Machine<'_>,
               program: &mica_simulate::Program,
               kernel: &mica_device::object::Kernel|
     -> Result<(), SimError> {
        let mut edges = Edges::new(program);
        for e in kernel.entries.iter().filter(|e| e.direction == Direction::In) {
            let share = &e.shares[0].2;
            let bytes = match e.name.as_str() {
                "hidden.in" => {
                    let bytes = encoded(hidden, share.format, share.frac).unwrap_or_else(|e| panic!("{e}"));
                    let shape = Shape { format: share.format, frac: share.frac, elements: 0 };
                    given = values(&bytes, &shape);
                    bytes
                }
                "forced_ids.in" => vec![0xff; e.bytes as usize],
                _ => vec![0; e.bytes as usize],
            };
            edges.set_in(&e.name, bytes)?;
        }
        machine.call_observed(&mut edges, &mut seen).map(drop)
    };
    loaded(source, &[part], mica_compile::Seams::Segment, act).unwrap_or_else(|e| panic!("{e}"));
    (seen.0, given)
}

/// The same in float64; of a function with more rounding, the operations in order are those of `own`.
fn in_float64(part: &Part, own: &Function, hidden: &[f64]) -> Values {
    let weights = Dequantized::new(&part.plan, &part.constants).unwrap_or_else(|e| panic!("{e}"));
    // what has several results or is never whole is not traced
    let traced = |op: &Op| !matches!(op, Op::TopK { .. } | Op::IndexSelect | Op::Round { .. });
    let mut numbers = own.nodes.iter().enumerate().filter(|(_, n)| traced(&n.op)).map(|(i, _)| i);
    let mut values = Values::new();
    let mut trace = |node: &mica_models::hir::Node, value: &Tensor| {
        if traced(&node.op)
            && let Some(number) = numbers.next()
            && let Some(reals) = value.as_f64()
        {
            values.insert(number, reals.to_vec());
        }
    };
    let mut carried = mica_models::decode::Carried::new(&part.function);
    let mut inputs = BTreeMap::from([("hidden".to_string(), Tensor::f64(&[hidden.len()], hidden.to_vec()))]);
    if part.function.activations().any(|p| p.name == "pos") {
        inputs.insert("pos".into(), Tensor::scalar(0));
    }
    let options = eval::Options { round: true, trace: Some(&mut trace), ..eval::Options::default() };
    carried.step(&part.function, inputs, &weights, options).unwrap_or_else(|e| panic!("{e}"));
    values
}

#[test]
fn what_is_lost_is_lost_to_float16_vectors() {
    let mut workspace = Workspace::only(env!("CARGO_BIN_EXE_mica-under-test"), "tiny");
    workspace.set("model.tiny.recipe", "exact");
    let source = Source::open(workspace.dir(), "tiny");
    let ported = Ported::of(&source, &source.stack);
    let rounding = in_float16(&ported);
    let residual = reference(&ported, &sound().captures.ids[..1]);
    for (layer, mixer) in [(0, "linear_attn"), (3, "self_attn")] {
        let part = &ported.parts[1 + layer];
        let own = &part.function;
        let below = if layer == 0 { &residual.embed } else { &residual.layers[layer - 1] };
        let (device, hidden) = on_device(&source, part, below);
        let exact = in_float64(part, own, &hidden);
        let rounded = in_float64(&rounding.parts[1 + layer], own, &hidden);
        let (mut projections, mut compared) = (0, 0);
        for (&number, values) in &device {
            let node = &own.nodes[number];
            let of = |other: &Values| {
                let r = other.get(&number).filter(|r| r.len() == values.len())?;
                Some(Similarity::of(values, r, 0.0).unwrap_or_else(|e| panic!("{e}")).error)
            };
            let (Some(lost), Some(left)) = (of(&exact), of(&rounded)) else { continue };
            if !node.label.starts_with(mixer) {
                continue;
            }
            println!(
                "{} {}: {lost:.1e} from float64, {left:.1e} from float64 with rounded vectors",
                node.label,
                node.op.name()
            );
            assert!(left < 1e-6, "{} {}", node.label, node.op.name());
            compared += 1;
            if node.label.contains("_proj") {
                assert!(lost > 100.0 * left, "{}", node.label);
                projections += 1;
            }
        }
        assert!(projections >= 3 && compared > 8, "{mixer}: {projections} of {compared}");
    }
}

/// On the whole model, with integer matrices: a float64 chain that rounds vectors and nothing else is about as far
/// from float64 as the device is, in direction and in length.
#[test]
fn a_chain_that_rounds_vectors_is_as_far_off_as_the_device() {
    let Sound { source, captures, ported, .. } = sound();
    let (ids, experts) = (&captures.ids, captures.routing.as_slice());
    let device = forced(source, ported, ids, experts).unwrap_or_else(|e| panic!("{e}"));
    let exact = forced_reference(ported, ids, Some(experts));
    let rounding = forced_reference(&in_float16(ported), ids, Some(experts));
    for layer in 0..exact.layers.len() {
        let worst = |run: &Computed| {
            let (run, exact) = (&run.layers[layer], &exact.layers[layer]);
            let all = Similarity::by_row(run, exact, exact.len() / ids.len(), 0.0);
            let all = all.unwrap_or_else(|e| panic!("{e}"));
            let most = |of: fn(&Similarity) -> f64| all.iter().map(of).fold(0.0, f64::max);
            (most(|s| s.error), most(|s| (s.norm_ratio - 1.0).abs()))
        };
        let (of_device, of_rounding) = (worst(&device), worst(&rounding));
        println!(
            "layer {layer}: error {:.1e} on the device, {:.1e} by rounding alone; norm ratio off by {:.1e} and {:.1e}",
            of_device.0, of_rounding.0, of_device.1, of_rounding.1
        );
        assert!(of_device.0 < 2.0 * of_rounding.0, "layer {layer}");
        assert!(of_device.1 < 4.0 * of_rounding.1, "layer {layer}");
    }
}
