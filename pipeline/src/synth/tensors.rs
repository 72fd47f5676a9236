//! Which tensors a delivery has: names and shapes from the model's own description, values by statistics.

use super::files::bytes;
use super::statistics::{RowsApart, Stated};
use super::values::Apart;
use super::values::Float;
use super::{Codes, Profile, Stream, SynthError, Values, statistics};
use mica_models::analysis::{WeightUse, weight_uses};
use mica_models::naming::{SourceForm, WeightSource, expert_name, sources};
use mica_models::{Part, Stack};

/// Inputs that share a scale in experts of four bits.
pub const GROUP: u32 = 128;

/// What form a delivery takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Seed of all numbers.
    pub seed: u64,
    /// Experts of 4 and projections, embedding and head of 8 bits, with scales; else bfloat16.
    pub quantized: bool,
    /// Quantized experts one by one, eight weights a 32-bit word, instead of 8-bit containers.
    pub packed: bool,
    /// Layers whose bytes differ; layer i has those of layer i modulo this.
    pub distinct: Option<usize>,
    /// How the numbers are distributed.
    pub profile: Profile,
}

/// One tensor of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The element type as a header states it.
    pub dtype: &'static str,
    /// Outermost first.
    pub shape: Vec<u64>,
    /// Its elements.
    pub values: Values,
    /// Where they come from.
    pub stream: Stream,
    /// Its first element in the stream.
    pub first: u64,
}

impl Tensor {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        bytes(self.dtype, &self.shape)
    }
}

/// The tensors of a part.
pub fn tensors(stack: &Stack, part: Part, form: &Form) -> Result<Vec<Tensor>, SynthError> {
    let uses = weight_uses(stack.function(part)?);
    // the layer whose numbers this one has
    let like = match (part, form.distinct) {
        (Part::Layer(i), Some(distinct)) => Part::Layer(i % distinct),
        _ => part,
    };
    let mut all = Vec::new();
    for (source, like_source) in sources(stack, part)?.iter().zip(sources(stack, like)?) {
        let usage = uses.get(&source.role).copied().unwrap_or(WeightUse::Vector);
        let shape = &source.published_shape;
        let stated = statistics::of(form.profile, like, &source.role, shape, stack.facts.hidden)
            .ok_or_else(|| SynthError::Statistics { role: source.role.clone() })?;
        // the usual name of the weight whose numbers this one has
        let mut numbers = whole(&like_source);
        if let Some(role) = stated.numbers_of {
            numbers = numbers.replace(&source.role, role);
        }
        let (name, stream) = (whole(source), Stream::new(form.seed, &numbers));
        let floats = stated.floats || statistics::decides(&source.role);
        let codes = statistics::codes(form.profile);
        let w = Weight { source, numbers, name, stream, stated, codes, seed: form.seed };
        if usage == WeightUse::Experts
            && form.quantized
            && let Some(columns) = shape.last().filter(|n| !n.is_multiple_of(GROUP.into()))
        {
            return Err(SynthError::Group { columns: *columns });
        }
        match usage {
            WeightUse::Experts if form.quantized && form.packed => w.packed(&mut all),
            WeightUse::Experts if form.quantized => {
                w.quantized(Values::Nibbles(codes), 8.0, GROUP.into(), Float::F16, &mut all);
            }
            // the routers and the gates decide, and stay as they are
            WeightUse::Matrix | WeightUse::Table if form.quantized && !floats => {
                let cols = source.published_shape.last().copied().unwrap_or(1);
                w.quantized(Values::Bytes, 128.0, cols, Float::F32, &mut all);
            }
            _ => all.push(w.float()),
        }
    }
    Ok(all)
}

/// The usual name of a weight that is one tensor.
fn whole(source: &WeightSource) -> String {
    let names = source.forms.iter().find_map(|f| match f {
        SourceForm::Whole { names } => names.first(),
        SourceForm::PerExpert { .. } => None,
    });
    names.unwrap_or(&source.role).clone()
}

struct Weight<'a> {
    source: &'a WeightSource,
    numbers: String,
    name: String,
    stream: Stream,
    stated: Stated,
    codes: Codes,
    seed: u64,
}

