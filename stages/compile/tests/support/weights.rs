//! Random weights: the constant segment in device order, and the exact values that it stands for.

use super::Lcg;
use half::f16;
use mica_device::format::Format;
use mica_device::layout::{LANES, MatrixFormat, MatrixLayout, Scaling, TILE_ROWS, TableLayout, WeightFormat};
use mica_device::segment::{SegmentPlan, Storage};
use mica_models::hir::{Function, Op, Param, ParamKind};
use std::collections::BTreeMap;

pub struct Weights {
    pub plan: SegmentPlan,
    pub bytes: Vec<u8>,
    pub values: BTreeMap<String, Vec<f64>>,
}

/// How the tests store a weight: experts i4, projections i8 by row, what is small or sensitive f16.
pub fn storage(f: &Function, p: &Param, shape: &[u64]) -> Storage {
    let scaling = |group: u64, scale| Some(Scaling { group: group as u32, scale, zero: false });
    let table = f.nodes.iter().any(|n| {
        n.op == Op::IndexSelect
            && n.inputs[0].0 < f.params.len() as u32
            && f.params[n.inputs[0].0 as usize].name == p.name
    });
    match *shape {
        [_, _, _] => {
            Storage::Experts(MatrixFormat { weight: WeightFormat::I4, scaling: scaling(32, Format::F16) })
        }
        [_, cols] if table => Storage::Table { element: Format::I8, scaling: scaling(cols, Format::F16) },
        [_, _] if p.name.contains("conv1d") => Storage::Vector(Format::F32),
        [rows, _] if rows < 64 || p.name.ends_with("gate.weight") => {
            Storage::Matrix(MatrixFormat { weight: WeightFormat::F16, scaling: None })
        }
        [_, cols] => {
            Storage::Matrix(MatrixFormat { weight: WeightFormat::I8, scaling: scaling(cols, Format::F32) })
        }
        _ => Storage::Vector(Format::F32),
    }
}

pub fn plan(f: &Function) -> SegmentPlan {
    let mut plan = SegmentPlan::default();
    for p in f.params.iter().filter(|p| p.kind == ParamKind::Const) {
        let shape = p.ty.known_shape().unwrap();
        assert!(plan.push(&p.name, &shape, storage(f, p, &shape)));
    }
    plan
}

/// Weights of a function, chosen so that values keep about their size through a layer.
pub fn random(f: &Function, seed: u64) -> Weights {
    let plan = plan(f);
    let mut w = Weights { bytes: vec![0; plan.bytes as usize], values: BTreeMap::new(), plan };
    let mut rng = Lcg(seed);
    for e in w.plan.entries.clone() {
        let out = &mut w.bytes[e.offset as usize..(e.offset + e.bytes) as usize];
        let count = e.shape.iter().product::<u64>() as usize;
        let values = match (e.storage, e.shape.as_slice()) {
            (Storage::Vector(_), _) => {
                let values: Vec<f32> = (0..count).map(|_| (rng.unit() * 0.5) as f32).collect();
                out.copy_from_slice(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
                values.into_iter().map(f64::from).collect()
            }
            (Storage::Matrix(format), &[rows, cols]) => {
                matrix(&mut rng, &MatrixLayout { rows, cols, format }, out)
            }
            (Storage::Experts(format), &[n, rows, cols]) => {
                let m = MatrixLayout { rows, cols, format };
                let bytes = m.bytes() as usize;
                (0..n as usize).flat_map(|i| matrix(&mut rng, &m, &mut out[i * bytes..][..bytes])).collect()
            }
            (Storage::Table { element, scaling }, &[rows, cols]) => {
                table(&mut rng, &TableLayout { rows, cols, element, scaling }, out)
            }
            (storage, shape) => panic!("{storage:?} of {shape:?}"),
        };
        w.values.insert(e.role, values);
    }
    w
}

fn scale_bytes(scale: Format, v: f64) -> (Vec<u8>, f64) {
    match scale {
        Format::F16 => (f16::from_f64(v).to_le_bytes().to_vec(), f16::from_f64(v).to_f64()),
        _ => ((v as f32).to_le_bytes().to_vec(), f64::from(v as f32)),
    }
}

/// Fills a tiled matrix; its values in row-major order.
fn matrix(rng: &mut Lcg, m: &MatrixLayout, out: &mut [u8]) -> Vec<f64> {
    let (rows, cols) = (m.rows as usize, m.cols as usize);
    let spread = (3.0 / m.cols as f64).sqrt();
    let mut values = vec![0.0; rows * cols];
    for t in 0..m.tiles() {
        let tile = &mut out[m.tile_offset(t) as usize..][..m.tile_bytes(t) as usize];
        let padded = m.tile_rows(t);
        let data = (m.scale_bytes(padded) + m.zero_bytes(padded)) as usize;
        for r in 0..padded {
            let row = (t * TILE_ROWS + r) as usize;
            if row >= rows {
                continue;
            }
            let mut scale = 1.0;
            for c in 0..cols {
                if let Some(s) = m.format.scaling
                    && (c as u64).is_multiple_of(u64::from(s.group))
                {
                    let top = if m.format.weight == WeightFormat::I4 { 7.0 } else { 127.0 };
                    let group = c as u64 / u64::from(s.group);
                    let (b, exact) = scale_bytes(s.scale, spread / top * (1.0 + 0.3 * rng.unit()));
                    let at = ((group * padded + r) * s.scale.bytes()) as usize;
                    tile[at..at + b.len()].copy_from_slice(&b);
                    scale = exact;
                }
                let step = m.format.weight.step();
                let vector = (c as u64 / step) * (padded / LANES) + r / LANES;
                let dword = data + (vector * 64 + r % LANES * 4) as usize;
                let i = (c as u64 % step) as usize;
                let v = &mut values[row * cols + c];
                match m.format.weight {
                    WeightFormat::F16 => {
                        let h = f16::from_f64(rng.unit() * spread);
                        tile[dword + 2 * i..][..2].copy_from_slice(&h.to_le_bytes());
                        *v = h.to_f64();
                    }
                    WeightFormat::I8 => {
                        let q = (rng.bits() % 255) as i32 - 127;
                        tile[dword + i] = q as u8;
                        *v = f64::from(q) * scale;
                    }
                    WeightFormat::I4 => {
                        let q = (rng.bits() % 16) as i32 - 8;
                        tile[dword + i % 4] |= (q as u8 & 15) << (i / 4 * 4);
                        *v = f64::from(q) * scale;
                    }
                }
            }
        }
    }
    values
}

fn table(rng: &mut Lcg, t: &TableLayout, out: &mut [u8]) -> Vec<f64> {
    let scaling = t.scaling.unwrap();
    let mut values = Vec::new();
    for row in out.chunks_mut(t.row_bytes() as usize) {
        let (b, exact) = scale_bytes(scaling.scale, 1.0 / 127.0);
        for byte in &mut row[..t.cols as usize] {
            let q = (rng.bits() % 255) as i32 - 127;
            *byte = q as u8;
            values.push(f64::from(q) * exact);
        }
        row[t.scale_offset() as usize..][..b.len()].copy_from_slice(&b);
    }
    values
}
