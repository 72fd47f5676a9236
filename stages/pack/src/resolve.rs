//! A part's weights found in a delivery by the model's names, and checked against its shapes.
//!
//! Reads the index, never a value. A weight is quantized if its scales lie beside it (`w_scale`), and packed
//! if its words are there in its place.

use crate::error::PackError;
use crate::names::{Names, TensorInfo, nearest};
use crate::packed::{PackedLayer, PackedTensor, Source};
use crate::words::Unpack;
use mica_dtype::Dtype;
use mica_models::analysis::{WeightUse, fused_groups, weight_uses};
use mica_models::hir::Function;
use mica_models::naming::{SourceForm, WeightSource, expert_name, sources};
use mica_models::stack::{Part, Stack};

mod packing;

/// A tensor as the model sees it, delivered in one piece or in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Virtual {
    /// Delivered tensors whose bytes, joined in this order, are the tensor's.
    pub pieces: Vec<String>,
    /// Its elements.
    pub dtype: Dtype,
    /// Its shape, outermost first.
    pub shape: Vec<u64>,
}

impl Virtual {
    /// One of its pieces as a tensor of its own: so many of its rows.
    pub(crate) fn piece(&self, name: &str) -> Virtual {
        let (shape, count) = (&self.shape, self.pieces.len() as u64);
        let shape = match shape.last() {
            Some(&cols) if count > 1 => vec![shape.iter().product::<u64>() / count / cols.max(1), cols],
            _ => shape.clone(),
        };
        Virtual { pieces: vec![name.into()], dtype: self.dtype, shape }
    }
}

/// A weight and the tensors that it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedRole {
    /// The weight's name within the part.
    pub role: String,
    /// What the part does with it.
    pub weight_use: WeightUse,
    /// The values, of the published shape: floats, or `I8` where `scale` is present. Words, as they are
    /// stored, where `unpack` is present.
    pub data: Virtual,
    /// Scales `[.., rows, groups]`; or as stored, where `unpack` says that they are transposed.
    pub scale: Option<Virtual>,
    /// Integer zero points of the scales' shape; as they are stored, where `unpack` is present.
    pub zero: Option<Virtual>,
    /// How to unpack what is stored.
    pub unpack: Option<Unpack>,
    /// Of a packed weight, each column's group, which has to be that of its place.
    pub order: Option<Virtual>,
    /// Of a packed weight, `[rows, cols]` of each matrix.
    pub stated: Option<Virtual>,
    /// From the published tensor to the weight; `None` where it is taken as it is.
    pub converter: Option<Function>,
    /// Shape as the part's function takes it.
    pub shape: Vec<u64>,
}

impl ResolvedRole {
    /// Every delivered tensor that the weight is made from or checked by, and what it is.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &Virtual)> {
        let optional = [
            ("scale", &self.scale),
            ("zero", &self.zero),
            ("order", &self.order),
            ("stated shape", &self.stated),
        ];
        let optional = optional.into_iter().filter_map(|(what, tensor)| Some((what, tensor.as_ref()?)));
        std::iter::once(("data", &self.data)).chain(optional)
    }

    fn outline(&self) -> PackedTensor {
        let unknown = |dtype, shape: &[u64]| Source { digest: [0; 32].into(), dtype, shape: shape.to_vec() };
        let as_stored = |v: &Virtual| unknown(v.dtype, &v.shape);
        let (data, scale, zero) = match &self.unpack {
            None => {
                (as_stored(&self.data), self.scale.as_ref().map(as_stored), self.zero.as_ref().map(as_stored))
            }
            Some(unpack) => {
                let scaled = unpack.scaled(&self.shape);
                let zero = (!unpack.symmetric).then(|| unknown(Dtype::I8, &scaled));
                let scale = self.scale.as_ref().map(|v| unknown(v.dtype, &scaled));
                (unknown(Dtype::I8, &self.shape), scale, zero)
            }
        };
        PackedTensor {
            role: self.role.clone(),
            weight_use: self.weight_use,
            shape: self.shape.clone(),
            data,
            scale,
            zero,
        }
    }
}

