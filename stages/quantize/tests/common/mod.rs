//! Tensors in memory by digest, and a layer of one weight.
#![allow(dead_code, reason = "each test uses some of it")]

use mica_device::segment::SegmentPlan;
use mica_models::analysis::WeightUse;
use mica_pack::{Digest, Dtype, PackedLayer, PackedTensor, Source};
use mica_quantize::{
    ComponentFormat, Group, QuantizeError, Recipe, Rule, ScaleFormat, TensorBytes, TensorFigures, plan,
    quantize_in_memory,
};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// Contents by digest.
#[derive(Clone, Default)]
pub struct Tensors(pub HashMap<Digest, Vec<u8>>);

impl Tensors {
    pub fn add(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Source {
        assert_eq!(shape.iter().product::<u64>() * dtype.bytes(), bytes.len() as u64);
        let digest = blake3::hash(&[dtype.name().as_bytes(), &bytes].concat());
        self.0.insert(digest, bytes);
        Source { digest, dtype, shape: shape.into() }
    }
}

impl TensorBytes for Tensors {
    fn bytes(&self, source: &Source, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let all = self.0.get(&source.digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Cow::Borrowed(&all[range.start as usize..range.end as usize]))
    }
}

pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
}

pub fn f16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn i8_bytes(values: &[i8]) -> Vec<u8> {
    values.iter().map(|&x| x as u8).collect()
}

/// A weight called `w`.
pub fn weight(weight_use: WeightUse, shape: &[u64], data: Source) -> PackedTensor {
    PackedTensor { role: "w".into(), weight_use, shape: shape.into(), data, scale: None, zero: None }
}

pub fn layer(tensors: Vec<PackedTensor>) -> PackedLayer {
    PackedLayer { kind: "test".into(), fused: Vec::new(), tensors }
}

pub fn recipe(rules: &[(&str, ComponentFormat)]) -> Recipe {
    let rule =
        |(pattern, format): &(&str, ComponentFormat)| Rule { pattern: (*pattern).into(), format: *format };
    Recipe { rules: rules.iter().map(rule).collect() }
}

pub fn i4(group: Group, scale: ScaleFormat) -> ComponentFormat {
    ComponentFormat::I4 { group, scale }
}

pub fn i8(group: Group, scale: ScaleFormat) -> ComponentFormat {
    ComponentFormat::I8 { group, scale }
}

/// The default of the shipped workspace in spirit: experts i4, projections i8, the rest f16 and f32.
pub fn usual() -> Recipe {
    recipe(&[
        ("mlp.experts.*", i4(Group::Of(32), ScaleFormat::F16)),
        ("mlp.gate.weight", ComponentFormat::F16),
        ("mlp.shared_expert_gate.weight", ComponentFormat::F16),
        ("linear_attn.in_proj_a.weight", ComponentFormat::F16),
        ("linear_attn.in_proj_b.weight", ComponentFormat::F16),
        ("embed_tokens.weight", i8(Group::Row, ScaleFormat::F32)),
        ("*_proj*.weight", i8(Group::Row, ScaleFormat::F32)),
        ("lm_head.weight", i8(Group::Row, ScaleFormat::F32)),
        ("*", ComponentFormat::F32),
    ])
}

pub struct Written {
    pub plan: SegmentPlan,
    pub segment: Vec<u8>,
    pub figures: Vec<TensorFigures>,
}

pub fn written(
    layer: &PackedLayer,
    recipe: &Recipe,
    bytes: &dyn TensorBytes,
) -> Result<Written, QuantizeError> {
    let plan = plan(layer, recipe)?;
    let (segment, figures) = quantize_in_memory(layer, &plan, bytes, false)?;
    Ok(Written { plan, segment, figures })
}
