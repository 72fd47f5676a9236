//! Weights whose integers are packed in words: which tensors go together, and whether their shapes and the
//! delivery's quantization configuration say the same.

use super::{Ending, Finder, Found, ResolvedRole, Virtual, beside};
use crate::error::PackError;
use crate::scheme::{Described, Scheme};
use crate::words::{Packing, Unpack};
use mica_dtype::Dtype;
use mica_models::analysis::WeightUse;
use mica_models::naming::WeightSource;

const SCALES: &[Dtype] = &[Dtype::F16, Dtype::BF16, Dtype::F32];
const WORDS: &[Dtype] = &[Dtype::I32];

/// One kind of tensor that goes with a weight.
struct Companion<'a> {
    ending: &'a str,
    dtypes: &'a [Dtype],
    expected: &'static str,
}

const fn companion<'a>(ending: &'a str, dtypes: &'a [Dtype], expected: &'static str) -> Companion<'a> {
    Companion { ending, dtypes, expected }
}

impl Finder<'_> {
    pub(super) fn packed(
        &self,
        source: WeightSource,
        weight_use: WeightUse,
        found: &Found,
    ) -> Result<ResolvedRole, PackError> {
        let (role, tensor) = (&source.role, found.ending.spell(&found.pieces[0]));
        let refused = |why| {
            let (part, role, tensor) = (self.part.to_string(), role.clone(), tensor.clone());
            Err(PackError::Quantized { part, role, tensor, why })
        };
        if weight_use == WeightUse::Vector {
            return refused("only matrices, experts and tables have a quantized form");
        }
        if source.converter.is_some() {
            return refused("the model lays it out anew, which would part weights and scales");
        }
        let [rows, cols] = found.shape[..] else {
            return refused("only a matrix of its own, or expert by expert, can be packed");
        };
        let (packing, described, reordered) = self.scheme(role, &tensor, found.ending)?;
        let ct = packing == Packing::CompressedTensors;
        let words = |ending, expected| companion(ending, WORDS, expected);

        let (scale_name, axis) = if ct { ("weight_scale", 1) } else { ("scales", 0) };
        let scale = companion(scale_name, SCALES, "a scale of F16, BF16 or F32");
        let first = self.piece(role, &beside(&found.pieces[0], scale.ending))?;
        let groups = first.shape.get(axis).copied().unwrap_or(0);
        if groups == 0 || !cols.is_multiple_of(groups) {
            let expected = format!("scaled by groups that divide {cols} columns");
            return Err(self.shape(role, &beside(&found.pieces[0], scale.ending), first.shape, expected));
        }
        let zero_words = if ct { "weight_zero_point" } else { "qzeros" };
        let zero_info = self.names.find(&beside(&found.pieces[0], zero_words));
        let bits = self.bits(&packing, &described, found, [rows, cols]);
        let unpack = Unpack { packing, bits, rows, cols, groups, symmetric: described[0].symmetric };

        // What the tensors are, as the configuration would describe it.
        let is = Described { bits, group: (groups > 1).then(|| cols / groups), symmetric: unpack.symmetric };
        let is = if ct { Described { symmetric: zero_info.is_none(), ..is } } else { is };
        let same = |said: &&Described| Described { group: said.group.filter(|&g| g != cols), ..**said } == is;
        if !described.iter().any(|said| same(&said)) {
            return Err(PackError::SchemeDiffers {
                role: role.clone(),
                tensor,
                found: is,
                said: described.iter().map(Described::to_string).collect::<Vec<_>>().join("; "),
            });
        }
        let unpack = Unpack { symmetric: is.symmetric, ..unpack };

        let per = unpack.per_word();
        let (data_shape, scale_shape, zero_shape) = match packing {
            Packing::CompressedTensors => {
                ([rows, cols.div_ceil(per)], [rows, groups], [rows.div_ceil(per), groups])
            }
            Packing::Gptq { .. } => ([cols / per, rows], [groups, rows], [groups, rows / per]),
            Packing::Awq => ([cols, rows / per], [groups, rows], [groups, rows / per]),
        };
        // A word that is not full would belong to two matrices' rows.
        let whole = match packing {
            Packing::CompressedTensors => true,
            Packing::Gptq { .. } => rows.is_multiple_of(per) && cols.is_multiple_of(per),
            Packing::Awq => rows.is_multiple_of(per),
        };
        if !whole {
            return refused("its rows or columns do not fill words");
        }
        let data_name = if ct { "weight_packed" } else { "qweight" };
        let data = self.stored(role, found, &words(data_name, "packed words, I32"), &data_shape)?;
        let scale = self.stored(role, found, &scale, &scale_shape)?;
        let zero = match zero_info {
            // An older form of compressed-tensors does not pack them.
            Some(info) if ct && info.dtype == Dtype::I8 => {
                let plain = companion(zero_words, &[Dtype::I8], "zero points of I8, or packed");
                Some(self.stored(role, found, &plain, &scale_shape)?)
            }
            None if ct => None,
            _ => {
                Some(self.stored(role, found, &words(zero_words, "packed zero points, I32"), &zero_shape)?)
            }
        };
        let order = companion(if ct { "weight_g_idx" } else { "g_idx" }, WORDS, "group numbers, I32");
        let order = match reordered {
            true => Some(self.stored(role, found, &order, &[cols])?),
            false => self.optional(role, found, &order, &[cols])?,
        };
        let stated = companion("weight_shape", &[Dtype::I64, Dtype::I32], "a shape of I64 or I32");
        let stated = if ct { self.optional(role, found, &stated, &[2])? } else { None };
        // What needs no unpacking is the weight's own, of its shape but for the last axis.
        let canonical = |tensor: Virtual, columns: u64| {
            let mut shape = source.published_shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = columns;
            }
            Virtual { shape, ..tensor }
        };
        Ok(ResolvedRole {
            role: source.role.clone(),
            weight_use,
            data: if ct { canonical(data, data_shape[1]) } else { data },
            scale: Some(if unpack.transposed() { scale } else { canonical(scale, groups) }),
            zero,
            unpack: Some(unpack),
            order,
            stated,
            converter: None,
            shape: source.shape,
        })
    }

    /// The packing that the configuration says, and what it says of matrices.
    fn scheme(
        &self,
        role: &str,
        tensor: &str,
        ending: Ending,
    ) -> Result<(Packing, Vec<Described>, bool), PackError> {
        match (ending, self.names.scheme()) {
            (Ending::WeightPacked, Some(Scheme::CompressedTensors(described))) => {
                Ok((Packing::CompressedTensors, described.clone(), false))
            }
            (Ending::Qweight, Some(&Scheme::Gptq { described, zero_less_one, reordered })) => {
                Ok((Packing::Gptq { zero_less_one }, vec![described], reordered))
            }
            (Ending::Qweight, Some(&Scheme::Awq(described))) => Ok((Packing::Awq, vec![described], false)),
            (ending, said) => Err(PackError::NoScheme {
                part: self.part.to_string(),
                role: role.into(),
                tensor: tensor.into(),
                said: said.map_or("nothing".into(), ToString::to_string),
                expected: if ending == Ending::WeightPacked { "compressed-tensors" } else { "GPTQ or AWQ" },
            }),
        }
    }

    /// Bits of an integer: as said, or where several groups say several, as the words' shape has them.
    fn bits(&self, packing: &Packing, described: &[Described], found: &Found, [_, cols]: [u64; 2]) -> u32 {
        let info = self.names.find(&found.ending.spell(&found.pieces[0]));
        let words = info.and_then(|info| info.shape.get(1).copied()).unwrap_or(0);
        let fits = |said: &&Described| cols.div_ceil(u64::from(32 / said.bits)) == words;
        let all = described.iter();
        let fitting = all.clone().find(|said| *packing == Packing::CompressedTensors && fits(said));
        fitting.or(all.clone().next()).map_or(4, |said| said.bits)
    }

    /// A tensor beside every piece, each of this shape and all of one dtype.
    fn stored(
        &self,
        role: &str,
        found: &Found,
        companion: &Companion<'_>,
        shape: &[u64],
    ) -> Result<Virtual, PackError> {
        let pieces: Vec<String> = found.pieces.iter().map(|piece| beside(piece, companion.ending)).collect();
        let mut dtype = None;
        for tensor in &pieces {
            let info = self.piece(role, tensor)?;
            if !companion.dtypes.contains(&info.dtype) {
                let (part, role, tensor) = (self.part.to_string(), role.into(), tensor.clone());
                let expected = companion.expected;
                return Err(PackError::Dtype { part, role, tensor, found: info.dtype, expected });
            }
            if info.shape != shape {
                return Err(self.shape(role, tensor, info.shape, format!("{shape:?} by its packing")));
            }
            self.same_dtype(role, &pieces[0], *dtype.get_or_insert(info.dtype), tensor, info.dtype)?;
        }
        let shape = match pieces.len() {
            1 => shape.to_vec(),
            n => [&[n as u64], shape].concat(),
        };
        Ok(Virtual { dtype: dtype.unwrap_or(Dtype::I32), pieces, shape })
    }

    /// The same, if it is there beside any piece.
    fn optional(
        &self,
        role: &str,
        found: &Found,
        companion: &Companion<'_>,
        shape: &[u64],
    ) -> Result<Option<Virtual>, PackError> {
        let there = |piece: &String| self.names.has(&beside(piece, companion.ending));
        match found.pieces.iter().any(there) {
            true => self.stored(role, found, companion, shape).map(Some),
            false => Ok(None),
        }
    }
}
