//! From a packed layer and a recipe to the plan of its constant segment. Shapes, dtypes and the
//! delivery's own scheme decide; no value is looked at, so equal parts get equal plans and share code.

use crate::error::QuantizeError;
use crate::recipe::{ComponentFormat, Group, Recipe, ScaleFormat};
use mica_device::format::Format;
use mica_device::layout::{MatrixFormat, Scaling, WeightFormat};
use mica_device::segment::{SegmentPlan, Storage};
use mica_models::analysis::WeightUse;
use mica_pack::{Dtype, PackedLayer, PackedTensor, Source};

/// Where every weight of the part lies and in which format.
///
/// The recipe's rule for the role decides. A weight that is delivered quantized keeps its group size and
/// its scales' format (bfloat16 scales become binary32, exactly); the recipe only says whether its
/// containers are stored as i4 or i8.
///
/// # Errors
/// A role without a rule, a format that the weight's use or the delivery's scheme excludes, a group that
/// does not fit the row, a dtype or shape that is none of a weight's.
pub fn plan(packed: &PackedLayer, recipe: &Recipe) -> Result<SegmentPlan, QuantizeError> {
    let mut plan = SegmentPlan::default();
    for tensor in &packed.tensors {
        let Some((_, rule)) = recipe.rule(&tensor.role) else {
            return Err(QuantizeError::NoRule { role: tensor.role.clone() });
        };
        check_rank(tensor)?;
        check_sources(tensor)?;
        let storage = storage(tensor, rule.format)?;
        if !plan.push(&tensor.role, &tensor.shape, storage) {
            return Err(rank(tensor));
        }
    }
    Ok(plan)
}

/// What a recipe's rule says and the delivery has otherwise, and keeps: it is quantized already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overruled {
    /// The rule's pattern.
    pub pattern: String,
    /// The rule's word, as it is written: `group = 64`.
    pub asked: String,
    /// The same word as it would have to be.
    pub used: String,
}

/// The words of the recipe that [`plan`] goes by the delivery against, each once.
pub fn overruled(packed: &PackedLayer, recipe: &Recipe) -> Vec<Overruled> {
    let mut all = Vec::new();
    for tensor in &packed.tensors {
        let (Some(delivered), Some((_, rule))) = (&tensor.scale, recipe.rule(&tensor.role)) else { continue };
        let (ComponentFormat::I4 { group, scale } | ComponentFormat::I8 { group, scale }) = rule.format
        else {
            continue;
        };
        let [_, _, cols] = dims(&tensor.shape);
        let (columns, format) = kept(tensor, delivered);
        let mut differ = |word: &str, asked: String, used: String| {
            let [asked, used] = [asked, used].map(|value| format!("{word} = {value}"));
            all.push(Overruled { pattern: rule.pattern.clone(), asked, used });
        };
        if group.columns(cols) != columns {
            let asked = if let Group::Of(n) = group { n.to_string() } else { "\"row\"".into() };
            differ("group", asked, if columns == cols { "\"row\"".into() } else { columns.to_string() });
        }
        if Format::from(scale) != format {
            let name = |format| if format == Format::F16 { "\"f16\"" } else { "\"f32\"" };
            differ("scale", name(scale.into()).into(), name(format).into());
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Columns of a delivered group, and how its scale is stored.
fn kept(tensor: &PackedTensor, scale: &Source) -> (u64, Format) {
    let group = tensor.data.elements().checked_div(scale.elements()).unwrap_or(0);
    (group, if scale.dtype == Dtype::F16 { Format::F16 } else { Format::F32 })
}

/// `[count, rows, cols]` of a shape: everything before the last two dimensions is `count`.
pub(crate) fn dims(shape: &[u64]) -> [u64; 3] {
    match *shape {
        [] => [1, 1, 1],
        [cols] => [1, 1, cols],
        [ref count @ .., rows, cols] => [count.iter().product(), rows, cols],
    }
}

fn rank(tensor: &PackedTensor) -> QuantizeError {
    QuantizeError::Rank {
        role: tensor.role.clone(),
        weight_use: tensor.weight_use,
        shape: tensor.shape.clone(),
    }
}

fn check_rank(tensor: &PackedTensor) -> Result<(), QuantizeError> {
    let right = match tensor.weight_use {
        WeightUse::Matrix | WeightUse::Table => tensor.shape.len() == 2,
        WeightUse::Experts => tensor.shape.len() == 3,
        WeightUse::Vector => true,
    };
    if right && !tensor.shape.contains(&0) { Ok(()) } else { Err(rank(tensor)) }
}

fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))
}