/// A part's weights in the order of its constant segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The part's kind: its function's name.
    pub kind: String,
    /// The fused groups of two or more, each contiguous in `roles`.
    pub fused: Vec<Vec<String>>,
    /// The weights: in the order of the function's, a fused group together where its first member stands.
    pub roles: Vec<ResolvedRole>,
    /// Every delivered tensor that the part reads.
    pub read: Vec<String>,
}

impl Resolved {
    /// The weight of a role.
    pub fn role(&self, role: &str) -> Option<&ResolvedRole> {
        self.roles.iter().find(|r| r.role == role)
    }

    /// The packed layer as far as it is known before any value is: shapes and dtypes, every digest 0. A weight
    /// that is delivered with zero points has them here, even if all of them turn out to be 0.
    pub fn outline(&self) -> PackedLayer {
        PackedLayer {
            kind: self.kind.clone(),
            fused: self.fused.clone(),
            tensors: self.roles.iter().map(ResolvedRole::outline).collect(),
        }
    }
}

/// Finds the weights of a part: under any of the model's prefixes, experts fused or one by one, floats,
/// int8 containers with scales, or integers packed in words by the delivery's [`Names::scheme`].
///
/// # Errors
/// A weight that is missing, there more than once, or of a wrong shape or dtype; scales that are missing
/// or that scale nothing. All name the part, the role and the tensors.
pub fn resolve(names: &dyn Names, stack: &Stack, part: Part) -> Result<Resolved, PackError> {
    let function = stack.function(part)?;
    let uses = weight_uses(function);
    let mut fused = fused_groups(function);
    fused.retain(|group| group.len() > 1);
    let mut waiting: Vec<Option<WeightSource>> = sources(stack, part)?.into_iter().map(Some).collect();
    let finder = Finder { names, part };
    let mut roles = Vec::with_capacity(waiting.len());
    while let Some(first) = waiting.iter().flatten().next() {
        let alone = [first.role.clone()];
        let group = fused.iter().find(|group| group.contains(&first.role)).map_or(&alone[..], |group| group);
        for role in group {
            let place = waiting.iter_mut().find(|w| w.as_ref().is_some_and(|w| w.role == *role));
            if let Some(source) = place.and_then(Option::take) {
                let weight_use = uses.get(role).copied().unwrap_or(WeightUse::Vector);
                roles.push(finder.role(source, weight_use)?);
            }
        }
    }
    let mut read = Vec::new();
    for role in &roles {
        for (_, tensor) in role.tensors() {
            read.extend(tensor.pieces.iter().cloned());
        }
    }
    Ok(Resolved { kind: function.name.clone(), fused, roles, read })
}

/// The ending of the tensor that a weight's values are in, in place of `.weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The weight itself.
    Own,
    /// compressed-tensors' words.
    WeightPacked,
    /// GPTQ's or AWQ's words.
    Qweight,
}

impl Ending {
    const ALL: [Ending; 3] = [Ending::Own, Ending::WeightPacked, Ending::Qweight];

    fn spell(self, tensor: &str) -> String {
        match self {
            Ending::Own => tensor.to_owned(),
            Ending::WeightPacked => beside(tensor, "weight_packed"),
            Ending::Qweight => beside(tensor, "qweight"),
        }
    }
}

/// The name of a tensor that goes with a weight.
fn beside(tensor: &str, ending: &str) -> String {
    format!("{}.{ending}", tensor.strip_suffix(".weight").unwrap_or(tensor))
}

/// Shape of one piece and the names of all, and under which ending they are there.
struct Found {
    pieces: Vec<String>,
    shape: Vec<u64>,
    ending: Ending,
}

struct Finder<'a> {
    names: &'a dyn Names,
    part: Part,
}

