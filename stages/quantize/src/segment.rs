//! Writes the constant segment in pieces, each on a thread of its own.

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
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of the segment that a thread makes at a time, or one unit. They stay in the processor's cache from what they
/// are made of until they are hashed and written.
const PIECE: u64 = 512 << 10;

/// Takes the bytes that lie at a place of the segment, from any thread.
pub type Put<'a> = dyn Fn(u64, &[u8]) -> io::Result<()> + Sync + 'a;

/// Gives every byte of a segment of `plan.bytes` bytes to `put` once, in pieces and in no order, and reports each weight's
/// error, in the plan's order.
///
/// Quantized weights are re-laid without loss; floats get the scales that the search finds. The bytes
/// and figures are the same on every machine and number of threads. NaN and infinity are errors unless
/// `allow_non_finite`; then floats keep them, and an integer format takes a NaN as 0 and an infinity as
/// its largest integer.
///
/// # Errors
/// A plan of another layer, values that the format cannot hold, delivered scales that are no scales, and
/// whatever reading and writing say. What has been put is then of no use.
pub fn quantize(
    packed: &PackedLayer,
    plan: &SegmentPlan,
    source: &dyn TensorBytes,
    put: &Put<'_>,
    allow_non_finite: bool,
) -> Result<Vec<TensorFigures>, QuantizeError> {
    check_plan(packed, plan)?;
    let mut end = 0;
    let mut figures = Vec::with_capacity(plan.entries.len());
    for (entry, tensor) in plan.entries.iter().zip(&packed.tensors) {
        pad(put, end..entry.offset, &entry.role)?;
        let reader = Reader { role: &tensor.role, bytes: source };
        let weight = Weight { tensor, reader, allow_non_finite };
        let tally = write_units(&*units(weight, entry), entry, put)?;
        end = entry.offset + entry.bytes;
        figures.push(tally.figures(&entry.role, entry.shape.iter().product()));
    }
    let last = plan.entries.last().map_or("", |entry| &entry.role);
    pad(put, end..plan.bytes, last)?;
    Ok(figures)
}

/// [`quantize`] into memory: the segment and the figures.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_in_memory(
    packed: &PackedLayer,
    plan: &SegmentPlan,
    source: &dyn TensorBytes,
    allow_non_finite: bool,
) -> Result<(Vec<u8>, Vec<TensorFigures>), QuantizeError> {
    let segment = Mutex::new(vec![0; plan.bytes as usize]);
    let put = |at: u64, bytes: &[u8]| {
        let mut segment = segment.lock().unwrap_or_else(PoisonError::into_inner);
        segment[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let figures = quantize(packed, plan, source, &put, allow_non_finite)?;
    Ok((segment.into_inner().unwrap_or_else(PoisonError::into_inner), figures))
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

/// Makes a weight's units, some a piece, on all threads.
fn write_units(units: &dyn Units, entry: &PlanEntry, put: &Put<'_>) -> Result<Tally, QuantizeError> {
    // The first piece that failed: those before it still run, so that the first error of the weight is the one reported.
    let failed = AtomicUsize::new(usize::MAX);
    let pieces = pieces(units);
    let work = pieces.par_iter().enumerate().map_init(Vec::new, |buffer: &mut Vec<u8>, (number, piece)| {
        if number > failed.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let made = write_piece(units, piece, buffer).and_then(|tallies| {
            put(entry.offset + piece.at, &buffer[..piece.bytes as usize])
                .map_err(|error| QuantizeError::io(&entry.role, "writing the segment", &error))?;
            Ok(tallies)
        });
        if made.is_err() {
            failed.fetch_min(number, Ordering::Relaxed);
        }
        made
    });
    let mut total = Tally::new();
    // in order: sums have one
    for tallies in work.collect::<Vec<_>>() {
        tallies?.iter().for_each(|tally| total.merge(tally));
    }
    Ok(total)
}

/// Consecutive units of a weight.
struct Piece {
    units: Range<u64>,
    /// Where they start among the weight's bytes.
    at: u64,
    bytes: u64,
}

fn pieces(units: &dyn Units) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    for unit in 0..units.len() {
        let bytes = units.bytes(unit);
        match pieces.last_mut().filter(|piece| piece.bytes + bytes <= PIECE) {
            Some(piece) => {
                piece.units.end += 1;
                piece.bytes += bytes;
            }
            None => pieces.push(Piece { units: unit..unit + 1, at, bytes }),
        }
        at += bytes;
    }
    pieces
}

/// Makes a piece in `out`, which is only made longer.
fn write_piece(units: &dyn Units, piece: &Piece, out: &mut Vec<u8>) -> Result<Vec<Tally>, QuantizeError> {
    let bytes = piece.bytes as usize;
    out.resize(out.len().max(bytes), 0);
    let mut rest = &mut out[..bytes];
    if cfg!(debug_assertions) {
        // a byte that no unit writes shows in every test
        rest.fill(0xa5);
    }
    let mut tallies = Vec::with_capacity((piece.units.end - piece.units.start) as usize);
    for unit in piece.units.clone() {
        let (place, after) = rest.split_at_mut(units.bytes(unit) as usize);
        tallies.push(units.write(unit, place)?);
        rest = after;
    }
    Ok(tallies)
}

fn pad(put: &Put<'_>, bytes: Range<u64>, role: &str) -> Result<(), QuantizeError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let zeros = vec![0; (bytes.end - bytes.start) as usize];
    put(bytes.start, &zeros).map_err(|error| QuantizeError::io(role, "writing the segment", &error))
}