fn check_sources(tensor: &PackedTensor) -> Result<(), QuantizeError> {
    let dtype = |part, found, expected| {
        Err(QuantizeError::Dtype { role: tensor.role.clone(), part, found, expected })
    };
    let shape = |part, found: &Source, expected| {
        let found = found.shape.clone();
        Err(QuantizeError::Shape { role: tensor.role.clone(), part, found, expected })
    };
    if elements(&tensor.data.shape).is_none_or(|n| Some(n) != elements(&tensor.shape)) {
        return shape("data", &tensor.data, format!("as many elements as {:?}", tensor.shape));
    }
    let Some(scale) = &tensor.scale else {
        if !tensor.data.dtype.is_narrow_float() {
            let expected = "F32, F16 or BF16, or I8 with scales";
            return dtype("data", tensor.data.dtype, expected);
        }
        if tensor.zero.is_some() {
            let why = " without scales";
            let (role, weight_use) = (tensor.role.clone(), tensor.weight_use);
            return Err(QuantizeError::ZeroPoints { role, weight_use, why });
        }
        return Ok(());
    };
    if tensor.data.dtype != Dtype::I8 {
        return dtype("data", tensor.data.dtype, "I8, since it has scales");
    }
    if !scale.dtype.is_narrow_float() {
        return dtype("scale", scale.dtype, "F16, BF16 or F32");
    }
    // The scales keep the leading dimensions and have one element a group in place of the columns.
    let fits = match (&scale.shape[..], &tensor.data.shape[..]) {
        ([lead @ .., groups], [rows @ .., cols]) => {
            lead == rows && *groups > 0 && cols.is_multiple_of(*groups)
        }
        _ => false,
    };
    if !fits {
        return shape("scale", scale, format!("{:?} with the last a divisor of it", tensor.data.shape));
    }
    match &tensor.zero {
        Some(zero) if zero.dtype != Dtype::I8 => dtype("zero point", zero.dtype, "I8"),
        Some(zero) if zero.shape != scale.shape => {
            shape("zero point", zero, format!("that of the scales, {:?}", scale.shape))
        }
        _ => Ok(()),
    }
}

fn storage(tensor: &PackedTensor, format: ComponentFormat) -> Result<Storage, QuantizeError> {
    let (role, weight_use) = (&tensor.role, tensor.weight_use);
    let not_for = |allowed| {
        let (role, format) = (role.clone(), format.name());
        Err(QuantizeError::FormatNotFor { role, weight_use, format, allowed })
    };
    let contradicts = |allowed| {
        let (role, format, found) = (role.clone(), format.name(), tensor.data.dtype);
        Err(QuantizeError::Contradicts { role, weight_use, format, found, allowed })
    };
    let quantized = tensor.scale.is_some();
    match weight_use {
        WeightUse::Matrix | WeightUse::Experts => {
            let (weight, scaling) = match format {
                ComponentFormat::I4 { group, scale } => {
                    (WeightFormat::I4, Some(scaling(tensor, group, scale)?))
                }
                ComponentFormat::I8 { group, scale } => {
                    (WeightFormat::I8, Some(scaling(tensor, group, scale)?))
                }
                ComponentFormat::F16 if quantized => return contradicts("i4 or i8"),
                ComponentFormat::F16 => (WeightFormat::F16, None),
                ComponentFormat::Bf16 | ComponentFormat::F32 => return not_for("i4, i8 or f16"),
            };
            let format = MatrixFormat { weight, scaling };
            Ok(match weight_use {
                WeightUse::Experts => Storage::Experts(format),
                _ => Storage::Matrix(format),
            })
        }
        WeightUse::Table => {
            let (element, scaling) = match format {
                ComponentFormat::I8 { group, scale } => (Format::I8, Some(scaling(tensor, group, scale)?)),
                ComponentFormat::I4 { .. } => return not_for("i8, bf16, f16 or f32"),
                _ if quantized => return contradicts("i8"),
                ComponentFormat::F16 => (Format::F16, None),
                ComponentFormat::Bf16 => (Format::Bf16, None),
                ComponentFormat::F32 => (Format::F32, None),
            };
            if tensor.zero.is_some() {
                let (role, why) = (role.clone(), "");
                return Err(QuantizeError::ZeroPoints { role, weight_use, why });
            }
            Ok(Storage::Table { element, scaling })
        }
        WeightUse::Vector => match format {
            _ if quantized => {
                let (role, found) = (role.clone(), tensor.data.dtype);
                let part = "data (a vector, which has no quantized form)";
                Err(QuantizeError::Dtype { role, part, found, expected: "F32, F16 or BF16" })
            }
            ComponentFormat::F32 => Ok(Storage::Vector(Format::F32)),
            ComponentFormat::F16 => Ok(Storage::Vector(Format::F16)),
            _ => not_for("f32 or f16"),
        },
    }
}

/// The delivery's own scaling where it has one, else the recipe's.
fn scaling(tensor: &PackedTensor, group: Group, scale: ScaleFormat) -> Result<Scaling, QuantizeError> {
    let [_, _, cols] = dims(&tensor.shape);
    let (group, scale) = match &tensor.scale {
        Some(delivered) => kept(tensor, delivered),
        None => (group.columns(cols), scale.into()),
    };
    let fits = group > 0 && cols.is_multiple_of(group) && (group == cols || group.is_multiple_of(16));
    match u32::try_from(group) {
        Ok(group) if fits => Ok(Scaling { group, scale, zero: tensor.zero.is_some() }),
        _ => Err(QuantizeError::GroupDoesNotFit { role: tensor.role.clone(), group, cols }),
    }
}