impl Finder<'_> {
    fn role(&self, source: WeightSource, weight_use: WeightUse) -> Result<ResolvedRole, PackError> {
        let found = self.locate(&source)?;
        if found.ending != Ending::Own {
            return self.packed(source, weight_use, &found);
        }
        let dtype = self.alike(&source.role, &found)?;
        let scale = self.scale(&source, weight_use, &found, dtype)?;
        Ok(ResolvedRole {
            role: source.role,
            weight_use,
            data: Virtual { pieces: found.pieces, dtype, shape: source.published_shape },
            scale,
            zero: None,
            unpack: None,
            order: None,
            stated: None,
            converter: source.converter,
            shape: source.shape,
        })
    }

    /// The one form in which the delivery has the weight.
    fn locate(&self, source: &WeightSource) -> Result<Found, PackError> {
        let mut found: Vec<(String, Found)> = Vec::new();
        let mut tried = Vec::new();
        let mut look = |some: &[String], all: &dyn Fn() -> Vec<String>, shape: &[u64]| {
            let mut any = false;
            for ending in Ending::ALL {
                let there = |piece: &String| Some(ending.spell(piece)).filter(|n| self.names.has(n));
                let Some(name) = some.iter().find_map(there) else { continue };
                any = true;
                // Names that differ in `.weight` alone have the same words.
                if found.iter().all(|(other, _)| *other != name) {
                    found.push((name, Found { pieces: all(), shape: shape.to_vec(), ending }));
                }
            }
            any
        };
        for form in &source.forms {
            match form {
                SourceForm::Whole { names } => {
                    for name in names {
                        let one = std::slice::from_ref(name);
                        look(one, &|| one.to_vec(), &source.published_shape);
                        tried.push(name.clone());
                    }
                }
                SourceForm::PerExpert { experts, piece_shape, templates } => {
                    for each in templates {
                        let name = |e| each.iter().map(move |template| expert_name(template, e));
                        // the first and the last expert stand for all, of which there may be hundreds
                        let ends = [0, experts.saturating_sub(1)];
                        let some: Vec<String> = ends.into_iter().flat_map(name).collect();
                        if !look(&some, &|| (0..*experts).flat_map(name).collect(), piece_shape) {
                            tried.extend(each.iter().map(|template| expert_name(template, 0)));
                        }
                    }
                }
            }
        }
        let (part, role) = (self.part.to_string(), source.role.clone());
        if found.len() > 1 {
            let tensors = found.into_iter().map(|(name, _)| name).collect();
            return Err(PackError::Ambiguous { part, role, tensors });
        }
        match found.pop() {
            Some((_, found)) => Ok(found),
            None => {
                let nearest = nearest(self.names, &tried);
                Err(PackError::Missing { part, role, tried, nearest })
            }
        }
    }

    /// A piece that has to be there.
    fn piece(&self, role: &str, tensor: &str) -> Result<TensorInfo, PackError> {
        self.names.find(tensor).ok_or_else(|| PackError::MissingPiece {
            part: self.part.to_string(),
            role: role.into(),
            tensor: tensor.into(),
            nearest: nearest(self.names, &[tensor.into()]),
        })
    }

    /// The dtype that all pieces have; each is of the piece's shape.
    fn alike(&self, role: &str, found: &Found) -> Result<Dtype, PackError> {
        let mut dtype = None;
        for tensor in &found.pieces {
            let info = self.piece(role, tensor)?;
            if info.shape != found.shape {
                return Err(self.shape(role, tensor, info.shape, format!("{:?}", found.shape)));
            }
            self.same_dtype(role, &found.pieces[0], *dtype.get_or_insert(info.dtype), tensor, info.dtype)?;
        }
        dtype.ok_or_else(|| self.shape(role, "no tensor", Vec::new(), "one piece or more".into()))
    }

    /// The scales of a quantized weight, `None` of another.
    fn scale(
        &self,
        source: &WeightSource,
        weight_use: WeightUse,
        found: &Found,
        dtype: Dtype,
    ) -> Result<Option<Virtual>, PackError> {
        let (part, role) = (self.part.to_string(), source.role.clone());
        let scales: Vec<String> = found.pieces.iter().map(|piece| beside(piece, "w_scale")).collect();
        let present = scales.iter().position(|scale| self.names.has(scale));
        let tensor = found.pieces[present.unwrap_or(0)].clone();
        match (dtype, present) {
            (Dtype::I8, Some(_)) => {}
            (Dtype::I8, None) => {
                let scale = scales[0].clone();
                return Err(PackError::MissingScale { part, role, tensor, found: dtype, scale });
            }
            (_, Some(at)) => {
                let scale = scales[at].clone();
                return Err(PackError::UnusedScale { part, role, tensor, found: dtype, scale });
            }
            (_, None) if dtype.is_narrow_float() => return Ok(None),
            (_, None) => {
                let expected = "F32, F16 or BF16, or I8 with scales";
                return Err(PackError::Dtype { part, role, tensor, found: dtype, expected });
            }
        }
        if weight_use == WeightUse::Vector {
            let why = "only matrices, experts and tables have a quantized form";
            return Err(PackError::Quantized { part, role, tensor, why });
        }
        if source.converter.is_some() {
            let why = "the model lays it out anew, which would part weights and scales";
            return Err(PackError::Quantized { part, role, tensor, why });
        }
        self.scales(&source.role, &source.published_shape, found, scales).map(Some)
    }

    fn scales(
        &self,
        role: &str,
        published: &[u64],
        found: &Found,
        scales: Vec<String>,
    ) -> Result<Virtual, PackError> {
        let mut first: Option<TensorInfo> = None;
        for scale in &scales {
            let info = self.piece(role, scale)?;
            let fits = match (&info.shape[..], &found.shape[..]) {
                ([lead @ .., groups], [rows @ .., cols]) => {
                    lead == rows && *groups > 0 && cols.is_multiple_of(*groups)
                }
                _ => false,
            };
            if !fits {
                let expected = format!("scaled by {:?}, the last a divisor of the weight's", found.shape);
                return Err(self.shape(role, scale, info.shape, expected));
            }
            if !info.dtype.is_narrow_float() {
                let (part, role, tensor) = (self.part.to_string(), role.into(), scale.clone());
                let expected = "a scale of F16, BF16 or F32";
                return Err(PackError::Dtype { part, role, tensor, found: info.dtype, expected });
            }
            let first = first.get_or_insert_with(|| info.clone());
            self.same_dtype(role, &scales[0], first.dtype, scale, info.dtype)?;
            if info.shape != first.shape {
                let expected = format!("scaled in other pieces by {:?}", first.shape);
                return Err(self.shape(role, scale, info.shape, expected));
            }
        }
        let Some(TensorInfo { dtype, shape }) = first else {
            return Err(self.shape(role, "no scale", Vec::new(), "one piece or more".into()));
        };
        let mut whole = published.to_vec();
        if let (Some(last), Some(groups)) = (whole.last_mut(), shape.last()) {
            *last = *groups;
        }
        Ok(Virtual { pieces: scales, dtype, shape: whole })
    }

    fn same_dtype(
        &self,
        role: &str,
        first: &str,
        expected: Dtype,
        tensor: &str,
        found: Dtype,
    ) -> Result<(), PackError> {
        if found == expected {
            return Ok(());
        }
        Err(PackError::MixedDtypes {
            part: self.part.to_string(),
            role: role.into(),
            tensor: tensor.into(),
            found,
            first: first.into(),
            expected,
        })
    }

    fn shape(&self, role: &str, tensor: &str, found: Vec<u64>, expected: String) -> PackError {
        PackError::Shape {
            part: self.part.to_string(),
            role: role.into(),
            tensor: tensor.into(),
            found,
            expected,
        }
    }
}
