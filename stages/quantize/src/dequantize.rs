//! A constant segment read back as the numbers that it stands for: what the float64 reference runs on.
//!
//! An integer weight is f64(f32(q − zero) · f32(scale)): the product is rounded to binary32, which is what
//! a delivery means by it. Floats are exact.

use crate::error::QuantizeError;
use crate::plan::dims;
use half::{bf16, f16};
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixLayout, Scaling, TILE_ROWS, TableLayout, WeightFormat};
use mica_device::segment::{PlanEntry, SegmentPlan, Storage};
use mica_models::eval::{EvalError, Weights};
use std::borrow::Cow;
use std::ops::Range;

/// A segment and its plan; implements the evaluator's [`Weights`].
#[derive(Clone, Copy, Debug)]
pub struct Dequantized<'a> {
    plan: &'a SegmentPlan,
    segment: &'a [u8],
}

impl<'a> Dequantized<'a> {
    /// A segment that `quantize` wrote by `plan`; it may be mapped, nothing is read yet.
    ///
    /// # Errors
    /// A segment of another length, a plan that contradicts itself.
    pub fn new(plan: &'a SegmentPlan, segment: &'a [u8]) -> Result<Dequantized<'a>, QuantizeError> {
        let (expected, found) = (plan.bytes, segment.len() as u64);
        if expected != found {
            return Err(QuantizeError::SegmentLength { expected, found });
        }
        for (entry, weight) in plan.entries.iter().enumerate() {
            let inside = weight.offset.checked_add(weight.bytes).is_some_and(|end| end <= plan.bytes);
            if !inside || weight.storage.bytes(&weight.shape) != Some(weight.bytes) {
                let difference = format!("{} has the wrong place", weight.role);
                return Err(QuantizeError::PlanMismatch { entry, difference });
            }
        }
        Ok(Dequantized { plan, segment })
    }

    fn entry(&self, role: &str) -> Result<(&'a PlanEntry, &'a [u8]), QuantizeError> {
        let Some(entry) = self.plan.entry(role) else {
            let known = self.plan.entries.iter().map(|entry| entry.role.clone()).collect();
            return Err(QuantizeError::UnknownRole { role: role.into(), known });
        };
        Ok((entry, &self.segment[entry.offset as usize..][..entry.bytes as usize]))
    }

    /// All elements of a weight, row-major.
    ///
    /// # Errors
    /// A role that the plan lacks.
    pub fn elements(&self, role: &str) -> Result<Vec<f64>, QuantizeError> {
        let (entry, bytes) = self.entry(role)?;
        let count = entry.shape.iter().product();
        let mut out = Vec::with_capacity(count as usize);
        decode(entry, bytes, 0..count, &mut out);
        Ok(out)
    }

    /// Rows of a weight seen as rows of `row_len` elements, in the order asked.
    ///
    /// # Errors
    /// A role that the plan lacks, a row that the weight lacks.
    pub fn chosen(&self, role: &str, rows: &[usize], row_len: usize) -> Result<Vec<f64>, QuantizeError> {
        let (entry, bytes) = self.entry(role)?;
        let row_len = row_len as u64;
        let count = entry.shape.iter().product::<u64>().checked_div(row_len).unwrap_or(0);
        let mut out = Vec::with_capacity(rows.len() * row_len as usize);
        for &row in rows {
            if row as u64 >= count {
                return Err(QuantizeError::NoSuchRow { role: role.into(), row, rows: count });
            }
            decode(entry, bytes, row as u64 * row_len..(row as u64 + 1) * row_len, &mut out);
        }
        Ok(out)
    }
}

impl Weights for Dequantized<'_> {
    fn tensor(&self, name: &str) -> Result<Cow<'_, [f64]>, EvalError> {
        self.elements(name).map(Cow::Owned).map_err(|error| eval_error(name, &error))
    }

    fn rows(&self, name: &str, rows: &[usize], row_len: usize) -> Result<Cow<'_, [f64]>, EvalError> {
        self.chosen(name, rows, row_len).map(Cow::Owned).map_err(|error| eval_error(name, &error))
    }
}

fn eval_error(name: &str, error: &QuantizeError) -> EvalError {
    match error {
        QuantizeError::UnknownRole { .. } => EvalError::MissingWeight { name: name.into() },
        other => EvalError::Weight { name: name.into(), reason: other.to_string() },
    }
}