impl Weight<'_> {
    fn float(&self) -> Tensor {
        let (dtype, float) = match self.source.dtype {
            mica_models::hir::Dtype::F32 => ("F32", Float::F32),
            _ => ("BF16", Float::Bf16),
        };
        Tensor {
            name: self.name.clone(),
            dtype,
            shape: self.source.published_shape.clone(),
            values: self.uniform(float),
            stream: self.stream,
            first: 0,
        }
    }

    /// The scales' values, so many a row: the step of integers that reach to ±`top`, a quarter up or down.
    fn scales(&self, top: f32, row: u64, float: Float) -> Values {
        let values = |scale: f32| (scale / top / 4.0, scale / top);
        let (scale, offset) = values(self.stated.scale);
        let own = self.stated.rows.iter().map(|r| (r, values(r.scale)));
        Values::Uniform { scale, offset, float, apart: apart(own, row) }
    }

    fn scale_stream(&self) -> Stream {
        Stream::new(self.seed, &scale_name(&self.numbers))
    }

    /// Values as stated.
    fn uniform(&self, float: Float) -> Values {
        let Stated { scale, offset, rows, .. } = &self.stated;
        // an element of a vector is a row
        let row = match self.source.published_shape.as_slice() {
            [.., _, columns] => *columns,
            _ => 1,
        };
        let own = rows.iter().map(|r| (r, (r.scale, r.offset)));
        Values::Uniform { scale: *scale, offset: *offset, float, apart: apart(own, row) }
    }

    /// Integers and their scales, `group` columns each.
    fn quantized(&self, values: Values, top: f32, group: u64, float: Float, all: &mut Vec<Tensor>) {
        let shape = self.source.published_shape.clone();
        let mut scales = shape.clone();
        let row = shape.last().copied().unwrap_or(1) / group;
        if let Some(last) = scales.last_mut() {
            *last = row;
        }
        let dtype = if float == Float::F16 { "F16" } else { "F32" };
        all.push(Tensor {
            name: self.name.clone(),
            dtype: "I8",
            shape,
            values,
            stream: self.stream,
            first: 0,
        });
        all.push(Tensor {
            name: scale_name(&self.name),
            dtype,
            shape: scales,
            values: self.scales(top, row, float),
            stream: self.scale_stream(),
            first: 0,
        });
    }

    /// The same experts, one by one and packed: values, scales and shape of each piece.
    fn packed(&self, all: &mut Vec<Tensor>) {
        let Some((experts, piece, templates)) = self.source.forms.iter().find_map(|f| match f {
            SourceForm::PerExpert { experts, piece_shape, templates } => {
                Some((*experts, piece_shape, templates.first()?))
            }
            SourceForm::Whole { .. } => None,
        }) else {
            return self.quantized(Values::Nibbles(self.codes), 8.0, GROUP.into(), Float::F16, all);
        };
        let (rows, cols) = (piece[0], piece[1]);
        let groups = cols / u64::from(GROUP);
        let scales = self.scales(8.0, groups, Float::F16);
        let pieces = (0..experts).flat_map(|e| templates.iter().map(move |t| expert_name(t, e)));
        for (n, name) in (0..).zip(pieces) {
            let base = name.strip_suffix(".weight").unwrap_or(&name);
            let row = n * rows;
            let tensor = |ending: &str, dtype, shape, values, stream, first| Tensor {
                name: format!("{base}.{ending}"),
                dtype,
                shape,
                values,
                stream,
                first,
            };
            all.extend([
                tensor(
                    "weight_packed",
                    "I32",
                    vec![rows, cols / 8],
                    Values::Packed(self.codes),
                    self.stream,
                    row * cols,
                ),
                tensor(
                    "weight_scale",
                    "F16",
                    vec![rows, groups],
                    scales.clone(),
                    self.scale_stream(),
                    row * groups,
                ),
                tensor(
                    "weight_shape",
                    "I64",
                    vec![2],
                    Values::Given(vec![rows as i64, cols as i64]),
                    self.stream,
                    0,
                ),
            ]);
        }
    }
}

/// Rows apart as elements, `row` a row, each with its own scale and offset.
fn apart<'a>(rows: impl Iterator<Item = (&'a RowsApart, (f32, f32))>, row: u64) -> Vec<Apart> {
    let one = |(r, (scale, offset)): (&RowsApart, (f32, f32))| Apart {
        every: r.every * row,
        places: r.row * row..(r.row + 1) * row,
        scale,
        offset,
    };
    rows.map(one).collect()
}

/// The name of a tensor's scales.
fn scale_name(tensor: &str) -> String {
    format!("{}.w_scale", tensor.strip_suffix(".weight").unwrap_or(tensor))
}
