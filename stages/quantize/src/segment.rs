//! Writes the constant segment in the plan's order, a batch of pieces at a time.

use crate::error::QuantizeError;
use crate::plan::dims;
use crate::source::{Narrow, Reader, TensorBytes};
use crate::table::TableRows;
use crate::tally::{Tally, TensorFigures};
use crate::tile::Tiles;
use crate::unit::Units;
use crate::vector::Elements;
use crate::weight::Weight;
use mica_device::format::Format;
use mica_device::layout::{MatrixLayout, TableLayout};
use mica_device::segment::{PlanEntry, SegmentPlan, Storage};
use mica_pack::{PackedLayer, PackedTensor};
use rayon::prelude::*;
use std::io::Write;

/// Bytes of the segment that are made at a time. Scratch and sources of the pieces in work come on top:
/// a few times a tile for each thread.
const BATCH: u64 = 16 << 20;

/// Writes `plan.bytes` bytes to `out` and reports each weight's error, in the plan's order.
///
/// Quantized weights are re-laid without loss; floats get the scales that the search finds. The bytes
/// and figures are the same on every machine and number of threads. NaN and infinity are errors unless
/// `allow_non_finite`; then floats keep them, and an integer format takes a NaN as 0 and an infinity as
/// its largest integer.
///
/// # Errors
/// A plan of another layer, values that the format cannot hold, delivered scales that are no scales, and
/// whatever reading and writing say. What has been written to `out` is then of no use.
pub fn quantize(
    packed: &PackedLayer,
    plan: &SegmentPlan,
    source: &dyn TensorBytes,
    out: &mut dyn Write,
    allow_non_finite: bool,
) -> Result<Vec<TensorFigures>, QuantizeError> {
    check_plan(packed, plan)?;
    let mut buffer = Vec::new();
    let mut written = 0;
    let mut figures = Vec::with_capacity(plan.entries.len());
    for (entry, tensor) in plan.entries.iter().zip(&packed.tensors) {
        pad(out, &mut written, entry.offset, &entry.role)?;
        let reader = Reader { role: &tensor.role, bytes: source };
        let weight = Weight { tensor, reader, allow_non_finite };
        let units = units(weight, entry);
        let tally = write_units(&*units, &entry.role, out, &mut buffer)?;
        written += entry.bytes;
        figures.push(tally.figures(&entry.role, entry.shape.iter().product()));
    }
    let last = plan.entries.last().map_or("", |entry| &entry.role);
    pad(out, &mut written, plan.bytes, last)?;
    Ok(figures)
}

fn check_plan(packed: &PackedLayer, plan: &SegmentPlan) -> Result<(), QuantizeError> {
    let differs = |entry, difference| Err(QuantizeError::PlanMismatch { entry, difference });
    let mut end = 0;
    for (at, (entry, tensor)) in plan.entries.iter().zip(&packed.tensors).enumerate() {
        if entry.role != tensor.role || entry.shape != tensor.shape {
            let layer = format!("{} {:?}", tensor.role, tensor.shape);
            return differs(at, format!("{} {:?} for {layer}", entry.role, entry.shape));
        }
        if !suits(entry, tensor) {
            return differs(at, format!("{} is stored as {:?}", entry.role, entry.storage));
        }
        if entry.offset < end || Some(entry.bytes) != entry.storage.bytes(&entry.shape) {
            return differs(at, format!("{} has the wrong place", entry.role));
        }
        end = entry.offset + entry.bytes;
    }
    if plan.entries.len() != packed.tensors.len() {
        let (has, needs) = (plan.entries.len(), packed.tensors.len());
        return differs(has.min(needs), format!("{has} entries for {needs} weights"));
    }
    if end > plan.bytes {
        return differs(plan.entries.len(), format!("{} bytes end before {end}", plan.bytes));
    }
    Ok(())
}

/// Whether the storage has scales of the delivered groups where the weight has scales.
fn suits(entry: &PlanEntry, tensor: &PackedTensor) -> bool {
    let scaling = match entry.storage {
        Storage::Matrix(format) | Storage::Experts(format) => format.scaling,
        Storage::Table { scaling, .. } => scaling,
        Storage::Vector(_) => None,
    };
    match (&tensor.scale, scaling) {
        (Some(scale), Some(scaling)) => {
            // where the delivery's zero points are all 0, packing dropped them: their place stays 0
            (scaling.zero || tensor.zero.is_none())
                && scale.elements() * u64::from(scaling.group) == tensor.data.elements()
        }
        (Some(_), None) => false,
        (None, scaling) => scaling.is_none_or(|scaling| !scaling.zero),
    }
}

fn units<'a>(weight: Weight<'a>, entry: &PlanEntry) -> Box<dyn Units + 'a> {
    let [count, rows, cols] = dims(&entry.shape);
    match entry.storage {
        Storage::Matrix(format) | Storage::Experts(format) => {
            Box::new(Tiles { weight, layout: MatrixLayout { rows, cols, format }, count })
        }
        Storage::Table { element, scaling } => {
            Box::new(TableRows { weight, layout: TableLayout { rows, cols, element, scaling } })
        }
        Storage::Vector(format) => {
            let format = match format {
                Format::F16 => Narrow::F16,
                Format::Bf16 => Narrow::Bf16,
                _ => Narrow::F32,
            };
            Box::new(Elements { weight, rows: count * rows, cols, format })
        }
    }
}

fn write_units(
    units: &dyn Units,
    role: &str,
    out: &mut dyn Write,
    buffer: &mut Vec<u8>,
) -> Result<Tally, QuantizeError> {
    let mut total = Tally::new();
    let mut next = 0;
    while next < units.len() {
        let first = next;
        let mut sizes = Vec::new();
        let mut batch = 0;
        while next < units.len() && (batch == 0 || batch + units.bytes(next) <= BATCH) {
            sizes.push(units.bytes(next) as usize);
            batch += units.bytes(next);
            next += 1;
        }
        buffer.clear();
        buffer.resize(batch as usize, 0);
        let mut places = Vec::with_capacity(sizes.len());
        let mut rest = &mut buffer[..];
        for size in sizes {
            let (place, after) = rest.split_at_mut(size);
            places.push(place);
            rest = after;
        }
        let tallies: Vec<Result<Tally, QuantizeError>> = places
            .into_par_iter()
            .enumerate()
            .map(|(at, place)| units.write(first + at as u64, place))
            .collect();
        // In order: the first error of the weight is the one reported, and sums have one order.
        for tally in tallies {
            total.merge(&tally?);
        }
        write(out, buffer, role)?;
    }
    Ok(total)
}

fn pad(out: &mut dyn Write, written: &mut u64, to: u64, role: &str) -> Result<(), QuantizeError> {
    while *written < to {
        let some = (to - *written).min(64);
        write(out, &[0; 64][..some as usize], role)?;
        *written += some;
    }
    Ok(())
}

fn write(out: &mut dyn Write, bytes: &[u8], role: &str) -> Result<(), QuantizeError> {
    out.write_all(bytes).map_err(|error| QuantizeError::io(role, "writing the segment", &error))
}