/// Appends elements `range` of a weight that lies in `bytes`.
fn decode(entry: &PlanEntry, bytes: &[u8], range: Range<u64>, out: &mut Vec<f64>) {
    let [_, rows, cols] = dims(&entry.shape);
    if let Storage::Vector(format) = entry.storage {
        let size = format.bytes();
        floats(format, &bytes[(range.start * size) as usize..(range.end * size) as usize], out);
        return;
    }
    // Whole stored rows are decoded; of the first and the last the range may ask for a part.
    let mut row_out = Vec::with_capacity(cols as usize);
    for row in range.start / cols..range.end.div_ceil(cols) {
        row_out.clear();
        match entry.storage {
            Storage::Matrix(format) | Storage::Experts(format) => {
                let layout = MatrixLayout { rows, cols, format };
                let matrix = &bytes[(row / rows * layout.bytes()) as usize..];
                matrix_row(&layout, matrix, row % rows, &mut row_out);
            }
            Storage::Table { element, scaling } => {
                table_row(&TableLayout { rows, cols, element, scaling }, bytes, row, &mut row_out);
            }
            Storage::Vector(_) => {}
        }
        let from = range.start.saturating_sub(row * cols).min(cols);
        let to = (range.end - row * cols).min(cols);
        out.extend_from_slice(&row_out[from as usize..to as usize]);
    }
}

fn matrix_row(layout: &MatrixLayout, matrix: &[u8], row: u64, out: &mut Vec<f64>) {
    let (tile, row) = (row / TILE_ROWS, row % TILE_ROWS);
    let padded = layout.tile_rows(tile);
    let bytes = &matrix[layout.tile_offset(tile) as usize..][..layout.tile_bytes(tile) as usize];
    let (scales, rest) = bytes.split_at(layout.scale_bytes(padded) as usize);
    let (zeros, vectors) = rest.split_at(layout.zero_bytes(padded) as usize);
    let place = (row / LANES * 64 + row % LANES * 4) as usize;
    let dwords = vectors.chunks_exact((padded / LANES * 64) as usize).map(|step| {
        let dword: [u8; 4] = [step[place], step[place + 1], step[place + 2], step[place + 3]];
        dword
    });
    let cols = layout.cols as usize;
    let Some(scaling) = layout.format.scaling else {
        let halves =
            dwords.flat_map(|d| [f16::from_le_bytes([d[0], d[1]]), f16::from_le_bytes([d[2], d[3]])]);
        out.extend(halves.take(cols).map(f64::from));
        return;
    };
    let mut q: Vec<i8> = Vec::with_capacity(cols + 8);
    match layout.format.weight {
        WeightFormat::I4 => {
            for dword in dwords {
                // A shift to the top and back extends the sign.
                q.extend(dword.map(|byte| (byte << 4) as i8 >> 4));
                q.extend(dword.map(|byte| byte as i8 >> 4));
            }
        }
        _ => dwords.for_each(|dword| q.extend(dword.map(|byte| byte as i8))),
    }
    for (group, q) in q[..cols].chunks(scaling.group as usize).enumerate() {
        let at = group * padded as usize + row as usize;
        let zero = if scaling.zero { i32::from(zeros[at] as i8) } else { 0 };
        let scale = scale_at(scaling, scales, at);
        out.extend(q.iter().map(|&q| f64::from((i32::from(q) - zero) as f32 * scale)));
    }
}

fn table_row(layout: &TableLayout, bytes: &[u8], row: u64, out: &mut Vec<f64>) {
    let bytes = &bytes[(row * layout.row_bytes()) as usize..][..layout.row_bytes() as usize];
    let elements = &bytes[..(layout.cols * layout.element.bytes()) as usize];
    let Some(scaling) = layout.scaling else { return floats(layout.element, elements, out) };
    let scales = &bytes[layout.scale_offset() as usize..];
    for (group, q) in elements.chunks(scaling.group as usize).enumerate() {
        let scale = scale_at(scaling, scales, group);
        out.extend(q.iter().map(|&q| f64::from(f32::from(q as i8) * scale)));
    }
}

fn scale_at(scaling: Scaling, scales: &[u8], at: usize) -> f32 {
    match scaling.scale {
        Format::F16 => f16::from_le_bytes([scales[at * 2], scales[at * 2 + 1]]).to_f32(),
        _ => f32::from_le_bytes([scales[at * 4], scales[at * 4 + 1], scales[at * 4 + 2], scales[at * 4 + 3]]),
    }
}

fn floats(format: Format, bytes: &[u8], out: &mut Vec<f64>) {
    match format {
        Format::F16 => out.extend(bytes.as_chunks().0.iter().map(|&b| f64::from(f16::from_le_bytes(b)))),
        Format::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|&b| f64::from(bf16::from_le_bytes(b)))),
        _ => out.extend(bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b)))),
    }
}
