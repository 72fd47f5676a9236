//! The ported model on the device, one call a token.

use super::{Computed, Part, Ported, Source};
use mica::host::{self, Called, Feed, Run, values};
use mica_compile::Seams;
use mica_device::object::{Kernel, Object};
use mica_simulate::{Machine, Options, Program, SimError};
use std::collections::BTreeMap;

/// Runs part after part, experts chosen by the device itself.
///
/// # Errors
/// A trap of the device.
pub fn free(source: &Source, ported: &Ported, ids: &[i64]) -> Result<Computed, SimError> {
    parts(source, ported, ids, None)
}

/// The same with the experts given, `[T, k]` a layer.
///
/// # Errors
/// A trap of the device.
pub fn forced(
    source: &Source,
    ported: &Ported,
    ids: &[i64],
    experts: &[Vec<i64>],
) -> Result<Computed, SimError> {
    parts(source, ported, ids, Some(experts))
}

/// Runs the linked kernel; gives the bytes of last residual, post-norm hidden and logits.
///
/// # Errors
/// A trap of the device.
pub fn whole(source: &Source, ported: &Ported, ids: &[i64]) -> Result<Vec<u8>, SimError> {
    let feed = Feed { ids, ..Feed::default() };
    let run = run(source, &ported.parts.iter().collect::<Vec<_>>(), Seams::Whole, &feed)?;
    Ok(["hidden", "normed", "logits"].map(|name| run.outputs[name].as_slice()).concat())
}

/// Runs the linked kernels of `many`, compiled for calls of `tokens`, and of `one` for the rest; `change` is done to
/// the former's code first.
///
/// # Errors
/// A trap of the device.
///
/// # Panics
/// If the parts do not link, or what `change` leaves is no program.
pub fn prompt(
    source: &Source,
    (many, tokens): (&Ported, u64),
    one: &Ported,
    feed: &Feed<'_>,
    change: impl FnOnce(&mut Kernel),
) -> Result<Run, SimError> {
    let product = &source.machine.product;
    let linked = |ported: &Ported| {
        let objects: Vec<&Object> = ported.parts.iter().map(|part| &part.object).collect();
        mica_compile::link(&objects, product, Seams::Whole).unwrap_or_else(|e| panic!("{e}"))
    };
    let (mut kernel, rest) = (linked(many), linked(one));
    change(&mut kernel);
    let (program, left) = (Program::load(&kernel)?, Program::load(&rest)?);
    let constants: Vec<&[u8]> = one.parts.iter().map(|part| part.constants.as_slice()).collect();
    let machine = |p| Machine::new(p, product, &constants, Options::default());
    let many = Called { program: &program, kernel: &kernel, tokens };
    let one = Called { program: &left, kernel: &rest, tokens: 1 };
    let run = host::prompt((&mut machine(&program)?, many), (&mut machine(&left)?, one), feed, &constants);
    run.map_err(|stopped| stopped.error)
}

fn parts(
    source: &Source,
    ported: &Ported,
    ids: &[i64],
    experts: Option<&[Vec<i64>]>,
) -> Result<Computed, SimError> {
    let mut computed = Computed::default();
    let mut hidden: Option<Vec<u8>> = None;
    for part in &ported.parts {
        let forced = match (part.place, experts) {
            (mica_models::stack::Part::Layer(layer), Some(all)) => Some(vec![all[layer].as_slice()]),
            _ => None,
        };
        let feed = Feed { ids, hidden: hidden.as_deref(), forced, ..Feed::default() };
        let mut run = run(source, &[part], Seams::Segment, &feed)?;
        let shape = |name: &str| &run.shapes[name];
        let results: BTreeMap<String, Vec<f64>> =
            run.outputs.iter().map(|(name, bytes)| (name.clone(), values(bytes, shape(name)))).collect();
        computed.file(part.place, results);
        computed.counters += run.counters;
        match run.outputs.remove("hidden") {
            Some(bytes) => hidden = Some(bytes),
            None => {
                let ends = ["normed", "logits"].map(|name| run.outputs[name].as_slice());
                computed.end = [&[hidden.as_deref().unwrap_or_default()], &ends[..]].concat().concat();
            }
        }
    }
    Ok(computed)
}

fn run(source: &Source, parts: &[&Part], seams: Seams, feed: &Feed<'_>) -> Result<Run, SimError> {
    loaded(source, parts, seams, |machine, program, kernel| host::run(machine, program, kernel, feed))
}

/// Runs the linked kernel so that the first counted event is a trap.
///
/// # Errors
/// That trap.
pub fn strict(source: &Source, ported: &Ported, ids: &[i64]) -> Result<(), SimError> {
    let parts: Vec<&Part> = ported.parts.iter().collect();
    let options = Options { strict: true, ..Options::default() };
    on_machine(source, &parts, Seams::Whole, options, |machine, program, kernel| {
        host::run(machine, program, kernel, &Feed { ids, ..Feed::default() }).map(drop)
    })
}

/// Links parts and hands a machine that is loaded with them to `act`.
///
/// # Errors
/// What `act` says.
///
/// # Panics
/// If the parts do not link.
pub fn loaded<R>(
    source: &Source,
    parts: &[&Part],
    seams: Seams,
    act: impl FnOnce(&mut Machine<'_>, &Program, &Kernel) -> Result<R, SimError>,
) -> Result<R, SimError> {
    on_machine(source, parts, seams, Options::default(), act)
}

fn on_machine<R>(
    source: &Source,
    parts: &[&Part],
    seams: Seams,
    options: Options,
    act: impl FnOnce(&mut Machine<'_>, &Program, &Kernel) -> Result<R, SimError>,
) -> Result<R, SimError> {
    let objects: Vec<&Object> = parts.iter().map(|part| &part.object).collect();
    let constants: Vec<&[u8]> = parts.iter().map(|part| part.constants.as_slice()).collect();
    let product = &source.machine.product;
    let kernel = mica_compile::link(&objects, product, seams).unwrap_or_else(|e| panic!("{e}"));
    let program = Program::load(&kernel)?;
    let mut machine = Machine::new(&program, product, &constants, options)?;
    act(&mut machine, &program, &kernel)
}
